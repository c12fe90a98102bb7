"use strict";
// The playground: a sentence, a model that the reader changes and trains, and what it computes; the state is in the address.

const playground = JSON.parse(byId("playground").textContent);
const unchangedModel = () => ({ mask: true, scaling: true, positions: true, disabled: new Set(), weights: new Map(), edits: new Map() });
const state = { model: 0, source: "", target: "", ...unchangedModel() };
const view = {};
let data, model, vocabulary, result = null, drawing = 0;

const BEGIN = 2, END = 3;
const wordOf = (side) => (id) => vocabulary[side].pieces[id];
const number = (x) => (finite(x) ? x.toFixed(4) : "∞");
const sumOf = (numbers) => numbers.reduce((sum, x) => sum + x, 0);

// ---- models and text --------------------------------------------------------------------------------------------------

// Whole words of a small vocabulary; every other word is unknown.
class Words {
  constructor(words) { this.pieces = words; }
  encode(text) { return text.trim().split(/\s+/).filter(Boolean).map((word) => Math.max(1, this.pieces.indexOf(word))); }
  decode(ids) { return ids.filter((id) => id > END).map((id) => this.pieces[id]).join(" "); }
}

// Begins anew with the stored weights and the edits of the reader.
function load(index) {
  const source = playground.models[index].text ? new Tokenizer(playground.models[index].text.source) : new Words(playground.models[index].words);
  [state.model, data] = [index, playground.models[index]];
  model = new engine.Transformer(data);
  vocabulary = { source, target: data.text?.target ? new Tokenizer(data.text.target) : source };
  for (const [key, value] of state.edits) setParameter(key, value);
  Object.assign(view, { optimizer: null, training: null, isTrained: false, original: null, unchanged: null });
}

// key: "parameter row column"
function setParameter(key, value) {
  const [name, row, column] = key.split(" "), parameter = model.parameter(name);
  if (parameter && Number(row) < parameter.rows && Number(column) < parameter.cols) parameter.data[Number(row) * parameter.cols + Number(column)] = value;
}

const isTiny = () => !data.text;
const changes = () => ({ mask: state.mask, scaling: state.scaling, positions: state.positions, disabled: state.disabled, weights: state.weights });
const isChanged = () => !(state.mask && state.scaling && state.positions) || state.disabled.size + state.weights.size + state.edits.size > 0 || view.isTrained;
const sourceIds = () => { const ids = vocabulary.source.encode(state.source); return isTiny() && ids.length ? ids : [...ids, END]; };
const inputFor = (targets) => [BEGIN, ...targets.slice(0, -1)];
const textOf = (targets) => vocabulary.target.decode(targets.filter((id) => id !== END));

// The output of the search, with the end of the sentence.
function translation(source, how = changes(), network = model) {
  const [best] = network.search(source, { beam: data.beam ?? 4, shrink: data.shrink_beam, threshold: data.beam_threshold, recombine: data.recombine, earlyEnd: data.early_end, alpha: data.alpha ?? 0.6, limit: isTiny() ? 4 : source.length + data.max_extra }, how);
  return [...(best?.tokens ?? []), END];
}

// The target that the reader has typed; null: none.
function typedTargets() {
  const ids = vocabulary.target.encode(state.target);
  return ids.length ? [...ids, ...(isTiny() ? [] : [END])] : null;
}

// ln P of all tokens at every position of a target, and the loss of each of its tokens.
function scoresOf(logits, targets) {
  const rows = targets.map((_, i) => engine.logSoftmax(logits.row(i)));
  return { rows, losses: targets.map((target, i) => -rows[i][target]) };
}
const lossOf = (source, targets, how = changes(), network = model) => sumOf(scoresOf(network.forward(source, inputFor(targets), how).logits, targets).losses);

// ---- computing and drawing --------------------------------------------------------------------------------------------

