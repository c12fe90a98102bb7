// One training step, a formula at a time: drawWalkthrough(container, data) draws the result of Python's `walkthrough`,
// drawMatrix(tensor) one of its matrices, typeset(text) a formula.  Other pages include this file, so it defines no other names.

const { drawMatrix, drawWalkthrough, typeset } = (() => {

const WALK_PARTS = [["forward", "Forward", "前向"], ["backward", "Backward", "反向"], ["update", "Update", "更新"]];

// ---- a matrix ---------------------------------------------------------------------------------------------------------

const AXES = { row: "句", head: "头", query: "查询", key: "键", feature: "特征", position: "位置", word: "词元", input: "输入", output: "输出" };
const superscript = (power) => [...String(power)].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
const subscript = (index) => [...String(index)].map((c) => "₀₁₂₃₄₅₆₇₈₉"[Number(c)]).join("");

const RESIDUE = 1e-14; // A matrix of smaller numbers only is what rounding leaves of an exact 0.

// Number format of a matrix: decimals according to its largest number, a common power of ten if that is very small or large.
// least: minimum number of decimals.
function figures(values, least = 0) {
  const numbers = values.flat().filter(finite), size = Math.max(0, ...numbers.map(Math.abs)), largest = size < RESIDUE ? 0 : size;
  const power = largest > 0 && (largest < 0.01 || largest >= 1e6) ? Math.floor(Math.log10(largest)) : 0;
  const scaled = largest ? numbers.map((x) => x / 10 ** power) : [], top = largest / 10 ** power;
  const most = Math.max(least, top >= 1000 ? 1 : top >= 100 ? 2 : top >= 10 ? 3 : 4);
  let decimals = 0;
  while (decimals < most && scaled.some((x) => Math.abs(x - Number(x.toFixed(decimals))) > 1e-9 * Math.max(1, Math.abs(x)))) decimals += 1;
  const write = (x) => (finite(x) ? (Math.abs(x / 10 ** power) < 0.5 * 10 ** -decimals ? "0" : (x / 10 ** power).toFixed(decimals).replace("-", "−")) : String(x ?? "–"));
  return { write, power, largest };
}

const inFull = (x) => (finite(x) ? String(x).replace("-", "−").replace(/e[-−](\d+)$/, (_, p) => ` × 10${superscript(-Number(p))}`) : String(x ?? "–"));

// Background of a cell: blue for positive, orange for negative numbers, stronger for larger ones.
function heat(value, largest) {
  if (!finite(value) || largest === 0 || Math.abs(value) <= RESIDUE * largest) return null;
  const share = Math.round(6 + 40 * Math.min(1, Math.abs(value) / largest));
  return `background: color-mix(in srgb, var(${value > 0 ? "--first" : "--second"}) ${share}%, transparent)`;
}

// A formula with subscripts (W_Q) and superscripts (10^(−5)): a list of texts and nodes.
function typeset(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(/(?<![A-Za-z]{2})_([A-Za-z]+)|\^\(([^()]*)\)|\^([−\d.]*\w?)/g)) {
    parts.push(text.slice(from, match.index), match[1] ? el("sub", {}, match[1]) : el("sup", {}, ...typeset(match[2] ?? match[3])));
    from = match.index + match[0].length;
  }
  return [...parts, text.slice(from)];
}

const typesetBoth = (text) => both(typeset(text.en), typeset(text.zh));

// The head of a tensor with several heads, counted from 1.
const headOf = (tensor) => (tensor.head === undefined || tensor.shape[1] === 1 ? null : tensor.head + 1);
const symbolOf = (tensor) => `${tensor.symbol}${headOf(tensor) ? subscript(headOf(tensor)) : ""}`;
const CHINESE_SYMBOLS = {
  id: "编号", patches: "图像块", class: "类别向量", "P(correct)": "P（正确词）", "W new": "更新后的 W", "L before": "更新前的 L", "L after": "更新后的 L",
};
function symbolIn(tensor) {
  const [, sign, name] = /^(∂?)(.*)$/.exec(tensor.symbol);
  return [symbolOf(tensor), Object.hasOwn(CHINESE_SYMBOLS, name) ? `${sign}${CHINESE_SYMBOLS[name]}` : symbolOf(tensor)];
}

// Note on truncated sides, [8, 512, "feature"]: "8 of 512 features".
function truncationNote(sides) {
  const chinese = { query: "个位置", key: "个位置", position: "个位置", feature: "个特征", word: "个词元", input: "个输入", output: "个输出" };
  const english = (axis) => (axis === "query" || axis === "key" ? "position" : axis === "word" ? "token" : axis);
  return both(sides.map(([shown, size, axis]) => `${shown} of ${size} ${english(axis)}s`).join(", "),
    sides.map(([shown, size, axis]) => `${size} ${chinese[axis]}中的 ${shown} 个`).join("，"));
}

function drawMatrix(tensor, attributes = {}) {
  const rowNames = tensor.rows ?? tensor.values.map((_, i) => i), columnNames = tensor.columns ?? (tensor.values[0] ?? []).map((_, j) => j);
  const { write, power, largest } = figures(tensor.values, tensor.decimals), [english, chinese] = symbolIn(tensor), [markedRow, markedColumn] = tensor.mark || [];
  const named = (names) => names.some((name) => name !== "");
  const head = named(columnNames)
    ? el("thead", {}, el("tr", {}, named(rowNames) ? el("td", {}) : null, ...columnNames.map((name) => el("th", { scope: "col" }, name))))
    : null;
  const rows = tensor.values.map((row, i) => el("tr", {},
    named(rowNames) ? el("th", { scope: "row" }, rowNames[i]) : null,
    ...row.map((x, j) => el("td", {
      style: tensor.nominal ? null : heat(x, largest), "data-full": inFull(x), class: i === markedRow && j === markedColumn ? "marked" : null,
    }, write(x)))));
  const caption = el("figcaption", {}, el("b", {}, both(typeset(english), typeset(chinese))),
    headOf(tensor) ? el("small", {}, both(`head ${headOf(tensor)}`, `第 ${headOf(tensor)} 个头`)) : null,
    power ? el("small", { class: "power" }, ` × 10${superscript(power)}`) : null,
    tensor.shown ? el("small", { class: "cut" }, truncationNote(tensor.shown)) : null);
  return el("figure", { class: "matrix", ...attributes }, caption,
    el("div", { class: "matrix-scroll" }, el("table", {}, head, el("tbody", {}, ...rows))));
}

// ---- the steps --------------------------------------------------------------------------------------------------------

const MAX_OPEN_INPUTS = 7;

// Name, shape with the names of the axes, and source of a matrix.
function describeTensor(tensor, source) {
  const shape = (name) => (tensor.shape.length ? `(${tensor.shape.map((n, i) => `${n} ${name(tensor.axes[i])}`).join(" × ")})` : "");
  const name = el("code", {}, tensor.kind === "gradient" ? `∂L / ∂ ${tensor.name}` : tensor.name);
  return [name, " ", both(shape((axis) => axis), shape((axis) => AXES[axis] || axis)), source ? el("span", { class: "from" }, ` · ${source}`) : ""];
}

function drawFormula(formula, chinese = formula) {
  const [parts, others] = [formula, chinese].map((text) => text.split(/ {4,}/).filter(Boolean));
  return parts.length ? el("div", { class: "formula" }, ...parts.map((part, i) => el("div", {}, both(typeset(part), typeset(others[i]))))) : null;
}

// Inputs of a step, its own parameters and tensors of other steps (`found`, by kind and name), and its results.
function inputsOf(step, found) {
  const given = (tensor) => step.part === "forward" && (["input", "output"].includes(tensor.axes[0]) || tensor.name.endsWith("]"));
  const used = step.uses.flatMap(([name, kind]) => found.get(`${kind} ${name}`) || []);
  return [[...used, ...step.tensors.filter(given)], step.tensors.filter((tensor) => !given(tensor))];
}

function drawStep(step, found) {
  const description = el("p", { class: "walk-about" });
  const rest = () => description.replaceChildren(both("Point at a matrix or focus it to see its name, its shape and its source.",
    "将指针移到矩阵上或用键盘选中矩阵，可查看它的名称、形状和出处。"));
  const draw = (tensor) => {
    const describe = () => description.replaceChildren(...describeTensor(tensor, step.source));
    const figure = drawMatrix(tensor, { tabindex: "0", onfocus: describe, onpointerenter: describe });
    const [english, chinese] = symbolIn(tensor);
    bothIn(figure, "aria-label", `${english}: ${tensor.name}, ${tensor.shape.join(" × ")}`, `${chinese}：${tensor.name}，${tensor.shape.join(" × ")}`);
    figure.addEventListener("pointerover", (event) => {
      const cell = event.target.closest("td[data-full]");
      if (cell) description.replaceChildren(...describeTensor(tensor, step.source), " ", el("b", { class: "full" }, cell.dataset.full));
    });
    return figure;
  };
  const [inputs, results] = inputsOf(step, found);
  const matrices = (tensors) => el("div", { class: "matrices" }, ...tensors.map(draw));
  rest();
  return [
    el("p", { class: "walk-box" }, bothOf(step.box)),
    el("h3", {}, typesetBoth(step.title)),
    drawFormula(step.formula, step.formula_zh),
    step.equation ? el("p", { class: "equation" }, step.equation) : null,
    step.note.en ? el("p", { class: "walk-note" }, typesetBoth(step.note)) : null,
    // Many input matrices, one per head, would push the results off the screen.
    inputs.length ? el("details", { class: "walk-group inputs", open: inputs.length <= MAX_OPEN_INPUTS ? "" : null },
      el("summary", {}, both("Inputs", "输入"), inputs.length > MAX_OPEN_INPUTS ? ` (${inputs.length})` : ""), matrices(inputs)) : null,
    results.length ? el("div", { class: "walk-group results" }, inputs.length ? el("h4", {}, both("Results", "结果")) : "", matrices(results)) : null,
    description,
    step.source ? el("p", { class: "walk-source" }, step.source) : null,
  ].filter(Boolean);
}

// Consecutive steps of one part, grouped by their box of the model.
function boxesOf(steps, part) {
  const boxes = [];
  steps.forEach((step, index) => {
    if (step.part !== part) return;
    if (!boxes.length || boxes.at(-1).box.en !== step.box.en) boxes.push({ box: step.box, first: index, steps: [] });
    boxes.at(-1).steps.push([index, step]);
  });
  return boxes;
}

function drawContents(steps, go) {
  const buttons = new Map(), groups = [];
  const button = (index, label) => el("button", { type: "button", onclick: () => go(index, true) }, label);
  const parts = WALK_PARTS.filter(([part]) => steps.some((step) => step.part === part)).map(([part, english, chinese]) => {
    const boxes = boxesOf(steps, part).map(({ box, first, steps: inner }) => {
      const list = el("ol", { hidden: "" }, ...inner.map(([index, step]) => {
        buttons.set(index, button(index, typesetBoth(step.title)));
        return el("li", {}, buttons.get(index));
      }));
      const title = button(first, bothOf(box));
      groups.push({ part, indices: new Set(inner.map(([index]) => index)), list, title });
      return el("li", {}, title, list);
    });
    return { part, details: el("details", {}, el("summary", {}, both(english, chinese)), el("ol", {}, ...boxes)) };
  });
  function show(index) {
    for (const { part, details } of parts) details.open = part === steps[index].part;
    for (const { indices, list, title } of groups) {
      list.hidden = !indices.has(index);
      title.setAttribute("aria-expanded", String(indices.has(index)));
    }
    const node = buttons.get(index), nav = node.closest("nav");
    for (const other of buttons.values()) other.removeAttribute("aria-current");
    node.setAttribute("aria-current", "step");
    if (nav && nav.clientHeight) nav.scrollTop = Math.max(0, node.offsetTop - nav.clientHeight / 2);
  }
  return { parts: parts.map(({ details }) => details), show };
}

// A matrix that overflows its container is scrolled by the arrow keys, until its end.
function scrolled(target, ahead) {
  const wide = target.closest(".matrix")?.querySelector(".matrix-scroll");
  if (!wide || wide.scrollWidth <= wide.clientWidth + 1) return false;
  if (ahead ? wide.scrollLeft + wide.clientWidth >= wide.scrollWidth - 1 : wide.scrollLeft <= 0) return false;
  wide.scrollBy({ left: (ahead ? 1 : -1) * 80 });
  return true;
}

function drawWalkthrough(container, data) {
  const steps = data.steps, found = new Map();
  for (const tensor of steps.flatMap((step) => step.tensors)) {
    const name = `${tensor.kind} ${tensor.name}`;
    found.set(name, [...(found.get(name) || []).filter((other) => other.head !== tensor.head), tensor]);
  }
  let at = 0;
  const view = el("article", { class: "walk-step", tabindex: "-1" });
  const position = el("span", { class: "walk-position", role: "status" });
  const contents = drawContents(steps, (index, focus) => go(index, focus));
  const nav = bothIn(el("nav", { class: "walk-contents" }, ...contents.parts), "aria-label", "Steps", "步骤");
  const previous = el("button", { type: "button", onclick: () => go(at - 1) }, "← ", both("Previous", "上一步"));
  const next = el("button", { type: "button", onclick: () => go(at + 1) }, both("Next", "下一步"), " →");
  const jumps = WALK_PARTS.map(([part, english, chinese]) => [part, steps.findIndex((step) => step.part === part), english, chinese])
    .filter(([, first]) => first >= 0)
    .map(([part, first, english, chinese]) => [part, el("button", { type: "button", onclick: () => go(first) }, both(english, chinese))]);
  const slider = bothIn(el("input", { type: "range", min: 0, max: steps.length - 1, value: 0, oninput: () => go(Number(slider.value)) }), "aria-label", "Step", "步骤");
  const bar = el("div", { class: "walk-bar controls" }, ...jumps.map(([, button]) => button), el("span", { class: "gap" }), previous, position, next);

  function go(index, focus = false) {
    at = Math.max(0, Math.min(steps.length - 1, index));
    view.replaceChildren(...drawStep(steps[at], found));
    previous.disabled = at === 0;
    next.disabled = at === steps.length - 1;
    slider.value = at;
    bothIn(slider, "aria-valuetext", `${at + 1}: ${steps[at].title.en}`, `${at + 1}：${steps[at].title.zh}`);
    for (const [part, button] of jumps) button.setAttribute("aria-pressed", String(part === steps[at].part));
    position.replaceChildren(`${at + 1} / ${steps.length}`);
    contents.show(at);
    if (focus) view.focus({ preventScroll: true });
  }

  const walk = bothIn(el("div", { class: "walk", role: "group" }, bar, slider, el("div", { class: "walk-main" }, nav, view)),
    "aria-label", "Walkthrough: the arrow keys change the step", "逐步推演：用方向键切换步骤");
  walk.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    const ahead = event.key === "ArrowRight";
    if (scrolled(event.target, ahead)) return;
    // The focused element inside the step is removed, so focus the new step.
    const inside = view.contains(event.target);
    go(at + (ahead ? 1 : -1), inside);
  });
  container.replaceChildren(walk);
  if (steps.length) go(0);
}

return { drawMatrix, drawWalkthrough, typeset };
})();
