"use strict";
// The playground: a sentence, a model that the reader changes and trains, and what it computes; the state is in the address.

const playground = JSON.parse(byId("playground").textContent);
const state = { model: playground.models.length - 1, source: "", target: "", mask: true, scaling: true, positions: true, disabled: new Set(), weights: new Map(), edits: new Map() };
const view = {};
let data, model, vocabulary, result = null, drawing = 0;

const chance = (p) => `${(100 * p).toFixed(p >= 0.0995 && p < 0.9995 ? 0 : 1)} %`;
const sumOf = (numbers) => numbers.reduce((sum, x) => sum + x, 0);
const SHOWN = { "</s>": { en: "(end)", zh: "（结束）" }, "<s>": { en: "(start)", zh: "（开始）" } };
const display = (piece) => SHOWN[piece] ?? (piece.replace(/^▁/, "") || "␣");
const END = 3, BEGIN = 2;

// ---- models and text --------------------------------------------------------------------------------------------------

// Whole words of a small vocabulary; every other word is unknown.
class Words {
  constructor(words) { this.pieces = words; }
  encode(text) { return text.trim().split(/\s+/).filter(Boolean).map((word) => Math.max(1, this.pieces.indexOf(word))); }
  decode(ids) { return ids.filter((id) => id > END).map((id) => this.pieces[id]).join(" "); }
}

function load(index) {
  state.model = index;
  data = playground.models[index];
  model = new engine.Transformer(data);
  const source = data.pieces ? new engine.Tokenizer(data.pieces.source) : new Words(data.words);
  vocabulary = { source, target: data.pieces?.target ? new engine.Tokenizer(data.pieces.target) : source };
  for (const [key, value] of state.edits) setParameter(key, value);
  view.optimizer = null;
}

// key: "parameter row column"
function setParameter(key, value) {
  const [name, row, column] = key.split(" "), parameter = model.parameter(name);
  if (parameter && Number(row) < parameter.rows && Number(column) < parameter.cols) parameter.data[Number(row) * parameter.cols + Number(column)] = value;
}

const isTrained = () => Boolean(data.pieces);
const sourceIds = () => { const ids = vocabulary.source.encode(state.source); return isTrained() || !ids.length ? [...ids, END] : ids; };
const settings = (source) => ({ beam: data.beam ?? 4, alpha: data.alpha ?? 0.6, limit: isTrained() ? source.length + data.max_extra : 4 });
const changes = () => ({ mask: state.mask, scaling: state.scaling, positions: state.positions, disabled: state.disabled, weights: state.weights });

// The output of the search, or the target that the reader has typed.
function targetsFor(source, how = changes()) {
  const typed = vocabulary.target.encode(state.target);
  if (typed.length) return isTrained() ? [...typed, END] : typed;
  const [best] = model.search(source, settings(source), how);
  return [...(best?.tokens ?? []), END];
}

const inputFor = (targets) => [BEGIN, ...targets.slice(0, -1)];

// Losses and probabilities of targets.
function lossOf(source, targets, how = changes()) {
  const { logits } = model.forward(source, inputFor(targets), how);
  return sumOf(targets.map((target, i) => -logProbabilities(logits.row(i))[target]));
}

function logProbabilities(row) {
  const most = Math.max(...row), total = most + Math.log(row.reduce((sum, x) => sum + Math.exp(x - most), 0));
  return row.map((x) => x - total);
}

// ---- computing and drawing --------------------------------------------------------------------------------------------

function compute() {
  const source = sourceIds(), targets = targetsFor(source), { logits, taps } = model.forward(source, inputFor(targets), changes());
  const rows = targets.map((_, i) => logProbabilities(logits.row(i)));
  result = { source, targets, taps, rows, losses: targets.map((target, i) => -rows[i][target]) };
}

// Everything is drawn once per frame, however often the state changes.
function refresh() {
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(() => {
    compute();
    keep();
    view.figure.update(figureOf(result));
    drawOutput();
    drawWeights();
    drawEffect();
  });
}

