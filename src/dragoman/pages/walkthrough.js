"use strict";
// One training step as stations: drawWalkthrough(container, data) draws the result of Python's `walkthrough`, a sub-layer at a time, and
// returns {go(position), layer(stack, layer)}.  Selecting a number writes out how it is computed.  options.onStation(layer, direction): a station
// is shown, of a layer [stack, number] or null.

const { drawWalkthrough } = (() => {

const DIRECTIONS = { forward: ["Forward", "前向"], backward: ["Backward", "反向"], update: ["Update", "更新"] };
const PLACE = /^(?:(encoder|decoder)\.)?(?:layers\.(\d+)\.)?(?:around_)?(\w+)/;
const INPUTS = { src: "encoder", tgt_in: "decoder" };
const OUTPUTS = ["output", "head", "loss"], PARTS = ["self_attn", "cross_attn", "ffn", "ssru"];

// ---- stations ---------------------------------------------------------------------------------------------------------

// Stack, layer and station of a step.  The station of a sub-layer is the same in all layers.
function placeOf(step, single) {
  if (step.part === "update" || step.id === "sum over positions") return { stack: "update", layer: 0, key: "update" };
  const [, named, layer, part] = PLACE.exec(step.id), stack = named ?? INPUTS[step.id] ?? single;
  if (OUTPUTS.includes(part)) return { stack: "output", layer: 0, key: "output" };
  if (layer === undefined) return { stack, layer: 0, key: `${stack} ${part === "final_norm" ? part : ["bridge", "context"].includes(part) ? part : "embedding"}` };
  return { stack, layer: Number(layer), key: `${stack} ${PARTS.includes(part) ? part : "layer"}` };
}

const withoutLayer = (box) => ({ en: box.en.replace(/ layer \d+( · )?/, "$1"), zh: box.zh.replace(/第 \d+ 层( · )?/, "$1") });

// [{key, stack, title, layers: Map layer -> {forward, backward, update: steps}}], in the order of the computation.
function stationsOf(steps) {
  const stations = new Map(), single = steps.some((step) => step.id === "src") ? "encoder" : "decoder";
  for (const step of steps) {
    const { stack, layer, key } = placeOf(step, single);
    if (!stations.has(key)) stations.set(key, { key, stack, title: null, layers: new Map() });
    const station = stations.get(key), parts = station.layers.get(layer) ?? station.layers.set(layer, { forward: [], backward: [], update: [] }).get(layer);
    station.title = key.endsWith(" layer") ? bothText(step.box, (text) => text.split(" · ")[0]) : withoutLayer(step.box);
    parts[key === "update" ? "update" : step.part].push(step);
  }
  return [...stations.values()].filter((station) => station.key !== "update").concat([...stations.values()].filter((station) => station.key === "update"));
}
const bothText = (box, change) => { const text = withoutLayer(box); return { en: change(text.en), zh: change(text.zh) }; };

// Everything in order: forward, backward from the last station to the first, update.
function routeOf(stations) {
  const has = (direction) => stations.filter((station) => [...station.layers.values()].some((parts) => parts[direction].length)).map((station) => ({ station, direction }));
  return [...has("forward"), ...has("backward").reverse(), ...has("update")];
}

// ---- steps of a station -----------------------------------------------------------------------------------------------

function drawFormula(formula, chinese = formula) {
  const [parts, others] = [formula, chinese].map((text) => text.split(/ {4,}/).filter(Boolean));
  return parts.length ? el("div", { class: "formula" }, ...parts.map((part, i) => el("div", {}, both(typeset(part), typeset(others[i]))))) : null;
}

const operandsOf = (tensor) => [...(tensor.cells?.terms ?? []).flatMap(({ left, right }) => [left, right]), tensor.cells?.left, tensor.cells?.right].filter(Boolean).map(({ of }) => of).concat(Object.values(tensor.cells?.quantities ?? {}));

// Inputs of a step, its own parameters and tensors of other steps, and its results; head: the one shown, null for all.
function matricesOf(step, tensors, head) {
  const given = (tensor) => step.part === "forward" && (["input", "output"].includes(tensor.axes[0]) || tensor.name.endsWith("]"));
  const shown = (tensor) => head === null || tensor.head === undefined || tensor.head === head;
  const results = step.tensors.filter((tensor) => !given(tensor) && shown(tensor));
  const used = step.uses.flatMap(([name, kind]) => [...tensors.values()].filter((tensor) => tensor.name === name && tensor.kind === kind && shown(tensor)));
  const needed = results.flatMap(operandsOf).map((number) => tensors.all[number]);
  const inputs = new Map([...used, ...step.tensors.filter((tensor) => given(tensor) && shown(tensor)), ...needed].map((tensor) => [keyOf(tensor), tensor]));
  for (const tensor of results) inputs.delete(keyOf(tensor));
  return [[...inputs.values()], results.flatMap(withProducts)];
}

// Scores that are divided by √d, with the products before the division.
function withProducts(tensor) {
  const { terms: [term] = [], plus, rest } = tensor.cells ?? {}, undo = (rows) => rows?.map((row) => row.map((x) => x / term.factor));
  if (tensor.symbol !== "S" || tensor.kind !== "value" || plus || (term?.factor ?? 1) === 1) return [tensor];
  return [{ ...tensor, symbol: "Q Kᵀ", name: `${tensor.name} · √d_key`, values: undo(tensor.values), cells: { ...tensor.cells, terms: [{ ...term, factor: 1 }], rest: undo(rest) } }, tensor];
}

// In the backward direction, the value beside each gradient.
function drawPair(tensor, tensors, draw) {
  const value = tensor.kind === "gradient" && tensors.get(keyOf({ ...tensor, kind: "value" }));
  return value ? el("div", { class: "pair-of" }, draw(value), draw(tensor)) : draw(tensor);
}

function drawStep(step, tensors, head) {
  const about = el("p", { class: "walk-about", "aria-live": "polite" });
  const card = el("article", { class: "walk-step" });
  const draw = (tensor) => {
    const describe = () => { if (!about.dataset.cell) about.replaceChildren(...describeTensor(tensor, step.source)); };
    const figure = drawMatrix(tensor, { tabindex: "0", onfocus: describe, onpointerenter: describe });
    const [english, chinese] = symbolIn(tensor);
    bothIn(figure, "aria-label", `${english}: ${tensor.name}, ${tensor.shape.join(" × ")}; the arrow keys select a number`, `${chinese}：${tensor.name}，${tensor.shape.join(" × ")}；用方向键选择一个数`);
    listenToCells(figure, (i, j) => select(tensor, figure, i, j));
    return figure;
  };
  function select(tensor, figure, i, j) {
    for (const cell of card.querySelectorAll("td.chosen, td.used")) cell.classList.remove("chosen", "used");
    const cell = figure.querySelector(`td[data-at="${i} ${j}"]`), { text, used } = writeCell(tensor, i, j, (number) => tensors.all[number]);
    cell.classList.add("chosen");
    cell.scrollIntoView({ block: "nearest", inline: "nearest" });
    for (const { key, row, column } of used) {
      for (const other of card.querySelectorAll(`figure[data-key="${CSS.escape(keyOf(tensors.all[key]))}"] td[data-at]`)) {
        const [r, c] = other.dataset.at.split(" ").map(Number);
        if ((row === undefined || r === row) && (column === undefined || c === column)) other.classList.add("used");
      }
    }
    about.dataset.cell = "true";
    about.replaceChildren(el("span", { class: "calculation" }, ...text), el("span", { class: "full-number" }, cell.dataset.full), el("br"), ...describeTensor(tensor, step.source));
  }
  const [inputs, results] = matricesOf(step, tensors, head), matrices = (list) => el("div", { class: "matrices" }, ...list.map((tensor) => drawPair(tensor, tensors, draw)));
  about.append(both("Select a number to see how it is computed.", "点选一个数，可查看它是怎样算出的。"));
  card.append(...[
    el("h4", {}, typesetBoth(step.title)), drawFormula(step.formula, step.formula_zh), step.equation ? el("p", { class: "equation" }, step.equation) : null,
    step.note.en ? el("p", { class: "walk-note" }, typesetBoth(step.note)) : null,
    inputs.length ? el("details", { class: "walk-group inputs", open: inputs.length <= 9 ? "" : null }, el("summary", {}, both("Inputs", "输入")), el("div", { class: "matrices" }, ...inputs.map((tensor) => draw({ ...tensor, symbol: step.symbols?.[tensor.name] ?? tensor.symbol })))) : null,
    results.length ? el("div", { class: "walk-group results" }, matrices(results)) : null, about, step.source ? el("p", { class: "walk-source" }, step.source) : null,
  ].filter(Boolean));
  return card;
}

// Numbers are selected by a click, or by the arrow keys while the matrix has the focus.
function listenToCells(figure, select) {
  let place = null;
  const go = (i, j) => { if (figure.querySelector(`td[data-at="${i} ${j}"]`)) select(...(place = [i, j])); };
  figure.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-at]");
    if (cell) go(...cell.dataset.at.split(" ").map(Number));
  });
  figure.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Enter: [0, 0] }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (place) go(place[0] + step[0], place[1] + step[1]);
    else go(0, 0);
  });
}

