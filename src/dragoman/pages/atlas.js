// The attention heads of a model: a grid of all heads, one head in detail, and a table of all measures.
const data = JSON.parse(byId("atlas-data").textContent);

const REACH = data.reach, OFFSETS = Array.from({ length: 2 * REACH + 1 }, (_, i) => i - REACH);
const MINUS = "\u2212";
const signed = (value) => (value > 0 ? `+${value}` : value < 0 ? `${MINUS}${-value}` : "0");
const rounded = (share) => percent(share, 0);
const fixed = (digits) => (value) => (finite(value) ? value.toFixed(digits).replace("-", MINUS) : "–");
const rise = (value) => (finite(value) ? `${value > 0 ? "+" : ""}${fixed(4)(value)}` : "–");

// ---- names ----------------------------------------------------------------------------------------------------------

const STACKS = {
  "encoder.self_attn": ["Encoder, self-attention", "编码器，自注意力"],
  "decoder.self_attn": ["Decoder, masked self-attention", "解码器，带掩码的自注意力"],
  "decoder.cross_attn": ["Decoder, cross-attention", "解码器，交叉注意力"],
  self_attn: ["Self-attention", "自注意力"],
};
const PARTS = { self_attn: ["self-attention", "自注意力"], ssru: ["SSRU", "SSRU"], cross_attn: ["cross-attention", "交叉注意力"], ffn: ["feed-forward", "前馈网络"], conv: ["convolution", "卷积"] };
const SIDES = { encoder: ["encoder", "编码器"], decoder: ["decoder", "解码器"], "": ["layers", "各层"] };
const stackName = (stack) => STACKS[stack] || [stack, stack];

const half = rounded(data.most), most = rounded(data.broad);
const KINDS = {
  aligning: { short: ["align", "对齐"], name: ["aligning", "对齐"],
    rule: [`The strongest links agree with the given word alignment: alignment error rate of at most ${data.most}. Only measured if an alignment is given.`,
      `最强的连接与给定的词对齐一致：对齐错误率不超过 ${data.most}。仅在给出词对齐时测量。`] },
  positional: { short: ["at", "位置"], name: ["positional", "位置"],
    rule: [`At least ${half} of the weight at one fixed offset: ${MINUS}1 is the position before the query, +1 the one after it, 0 its own.`,
      `至少 ${half} 的权重落在同一个偏移处：${MINUS}1 是查询的前一个位置，+1 是后一个位置，0 是查询自身。`] },
  "same token": { short: ["same", "相同"], name: ["same token", "相同词元"],
    rule: [`At least ${half} of the weight on other positions with the same piece (self-attention).`, `至少 ${half} 的权重落在其他位置的相同词元上（自注意力）。`] },
  "end of sentence": { short: ["end", "句末"], name: ["end of sentence", "句末符"],
    rule: [`At least ${half} of the weight on the source's end of sentence, which often receives the weight of heads without a function for a token.`, `至少 ${half} 的权重落在源句的句末符上；注意力头对某个词元不起作用时，权重常落在这里。`] },
  "first token": { short: ["first", "首词"], name: ["first token", "首词元"], rule: [`At least ${half} of the weight on the first key.`, `至少 ${half} 的权重落在第一个键上。`] },
  broad: { short: ["broad", "分散"], name: ["broad", "分散"],
    rule: [`Entropy of at least ${most} of the maximum: nearly equal weights on all visible keys.`, `熵至少为最大值的 ${most}：对所有可见的键几乎赋予相同的权重。`] },
  focused: { short: ["focused", "集中"], name: ["focused", "集中"],
    rule: [`At least ${half} of the weight on one key at no fixed position: the head selects by content. In cross-attention such a head may align words.`,
      `至少 ${half} 的权重落在一个键上，但偏移不固定：注意力头按内容选择。在交叉注意力中，这类注意力头可能在对齐词。`] },
  mixed: { short: ["mixed", "混合"], name: ["mixed", "混合"], rule: ["None of these.", "不满足以上任何规则。"] },
};
const kindOf = (head) => (head.label.startsWith("positional") ? "positional" : head.label);
const kindClass = (kind) => `k-${kind.split(" ")[0]}`;
const labelOf = (head) => { const names = KINDS[kindOf(head)].name; return kindOf(head) === "positional" ? names.map((name) => `${name} ${signed(head.offset)}`) : names; };
const NEAR = { "-1": ["previous", "前一个"], 0: ["itself", "自身"], 1: ["next", "后一个"] };
function shortOf(head) {
  if (kindOf(head) !== "positional") return KINDS[kindOf(head)].short;
  const near = head.stack.endsWith("self_attn") ? NEAR[head.offset] : undefined; // a position of the source is not the query itself
  return near ?? [`at ${signed(head.offset)}`, `偏移 ${signed(head.offset)}`];
}
const positionOf = (head) => [`layer ${head.layer + 1}, head ${head.number + 1}`, `第 ${head.layer + 1} 层，第 ${head.number + 1} 个注意力头`];

