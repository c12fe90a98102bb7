"use strict";
// A Transformer with encoder and decoder in plain JavaScript (Vaswani et al. 2017): forward, backward, updates and beam search, without DOM.
// It computes what `dragoman` computes in Python, under the same names, with 64-bit numbers; a test compares both.
//
// Vectors are rows.  A layer of a network is W of shape (out, in), so its result is X Wᵀ + b.

const engine = (() => {

// ---- matrices and their gradients -------------------------------------------------------------------------------------

// While a tape is set, each operation appends the function that adds its part to the gradients of its inputs (the chain rule).
let tape = null;

class Matrix {
  #grad = null;
  #base = null;
  constructor(rows, cols, data = new Float64Array(rows * cols)) { Object.assign(this, { rows, cols, data }); }

  get grad() {
    if (!this.#base) return (this.#grad ??= new Float64Array(this.data.length));
    const [base, from] = this.#base;
    return base.grad.subarray(from, from + this.data.length);
  }
  clearGrad() { this.#grad?.fill(0); }

  // Rows from, from + 1, ... as a matrix that shares numbers and gradients.
  rowsFrom(from, count) {
    const part = new Matrix(count, this.cols, this.data.subarray(from * this.cols, (from + count) * this.cols));
    part.#base = [this, from * this.cols];
    return part;
  }
  row(i) { return this.data.subarray(i * this.cols, (i + 1) * this.cols); }
  toArray() { return Array.from({ length: this.rows }, (_, i) => [...this.row(i)]); }
}

function record(result, back) {
  if (tape) tape.push(() => back(result.grad));
  return result;
}

// Σ_k a[i + k] b[j + k]
function dot(a, i, b, j, n) {
  let sum = 0;
  for (let k = 0; k < n; k += 1) sum += a[i + k] * b[j + k];
  return sum;
}

// y[j + k] += factor · x[i + k]
function addTo(y, j, factor, x, i, n) { for (let k = 0; k < n; k += 1) y[j + k] += factor * x[i + k]; }

// X Wᵀ + b; with W = K, the products of all rows of X with all rows of K.  ∂X = ∂Y W, ∂W = ∂Yᵀ X
function linear(x, w, b = null) {
  const y = new Matrix(x.rows, w.rows), n = x.cols, m = w.rows;
  // Row by row of W, so that each is read from memory once.
  for (let j = 0; j < m; j += 1) for (let i = 0; i < x.rows; i += 1) y.data[i * m + j] = dot(x.data, i * n, w.data, j * n, n) + (b ? b.data[j] : 0);
  return record(y, (g) => {
    const dx = x.grad, dw = w.grad, db = b?.grad;
    for (let j = 0; j < m; j += 1) {
      for (let i = 0; i < x.rows; i += 1) {
        const d = g[i * m + j];
        if (d === 0) continue;
        if (db) db[j] += d;
        addTo(dx, i * n, d, w.data, j * n, n);
        addTo(dw, j * n, d, x.data, i * n, n);
      }
    }
  });
}

// A V, of (n, m) and (m, d); ∂A = ∂Z Vᵀ, ∂V = Aᵀ ∂Z
function product(a, v) {
  const z = new Matrix(a.rows, v.cols), m = a.cols, d = v.cols;
  for (let i = 0; i < a.rows; i += 1) for (let j = 0; j < m; j += 1) addTo(z.data, i * d, a.data[i * m + j], v.data, j * d, d);
  return record(z, (g) => {
    const da = a.grad, dv = v.grad;
    for (let i = 0; i < a.rows; i += 1) {
      for (let j = 0; j < m; j += 1) {
        da[i * m + j] += dot(g, i * d, v.data, j * d, d);
        addTo(dv, j * d, a.data[i * m + j], g, i * d, d);
      }
    }
  });
}

// y = f(x) for each number; slope: f' from x and y
function each(x, f, slope) {
  const y = new Matrix(x.rows, x.cols, x.data.map(f));
  return record(y, (g) => x.grad.forEach((_, i, dx) => { dx[i] += g[i] * slope(x.data[i], y.data[i]); }));
}
const scale = (x, factor) => each(x, (value) => value * factor, () => factor);

function add(a, b) {
  return record(new Matrix(a.rows, a.cols, a.data.map((value, i) => value + b.data[i])), (g) => { for (const { grad } of [a, b]) addTo(grad, 0, 1, g, 0, g.length); });
}
function times(a, b) {
  return record(new Matrix(a.rows, a.cols, a.data.map((value, i) => value * b.data[i])), (g) => { for (const [one, other] of [[a, b], [b, a]]) one.grad.forEach((_, i, d) => { d[i] += g[i] * other.data[i]; }); });
}

function columns(x, from, count) {
  const y = new Matrix(x.rows, count);
  for (let i = 0; i < x.rows; i += 1) y.row(i).set(x.row(i).subarray(from, from + count));
  return record(y, (g) => { for (let i = 0; i < x.rows; i += 1) addTo(x.grad, i * x.cols + from, 1, g, i * count, count); });
}

function sideBySide(parts) {
  const cols = parts.reduce((sum, part) => sum + part.cols, 0), y = new Matrix(parts[0].rows, cols);
  let from = 0;
  for (const part of parts) {
    const start = from;
    for (let i = 0; i < part.rows; i += 1) y.row(i).set(part.row(i), start);
    record(y, (g) => { for (let i = 0; i < y.rows; i += 1) addTo(part.grad, i * part.cols, 1, g, i * cols + start, part.cols); });
    from += part.cols;
  }
  return y;
}

// Rows of x, then rows of y; used in search only, without gradients.
function below(x, y) {
  const data = new Float64Array(x.data.length + y.data.length);
  data.set(x.data);
  data.set(y.data, x.data.length);
  return new Matrix(x.rows + y.rows, y.cols, data);
}

// A = softmax of each row: e^s / Σ e^s; ∂S = A ⊙ (∂A − Σ A ∂A)
function softmax(s) {
  const a = new Matrix(s.rows, s.cols);
  for (let i = 0; i < s.rows; i += 1) {
    const row = s.row(i), most = Math.max(...row), out = a.row(i);
    let sum = 0;
    for (let j = 0; j < row.length; j += 1) sum += out[j] = Math.exp(row[j] - most);
    for (let j = 0; j < row.length; j += 1) out[j] /= sum;
  }
  return record(a, (g) => {
    const ds = s.grad, m = a.cols;
    for (let i = 0; i < a.rows; i += 1) {
      const mean = dot(a.data, i * m, g, i * m, m);
      for (let at = i * m; at < (i + 1) * m; at += 1) ds[at] += a.data[at] * (g[at] - mean);
    }
  });
}

// γ (x − μ) / σ + β, or without μ and β: RMS norm
function norm(x, gamma, beta, eps) {
  const y = new Matrix(x.rows, x.cols), n = x.cols, normed = new Float64Array(x.data.length), sigma = new Float64Array(x.rows);
  for (let i = 0; i < x.rows; i += 1) {
    const row = x.row(i), mean = beta ? row.reduce((sum, value) => sum + value, 0) / n : 0;
    sigma[i] = Math.sqrt(row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / n + eps);
    for (let j = 0; j < n; j += 1) {
      normed[i * n + j] = (row[j] - mean) / sigma[i];
      y.data[i * n + j] = gamma.data[j] * normed[i * n + j] + (beta ? beta.data[j] : 0);
    }
  }
  return record(y, (g) => {
    const dx = x.grad, dGamma = gamma.grad, dBeta = beta?.grad;
    for (let i = 0; i < x.rows; i += 1) {
      let mean = 0, along = 0;
      for (let j = 0; j < n; j += 1) {
        const d = g[i * n + j], hat = normed[i * n + j];
        dGamma[j] += d * hat;
        if (beta) { dBeta[j] += d; mean += d * gamma.data[j] / n; }
        along += (d * gamma.data[j] * hat) / n;
      }
      for (let j = 0; j < n; j += 1) dx[i * n + j] += (g[i * n + j] * gamma.data[j] - mean - normed[i * n + j] * along) / sigma[i];
    }
  });
}

function embed(ids, table, factor) {
  const x = new Matrix(ids.length, table.cols);
  ids.forEach((id, i) => x.row(i).set(table.row(id).map((value) => value * factor)));
  return record(x, (g) => ids.forEach((id, i) => addTo(table.grad, id * x.cols, factor, g, i * x.cols, x.cols)));
}

// Adds constants, such as positions or a mask of −∞.
const addConstants = (x, f) => record(new Matrix(x.rows, x.cols, x.data.map((value, at) => value + f(Math.floor(at / x.cols), at % x.cols))), (g) => addTo(x.grad, 0, 1, g, 0, g.length));

// Pairs of neighbouring features of each head are rotated by the angle position · base^(−2k / size) (Su et al. 2021).
function rotate(x, size, start, base) {
  const angle = (i, k) => (start + i) * base ** ((-2 * k) / size);
  const turn = (data, sign) => {
    const out = new Float64Array(data.length);
    for (let i = 0; i < x.rows; i += 1) {
      for (let j = 0; j < x.cols; j += 2) {
        const a = sign * angle(i, (j % size) / 2), at = i * x.cols + j, [p, q] = [data[at], data[at + 1]];
        out[at] = p * Math.cos(a) - q * Math.sin(a);
        out[at + 1] = p * Math.sin(a) + q * Math.cos(a);
      }
    }
    return out;
  };
  return record(new Matrix(x.rows, x.cols, turn(x.data, 1)), (g) => addTo(x.grad, 0, 1, turn(g, -1), 0, g.length));
}

// ln softmax(row)
function logSoftmax(row) {
  const most = Math.max(...row), total = most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
  return row.map((x) => x - total);
}

// Loss of each row, −Σ T ln P, where T has 1 − ε at the target, and ε / V at every token (Szegedy et al. 2016); ∂logits = P − T
function crossEntropy(logits, targets, smoothing) {
  const losses = new Matrix(logits.rows, 1), n = logits.cols, share = smoothing / n, rows = targets.map((_, i) => logSoftmax(logits.row(i)));
  rows.forEach((row, i) => { losses.data[i] = -(1 - smoothing) * row[targets[i]] - share * row.reduce((sum, x) => sum + x, 0); });
  return record(losses, (g) => logits.grad.forEach((_, at, d) => {
    const i = Math.floor(at / n), j = at % n;
    d[at] += g[i] * (Math.exp(rows[i][j]) - (j === targets[i] ? 1 - smoothing : 0) - share);
  }));
}

// ---- the model --------------------------------------------------------------------------------------------------------

const ACTIVATIONS = {
  relu: [(x) => Math.max(0, x), (x) => (x > 0 ? 1 : 0)],
  silu: [(x) => x / (1 + Math.exp(-x)), (x) => { const s = 1 / (1 + Math.exp(-x)); return s * (1 + x * (1 - s)); }],
};
const NOTHING = { mask: true, scaling: true, positions: true, disabled: new Set(), weights: new Map() };

// spec: {config, parameters: {name: {shape, values}, {shape, float32} or {shape, int8, scales}}, aliases: {name: name}}, as `playground.py` writes it.
class Transformer {
  constructor(spec) {
    this.config = spec.config;
    this.parameters = new Map(Object.entries(spec.parameters).map(([name, parameter]) => [name, unpackParameter(parameter)]));
    this.aliases = spec.aliases;
  }

  parameter(name) { return this.parameters.get(name) ?? this.parameters.get(this.aliases[name]) ?? null; }

  // Results of all steps by name; those of attention are lists with a matrix per head.  changes: see NOTHING.
  forward(source, input, changes = {}) {
    const run = { ...NOTHING, ...changes, taps: {} }, memory = this.encode(source, run), x = this.#decoder(input, this.#start(memory, run), run);
    run.taps["output.logits"] = this.#output(x);
    return { logits: run.taps["output.logits"], taps: run.taps };
  }

  // Losses of the targets; afterwards `grad` of every parameter and tap is the gradient of their sum.
  backward(source, input, targets, smoothing = 0, changes = {}) {
    for (const parameter of this.parameters.values()) parameter.clearGrad();
    tape = [];
    try {
      const { logits, taps } = this.forward(source, input, changes), losses = crossEntropy(logits, targets, smoothing);
      losses.grad.fill(1);
      for (const back of tape.reverse()) back();
      return { losses: [...losses.data], taps, probabilities: targets.map((target, i) => Math.exp(logSoftmax(logits.row(i))[target])) };
    } finally { tape = null; }
  }

  encode(source, run) {
    let x = this.#embed("encoder", source, 0, run);
    for (let layer = 0; layer < this.config.encoder_layers; layer += 1) {
      const path = `encoder.layers.${layer}`;
      x = this.#around(path, "self_attn", x, run, (y) => this.#selfAttention(`${path}.self_attn`, y, null, run));
      x = run.taps[`${path}.stream`] = this.#around(path, "ffn", x, run, (y) => this.#feedForward(`${path}.ffn`, y, run));
    }
    return this.#final("encoder", x, run);
  }

  // The keys and values of the memory, and those of the tokens read so far.
  #start(memory, run, cached = false) {
    return Array.from({ length: this.config.decoder_layers }, (_, layer) => {
      const path = `decoder.layers.${layer}.cross_attn`, [w, b] = [this.parameter(`${path}.kv.weight`), this.parameter(`${path}.kv.bias`)], half = w.rows / 2;
      const part = (from) => linear(memory, w.rowsFrom(from, half), b?.rowsFrom(from, half));
      return { memory: [part(0), part(half)], own: cached ? [null, null] : null, length: 0 };
    });
  }

  #decoder(input, state, run) {
    let x = this.#embed("decoder", input, state[0].length, run);
    state.forEach((cache, layer) => {
      const path = `decoder.layers.${layer}`;
      x = this.#around(path, "self_attn", x, run, (y) => this.#selfAttention(`${path}.self_attn`, y, cache, run));
      x = this.#around(path, "cross_attn", x, run, (y) => {
        const q = linear(y, this.parameter(`${path}.cross_attn.q.weight`), this.parameter(`${path}.cross_attn.q.bias`));
        return this.#attend(`${path}.cross_attn`, q, ...cache.memory, null, run);
      });
      x = run.taps[`${path}.stream`] = this.#around(path, "ffn", x, run, (y) => this.#feedForward(`${path}.ffn`, y, run));
      cache.length += input.length;
    });
    return this.#final("decoder", x, run);
  }

  #output(x) { return linear(x, this.parameter("output.weight")); }

  // Logits that a layer of the decoder would give if it were the last one: the logit lens (nostalgebraist 2020).
  lens(taps, layer) { return this.#output(this.#final("decoder", taps[`decoder.layers.${layer}.stream`], { taps: {} })); }

  #embed(stack, ids, start, { positions, taps }) {
    const { d_model: d, position, scale_embeddings } = this.config;
    const x = (taps[`${stack}.embedded`] = embed(ids, this.parameter(`${stack}.embedding.weight`), scale_embeddings ? Math.sqrt(d) : 1));
    if (position !== "sinusoidal" || !positions) return x;
    const sinusoid = (p, j) => (j % 2 ? Math.cos : Math.sin)(p / 10000 ** ((2 * Math.floor(j / 2)) / d));
    return (taps[`${stack}.positioned`] = addConstants(x, (i, j) => sinusoid(start + i, j)));
  }

  // Residual connection and norm around a sub-layer: norm(x + f(x)), or x + f(norm(x)).
  #around(path, name, x, { taps }, f) {
    const place = `${path}.around_${name}`, normed = (y) => (taps[`${place}.norm.normed`] = this.#norm(`${place}.norm`, y));
    const residual = (y) => (taps[`${place}.residual`] = add(x, (taps[`${place}.update`] = y)));
    return this.config.order === "post" ? normed(residual(f(x))) : residual(f(normed(x)));
  }

  #norm(name, x) { return norm(x, this.parameter(`${name}.weight`), this.parameter(`${name}.bias`), this.config.eps); }
  #final(stack, x, { taps }) { return this.parameter(`${stack}.final_norm.weight`) ? (taps[`${stack}.final_norm.normed`] = this.#norm(`${stack}.final_norm`, x)) : x; }

  #selfAttention(name, x, cache, run) {
    const w = this.parameter(`${name}.qkv.weight`), b = this.parameter(`${name}.qkv.bias`), { n_heads: heads, n_kv_heads: few } = this.config;
    const d = w.rows / (heads + 2 * few), start = cache?.length ?? 0, part = (from, count) => linear(x, w.rowsFrom(from * d, count * d), b?.rowsFrom(from * d, count * d));
    let [q, k, v] = [part(0, heads), part(heads, few), part(heads + few, few)];
    if (this.config.position === "rotary" && run.positions) [q, k] = [q, k].map((y) => rotate(y, d, start, this.config.base));
    if (cache?.own) [k, v] = cache.own = [k, v].map((y, i) => (cache.own[i] ? below(cache.own[i], y) : y));
    const causal = cache !== null && run.mask;
    return this.#attend(name, q, k, v, causal ? (i, j) => j <= start + i : null, run);
  }

  // softmax(Q Kᵀ / √d) V per head, where query i sees key j if sees(i, j) (null: all), and the output projection of all heads side by side.  Several heads may share keys and values (Ainslie et al. 2023).
  #attend(name, q, k, v, sees, { scaling, disabled, weights: changed, taps }) {
    const { n_heads: heads, n_kv_heads: few } = this.config, d = q.cols / heads, all = { queries: [], keys: [], values: [], scores: [], weights: [], heads: [] };
    for (let g = 0; g < few; g += 1) for (const [key, x] of [["keys", k], ["values", v]]) all[key].push(columns(x, g * d, d));
    for (let h = 0; h < heads; h += 1) {
      const group = Math.floor((h * few) / heads), qh = columns(q, h * d, d), products = linear(qh, all.keys[group]), scores = scaling ? scale(products, 1 / Math.sqrt(d)) : products;
      const weights = override(softmax(sees ? addConstants(scores, (i, j) => (sees(i, j) ? 0 : -Infinity)) : scores), `${name} ${h}`, changed);
      const z = product(weights, all.values[group]), output = disabled.has(`${name} ${h}`) ? scale(z, 0) : z;
      for (const [key, value] of Object.entries({ queries: qh, scores, weights, heads: output })) all[key].push(value);
    }
    for (const [key, value] of Object.entries(all)) taps[`${name}.${key}`] = value;
    return linear(sideBySide(all.heads), this.parameter(`${name}.out.weight`), this.parameter(`${name}.out.bias`));
  }

  #feedForward(name, x, { taps }) {
    const [f, slope] = ACTIVATIONS[this.config.activation], u = (taps[`${name}.before`] = linear(x, this.parameter(`${name}.inner.weight`), this.parameter(`${name}.inner.bias`)));
    const half = u.cols / 2, hidden = this.config.gated ? times(each(columns(u, 0, half), f, slope), columns(u, half, half)) : each(u, f, slope);
    taps[`${name}.hidden`] = hidden;
    return linear(hidden, this.parameter(`${name}.outer.weight`), this.parameter(`${name}.outer.bias`));
  }

  // Beam search: each step takes the K best continuations.  `threshold` drops those that are more than this below the best one; `earlyEnd`,
  // unfinished ones whose score would not be the best if the next token ended them with probability 1; `recombine`, unfinished ones that have this many last tokens in
  // common with a better one.  Those that end leave the beam, which `shrink` then makes narrower by one.  The search stops when no hypothesis
  // can become the best.
  search(source, { beam = 4, shrink = true, threshold = 0, recombine = 0, earlyEnd = threshold > 0, alpha = 0.6, limit = source.length + 50, padding = 0, begin = 2, end = 3 } = {}, changes = {}) {
    const run = { ...NOTHING, ...changes, taps: {} }, penalty = (length) => ((5 + length) / 6) ** alpha, complete = [];
    let beams = [{ tokens: [], logProb: 0, state: this.#start(this.encode(source, run), run, true) }];
    while (beams.length) {
      let grown = [];
      const width = shrink ? beam - complete.length : beam;  // the K best, best first
      for (const one of beams) {
        const state = one.state.map((cache) => ({ ...cache, own: [...cache.own] })), atLimit = one.tokens.length + 1 === limit;
        logSoftmax(this.#output(this.#decoder([one.tokens.at(-1) ?? begin], state, run)).row(0)).forEach((x, token) => {
          const logProb = one.logProb + x;
          if (token === padding || token === begin || (atLimit && token !== end) || logProb <= (grown[width - 1]?.logProb ?? -Infinity)) return;
          const place = grown.findIndex((other) => other.logProb < logProb);
          grown.splice(place < 0 ? grown.length : place, 0, { tokens: [...one.tokens, token], logProb, state });
          grown.length = Math.min(grown.length, width);
        });
      }
      while (threshold && grown.length > 1 && grown.at(-1).logProb < grown[0].logProb - threshold) grown.pop();
      if (recombine) {
        const tails = grown.map(({ tokens }) => String(tokens.slice(-recombine)));
        grown = grown.filter(({ tokens }, i) => tokens.at(-1) === end || tails.indexOf(tails[i]) === i);
      }
      for (const { tokens, logProb } of grown) if (tokens.at(-1) === end) complete.push({ tokens: tokens.slice(0, -1), logProb, score: logProb / penalty(tokens.length) });
      const best = Math.max(...complete.map(({ score }) => score), -Infinity);
      beams = grown.filter(({ tokens, logProb }) => tokens.at(-1) !== end && (!earlyEnd || logProb / penalty(tokens.length + 1) > best));
      if (!beams.length || Math.max(...beams.map(({ logProb }) => logProb)) / penalty(limit) <= best) break;
    }
    return complete.sort((a, b) => b.score - a.score);
  }
}