// What the changes do to the loss, beside the controls; the output above is the same with and without them.
function drawEffect() {
  const changed = !state.mask || !state.scaling || !state.positions || state.disabled.size || state.weights.size;
  if (!changed) { view.effect.replaceChildren(); return; }
  const { source, targets, losses } = result, before = lossOf(source, targets, {}), text = vocabulary.target.decode(targets.filter((id) => id !== END));
  view.effect.replaceChildren(both(`Loss of “${text}”: ${before.toFixed(4)} without the changes, ${sumOf(losses).toFixed(4)} with them.`, `“${text}”的损失：改动之前 ${before.toFixed(4)}，之后 ${sumOf(losses).toFixed(4)}。`),
    state.mask ? "" : both(" The search writes one word after the other and cannot look ahead anyway, so its translation does not depend on the mask; the loss is that of all words at once.", "搜索逐词进行，本来就看不到后面的词，所以译文与掩码无关；损失则是所有词同时计算的。"));
}

function figureOf({ source, targets, taps, rows }) {
  const piece = (side) => (id) => vocabulary[side].pieces[id], { encoder_layers: encoders, decoder_layers: decoders } = data.config;
  const mean = (name) => {
    const heads = taps[`${name}.weights`], [{ rows: n, cols: m }] = heads, values = new Float64Array(n * m);
    for (const head of heads) head.data.forEach((w, i) => { values[i] += w / heads.length; });
    return { shape: [1, n, m], values };
  };
  const layers = (stack, count) => Array.from({ length: count + 1 }, (_, layer) => ({ stack, layer }));
  const attention = (stack, path, count) => Array.from({ length: count }, (_, i) => ({ stack, layer: i + 1, weights: mean(path(i)) }));
  return {
    labels: { source: source.map(piece("source")), input: inputFor(targets).map(piece("target")), output: targets.map(piece("target")) },
    columns: [...layers("encoder", encoders), ...layers("decoder", decoders)],
    attention: [...attention("encoder", (i) => `encoder.layers.${i}.self_attn`, encoders), ...attention("decoder", (i) => `decoder.layers.${i}.self_attn`, decoders),
      ...attention("cross", (i) => `decoder.layers.${i}.cross_attn`, decoders)],
    outputs: targets.map((target, position) => ({ position, loss: -rows[position][target], probability: Math.exp(rows[position][target]), rows: [position] })),
  };
}