// key: of a head.  top: value of the strongest colour, null = the maximum over heads.  less: lower values are stronger.
const MEASURES = [
  { key: "label", name: ["label", "类别"], help: ["The label states where most of the weight of a head goes; the bars are its mean weight from 7 positions before to 7 positions after the query. Select a measure to see its values.",
    "类别说明注意力头的权重主要落在何处；小条是查询之前 7 个至之后 7 个位置上的平均权重。可改选一个指标查看其数值。"] },
  { key: "relative_entropy", name: ["relative entropy", "相对熵"], top: 1, text: rounded, help: ["Entropy divided by its maximum: 0 % is a single key, 100 % equal weights on all visible keys.", "熵除以其最大值：0 % 表示权重全在一个键上，100 % 表示所有可见的键权重相等。"] },
  { key: "entropy", name: ["entropy (nats)", "熵（奈特）"], top: null, text: fixed(2), help: ["− Σ w ln w, mean over queries.", "− Σ w ln w，对所有查询取平均。"] },
  { key: "confidence", name: ["confidence", "最大权重"], top: 1, text: rounded, help: ["The largest weight, mean over queries.", "最大的权重，对所有查询取平均。"] },
  { key: "at_offset", name: ["at its best offset", "最佳偏移处"], top: 1, text: rounded, help: ["The weight at the offset with the largest weight: the dependence of the head on position alone.", "权重最大的偏移处的权重：注意力头在多大程度上只取决于位置。"] },
  { key: "same", name: ["same token", "相同词元"], top: 1, text: rounded, help: ["The weight on other positions with the same piece, over the queries that see one.", "落在其他位置的相同词元上的权重，只统计能看到这种位置的查询。"] },
  { key: "end", name: ["end of sentence", "句末符"], top: 1, text: rounded, help: ["The weight on the source's end of sentence.", "落在源句句末符上的权重。"] },
  { key: "first", name: ["first token", "首词元"], top: 1, text: rounded, help: ["The weight on the first key.", "落在第一个键上的权重。"] },
  { key: "aer", name: ["alignment error rate", "对齐错误率"], top: 1, less: true, text: fixed(2), help: ["The disagreement of the strongest links with the given word alignment (Och and Ney 2003): 0 is perfect; a stronger colour is better.", "最强的连接与给定词对齐的不一致程度（Och 和 Ney 2003）：0 为完全一致；颜色越深越好。"] },
  { key: "cost", name: ["cost of ablation", "移除后的损失增量"], top: null, text: rise, help: [`The increase of the loss in nats per token when the output of the head is 0 (${data.cost_lines} lines). Negative: the model is better without the head.`, `把该注意力头的输出置 0 后损失的增量（单位：奈特/词元，${data.cost_lines} 行文本）。为负时，移除它后模型更好。`] },
].filter((measure) => data.heads.some((head) => measure.key === "label" || finite(head[measure.key])));

let measure = MEASURES[0], chosen = null, exampleNumber = 0;

