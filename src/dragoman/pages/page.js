"use strict";
// Functions shared by all pages.  Texts from the data become text nodes only, so they cannot change the structure of the page.

const byId = (id) => document.getElementById(id);
const finite = (value) => typeof value === "number" && Number.isFinite(value);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
// Chinese and Japanese are written without spaces, so the "▁" of sentencepiece does not mark their words.
const SPACELESS = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u;
const SPECIAL = new Map(Object.entries({ "</s>": { en: "(end)", zh: "（结束）" }, "<s>": { en: "(start)", zh: "（开始）" }, "▁": "␣", "\n": "⏎", "<class>": { en: "class token", zh: "类别词元" } }));
// A label of a position, such as "<s> → word", with the names of special tokens.
function named(label) {
  const [en, zh] = ["en", "zh"].map((code) => String(label).split(" → ").map((one) => inLanguage(SPECIAL.get(one) ?? one, code)).join(" → "));
  return en === zh ? en : { en, zh };
}

function make(name, attributes, children, space) {
  const node = space ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;  // also where the page's policy forbids the attribute
    else node.setAttribute(key, value);
  }
  node.append(...(children || []).filter((child) => child !== null));
  return node;
}
const el = (name, attributes, ...children) => make(name, attributes, children, false);
const svg = (name, attributes, ...children) => make(name, attributes, children, true);

function significant(value, digits = 3) {
  if (!finite(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 0.01 || Math.abs(value) >= 1e6)) {
    const [mantissa, power] = value.toExponential(digits - 1).split("e");
    return `${String(Number(mantissa)).replace("-", "−")} × 10${[...String(Number(power))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("")}`;
  }
  return new Intl.NumberFormat("en", { maximumSignificantDigits: digits }).format(value).replace("-", "−");
}

// A share in percent; without digits, one decimal only where it is small or near 1.
function percent(share, digits) {
  if (!finite(share)) return "–";
  if (digits === undefined && share >= 0.9995 && share < 1) return "> 99.9\u00a0%";
  if (digits === undefined && share > 0 && share < 0.0005) return "< 0.1\u00a0%";
  return `${(100 * share).toFixed(digits ?? (share >= 0.0995 && share < 0.9905 ? 0 : 1))}\u00a0%`;
}

// Width in pixels of the longest of some texts of a picture, in both languages.
const FONT = '13.5px system-ui, "PingFang SC", "Microsoft YaHei", "Noto Sans CJK SC", sans-serif';
const pen = document.createElement("canvas").getContext("2d"), widths = new Map();

function widthOf(texts) {
  pen.font = FONT;
  const width = (text) => widths.get(text) ?? widths.set(text, pen.measureText(text).width).get(text);
  return Math.max(0, ...texts.flatMap((text) => (typeof text === "string" ? [text] : Object.values(text))).map(width));
}

// Rows and columns that an arrow key moves by.
const ARROWS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };

// Roving focus in a row or grid of items: the item that had the focus last is in the tab order, the arrow keys move the focus.
// next(key, i): the index of the item that a key leads to from item i, -1 for none; undefined for a key without a meaning.
function roving(items, columns = items.length, next = (key, i) => (ARROWS[key] ? i + columns * ARROWS[key][0] + ARROWS[key][1] : { Home: 0, End: items.length - 1 }[key])) {
  let entered = null;
  const enter = (item) => {
    entered?.setAttribute("tabindex", "-1");
    item.setAttribute("tabindex", "0");
    entered = item;
  };
  items.forEach((item, i) => {
    item.setAttribute("tabindex", "-1");
    item.addEventListener("focus", () => enter(item));
    item.addEventListener("keydown", (event) => {
      const to = next(event.key, i);
      if (to === undefined) return;
      event.preventDefault();
      items[to]?.focus();
    });
  });
  if (items.length) enter(items[0]);
}

