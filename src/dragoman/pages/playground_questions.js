"use strict";
// Questions that the reader answers before the page does: every answer is computed with the model, the sentence and the changes above.

const sameWithin = (a, b, share) => Math.abs(a - b) <= share * Math.max(a, b);
const riseOrFall = (before, after) => (sameWithin(before, after, 0.01) ? 2 : after > before ? 0 : 1);
const RISE_OR_FALL = [["it rises", "上升"], ["it falls", "下降"], ["it hardly changes (within 1 %)", "几乎不变（1% 以内）"]];
const lossText = (before, after) => both(`The loss goes from ${before.toFixed(4)} to ${after.toFixed(4)}.`, `损失从 ${before.toFixed(4)} 变为 ${after.toFixed(4)}。`);

// {text, options, answer: () => [index of the right option, text]}
const QUESTIONS = [
  {
    text: ["Without the mask, every target position sees the words that it has to predict. What happens to the loss of this sentence?", "去掉掩码，每个目标位置都能看到它要预测的词。这个句子的损失会怎样？"], options: () => RISE_OR_FALL,
    answer() {
      const { source, targets } = result, [before, after] = [true, false].map((mask) => lossOf(source, targets, { ...changes(), mask }));
      return [riseOrFall(before, after), [lossText(before, after), both(" The model was trained with the mask, so these words are inputs that it has never seen.", "模型是带着掩码训练的，从未见过这样的输入。")]];
    },
  },
  {
    text: ["Without positions, the encoder cannot tell the order of the words. Does the translation change?", "去掉位置编码，编码器无法知道词的先后。译文会变吗？"], options: () => [["yes", "会"], ["no", "不会"]],
    answer() {
      const { source } = result, [a, b] = [true, false].map((positions) => vocabulary.target.decode(model.search(source, settings(source), { ...changes(), positions })[0]?.tokens ?? []));
      return [a === b ? 1 : 0, both(`With positions: “${a}”. Without: “${b}”.`, `有位置编码：“${a}”。没有：“${b}”。`)];
    },
  },
  {
    text: ["Without the division by √d, the attention scores are larger. What happens to the attention weights?", "不除以 √d，注意力得分更大。注意力权重会怎样？"], options: () => [["they become sharper: one large weight per row", "更尖锐：每行一个大权重"], ["they become flatter", "更平缓"]],
    answer() {
      const { source, targets } = result, sharpness = [true, false].map((scaling) => {
        const { taps } = model.forward(source, inputFor(targets), { ...changes(), scaling }), rows = Object.entries(taps).filter(([name]) => name.endsWith(".weights")).flatMap(([, heads]) => heads.flatMap((head) => head.toArray()));
        return sumOf(rows.map((row) => Math.max(...row))) / rows.length;
      });
      return [sharpness[1] >= sharpness[0] ? 0 : 1, both(`The largest weight of a row is ${sharpness[0].toFixed(3)} on average with the division and ${sharpness[1].toFixed(3)} without it.`, `每行最大权重的平均值：除以 √d 时为 ${sharpness[0].toFixed(3)}，不除时为 ${sharpness[1].toFixed(3)}。`)];
    },
  },
  {
    text: ["One head of the last cross-attention is disabled. Which one does the sentence need most?", "停用最后一层交叉注意力的一个头。这个句子最需要哪一个？"],
    options: () => Array.from({ length: data.config.n_heads }, (_, head) => [`head ${head + 1}`, `第 ${head + 1} 个头`]),
    answer() {
      const { source, targets } = result, name = `decoder.layers.${data.config.decoder_layers - 1}.cross_attn`, before = lossOf(source, targets);
      const losses = Array.from({ length: data.config.n_heads }, (_, head) => lossOf(source, targets, { ...changes(), disabled: new Set([...state.disabled, `${name} ${head}`]) }));
      const list = (code) => losses.map((loss, head) => `${head + 1}: ${loss.toFixed(4)}`).join(code === "en" ? ", " : "，");
      return [losses.indexOf(Math.max(...losses)), both(`Loss with all heads: ${before.toFixed(4)}; without head ${list("en")}.`, `所有头都在时的损失为 ${before.toFixed(4)}；去掉各头之后，${list("zh")}。`)];
    },
  },
  {
    text: ["The first two source words change places. What happens to the loss of the same target?", "源句的前两个词元交换位置。同一目标的损失会怎样？"], options: () => RISE_OR_FALL,
    answer() {
      const { source, targets } = result, swapped = [source[1] ?? source[0], source[0], ...source.slice(2)], [before, after] = [source, swapped].map((ids) => lossOf(ids, targets));
      return [riseOrFall(before, after), lossText(before, after)];
    },
  },
  {
    text: ["All weights take one step of gradient descent with η = 0.01. What happens to the loss?", "所有权重以 η = 0.01 作一步梯度下降。损失会怎样？"], options: () => RISE_OR_FALL,
    answer() {
      const { source, targets } = result, kept = [...model.parameters].map(([name, { data: numbers }]) => [name, numbers.slice()]);
      const before = sumOf(model.backward(source, inputFor(targets), targets, 0, changes()).losses);
      new engine.Optimizer(model, "sgd").update(0.01);
      const after = lossOf(source, targets);
      for (const [name, numbers] of kept) model.parameters.get(name).data.set(numbers);
      return [riseOrFall(before, after), lossText(before, after)];
    },
  },
];

function drawQuestions() {
  byId("questions-body").replaceChildren(...QUESTIONS.filter((question) => question.options().length > 1).map((question, number) => {
    const reply = el("p", { class: "reply", "aria-live": "polite" }), options = question.options();
    const buttons = options.map(([english, chinese], index) => el("button", { type: "button", "aria-pressed": "false", onclick: () => {
      const [right, text] = question.answer();
      buttons.forEach((button, i) => {
        button.setAttribute("aria-pressed", String(i === index));
        button.classList.toggle("right", i === right);
        button.classList.toggle("wrong", i === index && i !== right);
      });
      reply.replaceChildren(el("b", {}, index === right ? both("Right. ", "对。") : both(`No: ${options[right][0]}. `, `不对：${options[right][1]}。`)), ...[text].flat());
    } }, both(english, chinese)));
    return el("article", { class: "question" }, el("p", { id: `question-${number}` }, both(...question.text)), el("div", { class: "controls", role: "group", "aria-labelledby": `question-${number}` }, ...buttons), reply);
  }));
}