// The strength of the colour of a head, from 0 to 1.
function strength(head, of) {
  const value = head[of.key];
  if (!finite(value)) return 0;
  const top = of.top ?? Math.max(1e-9, ...data.heads.map((other) => other[of.key]).filter(finite));
  return Math.max(0, Math.min(1, of.less ? 1 - value / top : value / top));
}
const mixed = (name, share) => `color-mix(in srgb, var(${name}) ${share.toFixed(1)}%, var(--surface))`;
const tint = (share) => mixed("--first", 48 * share);

// ---- the grid -------------------------------------------------------------------------------------------------------

// The height is the square root of the weight, so that small weights are visible; the detail view is linear.
function profileBars(head) {
  const width = 60, step = width / OFFSETS.length, height = 24, tall = (i) => height * Math.sqrt(head.profile[i] || 0);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("line", { class: "axis-line", x1: width / 2, x2: width / 2, y1: 0, y2: height }),
    svg("line", { class: "axis-line", x1: 0, x2: width, y1: height, y2: height }),
    ...OFFSETS.map((_, i) => svg("rect", { class: "bar", x: (i * step + 0.5).toFixed(2), width: (step - 1).toFixed(2),
      y: (height - tall(i)).toFixed(2), height: tall(i).toFixed(2) })));
}

function headButton(head, cell) {
  const label = labelOf(head), where = positionOf(head);
  const value = el("span", { class: "value" });
  const button = el("button", { type: "button", class: `head ${kindClass(kindOf(head))}`, "data-head": head.index, "aria-pressed": "false", style: `grid-row: ${cell.row}; grid-column: ${cell.column}`, onclick: () => choose(head.index) },
    profileBars(head), value);
  bothIn(button, "title", `${where[0]}: ${label[0]}`, `${where[1]}：${label[1]}`);
  return button;
}

function drawStack(stack) {
  const heads = data.heads.filter((head) => head.stack === stack), name = stackName(stack);
  const layers = [...new Set(heads.map((head) => head.layer))], columns = Math.max(...heads.map((head) => head.number)) + 1;
  const grid = el("div", { class: "grid-of-heads", role: "group", style: `grid-template-columns: max-content repeat(${columns}, minmax(46px, 1fr)); max-width: ${80 + 132 * columns}px` },
    el("span", { class: "name row", style: "grid-row: 1; grid-column: 1" }, both("head", "注意力头")),
    ...Array.from({ length: columns }, (_, i) => el("span", { class: "name", style: `grid-row: 1; grid-column: ${i + 2}` }, String(i + 1))),
    ...layers.map((layer, row) => el("span", { class: "name row", style: `grid-row: ${row + 2}; grid-column: 1` }, both(`layer ${layer + 1}`, `第 ${layer + 1} 层`))),
    ...heads.map((head) => headButton(head, { row: layers.indexOf(head.layer) + 2, column: head.number + 2 })));
  bothIn(grid, "aria-label", `${name[0]}: move with the arrow keys`, `${name[1]}：用方向键移动`);
  roving([...grid.querySelectorAll("button")], columns);
  return el("div", { class: "stack", "data-stack": stack }, el("h3", {}, both(...name)), el("div", { class: "scroll" }, grid));
}

const buttonOf = (index) => document.querySelector(`button.head[data-head="${index}"]`);

// The colours and texts of all cells by the selected measure.
function colourGrid() {
  const byKind = measure.key === "label";
  for (const head of data.heads) {
    const button = buttonOf(head.index), value = button.querySelector(".value");
    button.style.background = byKind ? mixed("--kind", 26) : tint(strength(head, measure));
    const [text, where] = [byKind ? "" : measure.text(head[measure.key]), positionOf(head)], shown = byKind ? shortOf(head) : [text, text];
    const named = byKind ? labelOf(head) : measure.name;
    value.replaceChildren(both(...shown));
    bothIn(button, "aria-label", `${shown[0]}: ${where[0]}, ${named[0]}`, `${shown[1]}：${where[1]}，${named[1]}`);
  }
  byId("measure-text").replaceChildren(both(...measure.help));
  byId("scale").hidden = byKind;
  if (byKind) return;
  const top = measure.top ?? Math.max(...data.heads.map((head) => head[measure.key]).filter(finite), 0);
  byId("scale").replaceChildren(measure.text(measure.less ? top : 0), el("i", {}), measure.text(measure.less ? 0 : top));
}

