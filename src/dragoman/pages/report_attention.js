// The cross-attention of one sentence: a heat map, and lines between source and target tokens.

const LEAST_LINE = 0.04;
let chosen = null;

// SentencePiece marks the first token of a word with "▁"; here the other tokens get a mark, because they are fewer.
function readable(piece, index, pieces) {
  if (piece === "</s>") return { en: "(end)", zh: "（结束）" };
  if (piece === "<s>") return { en: "(start)", zh: "（开始）" };
  if (piece === "▁") return "␣";
  if (piece.startsWith("▁")) return piece.slice(1);
  const inside = index > 0 && pieces.some((other) => other.startsWith("▁")) && /[\p{L}\p{N}]/u.test(piece) && !SPACELESS.test(piece);
  return inside ? `·${piece}` : piece;
}

function average(heads) {
  return heads[0].map((row, t) => row.map((_, s) => heads.reduce((sum, head) => sum + head[t][s], 0) / heads.length));
}

// How clearly a head aligns the tokens: the sum over source tokens of the largest weight on each.
function clearness(weights, columns) {
  return columns.reduce((sum, s) => sum + Math.max(...weights.map((row) => row[s] || 0)), 0) / Math.max(1, columns.length);
}

function clearest(layers, columns) {
  let best = { layer: 0, head: -1, value: -1 };
  layers.forEach((heads, layer) => [-1, ...heads.keys()].forEach((head) => {
    const value = clearness(head < 0 ? average(heads) : heads[head], columns);
    if (value > best.value) best = { layer, head, value };
  }));
  return best;
}

function showAttention() {
  const { source_tokens: source, target_tokens: target, weights: layers } = report.attention;
  if (!layers.length || !source.length || !target.length) {
    byId("attention").append(el("p", { class: "hint" }, both("No attention was recorded.", "没有记录注意力。")));
    for (const id of ["layer", "head"]) byId(id).parentElement.hidden = true;
    return;
  }
  const best = clearest(layers, [...source.keys()].filter((s) => source[s] !== "</s>"));
  const option = (value, english, chinese) => bothIn(el("option", { value }), "label", english, chinese);
  byId("layer").append(...layers.map((_, i) => option(i, `${i + 1} of ${layers.length}`, `第 ${i + 1} 层，共 ${layers.length} 层`)));
  byId("head").append(option(-1, "mean of all", "所有头的平均"), ...layers[0].map((_, i) => option(i, `${i + 1} of ${layers[0].length}`, `第 ${i + 1} 个，共 ${layers[0].length} 个`)));
  byId("layer").value = best.layer;
  byId("head").value = best.head;
  for (const id of ["layer", "head"]) byId(id).addEventListener("change", () => drawAttention());
  drawAttention();
}

const REST = [`Point at a square or a ${target.en} token, or focus the map and press the arrow keys. The map opens on the head with the clearest alignment; “·” marks a token inside a word.`,
  `将指针移到方格或${target.zh}词元上，或用键盘选中图后按方向键。打开时显示对齐最清晰的注意力头；“·”表示词内部的词元。`];

