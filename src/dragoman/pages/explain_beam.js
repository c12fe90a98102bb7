"use strict";
// The tree of the beam search: one column per step, one row per rank in the beam.

const REASONS = {
  finished: ["finished with the end of sentence", "已生成句末符"], limit: ["truncated at the length limit", "达到长度上限，被截断"],
  dropped: ["pruned from the beam", "被束搜索淘汰"], beaten: ["no longer good enough for the n-best list", "已不足以进入前 n 名"],
};
const WIDEST_NODE = 170;
const SIGNS = { finished: "✓", limit: "✂", dropped: "×", beaten: "…" };

function showBeam() {
  const { tree } = explanation;
  if (!tree) return;
  byId("beam").hidden = false;
  byId("beam-what").append(beamText(tree));
  const hint = el("p", { class: "hint two", "aria-live": "polite" });
  const winners = new Set(pathTo(tree.nodes, tree.best[0]));
  byId("beam-body").append(el("div", { class: "scroll", tabindex: "-1" }, treePicture(tree, winners, hint)), legend(tree), hint, leaves(tree));
  hint.append(el("span", {}, both("Point at a node, or move among the nodes with the arrow keys.", "将指针移到节点上，或用方向键在节点间移动。")));
}

function beamText({ beam, shrink_beam: shrinks, beam_threshold: threshold, recombine, early_end: endsEarly, alpha, limit }) {
  if (beam === 1) return both("Greedy search: the most probable token at each step.", "贪心搜索：每一步取概率最大的词元。");
  const drops = threshold || recombine || endsEarly;
  return both(`Each step keeps the ${beam} most probable hypotheses (beam size ${beam}), the best at the top${threshold ? `, without those whose log-probability is more than ${threshold} below that of the best one` : ""}${recombine ? `; of unfinished ones with the same last ${recombine === 1 ? "token" : `${recombine} tokens`}, only the best` : ""}. A hypothesis that ends leaves the beam${shrinks ? ", which becomes narrower by one" : ""}; its search score is its log-probability divided by ((5 + length) / 6)^${alpha} (Wu et al. 2016, equation 14). ${endsEarly ? "A hypothesis also leaves the beam when its score would not be the best even if the next token ended it with probability 1. " : ""}The search ends when ${endsEarly ? "the beam is empty" : `no hypothesis in the beam can ${drops ? "become the best" : `enter the ${beam}-best list`}`}, or after ${limit} tokens. The thick path is the best hypothesis.`,
    `每一步保留概率最大的 ${beam} 个候选序列（束宽 ${beam}），最好的在最上面${threshold ? `；对数概率比最好的低 ${threshold} 以上的候选序列不保留` : ""}${recombine ? `；末尾 ${recombine} 个词元相同的未完成候选序列只保留最好的一个` : ""}。生成句末符的候选序列离开束${shrinks ? "，束宽随之减一" : ""}，它的搜索得分是对数概率除以 ((5 + 长度) / 6)^${alpha}（Wu et al. 2016，公式 14）。${endsEarly ? "如果一个候选序列即使由下一个词元以概率 1 结束，得分也不会是最好的，它同样离开束。" : ""}${endsEarly ? "束为空" : `束中没有候选序列还能${drops ? "成为最佳" : `进入前 ${beam} 名`}`}时，或达到 ${limit} 个词元后，搜索结束。粗线是最佳候选序列的路径。`);
}

// The numbers of the nodes from the first token to a node.
function pathTo(nodes, number) {
  const path = [];
  for (let i = number; i >= 0; i = nodes[i].parent) path.unshift(i);
  return path;
}