function drawOutput() {
  const { targets, rows, losses } = result, text = vocabulary.target.decode(targets.filter((id) => id !== END));
  view.output.replaceChildren(text || both("(nothing)", "（空）"));
  const own = state.target.trim() ? vocabulary.target.decode(model.search(result.source, settings(result.source), changes())[0]?.tokens ?? []) : null;
  view.own.replaceChildren(own === null ? "" : both(`This is the target that you have typed. The model's own translation: ${own || "(nothing)"}`, `这是您输入的目标。模型自己的译文：${own || "（空）"}`));
  const word = Math.min(view.word ?? 0, targets.length - 1), top = [...rows[word]].map((logProb, id) => [logProb, id]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  view.alternatives.replaceChildren(
    el("p", { class: "small" }, both(["Most probable at “", bothOf(display(vocabulary.target.pieces[targets[word]])), "” (select a word in the figure):"], ["“", bothOf(display(vocabulary.target.pieces[targets[word]])), "”处概率最大的词元（在图中点选一个词）："])),
    ...top.map(([logProb, id]) => el("div", { class: `choice${id === targets[word] ? " is" : ""}` }, el("span", {}, bothOf(display(vocabulary.target.pieces[id]))), el("span", { class: "meter" }, el("i", { style: `width:${(100 * Math.exp(logProb)).toFixed(1)}%` })), el("span", {}, chance(Math.exp(logProb))))),
    el("p", { class: "small loss" }, both(`Loss ${sumOf(losses).toFixed(4)}`, `损失 ${sumOf(losses).toFixed(4)}`)));
}

function drawTry() {
  const input = (name, english, chinese, hint) => {
    const field = el("input", { type: "text", autocomplete: "off", spellcheck: "false", id: `${name}-text`, oninput: () => { state[name] = field.value; refresh(); } });
    field.value = state[name];
    if (hint) bothIn(field, "placeholder", ...hint);
    return el("label", { class: "text" }, both(english, chinese), field);
  };
  const examples = el("div", { class: "controls examples" }, ...data.examples.slice(0, 6).map(([source, target]) => el("button", { type: "button", onclick: () => { Object.assign(state, { source, target: isTrained() ? "" : target }); drawTry(); refresh(); } }, source)));
  view.output = el("output", { class: "translation", for: "source-text" });
  view.own = el("p", { class: "small" });
  view.alternatives = el("div", { class: "choices" });
  byId("try-body").replaceChildren(
    el("div", {}, input("source", "Source", "源句"), examples, input("target", "Target", "目标", isTrained() ? ["empty: the model's own translation", "留空：模型自己的译文"] : ["words of the vocabulary", "词表中的词"]),
      isTrained() ? null : el("p", { class: "small" }, both(`Vocabulary: ${data.words.slice(4).join(" ")}`, `词表：${data.words.slice(4).join(" ")}`))),
    el("div", {}, view.output, view.own, view.alternatives));
}

// ---- changes ----------------------------------------------------------------------------------------------------------

const ATTENTIONS = [["encoder", "self_attn", "Encoder self-attention", "编码器自注意力"], ["decoder", "self_attn", "Decoder self-attention", "解码器自注意力"], ["decoder", "cross_attn", "Cross-attention", "交叉注意力"]];
const SWITCHES = [["mask", "Mask of the decoder", "解码器的掩码"], ["scaling", "Scaling by 1/√d", "除以 √d"], ["positions", "Positions", "位置编码"]];

function drawChanges() {
  const switches = SWITCHES.map(([name, english, chinese]) => {
    const box = el("input", { type: "checkbox", onchange: () => { state[name] = box.checked; refresh(); } });
    box.checked = state[name];
    return el("label", { class: "switch" }, box, both(english, chinese));
  });
  const heads = ATTENTIONS.flatMap(([stack, kind, english, chinese]) => Array.from({ length: data.config[`${stack}_layers`] }, (_, layer) => {
    const name = `${stack}.layers.${layer}.${kind}`;
    const toggles = Array.from({ length: data.config.n_heads }, (__, head) => {
      const key = `${name} ${head}`, button = el("button", { type: "button", "aria-pressed": String(!state.disabled.has(key)), onclick: () => {
        if (!state.disabled.delete(key)) state.disabled.add(key);
        button.setAttribute("aria-pressed", String(!state.disabled.has(key)));
        refresh();
      } }, String(head + 1));
      return bothIn(button, "aria-label", `${english}, layer ${layer + 1}, head ${head + 1}`, `${chinese}第 ${layer + 1} 层第 ${head + 1} 个头`);
    });
    return el("tr", {}, el("th", { scope: "row" }, both(`${english}, layer ${layer + 1}`, `${chinese}，第 ${layer + 1} 层`)), el("td", { class: "heads" }, ...toggles));
  }));
  view.attention = select(ATTENTIONS.flatMap(([stack, kind, english, chinese]) => Array.from({ length: data.config[`${stack}_layers`] * data.config.n_heads }, (_, i) => {
    const layer = Math.floor(i / data.config.n_heads), head = i % data.config.n_heads;
    return [`${stack}.layers.${layer}.${kind} ${head}`, `${english}, layer ${layer + 1}, head ${head + 1}`, `${chinese}，第 ${layer + 1} 层，第 ${head + 1} 个头`];
  })), () => drawWeights(), ["Attention", "注意力"]);
  view.attention.value = `decoder.layers.${data.config.decoder_layers - 1}.cross_attn 0`;
  view.weights = el("div", { class: "scroll weights" });
  view.effect = el("p", { class: "changed", "aria-live": "polite" });
  byId("change-body").replaceChildren(
    el("div", { class: "switches" }, ...switches), view.effect, el("h3", {}, both("Heads", "注意力头")), el("div", { class: "scroll" }, el("table", { class: "head-table" }, el("tbody", {}, ...heads))),
    el("h3", {}, both("Attention weights", "注意力权重")), el("p", { class: "small" }, both("Drag a weight up or down, or use the arrow keys; the others of its row make room. Delete restores it; Shift and an arrow key lead to another weight.", "上下拖动一个权重，或使用方向键；同一行的其他权重随之变化。按 Delete 恢复；按 Shift 加方向键移到另一个权重。")), view.attention, view.weights,
    ...(isTrained() ? [] : drawMatrices()));
  byId("reset").replaceChildren(el("button", { type: "button", onclick: reset }, both("Reset everything", "全部恢复")));
}

function select(options, change, label) {
  const node = bothIn(el("select", { onchange: change }, ...options.map(([value, english, chinese]) => bothIn(el("option", { value }), "label", english, chinese))), "aria-label", ...label);
  return node;
}

// The weights of one head as cells that can be dragged.
function drawWeights() {
  const [name, head] = view.attention.value.split(" "), weights = result.taps[`${name}.weights`][Number(head)], kept = document.activeElement?.dataset?.weight;
  const rows = (name.startsWith("encoder") ? result.source.map((id) => vocabulary.source.pieces[id]) : result.targets.map((id) => vocabulary.target.pieces[id])).map(display);
  const columns = (name.includes("decoder") && name.includes("self") ? inputFor(result.targets).map((id) => vocabulary.target.pieces[id]) : result.source.map((id) => vocabulary.source.pieces[id])).map(display);
  const cell = (i, j) => {
    const key = `${name} ${head} ${i} ${j}`, w = weights.row(i)[j], change = (value) => { state.weights.set(key, Math.max(0, Math.min(1, value))); refresh(); };
    const node = el("td", { role: "slider", tabindex: i || j ? "-1" : "0", "data-weight": key, "aria-valuemin": "0", "aria-valuemax": "1", "aria-valuenow": w.toFixed(2), class: state.weights.has(key) ? "is-changed" : null, style: `--w:${Math.sqrt(w).toFixed(3)}`,
      onkeydown: (event) => {
        if (event.shiftKey) { moveTo(event, i, j); return; }
        const step = { ArrowUp: 0.05, ArrowRight: 0.05, ArrowDown: -0.05, ArrowLeft: -0.05, PageUp: 0.25, PageDown: -0.25 }[event.key];
        if (event.key === "Delete" || event.key === "Backspace") { state.weights.delete(key); refresh(); } else if (step) change(w + step); else return;
        event.preventDefault();
      },
      onpointerdown: (event) => {
        const from = event.clientY;
        const move = (later) => change(w + (from - later.clientY) / 120);
        const stop = () => { window.removeEventListener("pointermove", move); window.removeEventListener("pointerup", stop); };
        window.addEventListener("pointermove", move);
        window.addEventListener("pointerup", stop);
        event.preventDefault();
        node.focus();
      } }, w.toFixed(2));
    return bothIn(node, "aria-label", `${inLanguage(rows[i], "en")} – ${inLanguage(columns[j], "en")}`, `${inLanguage(rows[i], "zh")} – ${inLanguage(columns[j], "zh")}`);
  };
  const moveTo = (event, i, j) => {
    const way = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key], next = way && view.weights.querySelectorAll("tbody tr")[i + way[0]]?.querySelectorAll("td")[j + way[1]];
    if (next) { event.preventDefault(); next.focus(); }
  };
  const head_ = el("thead", {}, el("tr", {}, el("td", {}), ...columns.map((label) => el("th", { scope: "col" }, bothOf(label)))));
  view.weights.replaceChildren(el("table", {}, head_, el("tbody", {}, ...rows.map((label, i) => el("tr", {}, el("th", { scope: "row" }, bothOf(label)), ...columns.map((_, j) => cell(i, j)))))));
  if (kept) view.weights.querySelector(`[data-weight="${CSS.escape(kept)}"]`)?.focus();
}

