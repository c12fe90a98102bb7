"use strict";
// What each layer would have said, and what the gates and states of recurrent and convolutional layers hold.

// ---- logit lens -----------------------------------------------------------------------------------------------------

function showLens() {
  const { lens, answers, sides } = explanation;
  const begins = sides.output ? wordOf(sides.output) : [];
  const hint = el("p", { class: "hint two", "aria-live": "polite" }), cells = [];
  const title = (layer) => layer.name.replace(/\.stream$/, "");
  const cell = (layer, i, place) => {
    const { top, prob, rank } = layer.said[place], [piece, p] = top[0];
    const same = piece === answers[place].piece;
    const node = el("td", { class: same ? "same" : "", style: `--sure:${Math.round(100 * Math.sqrt(p))}%` }, bothOf(alone(piece)));
    const tell = () => hint.replaceChildren(lensSentence(i, lens.length, top, readable(answers[place].piece, !spaced || (begins[place] ?? true)), prob, rank),
      tensorLine(`${layer.name}[0, ${place}]`, layer.shape, "softmax(W · norm(x)) — nostalgebraist 2020"));
    node.addEventListener("pointerenter", tell);
    node.addEventListener("focus", tell);
    cells.push(node);
    return node;
  };
  const heads = answers.map((answer, place) => el("th", { scope: "col" }, answer.about ? el("small", {}, bothOf(readable(answer.about)), " ") : null, bothOf(readable(answer.piece, !spaced || (begins[place] ?? true)))));
  const rows = lens.map((layer, i) => el("tr", {}, el("th", { scope: "row", title: title(layer) }, both(`layer ${i + 1}`, `第 ${i + 1} 层`)), ...answers.map((_, place) => cell(layer, i, place))));
  const table = el("table", { class: "lens" }, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, both("said in the end", "最终说出")), ...heads)), el("tbody", {}, ...rows));
  roving(cells, answers.length);
  byId("lens-body").append(el("div", { class: "scroll" }, table), scaleOfColours(), hint);
  hint.append(el("span", {}, both("Point at a cell, or move among the cells with the arrow keys.", "指向一个格子，或用方向键在格子间移动。")));
}

function lensSentence(i, layers, top, chosen, prob, rank) {
  const listed = () => top.flatMap(([piece, p], at) => [at ? ", " : "", ...quoted(alone(piece)), ` ${percent(p)}`]);
  const last = i === layers - 1;
  return el("span", {}, both([last ? "The last layer says " : `After layer ${i + 1} of ${layers} it would say `, ...listed(), "; ", ...quoted(chosen), ` has ${percent(prob)}, number ${whole.format(rank)}.`],
    [last ? "最后一层说 " : `在第 ${i + 1} 层（共 ${layers} 层）之后，它会说 `, ...listed(), "；", ...quoted(chosen), ` 的概率是 ${percent(prob)}，排第 ${whole.format(rank)}。`]));
}

// ---- gates and states -----------------------------------------------------------------------------------------------

const QUANTITIES = {
  reset_gate: ["reset gate: how much of the past the candidate sees", "重置门：候选值能看到多少过去"], update_gate: ["update gate: how much of the past stays", "更新门：保留多少过去"],
  input_gate: ["input gate: what enters the cell", "输入门：让什么进入细胞"], forget_gate: ["forget gate: what stays in the cell", "遗忘门：细胞里留下什么"],
  output_gate: ["output gate: what is shown of the cell", "输出门：细胞中哪些被露出"], candidate: ["candidate: what could be written", "候选值：可以写入的内容"],
  cell: ["cell: the long memory", "细胞状态：长期记忆"], hidden: ["hidden state: what is handed on", "隐藏状态：传下去的内容"], gate: ["gate of the convolution", "卷积的门"],
};
const PARTS = { ahead: ["reading forwards", "从前往后读"], back: ["reading backwards", "从后往前读"], cell: ["writing", "写出"], conv: ["convolution", "卷积"] };