function showGrid() {
  const select = choice(MEASURES.map((one, i) => [i, ...one.name]), 0, (i) => { measure = MEASURES[i]; colourGrid(); }, ["Colour by", "着色依据"]);
  byId("controls").append(el("span", { class: "scale", id: "scale" }), el("label", {}, both("Colour by ", "着色依据 "), select));
  byId("stacks").append(...[...new Set(data.heads.map((head) => head.stack))].map(drawStack));
  colourGrid();
}

// ---- one head -------------------------------------------------------------------------------------------------------

function choose(index) {
  chosen = index;
  pressOnly(document.querySelectorAll("button.head"), buttonOf(index));
  for (const row of document.querySelectorAll("#table tbody tr")) row.classList.toggle("chosen", row.dataset.head === String(index));
  drawDetail();
}

const roomInDetail = () => Math.max(240, byId("detail").clientWidth - 38);

// Beside the grids on a wide screen, otherwise below the grid of the head.
function moveDetail() {
  const narrow = window.matchMedia("(max-width: 1040px)").matches, detail = byId("detail");
  const home = narrow ? document.querySelector(`[data-stack="${data.heads[chosen].stack}"]`) : document.querySelector(".atlas");
  if (detail.parentElement !== home) home.append(detail);
}

function drawDetail() {
  moveDetail();
  const head = data.heads[chosen], kind = kindOf(head);
  const numbers = MEASURES.filter((one) => one.text).flatMap((one) => {
    const note = one.key === "at_offset" && head.offset !== null ? ` (${signed(head.offset)})` : "";
    return [el("dt", {}, both(...one.name), note), el("dd", {}, one.text(head[one.key]))];
  });
  byId("detail").replaceChildren(
    el("h3", { id: "detail-title" }, both(stackName(head.stack)[0], stackName(head.stack)[1])),
    el("p", {}, both(...positionOf(head)), " ", el("span", { class: `kind ${kindClass(kind)}` }, both(...labelOf(head)))),
    el("p", { class: "because" }, both(...KINDS[kind].rule), head.word ? readOrWritten(head) : null),
    el("dl", { class: "numbers" }, ...numbers),
    el("p", { class: "hint tap" }, both("in Python: ", "Python 表达式："), el("code", {}, `${head.attention}.weights[:, ${head.number}]`)),
    el("h4", {}, both("Mean weight by offset, in %", "各偏移处的平均权重（%）")), profileChart(head), ...exampleParts(head));
}

const readOrWritten = (head) => (head.word === "read"
  ? both(" Its queries align best as the token just read, not as the token predicted.", "把每个查询看作刚读入的词元（而不是要预测的词元）时，对齐最好。")
  : both(" Its queries align best as the token predicted.", "把每个查询看作要预测的词元时，对齐最好。"));

function profileChart(head) {
  const width = Math.min(430, roomInDetail()), height = 116, left = 4, top = 18, bottom = 94, full = Math.max(0.25, ...head.profile.filter(finite)), step = (width - 2 * left) / OFFSETS.length;
  const description = OFFSETS.map((offset, i) => `${signed(offset)}: ${rounded(head.profile[i])}`).join(", ");
  const chart = svg("svg", { class: "profile", viewBox: `0 0 ${width} ${height}`, width, height, role: "img" },
    svg("line", { class: "grid", x1: 0, x2: width, y1: bottom, y2: bottom }),
    ...OFFSETS.flatMap((offset, i) => {
      const share = head.profile[i], x = left + i * step, y = bottom - ((share || 0) / full) * (bottom - top), best = offset === head.offset;
      const labelled = step > 24 || (offset - (head.offset ?? 0)) % 2 === 0;
      return [svg("rect", { class: best ? "bar best" : "bar", x: x + 2, width: step - 4, y, height: bottom - y, rx: 1.5 }),
        labelled && share >= 0.02 ? svg("text", { class: best ? "on" : "", x: x + step / 2, y: y - 4, "text-anchor": "middle" }, String(Math.round(100 * share))) : null,
        labelled ? svg("text", { class: best ? "on" : "", x: x + step / 2, y: bottom + 16, "text-anchor": "middle" }, signed(offset)) : null].filter(Boolean);
    }));
  return bothIn(chart, "aria-label", `Mean weight by offset. ${description}`, `各偏移处的平均权重。${description}`);
}