function drawAttention() {
  const { source_tokens: source, target_tokens: target, weights: layers } = report.attention;
  if (!layers.length || !source.length || !target.length) return;
  const heads = layers[Number(byId("layer").value)], head = Number(byId("head").value);
  const weights = head < 0 ? average(heads) : heads[head];
  const words = { source: source.map(readable), target: target.map(readable) };
  const map = heatMap(words, weights), lines = lineMap(words, weights);
  byId("attention").replaceChildren(
    el("div", {}, el("h3", {}, both("Attention weights", "注意力权重")), el("div", { class: "scroll" }, map.node)),
    el("div", {}, el("h3", {}, both("Alignment", "词对齐")), el("div", { class: "scroll" }, lines.node)));

  const choose = (t, s) => {
    chosen = t === null ? null : [t, s];
    map.choose(t, s);
    lines.choose(t);
    const column = s === null || s === undefined ? weights[t]?.indexOf(Math.max(...weights[t])) : s;
    const [word, source, share] = t === null ? [] : [words.target[t], words.source[column], percent(weights[t][column], 0)];
    byId("attention-hint").replaceChildren(t === null ? both(...REST)
      : both(`For “${inLanguage(word, "en")}”, ${share} of the attention is on “${inLanguage(source, "en")}”.`, `生成“${inLanguage(word, "zh")}”时，${share} 的注意力落在“${inLanguage(source, "zh")}”上。`));
    if (t !== null) map.node.setAttribute("aria-valuetext", byId("attention-hint").querySelector(`[lang="${language()}"]`).textContent);
  };
  map.listen(choose);
  lines.listen(choose);
  if (chosen) choose(...chosen);
  else choose(null);
}

const widthOf = (text) => [...text].reduce((sum, c) => sum + (c > "\u2e80" ? 14 : 7.8), 0);
const textWidth = (texts) => Math.max(...texts.flatMap((text) => (typeof text === "string" ? [text] : Object.values(text))).map(widthOf)) + 10;
const inSvg = (text) => (typeof text === "string" ? document.createTextNode(text) : bothInSvg(text.en, text.zh));

function heatMap(words, weights) {
  const rows = words.target.length, columns = words.source.length;
  const left = textWidth(words.target), top = textWidth(words.source) * 0.82 + 14;
  const room = byId("attention").clientWidth * (window.innerWidth > 900 ? 0.58 : 1) - left - 34;
  const size = Math.max(16, Math.min(38, Math.floor(room / columns)));
  const width = left + Math.max(columns * size + 34, 210), height = top + rows * size + 42;
  const labels = {
    rows: words.target.map((word, t) => svg("text", { x: left - 6, y: top + (t + 0.5) * size + 4.5, "text-anchor": "end", lang: report.target_code }, inSvg(word))),
    columns: words.source.map((word, s) => svg("text", { transform: `translate(${left + (s + 0.5) * size + 4} ${top - 7}) rotate(-56)` }, inSvg(word))),
  };
  const cells = weights.flatMap((row, t) => row.map((w, s) =>
    svg("rect", { class: "cell", x: left + s * size + 0.5, y: top + t * size + 0.5, width: size - 1, height: size - 1, rx: 2, "fill-opacity": Math.min(1, Math.max(0, w || 0)).toFixed(3) })));
  const box = svg("rect", { class: "chosen", width: size, height: size, rx: 3, visibility: "hidden" });
  const scale = svg("g", {}, ...[0, 0.25, 0.5, 0.75, 1].map((w, i) => svg("rect", { class: "cell", x: left + 28 + i * 26, y: height - 22, width: 25, height: 12, "fill-opacity": w })),
    svg("rect", { class: "grid", fill: "none", x: left + 28, y: height - 22, width: 129, height: 12 }),
    svg("text", { class: "scale", x: left + 22, y: height - 12, "text-anchor": "end" }, "0 %"), svg("text", { class: "scale", x: left + 164, y: height - 12 }, "100 %"));
  const node = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "slider", "aria-valuemin": 0, "aria-valuemax": rows * columns - 1,
    "aria-valuenow": 0, "aria-valuetext": "–" },
  svg("rect", { class: "cell-back", x: left, y: top, width: columns * size, height: rows * size, rx: 3 }), ...cells, ...labels.rows, ...labels.columns, box, scale);
  bothIn(node, "aria-label", `Cross-attention: rows are ${target.en} tokens, columns English tokens; move with the arrow keys`, `交叉注意力：行是${target.zh}词元，列是英语词元；用方向键移动`);

  function choose(t, s) {
    labels.rows.forEach((label, i) => label.classList.toggle("on", i === t));
    labels.columns.forEach((label, i) => label.classList.toggle("on", t !== null && i === s));
    const visible = t !== null && s !== null && s !== undefined;
    box.setAttribute("visibility", visible ? "visible" : "hidden");
    if (!visible) return;
    box.setAttribute("x", left + s * size);
    box.setAttribute("y", top + t * size);
    node.setAttribute("aria-valuenow", t * columns + s);
  }
  function listen(report_) {
    node.addEventListener("pointermove", (event) => {
      const area = node.getBoundingClientRect();
      const s = Math.floor((event.clientX - area.left - left) / size), t = Math.floor((event.clientY - area.top - top) / size);
      if (s >= 0 && s < columns && t >= 0 && t < rows) report_(t, s);
    });
    node.addEventListener("pointerleave", () => report_(null));
    node.addEventListener("blur", () => report_(null));
    node.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (event.key === "Escape") report_(null);
      if (!step) return;
      event.preventDefault();
      const [t, s] = chosen ? [chosen[0] + step[0], (chosen[1] ?? 0) + step[1]] : [0, 0];
      report_(Math.max(0, Math.min(rows - 1, t)), Math.max(0, Math.min(columns - 1, s)));
    });
  }
  return { node, choose, listen };
}

