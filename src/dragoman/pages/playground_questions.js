"use strict";
// Questions that the reader answers before the page does: every answer is computed with the model, the sentence and the changes above.

const riseOrFall = (before, after) => (Math.abs(after - before) <= 0.01 * Math.max(before, after) ? 2 : after > before ? 0 : 1);
const RISE_OR_FALL = [["it rises", "上升"], ["it falls", "下降"], ["it hardly changes (within 1 %)", "几乎不变（1% 以内）"]];
const lossText = (before, after) => both(`The loss goes from ${number(before)} to ${number(after)}.`, `损失从 ${number(before)} 变为 ${number(after)}。`);
const lastCross = () => `decoder.layers.${data.config.decoder_layers - 1}.cross_attn`;
const byHead = (f) => upTo(data.config.n_heads).map((head) => f({ ...changes(), disabled: new Set([...state.disabled, `${lastCross()} ${head}`]) }));

// The answer to a question about the loss before and after a change.  why: an explanation for each possible answer.
const lossAnswer = ([before, after], why = []) => { const right = riseOrFall(before, after); return [right, [lossText(before, after), ...(why[right] ? [both(...why[right])] : [])]]; };

// {text, options: () => pairs of texts, answer: () => [index of the right option, nodes]}
const QUESTIONS = [
  {
    text: ["Without the mask, every target position also sees the words that it has to predict. What happens to the loss of this sentence?", "去掉掩码，每个目标位置还能看到它要预测的词。这个句子的损失会怎样？"], options: () => RISE_OR_FALL,
    answer() {
      return lossAnswer([true, false].map((mask) => lossOf(result.source, result.targets, { ...changes(), mask })), [[" Seeing the answer does not help: these weights were not trained to read it, and the words ahead displace those that the attention needs.", "看到答案并没有帮助：这些权重没有学过读取它，后面的词反而挤占了注意力。"],
        [" These weights profit from the words ahead.", "这些权重从后面的词中得到了好处。"], [" These weights hardly attend to the words ahead.", "这些权重几乎不关注后面的词。"]]);
    },
  },
  {
    text: ["Without positions, the encoder cannot tell the order of the words. Does the translation change?", "去掉位置编码，编码器无法知道词的先后。译文会变吗？"], options: () => (data.config.position === "none" ? [] : [["yes", "会"], ["no", "不会"]]),
    answer() {
      const [a, b] = [true, false].map((positions) => textOf(translation(result.source, { ...changes(), positions })));
      return [a === b ? 1 : 0, both(`With positions: “${a}”. Without: “${b}”.`, `有位置编码：“${a}”。没有：“${b}”。`)];
    },
  },
  {
    text: ["Without the division by √d, the attention scores are larger. What happens to the attention weights?", "不除以 √d，注意力得分更大。注意力权重会怎样？"], options: () => [["they become sharper: one large weight per row", "更尖锐：每行一个大权重"], ["they become flatter", "更平缓"]],
    answer() {
      const { source, targets } = result, [divided, not] = [true, false].map((scaling) => {
        const { taps } = model.forward(source, inputFor(targets), { ...changes(), scaling }), rows = Object.entries(taps).filter(([name]) => name.endsWith(".weights")).flatMap(([, heads]) => heads.flatMap((head) => head.toArray()));
        return sumOf(rows.map((row) => Math.max(...row))) / rows.length;
      });
      return [not >= divided ? 0 : 1, both(`The largest weight of a row is ${divided.toFixed(3)} on average with the division and ${not.toFixed(3)} without it.`, `每行最大权重的平均值：除以 √d 时为 ${divided.toFixed(3)}，不除时为 ${not.toFixed(3)}。`)];
    },
  },
  {
    text: ["One head of the last cross-attention is disabled. Which one does this sentence need most?", "停用最后一层交叉注意力的一个头。这个句子最需要哪一个？"], options: () => (data.config.n_heads > 1 ? upTo(data.config.n_heads).map((head) => [`head ${head + 1}`, `第 ${head + 1} 个头`]) : []),
    answer() {
      const { source, targets } = result, losses = byHead((how) => lossOf(source, targets, how)), list = (comma) => losses.map((loss, head) => `${head + 1}: ${number(loss)}`).join(comma);
      return [losses.indexOf(Math.max(...losses)), both(`Loss with all heads: ${number(lossOf(source, targets))}; without head ${list(", ")}.`, `所有头都在时的损失为 ${number(lossOf(source, targets))}；去掉各头之后，${list("，")}。`)];
    },
  },
  {
    text: ["How many heads of the last cross-attention can be disabled, one at a time, without changing a word of the translation?", "逐一停用最后一层交叉注意力的头，有几个停用后译文一个词都不变？"], options: () => (data.config.n_heads > 1 ? [["none", "一个也没有"], ["some", "一部分"], ["all", "全部"]] : []),
    answer() {
      const full = textOf(translation(result.source)), texts = byHead((how) => textOf(translation(result.source, how))), same = texts.filter((text) => text === full).length, other = texts.find((text) => text !== full);
      const example = other === undefined ? ["", ""] : [` Without head ${texts.indexOf(other) + 1}: “${other}”.`, `去掉第 ${texts.indexOf(other) + 1} 个头：“${other}”。`];
      return [same === 0 ? 0 : same < texts.length ? 1 : 2, both(`${same} of ${texts.length}.${example[0]}`, `${texts.length} 个中的 ${same} 个。${example[1]}`)];
    },
  },
  {
    text: ["The first and the last token of the source change places. What happens to the loss of the same target?", "源句的第一个和最后一个词元交换位置。同一目标的损失会怎样？"], options: () => RISE_OR_FALL,
    answer() {
      const { source, targets } = result, last = source.lastIndexOf(END) < 0 ? source.length - 1 : source.length - 2;
      const swapped = source.map((id, i) => (i === 0 ? source[Math.max(0, last)] : i === last ? source[0] : id));
      return lossAnswer([source, swapped].map((ids) => lossOf(ids, targets)));
    },
  },
  {
    text: ["All weights take one step of gradient descent with η = 0.01. What happens to the loss?", "所有权重以 η = 0.01 作一步梯度下降。损失会怎样？"], options: () => RISE_OR_FALL,
    answer() {
      const { source, targets } = result, kept = [...model.parameters].map(([name, parameter]) => [name, parameter.data.slice()]);
      const before = sumOf(model.backward(source, inputFor(targets), targets, 0, changes()).losses);
      new engine.Optimizer(model, "sgd").update(0.01);
      const after = lossOf(source, targets);
      for (const [name, numbers] of kept) model.parameters.get(name).data.set(numbers);
      return lossAnswer([before, after]);
    },
  },
];

function drawQuestions() {
  view.answers = [];  // functions that forget an answer, because it holds for the sentence and the model of its time
  byId("questions-body").replaceChildren(...QUESTIONS.filter((question) => question.options().length).map((question, index) => {
    const reply = el("p", { class: "reply", "aria-live": "polite" }), options = question.options();
    const mark = (chosen, right) => buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === chosen));
      button.classList.toggle("right", i === right);
      button.classList.toggle("wrong", i === chosen && i !== right);
    });
    const buttons = options.map(([english, chinese], i) => el("button", { type: "button", "aria-pressed": "false", onclick: () => {
      const [right, text] = question.answer();
      mark(i, right);
      reply.replaceChildren(el("b", {}, i === right ? both("Right. ", "对。") : both(`No: ${options[right][0]}. `, `不对：${options[right][1]}。`)), ...[text].flat());
    } }, both(english, chinese)));
    view.answers.push(() => { mark(null, null); reply.replaceChildren(); });
    return el("article", { class: "question" }, el("p", { id: `question-${index}` }, both(...question.text)), el("div", { class: "controls", role: "group", "aria-labelledby": `question-${index}` }, ...buttons), reply);
  }));
}
