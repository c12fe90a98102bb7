"use strict";
// What the reader changes in the playground: switches, heads, attention weights, matrices, and all weights by training.

const ATTENTIONS = [["encoder", "self_attn", "Encoder self-attention", "编码器自注意力"], ["decoder", "self_attn", "Decoder self-attention", "解码器自注意力"], ["decoder", "cross_attn", "Cross-attention", "交叉注意力"]];
const SWITCHES = [["mask", "Mask of the decoder", "解码器的掩码"], ["scaling", "Scaling by 1/√d", "除以 √d"], ["positions", "Positions", "位置编码"]];
const ATTENTION_KEY = /^(encoder|decoder)\.layers\.\d+\.\w+ \d+$/;
const lastAttention = () => `decoder.layers.${data.config.decoder_layers - 1}.cross_attn 0`;
const upTo = (count) => Array.from({ length: count }, (_, i) => i);

function drawChanges() {
  const { config } = data;
  const switches = SWITCHES.filter(([name]) => name !== "positions" || config.position !== "none").map(([name, english, chinese]) => {
    const box = el("input", { type: "checkbox", onchange: () => { state[name] = box.checked; refresh(); } });
    box.checked = state[name];
    return el("label", { class: "switch" }, box, both(english, chinese));
  });
  const heads = ATTENTIONS.map(([stack, kind, english, chinese]) => el("tr", { class: kind }, el("th", { scope: "row" }, both(english, chinese)),
    ...upTo(Math.max(config.encoder_layers, config.decoder_layers)).map((layer) => el("td", {}, ...upTo(layer < config[`${stack}_layers`] ? config.n_heads : 0).map((head) =>
      headButton(`${stack}.layers.${layer}.${kind} ${head}`, head, [`${english}, layer ${layer + 1}, head ${head + 1}`, `${chinese}第 ${layer + 1} 层第 ${head + 1} 个头`]))))));
  const layers = el("tr", {}, el("td", {}), ...upTo(Math.max(config.encoder_layers, config.decoder_layers)).map((layer) => el("th", { scope: "col" }, both(`Layer ${layer + 1}`, `第 ${layer + 1} 层`))));
  const attentions = ATTENTIONS.flatMap(([stack, kind, english, chinese]) => upTo(config[`${stack}_layers`] * config.n_heads).map((i) => {
    const layer = Math.floor(i / config.n_heads), head = i % config.n_heads;
    return [`${stack}.layers.${layer}.${kind} ${head}`, `${english}, layer ${layer + 1}, head ${head + 1}`, `${chinese}，第 ${layer + 1} 层，第 ${head + 1} 个头`];
  }));
  const chosen = attentions.some(([key]) => key === state.attention) ? state.attention : lastAttention();
  view.attention = choice(attentions, chosen, () => { drawWeights(); keepSoon(); }, ["Attention", "注意力"]);
  view.weights = el("div", { class: "scroll weights" });
  byId("change-body").replaceChildren(
    el("div", {}, el("div", { class: "switches" }, ...switches), el("div", { class: "heads" },
      el("h3", {}, both("Heads", "注意力头")), el("p", { class: "small" }, both("Press a head to disable it: its output becomes 0.", "点按一个头即可停用它：它的输出变为 0。")),
      el("div", { class: "scroll" }, el("table", { class: "head-table" }, el("thead", {}, layers), el("tbody", {}, ...heads))))),
    el("div", { id: "weights" }, el("h3", {}, both("Attention weights", "注意力权重")), view.attention, view.weights,
      el("p", { class: "small" }, both("Drag a weight up or down; the others of its row make room, so that the sum stays 1. Keys: ← → choose, ↑ ↓ change, Delete restores.", "上下拖动一个权重，同一行的其他权重随之变化，使总和仍为 1。键盘：← → 选择，↑ ↓ 改变，Delete 恢复。"))),
    ...(isTiny() ? [drawMatrices()] : []));
}

function headButton(key, head, label) {
  const button = el("button", { type: "button", "aria-pressed": String(!state.disabled.has(key)), onclick: () => {
    if (!state.disabled.delete(key)) state.disabled.add(key);
    button.setAttribute("aria-pressed", String(!state.disabled.has(key)));
    refresh();
  } }, String(head + 1));
  return bothIn(button, "aria-label", ...label);
}

function chooseAttention(key) {
  view.attention.value = key;
  drawWeights();
  keepSoon();
  byId("weights").scrollIntoView({ block: "center" });
}

// ---- attention weights ------------------------------------------------------------------------------------------------