function exampleParts(head) {
  if (!data.examples.length) return [];
  const texts = data.examples.map((example, i) => {
    const text = (example.source.length ? example.source : example.written).filter((piece) => !/^<.*>$/.test(piece)).join("").replaceAll("▁", " ").trim();
    return [i, text.length > 42 ? `${text.slice(0, 41)}…` : text || String(i + 1)];
  });
  const select = choice(texts, exampleNumber, (i) => { exampleNumber = Number(i); again(); }, ["Sentence", "句子"]);
  const home = el("div", { class: "scroll" }), hint = el("p", { class: "hint", role: "status" });
  const again = () => drawMap(head, data.examples[exampleNumber], home, hint);
  again();
  return [el("div", { class: "heading" }, el("h4", {}, both("In a sentence", "在一个句子中")), select), home, hint];
}

const REST = ["Rows are queries, columns are keys; a stronger colour is a larger weight. Point at a cell, or focus the map and use the arrow keys.", "每行对应一个查询词元，每列对应一个键；颜色越深，权重越大。将指针移到格子上，或用键盘选中图后按方向键。"];

// The pieces of the rows and columns of a map; positions for images.
function sidesOf(head, example, shape) {
  const own = head.stack.endsWith("self_attn"), source = example.source, ofSource = !example.read.length || head.stack.startsWith("encoder");
  const rows = own ? (ofSource ? source : example.read) : example.written, columns = own ? rows : source;
  const fit = (pieces, count) => (pieces.length === count ? readablePieces(pieces) : Array.from({ length: count }, (_, i) => String(i)));
  return { rows: fit(rows, shape[1]), columns: fit(columns, shape[2]) };
}

function drawMap(head, example, home, hint) {
  const map = example.maps[head.attention], [, n, m] = map.shape, own = head.stack.endsWith("self_attn");
  const matrix = { ...sidesOf(head, example, map.shape), values: ofHead(map, head.number), n, m, cross: !own }, heat = heatMap(matrix, roomInDetail(), { en: "Weights in this sentence", zh: "这个句子中的权重" }, 26);
  const show = (q, k) => {
    heat.choose(q, k);
    const value = q !== null && matrix.values[q * m + k].toFixed(2), [from, to] = [matrix.rows[q], matrix.columns[k]];
    hint.replaceChildren(q === null ? both(...REST) : both(`Weight ${value} from “${inLanguage(from, "en")}” to “${inLanguage(to, "en")}”.`, `从“${inLanguage(from, "zh")}”到“${inLanguage(to, "zh")}”的权重为 ${value}。`));
  };
  heat.listen(show);
  home.replaceChildren(heat.node);
  show(null, null);
}

// ---- sub-layers -----------------------------------------------------------------------------------------------------

function showSublayers() {
  if (!data.sublayers.length) { byId("sublayers").hidden = true; return; }
  byId("sublayers-text").append(both(`The cost of ablation: the increase of the loss in nats per token when the output of one sub-layer is 0 (${data.cost_lines} lines).`, `移除后的损失增量：把一个子层的输出置 0 后损失增加多少（单位：奈特/词元，${data.cost_lines} 行文本）。`));
  const parsed = data.sublayers.map(({ name, cost }) => ({ cost, part: name.split(".").at(-1), side: name.startsWith("layers") ? "" : name.split(".")[0], layer: Number(name.match(/layers\.(\d+)/)[1]) }));
  const parts = Object.keys(PARTS).filter((part) => parsed.some((one) => one.part === part)), top = Math.max(1e-9, ...parsed.map((one) => one.cost));
  const rows = [...new Set(parsed.map((one) => `${one.side} ${one.layer}`))].map((key) => {
    const own = parsed.filter((one) => `${one.side} ${one.layer}` === key), side = SIDES[own[0].side] || [own[0].side, own[0].side];
    return el("tr", {}, el("th", { scope: "row" }, both(`${side[0]} ${own[0].layer + 1}`, `${own[0].side ? side[1] : ""}第 ${own[0].layer + 1} 层`)), ...parts.map((part) => {
      const found = own.find((one) => one.part === part);
      return el("td", { class: "number", style: found ? `background: ${tint(Math.sqrt(Math.max(0, found.cost / top)))}` : "" }, found ? rise(found.cost) : "");
    }));
  });
  byId("sublayers-table").append(el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, both("layer", "层")), ...parts.map((part) => el("th", { scope: "col", class: "number" }, both(...PARTS[part]))))), el("tbody", {}, ...rows)));
}