// Sets single weights.  The last one set counts first, and what is left to 1 goes to the weights of the row that are not set, in proportion; if
// all of these are 0 (there are none, or the mask hides them), to those that are set.  A changed row is a constant: no gradient passes it.
function override(weights, name, changed) {
  const rows = new Map();
  for (const [key, value] of changed) {
    const [i, j] = key.startsWith(`${name} `) ? key.slice(name.length + 1).split(" ").map(Number) : [];
    if (i < weights.rows && j < weights.cols) rows.set(i, [[j, value], ...(rows.get(i) ?? [])]);
  }
  if (!rows.size) return weights;
  const result = new Matrix(weights.rows, weights.cols, weights.data.slice());
  for (const [i, cells] of rows) {
    const row = result.row(i), set = new Map();
    let left = 1;
    for (const [j, value] of cells) { set.set(j, Math.max(0, Math.min(value, left))); left -= set.get(j); }
    const rest = row.reduce((sum, x, j) => sum + (set.has(j) ? 0 : x), 0);
    if (rest > 0) row.forEach((x, j) => { row[j] = set.get(j) ?? (x * left) / rest; });
    else if (left < 1) row.forEach((_, j) => { row[j] = (set.get(j) ?? 0) / (1 - left); });
  }
  return record(result, (g) => { for (let i = 0; i < weights.rows; i += 1) if (!rows.has(i)) addTo(weights.grad, i * weights.cols, 1, g, i * weights.cols, weights.cols); });
}

