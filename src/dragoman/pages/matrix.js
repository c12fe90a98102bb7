"use strict";
// Matrices of numbers and formulas: drawMatrix(tensor) draws one of the matrices of Python's `walkthrough`, typeset(text) a formula,
// writeCell(tensor, i, j, find) writes out how one of its numbers is computed.

const { describeTensor, drawMatrix, headOf, keyOf, symbolIn, typeset, typesetBoth, writeCell } = (() => {

const AXES = { row: "句", head: "头", query: "查询", key: "键", feature: "特征", position: "位置", word: "词元", input: "输入", output: "输出" };
const superscript = (power) => [...String(power)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
const subscript = (index) => [...String(index)].map((c) => "₀₁₂₃₄₅₆₇₈₉"[Number(c)]).join("");

const RESIDUE = 1e-14; // A matrix of smaller numbers only is what rounding leaves of an exact 0.

// Number format of a matrix: decimals according to its largest number, a common power of ten if that is very small or large.
// least: minimum number of decimals.
function figures(values, least = 0) {
  const numbers = values.flat().filter(finite), size = Math.max(0, ...numbers.map(Math.abs)), largest = size < RESIDUE ? 0 : size;
  const power = largest > 0 && (largest < 0.01 || largest >= 1e6) ? Math.floor(Math.log10(largest)) : 0;
  const scaled = largest ? numbers.map((x) => x / 10 ** power) : [], top = largest / 10 ** power;
  const most = Math.max(least, top >= 1000 ? 1 : top >= 10 ? 3 : 4);
  let decimals = 0;
  while (decimals < most && scaled.some((x) => Math.abs(x - Number(x.toFixed(decimals))) > 1e-9 * Math.max(1, Math.abs(x)))) decimals += 1;
  const write = (x) => (finite(x) ? (Math.abs(x / 10 ** power) < 0.5 * 10 ** -decimals ? "0" : (x / 10 ** power).toFixed(decimals).replace("-", "−")) : String(x ?? "–"));
  return { write, power, largest };
}

const inFull = (x) => (finite(x) ? String(x).replace("-", "−").replace(/e[-−](\d+)$/, (_, p) => ` × 10${superscript(-Number(p))}`) : String(x ?? "–"));

// Background of a cell: blue for positive, orange for negative numbers, stronger for larger ones.
function heat(value, largest) {
  if (!finite(value) || largest === 0 || Math.abs(value) <= RESIDUE * largest) return null;
  const share = Math.round(6 + 40 * Math.min(1, Math.abs(value) / largest));
  return `background: color-mix(in srgb, var(${value > 0 ? "--first" : "--second"}) ${share}%, transparent)`;
}

// A formula with subscripts (W_Q) and superscripts (10^(−5)): a list of texts and nodes.
function typeset(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(/(?<![A-Za-z]{2})_([A-Za-z]+)|\^\(([^()]*)\)|\^([−\d.]*\w?)/g)) {
    parts.push(text.slice(from, match.index), match[1] ? el("sub", {}, match[1]) : el("sup", {}, ...typeset(match[2] ?? match[3])));
    from = match.index + match[0].length;
  }
  return [...parts, text.slice(from)];
}

const typesetBoth = (text) => both(typeset(text.en), typeset(text.zh));

// The head of a tensor with several heads, counted from 1.
const headOf = (tensor) => (tensor.head === undefined || tensor.shape[1] === 1 ? null : tensor.head + 1);
const symbolOf = (tensor) => `${tensor.symbol}${headOf(tensor) ? subscript(headOf(tensor)) : ""}`;
const CHINESE_SYMBOLS = {
  id: "编号", patches: "图像块", class: "类别向量", "P(correct)": "P（正确词）", "W new": "更新后的 W", "L before": "更新前的 L", "L after": "更新后的 L",
};
function symbolIn(tensor) {
  const [, sign, name] = /^(∂?)(.*)$/.exec(tensor.symbol);
  return [symbolOf(tensor), Object.hasOwn(CHINESE_SYMBOLS, name) ? `${sign}${CHINESE_SYMBOLS[name]}` : symbolOf(tensor)];
}

// Identifies a tensor: kind, name and head.
const keyOf = (tensor) => `${tensor.kind} ${tensor.name} ${tensor.head ?? ""}`;

// Queries, keys, values and gradients have a colour each.
function roleOf(tensor) {
  if (tensor.kind === "gradient") return "gradient";
  return { Q: "query", K: "key", V: "value" }[/^(?:[Wb]_)?([QKV])$/.exec(tensor.symbol)?.[1]] ?? "";
}

// Note on truncated sides, [8, 512, "feature"]: "8 of 512 features".
function truncationNote(sides) {
  const chinese = { query: "个位置", key: "个位置", position: "个位置", feature: "个特征", word: "个词元", input: "个输入", output: "个输出" };
  const english = (axis) => (axis === "query" || axis === "key" ? "position" : axis === "word" ? "token" : axis);
  return both(sides.map(([shown, size, axis]) => `${shown} of ${size} ${english(axis)}s`).join(", "),
    sides.map(([shown, size, axis]) => `${size} ${chinese[axis]}中的 ${shown} 个`).join("，"));
}

function drawMatrix(tensor, attributes = {}) {
  const rowNames = tensor.rows ?? tensor.values.map((_, i) => i), columnNames = tensor.columns ?? (tensor.values[0] ?? []).map((_, j) => j);
  const { write, power, largest } = figures(tensor.values, tensor.decimals), [english, chinese] = symbolIn(tensor), [markedRow, markedColumn] = tensor.mark || [];
  const given = (names) => names.some((name) => name !== "");
  const head = given(columnNames)
    ? el("thead", {}, el("tr", {}, given(rowNames) ? el("td", {}) : null, ...columnNames.map((name) => el("th", { scope: "col" }, bothOf(named(name))))))
    : null;
  const rows = tensor.values.map((row, i) => el("tr", {},
    given(rowNames) ? el("th", { scope: "row" }, bothOf(named(rowNames[i]))) : null,
    ...row.map((x, j) => el("td", {
      style: tensor.nominal ? null : heat(x, largest), "data-full": inFull(x), "data-at": `${i} ${j}`, class: i === markedRow && j === markedColumn ? "marked" : null,
    }, write(x)))));
  const caption = el("figcaption", {}, el("b", {}, both(typeset(english), typeset(chinese))),
    headOf(tensor) ? el("small", {}, both(`head ${headOf(tensor)}`, `第 ${headOf(tensor)} 个头`)) : null,
    power ? el("small", { class: "power" }, ` × 10${superscript(power)}`) : null,
    tensor.shown ? el("small", { class: "cut" }, truncationNote(tensor.shown)) : null);
  return el("figure", { class: `matrix ${roleOf(tensor)}`, "data-key": keyOf(tensor), ...attributes }, caption,
    el("div", { class: "matrix-scroll" }, el("table", {}, head, el("tbody", {}, ...rows))));
}

// Name, shape with the names of the axes, and source of a matrix.
function describeTensor(tensor, source) {
  const shape = (name) => (tensor.shape.length ? `(${tensor.shape.map((n, i) => `${n} ${name(tensor.axes[i])}`).join(" × ")})` : "");
  const name = el("code", {}, tensor.kind === "gradient" ? `∂L / ∂ ${tensor.name}` : tensor.name);
  return [name, " ", both(shape((axis) => axis), shape((axis) => AXES[axis] || axis)), source ? el("span", { class: "from" }, ` · ${source}`) : ""];
}

// ---- one number -------------------------------------------------------------------------------------------------------

const short = (x) => (finite(x) ? (Math.abs(x) >= 1e5 || (x !== 0 && Math.abs(x) < 1e-3) ? inFull(Number(x.toPrecision(5))) : String(Number(x.toPrecision(5)))).replace("-", "−") : String(x ?? "–"));
const factor = (x) => (finite(x) && x < 0 ? `(${short(x)})` : short(x));
const at = (operand, tensor, i, k) => (operand.transposed ? tensor.values[k]?.[i] : tensor.values[i]?.[k]);

// The terms of a sum of products that are shown, and which row or column of each matrix they read.
function termsOf(cells, i, j, find) {
  const terms = [], used = [];
  for (const { left, right, factor: scale = 1, at: [row, inner, column] = [0, 0, 0] } of cells.terms) {
    const first = find(left.of), r = first?.values.length === 1 && !right ? 0 : i - row;
    if (!first || r < 0) continue;
    if (!right) {
      const x = at(left, first, r, j + column);
      if (x !== undefined) terms.push({ factors: [x], scale });
      used.push({ key: left.of, row: r, column: j + column });
      continue;
    }
    const second = find(right.of);
    if (!second) continue;
    for (let k = 0; ; k += 1) {
      const a = at(left, first, r, k), b = at(right, second, k + inner, j + column);
      if (a === undefined || b === undefined) break;
      terms.push({ factors: [a, b], scale });
    }
    used.push({ key: left.of, [left.transposed ? "column" : "row"]: r }, { key: right.of, [right.transposed ? "row" : "column"]: j + column });
  }
  return { terms, used };
}

const MOST_TERMS = 24;
const hidden = () => el("small", {}, both("(the terms not shown)", "（未显示的各项之和）"));

// Numbers of the terms as text: equal scales are written once, around a sum.
function writeTerms(terms) {
  const scale = terms.every((term) => term.scale === terms[0].scale) ? terms[0]?.scale ?? 1 : 1;
  const texts = terms.map((term, n) => [...(term.scale !== scale ? [short(term.scale)] : []), ...term.factors.map((x, i) => (n || i || term.scale !== scale ? factor(x) : short(x)))].join(" · "));
  const sum = texts.length > MOST_TERMS ? [...texts.slice(0, MOST_TERMS), "…"].join(" + ") : texts.join(" + ");
  return scale === 1 ? sum : `${short(scale)} · (${sum})`;
}

// {text: [nodes], used: [{key: number of the tensor, row, column}]}: how the number in row i and column j is computed; find: number of a tensor, as in `cells` -> tensor.
function writeCell(tensor, i, j, find) {
  const { cells } = tensor, value = tensor.values[i][j], symbol = typeset(symbolOf(tensor));
  const place = [el("b", {}, ...symbol), "[", bothOf(named(tensor.rows?.[i] || i)), ", ", bothOf(named(tensor.columns?.[j] || j)), "]"], name = [...place, " = "], result = [" = ", el("b", { class: "full" }, short(value))];
  if (!cells) return { text: [...place, ...result], used: [] };
  if (cells.function === "softmax") return writeSoftmax(tensor, i, j, find, name, result);
  if (cells.function === "softmax gradient") return writeSoftmaxGradient(tensor, i, j, find, name, result);
  if (cells.function === "apply") return { text: [...name, `f(${short(find(cells.left.of).values[i][j])})`, ...result], used: [{ key: cells.left.of, row: i, column: j }] };
  if (cells.function === "norm") return writeNorm(tensor, i, j, find, name, result);
  const { terms, used } = termsOf(cells, i, j, find), rest = cells.rest?.[i][j], minus = cells.minus?.[i][j], plus = cells.plus?.[i][j];
  return {
    text: [...name, writeTerms(terms), minus === undefined ? "" : ` − ${factor(minus)}`, plus === undefined ? "" : ` + ${plus === "−∞" ? "(−∞)" : factor(plus)}`,
      !rest ? "" : el("span", { class: "rest" }, terms.length ? " + " : "", `${factor(rest)} `, hidden()), ...result],
    used,
  };
}

function writeSoftmax(tensor, i, j, find, name, result) {
  const { left, rest } = tensor.cells, key = left.of, row = find(key)?.values[i] ?? [], power = (x) => [`e`, el("sup", {}, short(x))];
  const shown = row.slice(0, MOST_TERMS).flatMap((x, k) => (k ? [" + ", ...power(x)] : power(x)));
  const more = rest?.[i] ? [" + ", el("span", { class: "rest" }, short(rest[i]), " ", hidden())] : [];
  return { text: [...name, ...power(row[j]), " / (", ...shown, row.length > MOST_TERMS ? " + …" : "", ...more, ")", ...result], used: [{ key, row: i }] };
}

function writeSoftmaxGradient(tensor, i, j, find, name, result) {
  const { left, right, rest } = tensor.cells, keys = [left, right].map(({ of }) => of), [weights, gradients] = keys.map((key) => find(key)?.values[i] ?? []);
  const terms = weights.map((a, k) => ({ factors: [a, gradients[k]], scale: 1 })), more = rest?.[i] ? [" + ", el("span", { class: "rest" }, factor(rest[i]), " ", hidden())] : [];
  return { text: [...name, `${factor(weights[j])} · (${factor(gradients[j])} − (`, writeTerms(terms), ...more, "))", ...result], used: keys.map((key) => ({ key, row: i })) };
}

function writeNorm(tensor, i, j, find, name, result) {
  const found = Object.entries(tensor.cells.quantities).map(([symbol, of]) => [symbol, find(of), of]).filter(([, one]) => one);
  const value = Object.fromEntries(found.map(([symbol, { values }]) => [symbol, (values[i] ?? values[0])[j] ?? (values[i] ?? values[0])[0]]));
  const centred = "μ" in value ? `(${short(value.R)} − ${factor(value["μ"])})` : factor(value.R);
  return {
    text: [...name, `${factor(value["γ"])} · ${centred} / ${short(value["σ"])}${"β" in value ? ` + ${factor(value["β"])}` : ""}`, ...result],
    used: found.map(([, { values }, key]) => ({ key, row: values.length === 1 ? 0 : i, column: values[0].length === 1 ? 0 : j })),
  };
}

return { describeTensor, drawMatrix, headOf, keyOf, symbolIn, typeset, typesetBoth, writeCell };
})();