// ---- the table ------------------------------------------------------------------------------------------------------

function showTable() {
  const numeric = MEASURES.filter((one) => one.text), heading = (name, kind) => el("th", { scope: "col", class: kind }, both(...name));
  const row = (head) => el("tr", { "data-head": head.index },
    el("th", { scope: "row" }, el("button", { type: "button", class: "go", onclick: () => { choose(head.index); byId("detail").scrollIntoView({ block: "nearest" }); buttonOf(head.index).focus({ preventScroll: true }); } },
      both(`${stackName(head.stack)[0]}, ${positionOf(head)[0]}`, `${stackName(head.stack)[1]}，${positionOf(head)[1]}`))),
    el("td", { "data-value": head.label }, el("span", { class: `kind ${kindClass(kindOf(head))}` }, both(...labelOf(head)))),
    ...numeric.map((one) => el("td", { class: "number", "data-value": head[one.key] }, one.text(head[one.key]))));
  const heads = [heading(["head", "注意力头"]), heading(["label", "类别"]), ...numeric.map((one) => heading(one.name, "number"))];
  const table = el("table", {}, el("caption", { class: "visually-hidden" }, both("All heads", "全部注意力头")), el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...data.heads.map(row)));
  sortable(table);
  byId("table").append(table);
}

function showRules() {
  byId("rules").append(...Object.entries(KINDS).flatMap(([kind, { name, rule }]) => [el("dt", {}, el("span", { class: `kind ${kindClass(kind)}` }, both(...name))), el("dd", {}, both(...rule))]));
}

function showLead() {
  byId("language").append(languageSwitch());
  const heads = whole.format(data.heads.length), lines = whole.format(data.lines), tokens = whole.format(data.tokens), loss = data.loss.toFixed(3);
  const aligned = data.aligned ? [` ${whole.format(data.aligned)} lines have a word alignment.`, `其中 ${whole.format(data.aligned)} 行给出了词对齐。`] : ["", ""];
  byId("lead").append(both(
    [el("b", {}, data.model), `: ${heads} heads, measured on ${lines} lines with ${tokens} target tokens (${data.own ? "the model's own output" : "given targets"}); loss ${loss} nats per token.${aligned[0]}`],
    [el("b", {}, data.model), `：${heads} 个注意力头，在 ${lines} 行文本、${tokens} 个目标词元上测量（目标为${data.own ? "模型自己的输出" : "给定的文本"}）；损失为 ${loss} 奈特/词元。${aligned[1]}`]));
}

// ---- start ----------------------------------------------------------------------------------------------------------

// The initial head: the one whose ablation costs most; if that was not measured, the one with the lowest alignment error rate, otherwise with the largest confidence or weight at an offset.
function firstHead() {
  const best = (key, sign) => data.heads.filter((head) => finite(head[key])).sort((a, b) => sign * (b[key] - a[key]))[0];
  const needed = best("cost", 1), aligning = best("aer", -1), cross = data.heads.filter((head) => head.stack.endsWith("cross_attn")).sort((a, b) => b.confidence - a.confidence)[0];
  return (needed || aligning || cross || best("at_offset", 1) || data.heads[0]).index;
}

function start() {
  data.heads.forEach((head, index) => { head.index = index; });
  drawParts({ lead: showLead, stacks: showGrid, table: showTable, detail: () => choose(firstHead()), "sublayers-table": showSublayers, rules: showRules });
  if (chosen !== null) redrawn(drawDetail);
}