function showStates() {
  const { states } = explanation;
  if (!states.length) return;
  byId("states").hidden = false;
  byId("states-what").append(both("A column is a position, a row one unit of many. Gates go from 0 (shut, pale) to 1 (open, deep); states are blue above 0 and orange below, the stronger the larger. The curve above is the mean of a position over all units: of a state without its sign.",
    "一列是一个位置，一行是众多单元中的一个。门的取值从 0（关，浅）到 1（开，深）；状态大于 0 为蓝，小于 0 为橙，绝对值越大颜色越深。上方的曲线是该位置所有单元的平均：状态取绝对值。"));
  const groups = [...new Set(states.map((state) => state.name.slice(0, state.name.lastIndexOf("."))))];
  const of = (group) => states.filter((state) => state.name.slice(0, state.name.lastIndexOf(".")) === group);
  const select = el("select", { onchange: () => draw() });
  options(select, groups.map((group) => {
    const { stack, layer, part } = of(group)[0];
    return [group, `${STACKS[stack][0]}, layer ${layer + 1}, ${PARTS[part][0]}`, `${STACKS[stack][1]}，第 ${layer + 1} 层，${PARTS[part][1]}`];
  }), groups[0]);
  byId("states-controls").append(field("Which", "哪一个", select));
  const pictures = el("div", { class: "states" }), hint = el("p", { class: "hint two", "aria-live": "polite" });
  byId("states-body").append(pictures, hint);
  function draw() {
    pictures.replaceChildren(...of(select.value).map((state) => statePicture(state, hint)));
    hint.replaceChildren(el("span", {}, both("Point at a picture, or focus it and use the arrow keys.", "指向一幅图，或让它获得焦点后用方向键。")));
  }
  draw();
  redrawn(draw);
}

function statePicture(state, hint) {
  const [n, m] = state.values.shape, bytes = unpack(state.values), gate = state.quantity.endsWith("gate");
  const values = Float32Array.from(bytes, (byte) => (gate ? byte / 255 : (2 * byte) / 255 - 1));
  const labels = readableSide(explanation.sides[state.side]), size = Math.max(12, Math.min(40, Math.floor((ROOM() - 30) / m))), width = m * size;
  const canvas = paint(el("canvas", { class: "cells still", style: `width:${width}px;height:${Math.max(96, 3 * n)}px` }), values.map((v) => v * Math.abs(v)), n, m);
  const most = Math.max(...state.mean, 1e-9), y = (value) => 34 - (30 * value) / (gate ? 1 : most);
  const curve = state.mean.map((value, i) => `${i ? "L" : "M"}${((i + 0.5) * size).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const marker = svg("line", { class: "cursor", y1: 0, y2: 38, visibility: "hidden" });
  const chart = svg("svg", { width, height: 38, viewBox: `0 0 ${width} 38`, "aria-hidden": "true" }, svg("path", { class: "curve", d: curve }), marker);
  const deep = Math.round(widthOf(labels) * 0.83 + 14);
  const words = svg("svg", { class: "under", width: width + 40, height: deep, viewBox: `0 0 ${width + 40} ${deep}`, "aria-hidden": "true" },
    ...labels.map((label, c) => svg("text", { transform: `translate(${(c + 0.5) * size + 4} 12) rotate(50)` }, labelInSvg(label))));
  const [english, chinese] = QUANTITIES[state.quantity];
  const box = el("div", { class: "state", tabindex: "0", role: "slider", "aria-valuemin": 0, "aria-valuemax": m - 1, "aria-valuenow": 0 }, chart, canvas, words);
  bothIn(box, "aria-label", english, chinese);
  let at = 0;
  const tell = (c, r = null) => {
    at = c;
    marker.setAttribute("x1", (c + 0.5) * size);
    marker.setAttribute("x2", (c + 0.5) * size);
    marker.setAttribute("visibility", "visible");
    box.setAttribute("aria-valuenow", c);
    box.setAttribute("aria-valuetext", `${inLanguage(labels[c])}: ${significant(state.mean[c])}`);
    const unit = r === null ? "" : both(`; unit ${state.units[r]}: ${significant(values[r * m + c] * state.high, 2)}`, `；单元 ${state.units[r]}：${significant(values[r * m + c] * state.high, 2)}`);
    hint.replaceChildren(el("span", {}, ...quoted(labels[c]), both(`: mean ${significant(state.mean[c])}`, `：平均 ${significant(state.mean[c])}`), unit), tensorLine(state.name, state.shape, state.paper));
  };
  box.addEventListener("pointermove", (event) => {
    const area = canvas.getBoundingClientRect(), c = Math.floor((event.clientX - area.left) / size), r = Math.floor(((event.clientY - area.top) / area.height) * n);
    if (c >= 0 && c < m) tell(c, r >= 0 && r < n ? r : null);
  });
  box.addEventListener("focus", () => tell(at));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    tell(Math.max(0, Math.min(m - 1, at + step)));
  });
  return el("figure", {}, el("figcaption", {}, el("h3", {}, both(english, chinese)), el("small", {}, both(`${n} of ${state.shape[2]} units`, `${state.shape[2]} 个单元中的 ${n} 个`))), el("div", { class: "scroll" }, box));
}
