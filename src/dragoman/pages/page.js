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
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) node.setAttribute(key, value);
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

function duration(seconds) {
  if (!finite(seconds)) return "–";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}