// The weights of one head; each can be dragged.
function drawWeights() {
  const [name, head] = view.attention.value.split(" "), weights = result.taps[`${name}.weights`][Number(head)], kept = document.activeElement?.dataset?.weight;
  const ofTarget = name.startsWith("decoder"), source = result.source.map(wordOf("source")), input = inputFor(result.targets).map(wordOf("target"));
  const rows = (ofTarget ? result.targets.map(wordOf("target")) : source).map((piece) => readable(piece)), columns = (ofTarget && name.endsWith("self_attn") ? input : source).map((piece) => readable(piece));
  const cells = rows.map((row, i) => columns.map((column, j) => weightCell(`${name} ${head} ${i} ${j}`, weights.row(i)[j], [row, column])));
  const line = (label, i) => el("tr", ofTarget ? { onpointerenter: () => view.figure.hover(i), onpointerleave: () => view.figure.hover(null) } : {}, el("th", { scope: "row" }, bothOf(label)), ...cells[i]);
  view.weights.classList.toggle("cross", name.endsWith("cross_attn"));
  view.weights.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, el("td", {}), ...columns.map((label) => el("th", { scope: "col" }, bothOf(label))))), el("tbody", {}, ...rows.map(line))));
  const all = cells.flat();
  roving(all, 0, (key, i) => ({ ArrowLeft: i - 1, ArrowRight: i + 1 })[key]);
  all.find((cell) => cell.dataset.weight === kept)?.focus();
}

function weightCell(key, weight, [row, column]) {
  const change = (value) => {
    state.weights.delete(key);  // the weight that is changed last counts first
    state.weights.set(key, Math.round(1000 * Math.max(0, Math.min(1, value))) / 1000);
    refresh();
  };
  const restore = () => { state.weights.delete(key); refresh(); };
  const press = (event) => {
    const step = { ArrowUp: 0.05, ArrowDown: -0.05, PageUp: 0.25, PageDown: -0.25, Home: -1, End: 1 }[event.key];
    if (step) change(weight + step);
    else if (["Delete", "Backspace"].includes(event.key)) restore();
    else return;
    event.preventDefault();
  };
  const drag = (event) => {
    const moved = (later) => change(weight + (event.clientY - later.clientY) / 120), stop = new AbortController();
    window.addEventListener("pointermove", moved, stop);
    for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, () => stop.abort(), stop);
    event.preventDefault();
    cell.focus();
  };
  const cell = el("td", { role: "slider", tabindex: "-1", "data-weight": key, "aria-valuemin": "0", "aria-valuemax": "1", "aria-valuenow": weight.toFixed(2), class: state.weights.has(key) ? "is-changed" : null,
    style: `--w:${(100 * weight).toFixed(1)}%`, onkeydown: press, onpointerdown: drag, ondblclick: restore }, weight.toFixed(2));
  return bothIn(cell, "aria-label", `${inLanguage(row, "en")} – ${inLanguage(column, "en")}`, `${inLanguage(row, "zh")} – ${inLanguage(column, "zh")}`);
}

// ---- matrices of the tiny model ---------------------------------------------------------------------------------------

// Shown as (in, out), so that a row vector x gives x W; an embedding has a row per token.
function drawMatrices() {
  const body = el("div", { class: "scroll editable" }), names = [...model.parameters.keys()], choose = choice(names.map((name) => [name, name]), names[0], () => view.showMatrix(), ["Matrix", "矩阵"]);
  view.showMatrix = () => {
    const name = choose.value, parameter = model.parameter(name), table = name.includes("embedding"), [rows, columns] = table ? [parameter.rows, parameter.cols] : [parameter.cols, parameter.rows];
    const cell = (i, j) => {
      const [row, column] = table ? [i, j] : [j, i], key = `${name} ${row} ${column}`;
      const field = el("input", { type: "number", step: "0.5", oninput: () => {
        if (field.value === "") return;
        state.edits.set(key, Number(field.value));
        setParameter(key, Number(field.value));
        refresh();
      } });
      field.value = Number(parameter.row(row)[column].toFixed(4));
      return el("td", {}, bothIn(field, "aria-label", `${name}, row ${i}, column ${j}`, `${name}，第 ${i} 行第 ${j} 列`));
    };
    body.replaceChildren(el("table", {}, el("tbody", {}, ...upTo(rows).map((i) => el("tr", {}, el("th", { scope: "row" }, table ? bothOf(readable(data.words[i])) : String(i)), ...upTo(columns).map((j) => cell(i, j)))))));
  };
  view.showMatrix();
  return el("div", { class: "wide" }, el("h3", {}, both("Matrices", "矩阵")), choose, body);
}

// ---- training ---------------------------------------------------------------------------------------------------------

