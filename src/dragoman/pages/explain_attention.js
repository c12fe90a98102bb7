"use strict";
// The sections on attention: alignment of source and target, and the maps of every layer and head.

const STACKS = { encoder: ["encoder", "编码器"], decoder: ["decoder", "解码器"], cross: ["cross-attention", "交叉注意力"] };
const ROOM = () => Math.min(1116, document.documentElement.clientWidth - 64);

const ofStack = (stack) => explanation.maps.filter((map) => map.stack === stack);
const joinsAnything = () => explanation.kind !== "image" && Object.values(explanation.sides).some((side) => side.words.length < side.pieces.length);

// ---- matrices of the explanation --------------------------------------------------------------------------------------

// The weights of a head (-1 = mean of all heads) as {rows, columns: labels, values, n, m}; with byWords, the mean over the pieces of each query word of the sum over those of each key word.
function matrixOf(map, head, byWords) {
  const sides = { rows: explanation.sides[map.rows], columns: explanation.sides[map.columns] };
  const named = { cross: map.stack === "cross" }, values = ofHead(map, head), n = sides.rows.pieces.length, m = sides.columns.pieces.length;
  if (!byWords) return { ...named, rows: readablePieces(sides.rows.pieces), columns: readablePieces(sides.columns.pieces), values, n, m };
  const rows = sides.rows.words, columns = sides.columns.words, joined = new Float32Array(rows.length * columns.length);
  rows.forEach((row, i) => columns.forEach((column, j) => {
    for (const r of row) for (const c of column) joined[i * columns.length + j] += values[r * m + c] / row.length;
  }));
  return { ...named, rows: rows.map((word) => joinedWord(sides.rows, word)), columns: columns.map((word) => joinedWord(sides.columns, word)), values: joined, n: rows.length, m: columns.length };
}

const joinedWord = (side, word) => (word.length === 1 ? readable(side.pieces[word[0]]) : word.map((index) => side.pieces[index].replaceAll("▁", "")).join(""));

// The layer and head whose weights agree best with occlusion: the largest sum of weight times normalized drop.
function bestByOcclusion(maps) {
  const occlusion = ofHead(explanation.occlusion, 0);
  let best = { layer: maps[0].layer, head: 0, value: -1 };
  for (const map of maps) {
    for (const head of map.averaged ? [-1] : Array(map.weights.shape[0]).keys()) {
      const values = ofHead(map, head);
      let value = 0;
      for (let i = 0; i < occlusion.length; i += 1) value += values[i] * occlusion[i];
      if (value > best.value) best = { layer: map.layer, head, value };
    }
  }
  return best;
}

// The head with the largest confidence: the mean over queries of the largest weight.
function sharpest(maps) {
  let best = { layer: maps[0].layer, head: -1, value: -1 };
  for (const map of maps) {
    const [heads, n, m] = map.weights.shape;
    for (const head of map.averaged ? [-1] : Array(heads).keys()) {
      const values = ofHead(map, head);
      let value = 0;
      for (let r = 0; r < n; r += 1) value += values[r * m + strongest({ values, m }, r)];
      if (value > best.value) best = { layer: map.layer, head, value };
    }
  }
  return best;
}

// ---- choice of a map --------------------------------------------------------------------------------------------------

// Selects of the layer, of the head and of pieces or words; each calls `change`.
function choosers(change) {
  const layer = el("select", { onchange: change }), head = el("select", { onchange: change }), unit = el("select", { onchange: change });
  options(unit, [["pieces", "pieces", "词元"], ["words", "words", "词"]], "pieces");
  return {
    layer, head, unit,
    fill(maps, chosen) {
      options(layer, maps.map((map) => [map.layer, `${map.layer + 1} of ${maps.length}`, `第 ${map.layer + 1} 层，共 ${maps.length} 层`]), chosen.layer);
      const heads = maps[0].weights.shape[0], mean = ["mean of all", "各头平均"];
      options(head, [...(heads > 1 || maps[0].averaged ? [[-1, ...mean]] : []), ...(maps[0].averaged ? [] : [...Array(heads).keys()].map((h) => [h, `${h + 1} of ${heads}`, `第 ${h + 1} 个，共 ${heads} 个`]))], chosen.head);
      if (head.selectedIndex < 0) head.selectedIndex = 0;
    },
    get map() { return { layer: Number(layer.value), head: Number(head.value), byWords: unit.value === "words" }; },
    nodes: () => [field("Layer", "层", layer), field("Head", "注意力头", head), ...(joinsAnything() ? [field("by", "单位", unit)] : [])],
  };
}

