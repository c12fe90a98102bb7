"use strict";
// A guided tour of one training step: a stop of the walkthrough, a state of the figure, the text, and the step of the stop that is brought
// into view; without one, the figure is.

const GUIDE = [
  ["forward encoder embedding", {}, "A model calculates with numbers. “I” is token 4 and “am” token 5: each id selects a row of the embedding matrix. Attention does not know the order of its inputs, so a vector of the position is added.",
    "模型只会计算数。“I” 是编号为 4 的词元，“am” 的编号是 5：每个编号取出嵌入矩阵的一行。注意力不知道输入的先后，所以再加上表示位置的向量。", 1],
  ["forward encoder self_attn", { layer: ["encoder", 1] }, "Every token now asks a question of all tokens. Three matrices turn its vector into a query, a key and a value. The product of a query and a key says how well they match.",
    "现在每个词元向所有词元提问。三个矩阵把它的向量变成查询、键和值；查询与键的内积表示两者有多匹配。", 0],
  ["forward encoder self_attn", { layer: ["encoder", 1] }, "The softmax turns the scores of a row into weights that sum to 1. They are the ribbons of the figure. The output of a head is the mean of the values with these weights.",
    "softmax 把一行得分变成总和为 1 的权重，也就是图中的带子。注意力头的输出是以它们为权重的值的平均。", 2],
  ["forward encoder ffn", { layer: ["encoder", 1] }, "The result is added to the input (the residual connection) and normalized. Then a feed-forward network treats every position on its own: two matrices with a nonlinear function between them.",
    "结果加到输入上（残差连接），再作归一化。然后前馈网络逐个位置地处理：两个矩阵，中间是一个非线性函数。", 0],
  ["forward decoder embedding", {}, "The decoder reads the translation as far as it is known, shifted to the right: the start token, then 我. All positions are trained at once; each predicts the token after it.",
    "解码器读入已知的译文，右移一位：先是起始符，然后是“我”。所有位置同时训练，每个位置预测下一个词元。", 0],
  ["forward decoder self_attn", { layer: ["decoder", 1] }, "A position must not see the token that it has to predict. The mask sets these scores to −∞, so their weights are 0.",
    "一个位置不能看到它要预测的词元。掩码把这些得分设为 −∞，相应的权重就是 0。", 2],
  ["forward decoder cross_attn", { layer: ["decoder", 1] }, "Here the target asks the source: queries come from the decoder, keys and values from the output of the encoder (the orange ribbons).",
    "在这里，目标向源句提问：查询来自解码器，键和值来自编码器的输出（橙色的带子）。", 0],
  ["forward output", { word: 0 }, "The last vectors become one number per token of the vocabulary, and the softmax makes probabilities of them. The highlighted paths lead from the source to the first word, 我; this model is not trained and gives it a small probability.",
    "最后的向量变成词表中每个词元一个数，softmax 再把它们变成概率。突出显示的是从源句到第一个词“我”的路径；这个模型没有训练过，给它的概率很小。"],
  ["forward output", {}, "The loss of a word is −ln of its probability: 0 if the model is certain and right. The losses of both words add up to the loss of the pair.",
    "一个词的损失是它的概率的 −ln：模型确信且正确时为 0。两个词的损失之和就是这一对句子的损失。", 2],
  ["backward output", { mode: "backward" }, "Now everything runs in reverse. The first gradient is the simplest: the probabilities minus the target, P − T. It is negative at the correct word, so its logit has to rise.",
    "现在一切反过来进行。第一个梯度最简单：概率减去目标，P − T。它在正确词处为负，所以那里的 logit 应当增大。", 0],
  ["backward decoder cross_attn", { mode: "backward", layer: ["decoder", 1] }, "Each step hands its gradient to its inputs by the chain rule. Through the values, the gradient reaches the source; a wider ribbon is a larger gradient.",
    "每一步按链式法则把梯度传给它的输入。梯度经由值传到源句；带子越宽，梯度越大。"],
  ["update update", { mode: "forward" }, "Every weight takes a small step against its gradient. Move the learning rate: the loss falls, until the step becomes too large. The first step of Adam moves every weight by the learning rate, up or down.",
    "每个权重逆着梯度走一小步。移动学习率：损失先下降，步子太大时反而上升。Adam 的第一步使每个权重增大或减小一个学习率。", -1],
];

// Captions with Previous and Next; walk and figure: what they show.
function drawGuide(walk, figure) {
  const text = el("p", { "aria-live": "polite" }), position = el("span", { class: "walk-position" });
  let at = -1;
  const previous = el("button", { type: "button", onclick: () => go(at - 1) }, "← ", both("Back", "后退")), next = el("button", { type: "button", onclick: () => go(at + 1) });
  const bar = el("div", { class: "controls" }, previous, next, position), guide = bothIn(el("aside", { class: "guide" }, text, bar), "aria-label", "Guided tour", "导览");
  function go(index) {
    const before = at < 0;
    at = Math.max(-1, Math.min(GUIDE.length, index));
    previous.hidden = position.hidden = at < 0;
    next.hidden = at === GUIDE.length;
    next.replaceChildren(at < 0 ? both("Start the tour in twelve steps", "开始导览（十二步）") : both("Continue", "继续"), " →");
    if (before !== at < 0) {  // a button above the figure until the tour begins, so that it covers nothing
      if (before) byId("walk-body").after(guide);
      else byId("figure-body").before(guide);
      next.focus();
    }
    if (next.hidden) previous.focus();
    position.replaceChildren(at < GUIDE.length ? `${at + 1} / ${GUIDE.length}` : "");
    if (at === GUIDE.length) {
      text.replaceChildren(both("Now your own sentence: ", "现在换成你自己的句子："), el("code", {}, "dragoman explain MODEL \"…\""), both(" shows the same figure and the same numbers for a model that you have trained.", " 用同样的图和同样的数展示你训练的模型。"));
    } else if (at >= 0) {
      const [stop, state, english, chinese, step] = GUIDE[at];
      text.replaceChildren(both(english, chinese));
      walk.go(Math.max(0, walk.stations.indexOf(stop)));
      figure.show({ word: null, mode: "forward", layer: null, ...state, play: true });
      (step === undefined ? figure.node : walk.step(step)).scrollIntoView({ block: "start" });
    } else text.replaceChildren();
  }
  go(-1);
  bar.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (way) { event.preventDefault(); go(at + way); }
  });
  return guide;
}
