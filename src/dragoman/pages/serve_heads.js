"use strict";
// Attention weights of one token in all layers and heads, and a grid of small charts to choose from.

const MEAN = -1, MOST_BARS = 30;

// {shape: [L, H, S], data} -> the weights of a layer and head, or of their mean, over the S positions.
function weightsOf(attention, layer, head) {
  const [layers, heads, places] = attention.shape;
  attention.bytes ||= unpack(attention);
  const chosen = (one, count) => (one === MEAN ? [...Array(count).keys()] : [one]);
  const from = chosen(layer, layers).flatMap((l) => chosen(head, heads).map((h) => (l * heads + h) * places));
  return Array.from({ length: places }, (_, s) => from.reduce((sum, start) => sum + attention.bytes[start + s], 0) / (255 * from.length));
}

// At most `most` bars: neighbours are summed, or, where the nearest positions matter most, all positions further back.
function barsOf(weights, most, nearest) {
  if (weights.length <= most) return weights;
  const sum = (from, to) => weights.slice(from, to).reduce((a, b) => a + b, 0);
  if (nearest) return [sum(0, 1 - most), ...weights.slice(1 - most)];
  return Array.from({ length: most }, (_, i) => sum(Math.round((i * weights.length) / most), Math.round(((i + 1) * weights.length) / most)));
}

// The first row and column are means; arrow keys move and select, as in every radio group.
function makeHeads({ layers, heads, over }, changed) {
  const rows = [MEAN, ...Array(layers).keys()], columns = [MEAN, ...Array(heads).keys()];
  const chosen = { layer: MEAN, head: MEAN };
  const cells = rows.map((layer) => columns.map((head) => makeCell(layer, head)));
  const called = (index, en, zh) => (index === MEAN ? both("mean", "平均") : both(`${en} ${index + 1}`, zh(index + 1)));
  const short = (index) => (index === MEAN ? both("mean", "平均") : String(index + 1));
  const title = both("Layer ↓  head →", "层 ↓  头 →");
  const node = el("div", { class: "heads", role: "radiogroup", onkeydown: move }, el("span", { class: "corner", "aria-hidden": "true" }, title),
    ...columns.map((head) => el("span", { class: "name", "aria-hidden": "true" }, short(head))),
    ...rows.flatMap((layer, r) => [el("span", { class: "name", "aria-hidden": "true" }, short(layer)), ...cells[r].map((cell) => cell.node)]));
  bothIn(node, "aria-label", "Layers and heads; move with the arrow keys", "层与注意力头；用方向键移动");
  node.style.setProperty("--columns", columns.length);
  node.hidden = layers * heads === 1;
  mark();

  function makeCell(layer, head) {
    const picture = svg("path", { class: "bars" });
    const box = svg("svg", { preserveAspectRatio: "none", "aria-hidden": "true" }, picture);
    const cell = el("button", { type: "button", class: "cell", role: "radio", onclick: () => choose(layer, head) }, box);
    const name = (index, mean, one) => (index === MEAN ? mean : one);
    bothIn(cell, "aria-label",
      `${name(layer, "mean of the layers", `layer ${layer + 1}`)}, ${name(head, "mean of the heads", `head ${head + 1}`)}`,
      `${name(layer, "各层平均", `第 ${layer + 1} 层`)}，${name(head, "各注意力头平均", `第 ${head + 1} 个注意力头`)}`);
    return { node: cell, box, picture };
  }

  function mark() {
    cells.forEach((row, r) => row.forEach(({ node: cell }, c) => {
      const is = rows[r] === chosen.layer && columns[c] === chosen.head;
      cell.setAttribute("aria-checked", String(is));
      cell.tabIndex = is ? 0 : -1;
    }));
  }

  function choose(layer, head) {
    Object.assign(chosen, { layer, head });
    mark();
    changed();
  }

  function move(event) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const r = Math.max(0, Math.min(rows.length - 1, rows.indexOf(chosen.layer) + step[0]));
    const c = Math.max(0, Math.min(columns.length - 1, columns.indexOf(chosen.head) + step[1]));
    choose(rows[r], columns[c]);
    cells[r][c].node.focus();
  }

  function show(attention) {
    if (node.hidden) return;
    rows.forEach((layer, r) => columns.forEach((head, c) => {
      const bars = barsOf(weightsOf(attention, layer, head), MOST_BARS, over === "before"), { box, picture } = cells[r][c];
      box.setAttribute("viewBox", `0 0 ${bars.length} 1`);
      picture.setAttribute("d", bars.map((w, s) => (w < 0.01 ? "" : `M${s + 0.1} 1v${-w.toFixed(3)}h.8V1z`)).join(""));
    }));
  }

  const name = () => (chosen.layer === MEAN && chosen.head === MEAN ? both("mean of all layers and heads", "所有层与注意力头的平均")
    : el("span", {}, called(chosen.layer, "layer", (n) => `第 ${n} 层`), both(", ", "，"), called(chosen.head, "head", (n) => `第 ${n} 个注意力头`)));
  return { node, show, name, weights: (attention) => weightsOf(attention, chosen.layer, chosen.head) };
}