function treePicture(tree, winners, hint) {
  // Of a prompt only the last token is drawn, as the root.
  const given = explanation.predictions.filter((prediction) => prediction.given).length, begin = Math.max(0, given - 1);
  const shown = tree.nodes.map((node, i) => ({ ...node, i, label: alone(node.token) })).filter((node) => node.step > begin);
  const steps = Math.max(...shown.map((node) => node.step)), row = 34, gap = 26;
  const widths = Array.from({ length: steps + 1 }, (_, step) => Math.min(WIDEST_NODE, 30 + widthOf(shown.filter((node) => node.step === step).map((node) => node.label))));
  const x = [];
  for (let step = begin + 1, at = 4; step <= steps; at += widths[step] + gap, step += 1) x[step] = at;
  const width = x[steps] + widths[steps] + 8, height = 26 + row * (1 + Math.max(...shown.map((node) => node.rank)));
  const y = (node) => 22 + node.rank * row;
  const edges = shown.filter((node) => node.step > begin + 1).map((node) => {
    const parent = tree.nodes[node.parent], from = x[parent.step] + widths[parent.step], to = x[node.step], a = y(parent) + 13, b = y(node) + 13;
    return svg("path", { class: `edge${winners.has(node.i) ? " won" : ""}`, d: `M${from} ${a}C${from + gap / 2} ${a} ${to - gap / 2} ${b} ${to} ${b}` });
  });
  const boxes = shown.map((node) => nodeBox(node, x[node.step], y(node), widths[node.step], winners.has(node.i)));
  boxes.forEach((box, i) => {
    const describe = () => {
      boxes.forEach((other) => other.classList.toggle("on", other === box));
      hint.replaceChildren(...nodeText(tree, shown[i]));
    };
    box.addEventListener("pointerenter", describe);
    box.addEventListener("focus", describe);
  });
  // Left and right follow the tree, up and down the ranks.
  roving(boxes, 0, (key, i) => {
    const node = shown[i], children = shown.filter((other) => other.parent === node.i);
    return {
      ArrowLeft: () => shown.findIndex((other) => other.i === node.parent), ArrowRight: () => shown.indexOf(children.find((other) => winners.has(other.i)) ?? children[0]),
      ArrowUp: () => shown.findLastIndex((other) => other.step === node.step && other.rank < node.rank), ArrowDown: () => shown.findIndex((other) => other.step === node.step && other.rank > node.rank),
    }[key]?.();
  });
  const numbers = x.map((at, number) => svg("text", { class: "scale", x: at + widths[number] / 2, y: 12, "text-anchor": "middle" }, String(number))).filter(Boolean);
  const node = svg("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "group" }, ...numbers, ...edges, ...boxes);
  return bothIn(node, "aria-label", "Beam search: one column per step, the best at the top", "束搜索：每列对应一步，最好的在最上面");
}

function nodeBox(node, x, y, width, won) {
  const box = svg("g", { class: `node ${node.end ?? "going"}${won ? " won" : ""}`, role: "img", transform: `translate(${x} ${y})` }, svg("rect", { width, height: 26, rx: 6 }),
    svg("text", { x: 8, y: 17.5 }, labelInSvg(node.label)), node.end ? svg("text", { class: "sign", x: width - 5, y: 11, "text-anchor": "end" }, SIGNS[node.end]) : "");
  const [english, chinese] = node.end ? REASONS[node.end] : ["extended", "继续扩展"];
  return bothIn(box, "aria-label", `${inLanguage(node.label, "en")}: ${percent(Math.exp(node.log_prob))}, ${english}`, `${inLanguage(node.label, "zh")}：${percent(Math.exp(node.log_prob))}，${chinese}`);
}

function nodeText(tree, node) {
  const pieces = pathTo(tree.nodes, node.i).map((i) => tree.nodes[i].token).filter((piece) => piece !== "</s>");
  const text = el("q", {}, pieces.join("").replaceAll("▁", " ").trim()), p = percent(Math.exp(node.log_prob)), total = node.total.toFixed(3);
  const line = el("span", {}, text, both(`: step ${node.step}, rank ${node.rank + 1}; its last token has ${p}; log-probability ${total}. `, `：第 ${node.step} 步，排名第 ${node.rank + 1}；最后一个词元的概率为 ${p}；对数概率为 ${total}。`));
  return [line, el("span", {}, reason(tree, node))];
}

function reason(tree, node) {
  const score = node.score === null ? "" : node.score.toFixed(3);
  if (node.end === "finished") return both(`It finished with the end of sentence: search score ${score}.`, `已生成句末符：搜索得分 ${score}。`);
  if (node.end === "limit") return both(`It was truncated at the length limit of ${tree.limit} tokens: search score ${score}.`, `达到 ${tree.limit} 个词元的长度上限，被截断：搜索得分 ${score}。`);
  if (node.end === "beaten" && tree.early_end) return both(`It left the beam: its search score would be ${score} if the next token ended it with probability 1, and the last of the n-best list has ${tree.to_beat.toFixed(3)}.`, `已离开束：即使下一个词元是句末符且概率为 1，它的搜索得分也只有 ${score}，而前 n 名中的最后一名为 ${tree.to_beat.toFixed(3)}。`);
  if (node.end === "beaten") return both(`The search ended: its search score could reach at most ${score}, and the last of the n-best list has ${tree.to_beat.toFixed(3)}.`, `搜索已结束：它的搜索得分至多为 ${score}，而前 n 名中的最后一名为 ${tree.to_beat.toFixed(3)}。`);
  if (node.end === "dropped") {
    const kept = tree.nodes.filter((other) => other.step === node.step + 1), least = Math.min(...kept.map((other) => other.total));
    return both(`It was pruned: none of its continuations is among the ${kept.length} hypotheses of the next step, the last of which has log-probability ${least.toFixed(3)}.`, `被束搜索淘汰：它的任何扩展都不在下一步的 ${kept.length} 个候选序列中，其中最后一个的对数概率为 ${least.toFixed(3)}。`);
  }
  return both("It was extended.", "继续扩展。");
}

const legend = ({ nodes }) => el("ul", { class: "legend ends" }, ...Object.keys(REASONS).filter((end) => nodes.some((node) => node.end === end))
  .map((end) => el("li", { class: end }, el("b", {}, SIGNS[end]), " ", both(...REASONS[end]))));

// The complete hypotheses, best first.
function leaves(tree) {
  const complete = tree.nodes.map((node, i) => ({ ...node, i })).filter((node) => node.end === "finished" || node.end === "limit").sort((a, b) => b.score - a.score);
  const heads = [["rank", "名次"], ["text", "文本"], ["search score", "搜索得分"], ["log-probability", "对数概率"], ["end", "结束方式"]];
  const rows = complete.map((node, i) => el("tr", { class: node.i === tree.best[0] ? "best" : "" }, el("td", { class: "number" }, String(i + 1)), el("td", {}, node.text || both("(nothing)", "（空）")),
    el("td", { class: "number" }, node.score.toFixed(3)), el("td", { class: "number" }, node.total.toFixed(3)), el("td", { class: node.end }, node.end === "finished" ? SIGNS.finished : both(...REASONS[node.end]))));
  return el("div", { class: "scroll" }, el("table", { class: "leaves" }, el("caption", {}, both("All complete hypotheses", "所有完整的候选序列")),
    el("thead", {}, el("tr", {}, ...heads.map(([english, chinese], i) => el("th", { scope: "col", class: i === 0 || i === 2 || i === 3 ? "number" : "" }, both(english, chinese))))), el("tbody", {}, ...rows)));
}