// The selected weight as a sentence, then the tensor with its shape and the formula of the paper.
function describe(map, chosen, matrix, r, c) {
  const head = chosen.head < 0 ? ":" : chosen.head;
  if (r === null || c === null) return [el("span", {}, both("Point at a cell or a word, or use the arrow keys.", "将指针移到格子或词上，或使用方向键。")), tensorLine(map.name, map.shape, map.paper)];
  const w = percent(matrix.values[r * matrix.m + c]), row = () => quoted(matrix.rows[r]), column = () => quoted(matrix.columns[c]);
  const sentence = map.rows === "output"
    ? both(["The query that predicts ", ...row(), ` has ${w} of its attention on `, ...column(), "."], ["预测", ...row(), `的查询有 ${w} 的注意力落在`, ...column(), "上。"])
    : both(["The query at ", ...row(), ` has ${w} of its attention on `, ...column(), "."], [...row(), `处的查询有 ${w} 的注意力落在`, ...column(), "上。"]);
  const index = chosen.byWords ? "" : `[0, ${head}, ${r}, ${c}]`;
  return [el("span", {}, sentence), tensorLine(`${map.name}${index}`, map.shape, map.paper)];
}

// ---- alignment ------------------------------------------------------------------------------------------------------

const HARDLY = 0.1;  // nats

// The source tokens without which no output token becomes less probable.
function ignoredWords() {
  const { drops } = explanation.occlusion, pieces = readablePieces(explanation.sides.source.pieces);
  const ignored = pieces.filter((_, s) => drops.every((row) => row[s] < HARDLY)), names = (code) => ignored.map((piece) => `“${inLanguage(piece, code)}”`).join(code === "en" ? ", " : "、");
  return el("p", { class: "hint ignored" }, ignored.length
    ? both(`The model hardly uses ${names("en")}: without one of them, no output token loses more than ${HARDLY} of its log-probability.`, `模型几乎没有用到${names("zh")}：去除其中任何一个，输出词元的对数概率下降都不超过 ${HARDLY}。`)
    : both("Every source token matters: without it, some output token becomes less probable.", "每个源词元都有作用：去除它，就有输出词元的概率下降。"));
}

function showAlignment() {
  if (!explanation.occlusion) return;
  byId("alignment").hidden = false;
  const maps = ofStack("cross"), words = Math.min(explanation.sides.source.words.length, explanation.sides.output.words.length);
  const control = choosers(draw), how = el("select", { onchange: draw }), nodes = control.nodes();
  options(how, [...(maps.length ? [["attention", "attention", "注意力"]] : []), ["occlusion", "occlusion", "逐词去除"]], maps.length ? "attention" : "occlusion");
  if (maps.length) control.fill(maps, bestByOcclusion(maps));
  control.unit.value = words > 4 && joinsAnything() ? "words" : "pieces"; // words are useful from five on
  byId("alignment-controls").append(field("Measure", "依据", how), ...nodes);
  const picture = el("div", { class: "scroll" }), hint = el("p", { class: "hint two", "aria-live": "polite" });
  byId("alignment-body").append(picture, hint, ignoredWords());

  function draw() {
    const chosen = control.map, left = how.value === "occlusion", map = left ? explanation.occlusion : maps.find(({ layer }) => layer === chosen.layer);
    const matrix = matrixOf(map, left ? 0 : chosen.head, chosen.byWords);
    nodes.forEach((node, i) => { node.hidden = left && i < 2; });
    const lines = linePicture(matrix, { en: "The source word with the largest value for each target word", zh: "每个目标词的数值最大的源词" }, ROOM());
    const show = (r, c) => {
      lines.choose(r, c);
      hint.replaceChildren(...(left ? describeDrop(chosen, matrix, r, c) : describe(map, chosen, matrix, r, c)));
    };
    lines.listen(show);
    picture.replaceChildren(lines.node);
    show(null, null);
  }
  draw();
  redrawn(draw);
}

// The effect of removing a source token on a target token.
function describeDrop(chosen, matrix, r, c) {
  const formula = el("span", { class: "tensor" }, "log p(yₜ | y₍ₜ, x) − log p(yₜ | y₍ₜ, x∖xₛ)".replaceAll("₍", "<"));
  if (r === null || c === null) return [el("span", {}, both("Point at a word. Each source token is removed in turn; the lines show the largest drops.", "将指针移到词上。逐个去除源词元，连线显示对数概率下降最多之处。")), formula];
  const share = percent(matrix.values[r * matrix.m + c]), target = () => quoted(matrix.rows[r]), source = () => quoted(matrix.columns[c]);
  const times = chosen.byWords ? null : Math.exp(explanation.occlusion.drops[r][c]);
  const sentence = times === null ? null : both(["Removing ", ...source(), " makes ", ...target(), ` ${significant(times)} times less probable. `], ["去除", ...source(), "后，", ...target(), `的概率降为原来的 ${significant(times)} 分之一。`]);
  return [el("span", {}, sentence ?? "", both([...source(), ` accounts for ${share} of all drops of this token.`], [`该词元对数概率的全部下降中，${share} 来自`, ...source(), "。"])), formula];
}