// ---- the map ----------------------------------------------------------------------------------------------------------

// The stations as the figure of the paper: encoder and decoder side by side, from the bottom to the top.
function drawMap(stations, choose) {
  const buttons = new Map(), button = (station) => {
    const title = bothText(station.title, (text) => text.split(" · ").at(-1));
    buttons.set(station, el("button", { type: "button", onclick: () => choose(station) }, bothOf(title)));
    return buttons.get(station);
  };
  const stacks = Object.entries({ encoder: ["Encoder", "编码器"], decoder: ["Decoder", "解码器"] }).map(([stack, name]) => {
    const found = stations.filter((station) => station.stack === stack);
    return found.length ? el("div", { class: `map-stack ${stack}` }, ...found.map(button), el("b", {}, both(...name))) : null;
  });
  const top = el("div", { class: "map-top" }, ...stations.filter((station) => ["output", "update"].includes(station.stack)).map(button));
  const nav = bothIn(el("nav", { class: "walk-map" }, top, el("div", { class: "map-stacks" }, ...stacks)), "aria-label", "Stations", "各站");
  return { nav, show(station) { for (const [one, node] of buttons) { if (one === station) node.setAttribute("aria-current", "step"); else node.removeAttribute("aria-current"); } } };
}

// A row of buttons of which one is pressed.
function chooser(english, chinese, change) {
  const node = bothIn(el("div", { class: "controls chooser", role: "group" }), "aria-label", english, chinese);
  return { node, fill(items, chosen) {
    node.hidden = items.length < 2;
    node.replaceChildren(el("span", { class: "chooser-name" }, both(english, chinese)), ...items.map(([value, label]) => el("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => change(value) }, label)));
  } };
}

// ---- the whole --------------------------------------------------------------------------------------------------------

// Undoes `compact` of build.py, except what heads have in common.
function restore(data) {
  const { keys, values } = data.shared ?? { keys: [] }, tensors = data.steps.flatMap((step) => step.tensors);
  const all = Array.from(new Float32Array(unpack({ data: data.numbers ?? "" }).buffer), plainNumber);
  for (const one of [...data.steps, ...tensors]) for (const key of keys) if (key in one) one[key] = values[one[key]];
  for (const one of data.numbers ? tensors.flatMap((tensor) => [tensor, tensor.cells ?? {}]) : []) for (const key of ["values", "rest"]) {
    const [at, rows, columns] = one[key] ?? [], row = (i) => all.slice(at + i * columns, at + (i + 1) * columns);
    if (typeof at === "number") one[key] = columns ? Array.from({ length: rows }, (_, i) => row(i)) : all.slice(at, at + rows);
  }
  delete data.shared;
  delete data.numbers;
}
// A float32 of six digits; "−∞" and the like as in Python.
const plainNumber = (x) => (Number.isFinite(x) ? Number(x.toPrecision(6)) : String(x).replace("-", "−").replace("Infinity", "∞"));

function drawWalkthrough(container, data, options = {}) {
  restore(data);
  const stations = stationsOf(data.steps), route = routeOf(stations), tensors = new Map();
  // A head lacks what it has in common with the head before it.
  for (const step of data.steps) step.tensors.forEach((tensor, i) => { if (tensor.head) step.tensors[i] = { ...step.tensors[i - 1], ...tensor }; });
  tensors.all = data.steps.flatMap((step) => step.tensors);
  for (const tensor of tensors.all) if (!tensors.has(keyOf(tensor))) tensors.set(keyOf(tensor), tensor);
  let at = 0, layer = 0, head = 0;
  const view = el("div", { class: "walk-view", tabindex: "-1" }), position = el("span", { class: "walk-position", role: "status" });
  const map = drawMap(stations, (station) => goTo(station, route[at].direction, true));
  const previous = el("button", { type: "button", onclick: () => go(at - 1) }, "← ", both("Previous", "上一站")), next = el("button", { type: "button", onclick: () => go(at + 1) }, both("Next", "下一站"), " →");
  const directions = chooser("Direction", "方向", (direction) => goTo(route[at].station, direction)), layers = chooser("Layer", "层", (value) => { layer = value; show(); }), heads = chooser("Head", "注意力头", (value) => { head = value; show(); });
  const bar = el("div", { class: "walk-bar controls" }, previous, next, position, el("span", { class: "gap" }), directions.node);

  function show(focus = false) {
    const { station, direction } = route[at], available = [...station.layers.keys()], chosen = available.includes(layer) ? layer : available[0], steps = station.layers.get(chosen)[direction];
    const count = Math.max(1, ...steps.flatMap((step) => step.tensors).map((tensor) => (headOf(tensor) ?? 0))), one = head === null || count === 1 ? null : Math.min(head, count - 1);
    directions.fill(Object.keys(DIRECTIONS).filter((name) => route.some((stop) => stop.direction === name)).map((name) => [name, both(...DIRECTIONS[name])]), direction);
    layers.fill(available.map((value) => [value, String(value + 1)]), chosen);
    heads.fill(count > 1 ? [...Array.from({ length: count }, (_, i) => [i, String(i + 1)]), [null, both("all", "全部")]] : [], one);
    previous.disabled = at === 0;
    next.disabled = at === route.length - 1;
    position.replaceChildren(`${at + 1} / ${route.length}`);
    map.show(station);
    walk.classList.toggle("is-backward", direction === "backward");
    const cards = steps.map((step) => drawStep(step, tensors, one));
    if (direction === "update") cards.push(drawUpdates(data));
    view.replaceChildren(el("div", { class: "walk-head" }, el("h3", {}, ...[bothOf(station.title), available.length > 1 ? both(`, layer ${chosen + 1}`, `，第 ${chosen + 1} 层`) : "", direction === "update" ? "" : [": ", both(...DIRECTIONS[direction].map((text) => text.toLowerCase()))]].flat()), layers.node, heads.node), ...cards);
    options.onStation?.(available.length > 1 ? [station.stack, chosen + 1] : null, direction);
    if (focus) view.focus({ preventScroll: true });
  }
  function go(index, focus = false) {
    at = Math.max(0, Math.min(route.length - 1, index));
    show(focus);
  }
  // The stop at a station in a direction, or else the first stop of either.
  function goTo(station, direction, focus = false) {
    const exact = route.findIndex((stop) => stop.station === station && stop.direction === direction), same = route.findIndex((stop) => (focus ? stop.station === station : stop.direction === direction));
    go(exact >= 0 ? exact : Math.max(0, same), focus);
  }
  const walk = bothIn(el("div", { class: "walk", role: "group" }, bar, el("div", { class: "walk-main" }, map.nav, view)), "aria-label", "Walkthrough: the arrow keys change the station", "逐步推演：用方向键切换");
  walk.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    go(at + step, view.contains(event.target));
  });
  container.replaceChildren(walk);
  if (route.length) go(0);
  return {
    go,
    step: (index) => view.querySelectorAll(".walk-step").item(index < 0 ? view.querySelectorAll(".walk-step").length + index : index) ?? view,
    stations: route.map(({ station, direction }) => `${direction} ${station.key}`),
    // The attention of a layer, counted from 1: in a decoder that to the source.
    layer(stack, number) {
      layer = number - 1;
      const of = (test) => route.findIndex((stop) => stop.station.stack === stack && stop.direction === route[at].direction && test(stop.station)), among = [of((station) => station.key.endsWith("cross_attn")), of((station) => station.layers.has(layer) && !station.key.endsWith("embedding")), of(() => true)];
      go(Math.max(0, among.find((index) => index >= 0) ?? 0), true);
    },
  };
}

// ---- the update -------------------------------------------------------------------------------------------------------

// Updates with several learning rates, by plain gradient descent and by Adam: all were computed by the model.
function drawUpdates(data) {
  const rates = [...new Set(data.updates.map((update) => update.rate))], [name, row, column] = data.parameter, before = data.figure.outputs, labels = data.figure.labels.output;
  const shown = el("div", { class: "updates" }), rate = el("output", {}), slider = el("input", { type: "range", min: 0, max: rates.length - 1, value: Math.max(0, rates.indexOf(data.learning_rate)), oninput: () => show() });
  const rules = { sgd: both("gradient descent", "梯度下降"), adam: "Adam" };
  const number = (x) => significant(x, 4).replace("-", "−"), { values, mark: [i, j] } = data.steps.find((step) => step.id === "update").tensors[0];
  bothIn(slider, "aria-label", "Learning rate", "学习率");
  function show() {
    const chosen = rates[Number(slider.value)], updates = Object.keys(rules).map((rule) => data.updates.find((update) => update.rule === rule && update.rate === chosen));
    rate.replaceChildren(`η = ${chosen}`);
    slider.setAttribute("aria-valuetext", String(chosen));
    const bars = (p) => el("td", { class: "number" }, meter(p), `${(100 * p).toFixed(2)} %`);
    const head = el("tr", {}, el("td", {}), el("th", { scope: "col" }, both("before", "更新前")), ...Object.values(rules).map((rule) => el("th", { scope: "col" }, typeof rule === "string" ? rule : rule.cloneNode(true))));
    const line = (label, ...cells) => el("tr", {}, el("th", { scope: "row" }, label), ...cells), plain = (x, worse) => el("td", { class: worse ? "number worse" : "number" }, number(x));
    shown.replaceChildren(el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {},
      line(both("loss", "损失"), plain(data.loss), ...updates.map((update) => plain(update.loss, update.loss > data.loss))),
      ...before[0]?.probability == null ? [] : before.map((output, i) => line(el("span", {}, "P(", el("b", {}, bothOf(named(labels[output.position]))), ")"), bars(output.probability), ...updates.map((update) => bars(update.probabilities[i])))),
      line(el("code", {}, `${name}[${row}, ${column}]`), el("td", { class: "number" }, number(values[i][j])), ...updates.map((update) => plain(update.element)))))));
  }
  show();
  return el("article", { class: "walk-step" }, el("h4", {}, both("Other learning rates, and Adam", "其他学习率与 Adam")),
    el("p", { class: "walk-note" }, both("Every column starts from the same weights and the same gradient. The first step of Adam divides each gradient by its absolute value, so every weight changes by η. Too large a step increases the loss.",
      "每一列都从同样的权重和同样的梯度出发。Adam 的第一步把每个梯度除以它的绝对值，所以每个权重都改变 η。步子太大，损失反而升高。")),
    el("label", { class: "rate" }, both("Learning rate", "学习率"), " ", slider, rate), shown);
}

return { drawWalkthrough };
})();