// The matrices of the tiny model, to edit; shown as (in, out), so that a row vector x gives x W.
function drawMatrices() {
  const names = [...model.parameters.keys()], body = el("div", { class: "scroll editable" });
  const choose = select(names.map((name) => [name, name, name]), () => show(), ["Matrix", "矩阵"]);
  function show() {
    const name = choose.value, parameter = model.parameter(name), table = name.includes("embedding");
    const cell = (row, column) => {
      const [r, c] = table ? [row, column] : [column, row], key = `${name} ${r} ${c}`;
      const field = el("input", { type: "number", step: "0.5", oninput: () => { if (field.value === "") return; state.edits.set(key, Number(field.value)); setParameter(key, Number(field.value)); refresh(); } });
      field.value = Number(parameter.row(r)[c].toFixed(4));
      return el("td", {}, bothIn(field, "aria-label", `${name}, row ${row}, column ${column}`, `${name}，第 ${row} 行第 ${column} 列`));
    };
    const [n, m] = table ? [parameter.rows, parameter.cols] : [parameter.cols, parameter.rows];
    body.replaceChildren(el("table", {}, el("tbody", {}, ...Array.from({ length: n }, (_, i) => el("tr", {}, el("th", { scope: "row" }, table ? bothOf(display(data.words[i])) : String(i)), ...Array.from({ length: m }, (__, j) => cell(i, j)))))));
  }
  show();
  view.showMatrix = show;
  return [el("h3", {}, both("Matrices", "矩阵")), choose, body];
}