function compute() {
  const source = sourceIds(), targets = typedTargets() ?? translation(source), backward = view.figure?.node.classList.contains("backward") ?? false;
  const { taps } = backward ? model.backward(source, inputFor(targets), targets, 0, changes()) : model.forward(source, inputFor(targets), changes());
  result = { source, targets, taps, backward, ...scoresOf(taps["output.logits"], targets) };
}

// Everything is drawn once per frame, however often the state changes.
function refresh() {
  cancelAnimationFrame(drawing);
  drawing = requestAnimationFrame(() => {
    compute();
    drawModel();
    drawResult();
    drawAlternatives();
    drawWeights();
    for (const forget of view.answers ?? []) forget();
    keepSoon();
  });
}

// Words that the layers of the decoder would predict if they were the last one, by layer and position.
const lensOf = ({ taps, targets }) => Array.from({ length: data.config.decoder_layers }, (_, layer) => {
  const logits = model.lens(taps, layer);
  return targets.map((_word, i) => readable(wordOf("target")(logits.row(i).reduce((best, x, id, row) => (x > row[best] ? id : best), 0))));
});

function drawModel() {
  view.figureOptions.lens = lensOf(result);
  if (view.figure) { view.figure.update(figureOf(result)); return; }
  view.figure = drawFigure(figureOf(result), view.figureOptions);
  view.figure.node.querySelector(".controls").addEventListener("click", refresh);  // gradients are computed for the backward view only
  byId("figure-body").append(view.figure.node);
}

// The data of figure.js.  The gradient of an attention is what a query sends to the value of a key, √Σ_h (A_h |∂Z_h|)².
function figureOf({ source, targets, taps, rows, losses, backward }) {
  const { encoder_layers: encoders, decoder_layers: decoders } = data.config;
  const norms = (tap) => Array.from({ length: tap.rows }, (_, i) => (backward ? Math.hypot(...tap.grad.subarray(i * tap.cols, (i + 1) * tap.cols)) : 0));
  const column = (stack) => (_, layer) => ({ stack, layer, gradient: norms(layer ? taps[`${stack}.layers.${layer - 1}.stream`] : taps[`${stack}.positioned`] ?? taps[`${stack}.embedded`]) });
  const attention = (stack, path) => (_, layer) => {
    const name = path(layer), heads = taps[`${name}.weights`], shape = [1, heads[0].rows, heads[0].cols], z = taps[`${name}.heads`].map(norms);
    const mean = heads[0].data.map((_w, at) => sumOf(heads.map((head) => head.data[at])) / heads.length);
    const flow = heads[0].data.map((_w, at) => Math.hypot(...heads.map((head, h) => head.data[at] * z[h][Math.floor(at / shape[2])]))), largest = Math.max(...flow);
    return { stack, layer: layer + 1, weights: { shape, values: mean }, gradient: largest ? { shape, values: flow.map((x) => x / largest) } : null, largest };
  };
  const many = (length, f) => Array.from({ length }, f);
  return {
    labels: { source: source.map(wordOf("source")), input: inputFor(targets).map(wordOf("target")), output: targets.map(wordOf("target")) },
    columns: [...many(encoders + 1, column("encoder")), ...many(decoders + 1, column("decoder"))],
    attention: [...many(encoders, attention("encoder", (i) => `encoder.layers.${i}.self_attn`)), ...many(decoders, attention("decoder", (i) => `decoder.layers.${i}.self_attn`)),
      ...many(decoders, attention("cross", (i) => `decoder.layers.${i}.cross_attn`))],
    outputs: targets.map((target, position) => ({ position, loss: losses[position], probability: Math.exp(rows[position][target]), rows: [position] })),
  };
}

// What the stored model, without any change, makes of the same sentence.
function unchanged(source) {
  const key = JSON.stringify([state.model, state.source, state.target]);
  if (view.unchanged?.key !== key) {
    view.original ??= new engine.Transformer(data);
    const targets = typedTargets() ?? translation(source, {}, view.original);
    view.unchanged = { key, text: textOf(targets), loss: lossOf(source, targets, {}, view.original) };
  }
  return view.unchanged;
}

