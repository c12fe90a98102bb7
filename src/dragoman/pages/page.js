"use strict";
// Functions shared by all pages.  Texts from the data become text nodes only, so they cannot change the structure of the page.

const byId = (id) => document.getElementById(id);
const finite = (value) => typeof value === "number" && Number.isFinite(value);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
// Chinese and Japanese are written without spaces, so the "▁" of sentencepiece does not mark their words.
const SPACELESS = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u;

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
    return `${Number(mantissa)} × 10${[...String(Number(power))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("")}`;
  }
  return new Intl.NumberFormat("en", { maximumSignificantDigits: digits }).format(value);
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

// Roving focus in a row or grid of items: one item is in the tab order, the arrow keys move the focus.
function roving(items, columns = items.length) {
  if (!items.length) return;
  items.forEach((item, i) => item.setAttribute("tabindex", i ? "-1" : "0"));
  items.forEach((item, i) => item.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -i, End: items.length - 1 - i }[event.key];
    const next = items[i + (step ?? 0)];
    if (step === undefined) return;
    event.preventDefault();
    if (!next || next === item) return;
    item.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }));
}

function options(select, texts, chosen) {
  select.replaceChildren(...texts.map(([value, english, chinese]) => bothIn(el("option", { value }), "label", english, chinese ?? english)));
  select.value = chosen;
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