// ---- all layers and heads --------------------------------------------------------------------------------------------

function showAttention() {
  const stacks = Object.keys(STACKS).filter((stack) => ofStack(stack).length);
  if (!stacks.length) {
    byId("attention-what").append(explanation.sides.source && explanation.sides.output ? both("This model has no attention: the decoder receives the source as one vector, the last state of the encoder. See the section on gates and states below.",
      "这个模型没有注意力：解码器只得到源句的一个向量，即编码器的最终状态。参见下面的“门与状态”一节。")
      : both("This model has no attention: the state that it passes from token to token is all that it keeps of the others. See the section on gates and states below.",
        "这个模型没有注意力：它对其他词元的全部记忆就是逐个词元传递的状态。参见下面的“门与状态”一节。"));
    return;
  }
  byId("attention-what").append(attentionText(stacks));
  const control = choosers(() => draw()), stack = el("select", { onchange: () => refill() });
  options(stack, stacks.map((name) => [name, ...STACKS[name]]), stacks.includes("cross") ? "cross" : stacks.at(-1));
  byId("attention-controls").append(...(stacks.length > 1 ? [field("Which", "哪一种", stack)] : []), ...control.nodes());
  const pictures = el("div", { class: "attention" }), hint = el("p", { class: "hint two", "aria-live": "polite" }), overview = el("div", { class: "overview" });
  byId("attention-body").append(pictures, hint, el("h3", {}, both("All heads; select one", "全部注意力头（点选一个）")), overview);

  function refill() {
    const maps = ofStack(stack.value);
    control.fill(maps, stack.value === "cross" ? bestByOcclusion(maps) : sharpest(maps));
    drawOverview(maps);
    draw();
  }

  function draw() {
    const chosen = control.map, map = ofStack(stack.value).find(({ layer }) => layer === chosen.layer), matrix = matrixOf(map, chosen.head, chosen.byWords);
    const name = { en: `${STACKS[map.stack][0]}, layer ${map.layer + 1}`, zh: `${STACKS[map.stack][1]}，第 ${map.layer + 1} 层` };
    showWeights(pictures, hint, matrix, name, ROOM(), (r, c) => describe(map, chosen, matrix, r, c));
    for (const tile of overview.querySelectorAll("button")) tile.setAttribute("aria-pressed", String(tile.dataset.layer === String(chosen.layer) && tile.dataset.head === String(chosen.head)));
  }

  function drawOverview(maps) {
    const heads = maps[0].weights.shape[0], shown = maps[0].averaged ? [-1] : [...Array(heads).keys()];
    const tiles = maps.flatMap((map) => shown.map((head) => {
      const [, n, m] = map.weights.shape;
      const press = () => { control.layer.value = map.layer; control.head.value = head; draw(); };
      const tile = el("button", { type: "button", class: "tile", "data-layer": map.layer, "data-head": head, onclick: press }, paint(el("canvas", { class: "cells" }), ofHead(map, head), n, m, map.stack === "cross" ? "--crossing" : "--attention"));
      return bothIn(tile, "aria-label", head < 0 ? `Layer ${map.layer + 1}, mean of its heads` : `Layer ${map.layer + 1}, head ${head + 1}`, head < 0 ? `第 ${map.layer + 1} 层，各头平均` : `第 ${map.layer + 1} 层，第 ${head + 1} 个注意力头`);
    }));
    roving(tiles, shown.length);
    const rows = maps.map((map, i) => el("div", { class: "tiles" }, el("span", { class: "layer" }, both(`layer ${map.layer + 1}`, `第 ${map.layer + 1} 层`)), ...tiles.slice(i * shown.length, (i + 1) * shown.length)));
    overview.replaceChildren(...rows);
  }

  refill();
  redrawn(() => refillKeeping());
  function refillKeeping() {
    drawOverview(ofStack(stack.value));
    draw();
  }
}

function attentionText(stacks) {
  if (explanation.kind === "image") return both("Rows are queries, columns are keys: the class token first, then the patches by row and column.", "每行对应一个查询词元，每列对应一个键：先是类别词元，然后是按行、列编号的图像块。");
  const cross = stacks.includes("cross"), writes = Boolean(explanation.sides.output);
  const english = "A row is a query, whose weights sum to 1; a column is a key." + (writes ? " A query of the decoder is named after the token that it predicts; its keys are the tokens read so far" + (cross ? ", in cross-attention those of the source." : ".") : "");
  const chinese = "每行对应一个查询词元，该行权重之和为 1；每列对应一个键。" + (writes ? "解码器的查询以它要预测的词元命名，键是已读入的词元" + (cross ? "；在交叉注意力中，键是源句的词元。" : "。") : "");
  return both(english, chinese);
}