// Buttons in the head of a table sort its rows by the `data-value` of their cells: numbers from the largest, missing values last.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells], rows = [...table.tBodies[0].rows];
  const valueIn = (column) => (row) => { const { value } = row.cells[column].dataset; return value === undefined || Number.isNaN(Number(value)) ? value : Number(value); };
  heads.forEach((head, column) => head.replaceChildren(el("button", { type: "button", onclick: () => {
    const value = valueIn(column), isText = rows.some((row) => typeof value(row) === "string");
    const up = column === 0 || (isText ? head.ariaSort !== "ascending" : head.ariaSort === "descending");
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    table.tBodies[0].append(...(column === 0 ? rows : [...rows].sort((a, b) => {
      const [p, q] = up ? [value(a), value(b)] : [value(b), value(a)];
      return (value(a) === undefined) - (value(b) === undefined) || (p > q) - (p < q);
    })));
  } }, ...head.childNodes)));
}

// Marks one of some buttons as the pressed one.
const pressOnly = (buttons, pressed) => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button === pressed)));

// A share as a bar.
const meter = (share) => el("span", { class: "meter" }, el("i", { style: `width:${(100 * share).toFixed(2)}%` }));

// The parts of a response that `separator` ends, as they arrive.
async function* partsOf(response, separator) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split(separator);
    rest = parts.pop();
    yield* parts;
  }
}

// Draws the parts of a page in the elements with these ids.  A part that cannot be drawn shows an error, the others are unaffected.
function drawParts(parts) {
  for (const [id, draw] of Object.entries(parts)) {
    try {
      draw();
    } catch (error) {
      byId(id).append(el("p", { class: "problem", role: "alert" }, both("This section cannot be drawn: ", "这一部分无法绘制："), error.message));
    }
  }
}

function options(select, texts, chosen) {
  select.replaceChildren(...texts.map(([value, english, chinese]) => bothIn(el("option", { value }), "label", english, chinese ?? english)));
  select.value = chosen;
}
// A select with texts [value, English, Chinese]; change: called with the value, a text.
function choice(texts, chosen, change, label) {
  const select = el("select", { onchange: () => change(select.value) });
  options(select, texts, chosen);
  return label ? bothIn(select, "aria-label", ...label) : select;
}

// In English and in Chinese.
function duration(seconds) {
  if (!finite(seconds)) return { en: "–", zh: "–" };
  const s = Math.round(seconds), minutes = Math.floor(s / 60), hours = Math.floor(s / 3600);
  if (s < 60) return { en: `${s} s`, zh: `${s} 秒` };
  if (s < 3600) return { en: `${minutes} min ${s % 60} s`, zh: `${minutes} 分 ${s % 60} 秒` };
  return { en: `${hours} h ${minutes % 60} min`, zh: `${hours} 小时 ${minutes % 60} 分` };
}

// What overflows sideways must be reachable by the keyboard: it becomes a tab stop unless it contains one.
const SCROLLS = ".scroll, .matrix-scroll, .overview";

function markScrolling() {
  for (const node of document.querySelectorAll(SCROLLS)) {
    const wide = node.scrollWidth > node.clientWidth + 1, inside = node.querySelector("a, button, input, select, [tabindex='0']");
    if (wide && !inside) {
      node.tabIndex = 0;
      node.setAttribute("role", "group");
      bothIn(node, "aria-label", "Scrolls sideways", "可横向滚动");
    } else if (node.getAttribute("tabindex") === "0") {
      for (const name of ["tabindex", "role", "aria-label"]) node.removeAttribute(name);
      bilingual.texts.set(node, {});  // a later change of the language must not label it again
    }
  }
}

function watchScrolling() {
  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; markScrolling(); });
  };
  markScrolling();
  new MutationObserver(later).observe(document.body, { childList: true, subtree: true });
  window.addEventListener("resize", later);
  document.addEventListener("language", later);
  document.addEventListener("toggle", later, true);
}