function lineMap(words, weights) {
  const row = 25, rows = Math.max(words.source.length, words.target.length), height = rows * row + 8;
  const left = textWidth(words.source), gap = 150, width = left + gap + textWidth(words.target);
  // The shorter side is stretched, so that equal order gives parallel lines.
  const yOf = (i, count) => 4 + row / 2 + (count > 1 ? (i * (rows - 1) * row) / (count - 1) : 0);
  const y = { source: (s) => yOf(s, words.source.length), target: (t) => yOf(t, words.target.length) };
  const links = weights.flatMap((weight, t) => weight.map((w, s) => ({ w, s, t })).filter(({ w }) => w >= LEAST_LINE)).sort((a, b) => a.w - b.w)
    .map(({ w, s, t }) => ({ w, t, s, node: svg("path", { class: "link", "stroke-width": (0.6 + 4 * w).toFixed(2),
      d: `M${left + 4} ${y.source(s)}C${left + gap / 2} ${y.source(s)} ${left + gap / 2} ${y.target(t)} ${left + gap - 4} ${y.target(t)}` }) }));
  const sources = words.source.map((word, s) => svg("text", { x: left - 4, y: y.source(s) + 4.5, "text-anchor": "end" }, inSvg(word)));
  const targets = words.target.map((word, t) => svg("text", { x: left + gap + 4, y: y.target(t) + 4.5, lang: report.target_code }, inSvg(word)));
  const bands = words.target.map((_, t) => svg("rect", { x: left + gap, y: y.target(t) - row / 2, width: width - left - gap, height: row, fill: "transparent" }));
  const node = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" },
  ...links.map((link) => link.node), ...sources, ...targets, ...bands);
  bothIn(node, "aria-label", `Lines from ${words.source.length} English to ${words.target.length} ${target.en} tokens; a thicker line is a larger weight. The map beside it shows the same weights.`,
    `从 ${words.source.length} 个英语词元到 ${words.target.length} 个${target.zh}词元的连线；线越粗，权重越大。旁边的图显示同样的权重。`);

  function choose(t) {
    for (const link of links) {
      link.node.classList.toggle("on", link.t === t);
      link.node.setAttribute("stroke-opacity", (t === null || link.t === t ? 0.15 + 0.85 * link.w : 0.05).toFixed(2));
    }
    targets.forEach((text, i) => text.classList.toggle("on", i === t));
    sources.forEach((text, i) => text.classList.toggle("on", t !== null && weights[t][i] === Math.max(...weights[t])));
  }
  function listen(report_) {
    bands.forEach((band, t) => band.addEventListener("pointerenter", () => report_(t, null)));
    node.addEventListener("pointerleave", () => report_(null));
  }
  return { node, choose, listen };
}