function drawResult() {
  const { source, targets, losses } = result, text = textOf(targets), nothing = both("(nothing)", "（空）"), before = isChanged() ? unchanged(source) : null;
  const notes = [];
  if (typedTargets()) {
    const own = textOf(translation(source)) || null;
    notes.push(both(["The target that you typed. The model's own translation: ", own ?? "(nothing)"], ["这是您输入的目标。模型自己的译文：", own ?? "（空）"]));
  }
  if (before && before.text !== text) notes.push(both(`Without your changes: ${before.text || "(nothing)"}`, `改动之前：${before.text || "（空）"}`));
  if (!state.mask) notes.push(both("The search writes one word after the other and cannot look ahead anyway, so the mask does not change what it chooses; the loss is that of all words at once.", "搜索逐词进行，本来就看不到后面的词，所以掩码不影响它的选择；损失则是所有词同时计算的。"));
  view.output.replaceChildren(text || nothing);
  view.notes.replaceChildren(...notes.map((note) => el("p", { class: "small" }, note)));
  view.loss.replaceChildren(both("Loss ", "损失 "), el("b", {}, number(sumOf(losses))), before ? el("span", { class: "before" }, both(` before: ${number(before.loss)}`, ` 改动前：${number(before.loss)}`)) : "");
  view.reset.hidden = !isChanged();
}

function drawAlternatives() {
  const { targets, rows } = result, word = Math.min(view.word ?? 0, targets.length - 1), piece = (id) => bothOf(readable(wordOf("target")(id)));
  const top = [...rows[word]].map((logProb, id) => [logProb, id]).sort((a, b) => b[0] - a[0]).slice(0, 5);
  view.alternatives.replaceChildren(
    el("p", { class: "small" }, both([`Most probable at position ${word + 1}, “`, piece(targets[word]), "” (select another word in the figure)"], [`第 ${word + 1} 个位置“`, piece(targets[word]), "”处概率最大的词元（可在图中点选其他词）"])),
    ...top.map(([logProb, id]) => el("div", { class: `choice${id === targets[word] ? " is" : ""}` }, el("span", {}, piece(id)), meter(Math.exp(logProb)), el("span", {}, percent(Math.exp(logProb))))));
}

function drawTry() {
  const input = (name, english, chinese, hint) => {
    const field = el("input", { type: "text", autocomplete: "off", spellcheck: "false", id: `${name}-text`, oninput: () => { state[name] = field.value; refresh(); } });
    field.value = state[name];
    return el("label", { class: "text" }, both(english, chinese), bothIn(field, "placeholder", ...hint));
  };
  const example = ([source, target]) => el("button", { type: "button", onclick: () => { Object.assign(state, { source, target }); drawTry(); refresh(); } }, source);
  view.alternatives = el("div", { class: "choices" });
  byId("try-body").replaceChildren(
    el("div", {}, input("source", "Source", "源句", ["type here", "在此输入"]), el("div", { class: "controls examples" }, ...data.examples.slice(0, 4).map(example)),
      input("target", "Target", "目标", isTiny() ? ["words of the vocabulary", "词表中的词"] : ["empty: the model's own translation", "留空：模型自己的译文"]),
      isTiny() ? el("p", { class: "small" }, both(`Vocabulary: ${data.words.slice(4).join(" ")}`, `词表：${data.words.slice(4).join(" ")}`)) : null),
    view.alternatives);
}

// The line that stays in view: the translation, its loss, and what both were before the changes.
function drawResultBar() {
  view.output = el("output", { class: "translation", for: "source-text" });
  view.notes = el("div", { class: "notes" });
  view.loss = el("p", { class: "loss" });
  view.reset = el("button", { type: "button", hidden: "", onclick: reset }, both("Reset everything", "全部恢复"));
  byId("result").append(view.output, view.loss, view.reset, view.notes);
}

function reset() {
  Object.assign(state, unchangedModel());
  load(state.model);
  begin();
}

// ---- the address ------------------------------------------------------------------------------------------------------