function drawTraining() {
  const rate = el("input", { type: "range", min: "-4", max: "0", step: "0.25", value: isTiny() ? "-1" : "-3", oninput: () => showRate() }), shown = el("output", {});
  const kind = choice([["sgd", "Gradient descent", "梯度下降"], ["adam", "Adam"]], "sgd", () => { view.optimizer = null; }, ["Optimizer", "优化器"]);
  const rateText = () => `η = ${Number((10 ** Number(rate.value)).toPrecision(2))}`, showRate = () => { shown.replaceChildren(rateText()); rate.setAttribute("aria-valuetext", rateText()); };
  const button = (english, chinese, press) => el("button", { type: "button", onclick: press }, both(english, chinese));
  const curve = el("div", { class: "training-curve" }), comparison = el("div", { class: "scroll updates" }), stop = button("Stop", "停止", () => { view.training = null; });
  const curves = [];
  let before = null;
  stop.disabled = true;

  // Steps are spread over frames, so that the page follows them.
  async function train(steps) {
    const mine = (view.training = {}), source = sourceIds(), targets = typedTargets() ?? translation(source), eta = 10 ** Number(rate.value);
    const optimizer = (view.optimizer ??= new engine.Optimizer(model, kind.value)), key = String([source, targets]), scores = () => scoresOf(model.forward(source, inputFor(targets), changes()).logits, targets);
    if (!view.isTrained || before?.key !== key) {
      before = { key, ...scores() };
      curves.push({ name: { sgd: ["gradient descent", "梯度下降"], adam: ["Adam", "Adam"] }[kind.value].map((text) => `${text}, ${rateText()}`), losses: [sumOf(before.losses)] });
    }
    const { losses } = curves.at(-1);
    stop.disabled = false;
    for (let done = 0; done < steps && view.training === mine && finite(losses.at(-1));) {
      const until = isTiny() ? Math.min(steps, done + 2) : steps, began = performance.now();
      for (; done < until && performance.now() - began < 120; done += 1) {
        losses[losses.length - 1] = sumOf(model.backward(source, inputFor(targets), targets, 0, changes()).losses);
        optimizer.update(eta);
        losses.push(NaN);
      }
      const after = scores();
      losses[losses.length - 1] = sumOf(after.losses);
      view.isTrained = true;
      drawCurves(curve, curves.slice(-4));
      drawComparison(comparison, targets, before, after);
      refresh();
      await new Promise(requestAnimationFrame);
    }
    if (view.training === mine) view.training = null;
    if (!finite(losses.at(-1))) drawCurves(curve, curves.slice(-4));
    stop.disabled = true;
    view.showMatrix?.();
  }

  byId("train-body").replaceChildren(el("div", { class: "controls" }, button("1 step", "1 步", () => train(1)), button("100 steps", "100 步", () => train(100)), stop, kind, el("label", { class: "rate" }, both("Learning rate", "学习率"), rate, shown),
    button("Untrain", "恢复权重", () => { load(state.model); view.showMatrix?.(); comparison.replaceChildren(); refresh(); })), el("div", { class: "trained" }, curve, comparison));
  showRate();
}

// The loss by step, a curve per training; names are [English, Chinese].
function drawCurves(node, curves) {
  const width = 560, height = 190, steps = Math.max(1, ...curves.map(({ losses }) => losses.length - 1)), all = curves.flatMap(({ losses }) => losses).filter(finite), most = Math.max(...all, 1e-9);
  const x = (i) => 44 + ((width - 60) * i) / steps, y = (loss) => 12 + (height - 40) * (1 - Math.min(1, loss / most));
  const lines = curves.map(({ losses }, i) => svg("polyline", { class: "curve", style: `color:var(--s${i})`, points: losses.filter(finite).map((loss, step) => `${x(step).toFixed(1)},${y(loss).toFixed(1)}`).join(" ") }));
  const axis = [svg("line", { class: "grid", x1: 44, x2: width - 16, y1: y(0), y2: y(0) }), svg("text", { x: 38, y: y(0) + 4, "text-anchor": "end" }, "0"), svg("text", { x: 38, y: y(most) + 4, "text-anchor": "end" }, significant(most)),
    svg("text", { x: x(steps), y: height - 8, "text-anchor": "end" }, bothInSvg(steps === 1 ? "1 step" : `${steps} steps`, `${steps} 步`))];
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" }, ...axis, ...lines), last = curves.at(-1).losses;
  const legend = curves.map(({ name, losses }, i) => el("li", { style: `color:var(--s${i})` }, el("span", {}, both(`${name[0]}: ${number(losses.at(-1))}`, `${name[1]}：${number(losses.at(-1))}`))));
  node.replaceChildren(bothIn(picture, "aria-label", `Loss after ${last.length - 1} steps: ${number(last.at(-1))}`, `${last.length - 1} 步之后的损失：${number(last.at(-1))}`), el("ul", { class: "legend" }, ...legend),
    ...(finite(last.at(-1)) ? [] : [el("p", { class: "small" }, both("The training diverged: untrain and choose a smaller learning rate.", "训练发散：请恢复权重并选择较小的学习率。"))]));
}

function drawComparison(node, targets, before, after) {
  const cell = (p) => el("td", { class: "number" }, meter(p), percent(p)), head = [["probability before", "训练前的概率"], ["after", "训练后"]].map((text) => el("th", { scope: "col" }, both(...text)));
  const words = targets.map((target, i) => el("tr", {}, el("th", { scope: "row" }, bothOf(readable(wordOf("target")(target)))), ...[before, after].map(({ losses }) => cell(Math.exp(-losses[i])))));
  const loss = el("tr", {}, el("th", { scope: "row" }, both("loss", "损失")), ...[before, after].map(({ losses }) => el("td", { class: "number" }, number(sumOf(losses)))));
  node.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, el("td", {}), ...head)), el("tbody", {}, loss, ...words)));
}
