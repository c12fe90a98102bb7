"use strict";
// English and Chinese: every text of a page is a pair of elements, of which the style sheet shows one.

const LANGUAGES = { en: { name: "English", lang: "en" }, zh: { name: "中文", lang: "zh-Hans" } };
const KEPT_LANGUAGE = "dragoman-language";
const bilingual = { texts: new WeakMap(), nodes: new Set() };

const language = () => document.documentElement.dataset.language;

// A text in both languages; each of the two may also be a node or a list of nodes.
const inBoth = (make) => (english, chinese) => make("span", {}, make("span", { lang: "en" }, ...[english].flat()), make("span", { lang: "zh" }, ...[chinese].flat()));
const both = inBoth(el);
const bothInSvg = inBoth((name, attributes, ...children) => svg("tspan", attributes, ...children));
const labelInSvg = (text) => (typeof text === "string" ? document.createTextNode(text) : bothInSvg(text.en, text.zh));
const inLanguage = (text, code = language()) => (text && typeof text === "object" ? text[code] : text);
const bothOf = (text) => (text && typeof text === "object" ? both(text.en, text.zh) : document.createTextNode(text ?? ""));

// Sets an attribute (aria-label, title, placeholder, label) in both languages; returns the node.
function bothIn(node, attribute, english, chinese) {
  if (!bilingual.texts.has(node)) {
    bilingual.texts.set(node, {});
    bilingual.nodes.add(new WeakRef(node));
  }
  bilingual.texts.get(node)[attribute] = { en: english, zh: chinese };
  node.setAttribute(attribute, { en: english, zh: chinese }[language()]);
  return node;
}

function setLanguage(chosen) {
  document.documentElement.dataset.language = chosen;
  document.documentElement.lang = LANGUAGES[chosen].lang;
  for (const reference of bilingual.nodes) {
    const node = reference.deref();
    if (!node) bilingual.nodes.delete(reference);
    else for (const [attribute, texts] of Object.entries(bilingual.texts.get(node))) node.setAttribute(attribute, texts[chosen]);
  }
  document.dispatchEvent(new CustomEvent("language", { detail: chosen }));
}

// Two buttons, of which one is pressed.
function languageSwitch() {
  const buttons = Object.entries(LANGUAGES).map(([code, { name, lang }]) => {
    const press = () => {
      setLanguage(code);
      try { localStorage.setItem(KEPT_LANGUAGE, code); } catch { /* a page opened from a file may have no storage */ }
    };
    return el("button", { type: "button", lang, "data-code": code, onclick: press }, name);
  });
  const show = () => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.code === language())));
  document.addEventListener("language", show);
  show();
  return bothIn(el("div", { class: "language controls", role: "group" }, ...buttons), "aria-label", "Language", "语言");
}

// The language chosen when the page was written, otherwise the reader's last choice, otherwise that of the browser.
function firstLanguage() {
  if (document.documentElement.dataset.opensIn) return document.documentElement.dataset.opensIn;
  try {
    const kept = localStorage.getItem(KEPT_LANGUAGE);
    if (kept in LANGUAGES) return kept;
  } catch { /* as above */ }
  return (navigator.language || "").toLowerCase().startsWith("zh") ? "zh" : "en";
}
setLanguage(firstLanguage());
// Labels in the markup of a page, which has one language: data-label-zh="…" beside aria-label="…".
for (const node of document.querySelectorAll("[data-label-zh]")) bothIn(node, "aria-label", node.getAttribute("aria-label"), node.dataset.labelZh);