function reset() {
  Object.assign(state, { mask: true, scaling: true, positions: true, disabled: new Set(), weights: new Map(), edits: new Map() });
  load(state.model);
  begin();
}

// ---- training ---------------------------------------------------------------------------------------------------------

function drawTraining() {
  const rate = el("input", { type: "range", min: "-4", max: "0", step: "0.25", value: isTrained() ? "-3" : "-1.5", oninput: () => showRate() }), shown = el("output", {});
  const kind = select([["sgd", "gradient descent", "梯度下降"], ["adam", "Adam", "Adam"]], () => { view.optimizer = null; }, ["Optimizer", "优化器"]);
  const showRate = () => { shown.replaceChildren(`η = ${(10 ** Number(rate.value)).toPrecision(2)}`); rate.setAttribute("aria-valuetext", shown.textContent); };
  bothIn(rate, "aria-label", "Learning rate", "学习率");
  view.curve = el("div", { class: "training-curve" });
  view.comparison = el("div", { class: "scroll updates" });
  let losses = [], running = false;
  async function train(steps) {
    if (running) return;
    running = true;
    const source = sourceIds(), targets = targetsFor(source), before = { loss: lossOf(source, targets), rows: result.rows };
    view.optimizer ??= new engine.Optimizer(model, kind.value);
    for (let step = 0; step < steps; step += 1) {
      losses.push(sumOf(model.backward(source, inputFor(targets), targets, 0, changes()).losses));
      view.optimizer.update(10 ** Number(rate.value));
      if (step % 5 === 4) { drawCurve(losses); await new Promise((done) => { setTimeout(done); }); }
    }
    losses.push(lossOf(source, targets));
    drawCurve(losses);
    losses.pop();
    running = false;
    compute();
    drawComparison(source, targets, before);
    view.showMatrix?.();
    refresh();
  }
  const button = (steps, english, chinese) => el("button", { type: "button", onclick: () => train(steps) }, both(english, chinese));
  byId("train-body").replaceChildren(el("div", { class: "controls" }, button(1, "1 step", "1 步"), button(100, "100 steps", "100 步"), kind, el("label", { class: "rate" }, both("Learning rate", "学习率"), rate, shown),
    el("button", { type: "button", onclick: () => { losses = []; load(state.model); view.curve.replaceChildren(); view.comparison.replaceChildren(); view.showMatrix?.(); refresh(); } }, both("Untrain", "恢复权重"))), view.curve, view.comparison);
  showRate();
}