// Sentence, switches, heads, weights, edits, the attention shown, and in a frame the parts shown; what equals the default is left out.
function keep() {
  const kept = { m: state.model, s: state.source, t: state.target, off: SWITCHES.map(([name]) => name).filter((name) => !state[name]), heads: [...state.disabled], weights: [...state.weights], edits: [...state.edits],
    a: view.attention.value === lastAttention() ? "" : view.attention.value, show: view.shown ?? [] };
  const short = Object.fromEntries(Object.entries(kept).filter(([, value]) => (Array.isArray(value) ? value.length : value !== "")));
  const address = `#${encodeURIComponent(JSON.stringify(short))}`;
  [view.keeping, view.address] = [0, address];
  tellFrame();
  try { if (address !== location.hash) history.replaceState(null, "", address); } catch { /* a page in a frame may not change its address */ }
}
// Browsers limit how often an address may change.
function keepSoon() { view.keeping ||= setTimeout(keep, 200); }

function restore(hash) {
  let kept = null;
  try { kept = JSON.parse(decodeURIComponent(hash.slice(1))); } catch { /* not an address of this page: start anew */ }
  kept = kept && typeof kept === "object" ? kept : {};
  const pairs = (value) => (Array.isArray(value) ? value.filter((pair) => Array.isArray(pair) && typeof pair[0] === "string" && finite(pair[1])) : []);
  const index = Number.isInteger(kept.m) && playground.models[kept.m] ? kept.m : playground.models.length - 1, [example] = playground.models[index].examples;
  Object.assign(state, { source: typeof kept.s === "string" ? kept.s : example?.[0] ?? "", target: typeof kept.t === "string" ? kept.t : kept.s === undefined ? example?.[1] ?? "" : "" });
  for (const [name] of SWITCHES) state[name] = !(Array.isArray(kept.off) && kept.off.includes(name));
  state.disabled = new Set(Array.isArray(kept.heads) ? kept.heads.filter((key) => ATTENTION_KEY.test(key)) : []);
  state.weights = new Map(pairs(kept.weights));
  state.edits = new Map(pairs(kept.edits));
  state.attention = kept.a;
  view.shown = isFramed && Array.isArray(kept.show) ? kept.show.map(String) : null;  // a lesson shows some parts of the page beside its text
  if (view.shown) document.documentElement.dataset.show = view.shown.join(" ");
  load(index);
}

function begin() {
  drawTry();
  drawChanges();
  drawTraining();
  drawQuestions();
  refresh();
}

// ---- in a frame -------------------------------------------------------------------------------------------------------

const isFramed = window.parent !== window;

// The page around the frame makes it as high as its content, and hands the state on to its links.
function tellFrame() {
  if (isFramed) window.parent.postMessage({ dragoman: { address: view.address, height: view.shown && Math.ceil(document.body.getBoundingClientRect().height) } }, "*");
}

function start() {
  byId("language").append(languageSwitch());
  const models = choice(playground.models.map(({ name }, i) => [i, name.en, name.zh]), 0, (value) => {
    const index = Number(value), [source, target] = playground.models[index].examples[0] ?? ["", ""];
    Object.assign(state, { source, target, model: index });
    reset();
  }, ["Model", "模型"]);
  if (playground.models.length > 1) byId("models").append(models);
  restore(location.hash);
  drawResultBar();
  const onLayer = (stack, layer) => chooseAttention(stack === "encoder" ? `encoder.layers.${layer - 1}.self_attn 0` : `decoder.layers.${layer - 1}.cross_attn 0`);
  view.figureOptions = { readable: (piece) => readable(piece), onLayer, onWord: (index) => { view.word = index ?? 0; drawAlternatives(); } };
  models.value = state.model;
  window.addEventListener("hashchange", ({ newURL }) => {  // not location.hash: `keep` may have replaced it before this event arrives
    const { hash } = new URL(newURL);
    if (hash.startsWith("#%7B")) { restore(hash); models.value = state.model; begin(); }
  });
  begin();
  keep();  // what a frame begins with
  new ResizeObserver(tellFrame).observe(document.body);
}
