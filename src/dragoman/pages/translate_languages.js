"use strict";
// The languages of the server: their names, the direction of their script, and the two lists of the page.

const AUTO = "auto";
const RIGHT_TO_LEFT = new Set(["Adlm", "Arab", "Hebr", "Mand", "Mend", "Nkoo", "Rohg", "Samr", "Syrc", "Thaa"]);
const here = { languages: [], limit: Infinity, delay: 500, suffixes: [], suggestions: false, detected: null, running: null, timer: 0 };

const chosenSource = () => byId("source").value;
const chosenTarget = () => byId("target").value;
// The language of the text: chosen, or detected, or null.
const sourceLanguage = () => (chosenSource() === AUTO ? here.detected : chosenSource());
const targetsOf = (source) => (source === AUTO
  ? [...new Set(here.languages.flatMap(({ targets }) => targets))]
  : here.languages.find(({ code }) => code === source)?.targets ?? []);

function nameIn(reader, code) {
  if (code === AUTO) return reader === "zh" ? "自动检测" : "Detected language";
  try {
    const name = new Intl.DisplayNames([LANGUAGES[reader].lang], { type: "language", fallback: "none" }).of(code);
    if (name) return name;
  } catch { /* not a code that Intl accepts */ }
  return here.languages.find((known) => known.code === code)?.name ?? code;
}
const directionIn = (reader, source, target) => `${nameIn(reader, source)} → ${nameIn(reader, target)}`;
const bothNames = (code) => both(nameIn("en", code), nameIn("zh", code));

function scriptDirection(code) {
  try {
    return RIGHT_TO_LEFT.has(new Intl.Locale(code).maximize().script) ? "rtl" : "ltr";
  } catch {
    return "auto";
  }
}

// Sets the language and the direction of a text; unknown: null.
function markLanguage(node, code) {
  node.dir = code ? scriptDirection(code) : "auto";
  if (code) node.lang = code;
  else node.removeAttribute("lang");
}

function fill(select, codes, first) {
  const kept = select.value, reader = language();
  const option = (code) => el("option", { value: code }, nameIn(reader, code));
  const sorted = [...codes].sort((a, b) => nameIn(reader, a).localeCompare(nameIn(reader, b), LANGUAGES[reader].lang));
  select.replaceChildren(...(first ? [first] : []), ...sorted.map(option));
  if (codes.includes(kept) || (first && kept === AUTO)) select.value = kept;
}

// The targets are those that the source reaches; a target that it does not reach is replaced by the first that it does.
function fillLanguages() {
  const codes = here.languages.filter(({ targets }) => targets.length).map(({ code }) => code);
  const automatic = el("option", { value: AUTO }, language() === "zh" ? "自动检测" : "Detect language");
  fill(byId("source"), codes, codes.length > 1 ? automatic : null);  // one language would be detected in any text
  fillTargets();
}

function fillTargets() {
  fill(byId("target"), targetsOf(chosenSource()));
  markLanguage(byId("text"), sourceLanguage());
  showSwap();
}

function chooseLanguages(source, target) {
  const known = [...byId("source").options].map(({ value }) => value);
  if (known.includes(source)) byId("source").value = source;
  fillTargets();
  if (targetsOf(chosenSource()).includes(target)) byId("target").value = target;
  fillTargets();
}

// The first target that the reader's browser asks for.
function readersLanguage() {
  const spoken = (code) => code.split("-")[0], targets = targetsOf(chosenSource());
  for (const wanted of navigator.languages ?? []) {
    const found = targets.find((code) => code === wanted) ?? targets.find((code) => spoken(code) === spoken(wanted));
    if (found) return found;
  }
  return null;
}

function showSwap() {
  const swap = byId("swap"), [source, target] = [sourceLanguage(), chosenTarget()];
  swap.disabled = source === null || !targetsOf(target).includes(source);
  const none = source !== null && swap.disabled && source !== target;
  const english = none ? `This server does not translate ${directionIn("en", target, source)}` : "Swap the languages";
  const chinese = none ? `这台服务器不支持${directionIn("zh", target, source)}的翻译` : "交换语言";
  bothIn(bothIn(swap, "aria-label", english, chinese), "title", english, chinese);
}