function drawCurve(losses) {
  const width = 560, height = 140, most = Math.max(...losses, 1e-9), x = (i) => 8 + ((width - 70) * i) / Math.max(1, losses.length - 1), y = (loss) => 10 + (height - 24) * (1 - loss / most);
  const last = losses.at(-1), picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" },
    svg("line", { class: "grid", x1: 8, x2: width - 62, y1: y(0), y2: y(0) }), svg("polyline", { class: "curve", points: losses.map((loss, i) => `${x(i).toFixed(1)},${y(loss).toFixed(1)}`).join(" ") }),
    svg("text", { x: x(losses.length - 1) + 6, y: y(last) + 4 }, last.toFixed(4)));
  view.curve.replaceChildren(bothIn(picture, "aria-label", `Loss after ${losses.length - 1} steps: ${last.toFixed(4)}`, `${losses.length - 1} 步之后的损失：${last.toFixed(4)}`));
}

function drawComparison(source, targets, before) {
  const { logits } = model.forward(source, inputFor(targets), changes()), bars = (p) => el("td", { class: "number" }, el("span", { class: "meter" }, el("i", { style: `width:${(100 * p).toFixed(1)}%` })), chance(p));
  const head = el("tr", {}, el("td", {}), ...[["before", "训练前"], ["after", "训练后"]].map((text) => el("th", { scope: "col" }, both(...text))));
  const words = targets.map((target, i) => el("tr", {}, el("th", { scope: "row" }, "P(", bothOf(display(vocabulary.target.pieces[target])), ")"), bars(Math.exp(before.rows[i]?.[target] ?? -Infinity)), bars(Math.exp(logProbabilities(logits.row(i))[target]))));
  const loss = el("tr", {}, el("th", { scope: "row" }, both("loss", "损失")), ...[before.loss, lossOf(source, targets)].map((value) => el("td", { class: "number" }, value.toFixed(4))));
  view.comparison.replaceChildren(el("table", {}, el("thead", {}, head), el("tbody", {}, loss, ...words)));
}

// ---- the address ------------------------------------------------------------------------------------------------------

// Sentence, switches, heads, weights and edits; what equals the default is left out.
function keep() {
  const kept = { m: state.model, s: state.source, t: state.target, off: SWITCHES.map(([name]) => name).filter((name) => !state[name]), heads: [...state.disabled], weights: [...state.weights], edits: [...state.edits] };
  const short = Object.fromEntries(Object.entries(kept).filter(([, value]) => (Array.isArray(value) ? value.length : value !== "")));
  try { history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(short))}`); } catch { /* a page in a frame may not change its address */ }
}

function restore() {
  let kept = {};
  try { kept = JSON.parse(decodeURIComponent(location.hash.slice(1) || "{}")) ?? {}; } catch { /* not an address of this page: start anew */ }
  const pairs = (value) => (Array.isArray(value) ? value.filter((pair) => Array.isArray(pair) && typeof pair[0] === "string" && finite(pair[1])) : []);
  const index = Number.isInteger(kept.m) && playground.models[kept.m] ? kept.m : playground.models.length - 1, [example] = playground.models[index].examples;
  Object.assign(state, { source: typeof kept.s === "string" ? kept.s : example?.[0] ?? "", target: typeof kept.t === "string" ? kept.t : kept.s === undefined ? example?.[1] ?? "" : "" });
  for (const [name] of SWITCHES) state[name] = !(Array.isArray(kept.off) && kept.off.includes(name));
  state.disabled = new Set(Array.isArray(kept.heads) ? kept.heads.filter((key) => typeof key === "string") : []);
  state.weights = new Map(pairs(kept.weights));
  state.edits = new Map(pairs(kept.edits));
  load(index);
}

function begin() {
  drawTry();
  drawChanges();
  drawTraining();
  drawQuestions();
  refresh();
}

function start() {
  byId("language").append(languageSwitch());
  restore();
  compute();
  view.figure = drawFigure(figureOf(result), { readable: display, onWord: (index) => { view.word = index ?? 0; drawOutput(); } });
  byId("figure-body").append(view.figure.node);
  const models = select(playground.models.map(({ name }, i) => [i, name.en, name.zh]), () => {
    const index = Number(models.value), [source, target] = playground.models[index].examples[0] ?? ["", ""];
    Object.assign(state, { source, target, disabled: new Set(), weights: new Map(), edits: new Map() });
    load(index);
    begin();
  }, ["Model", "模型"]);
  models.value = state.model;
  if (playground.models.length > 1) byId("models").append(models);
  begin();
}