function unpackParameter({ shape, values, float32, int8, scales }) {
  const [rows, cols] = shape.length > 1 ? shape : [shape[0], 1];
  if (values) return new Matrix(rows, cols, Float64Array.from(values));
  const text = atob(float32 ?? int8), bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) bytes[at] = text.charCodeAt(at);
  if (float32) return new Matrix(rows, cols, Float64Array.from(new Float32Array(bytes.buffer)));
  const result = new Matrix(rows, cols), integers = new Int8Array(bytes.buffer);
  for (let at = 0; at < integers.length; at += 1) result.data[at] = integers[at] * scales[Math.floor(at / cols)];
  return result;
}

// ---- updates ----------------------------------------------------------------------------------------------------------

// One update of all parameters from their gradients: W − η g, or Adam (Kingma and Ba 2015), which keeps its moments.
class Optimizer {
  constructor(model, kind) { Object.assign(this, { model, kind, step: 0, moments: new Map() }); }

  update(rate) {
    this.step += 1;
    const first = 1 - 0.9 ** this.step, second = 1 - 0.999 ** this.step;
    for (const [name, { data, grad }] of this.model.parameters) {
      if (this.kind === "sgd") { addTo(data, 0, -rate, grad, 0, grad.length); continue; }
      const [m, v] = this.moments.get(name) ?? this.moments.set(name, [new Float64Array(data.length), new Float64Array(data.length)]).get(name);
      for (let i = 0; i < data.length; i += 1) {
        m[i] = 0.9 * m[i] + 0.1 * grad[i];
        v[i] = 0.999 * v[i] + 0.001 * grad[i] * grad[i];
        data[i] -= (rate * m[i]) / first / (Math.sqrt(v[i] / second) + 1e-8);
      }
    }
  }
}

return { Matrix, Optimizer, Transformer, logSoftmax };
})();

if (typeof module !== "undefined") module.exports = engine;
