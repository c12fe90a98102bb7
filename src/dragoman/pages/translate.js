"use strict";
// The text and its translation: when it is requested, for which languages, and what the address of the page keeps of it.

const LONGEST_LINK = 500;  // characters; a longer text is not kept in the address
const LEAST_SURE = 80;  // percent, below which a detected language is only probable
const ALTERNATIVES = 3;
const KEPT_CHOICES = "dragoman-translate";
const KEPT_KEY = "dragoman-key";

// ---- the text -------------------------------------------------------------------------------------------------------

const characters = () => [...byId("text").value].length;

function showText() {
  const text = byId("text"), count = characters(), over = count > here.limit;
  const [now, most] = [whole.format(count), whole.format(here.limit)];
  byId("counter").classList.toggle("over", over);
  byId("counter").replaceChildren(over ? both(`${now} characters; the limit is ${most}. Shorten the text.`, `${now} 个字符，超过上限 ${most}，请缩短文字。`)
    : el("span", {}, `${now} / ${most}`, el("span", { class: "visually-hidden" }, both(" characters", " 个字符"))));
  byId("clear").hidden = count === 0;
  if (!CSS.supports("field-sizing", "content")) {
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight}px`;
  }
}

function showDetected(code, confidence) {
  here.detected = code;
  markLanguage(byId("text"), sourceLanguage());
  const sure = confidence >= LEAST_SURE;
  byId("detected").replaceChildren(...(code === null ? [] : [both(`${sure ? "Detected" : "Probably"}: ${nameIn("en", code)}`, `${sure ? "检测到" : "可能是"}：${nameIn("zh", code)}`)]));
  showSwap();
  showGlossary();
  showViewerLink(byId("text").value);
}

// ---- the address and the choices that are kept ----------------------------------------------------------------------

function keepState() {
  const source = chosenSource(), target = chosenTarget(), text = byId("text").value;
  const state = new URLSearchParams({ source, target });
  if (text && characters() <= LONGEST_LINK) state.set("text", text);
  history.replaceState(null, "", `#${state}`);
  keep(KEPT_CHOICES, { source, target, alternatives: byId("alternatives").checked });
}

// The viewer opens with the same text, and with the model of these languages if it is known which.
function showViewerLink(text) {
  const link = new URLSearchParams({ source: sourceLanguage() ?? "", target: chosenTarget(), text });
  if (byId("viewer")) byId("viewer").href = text.trim() && characters() <= LONGEST_LINK ? `viewer/#${link}` : "viewer/";
}

function readState(hash) {
  const state = new URLSearchParams(hash.slice(1));
  chooseLanguages(state.get("source"), state.get("target"));
  if (state.has("text")) byId("text").value = state.get("text");
  afterChoice();
}

// ---- translating ----------------------------------------------------------------------------------------------------

async function detect(text, signal) {
  const [best] = await post("detect", { q: text }, signal, showWaiting);
  signal.throwIfAborted();
  showDetected(best.language, best.confidence);
}

async function requestTranslation(text, signal) {
  if (chosenSource() === AUTO) await detect(text, signal);
  const source = sourceLanguage(), target = chosenTarget();
  if (source === target) {
    showResult({ translatedText: text }, target, false);
    showMessage("notice", both(`The text is already in ${nameIn("en", target)}.`, `原文已经是${nameIn("zh", target)}。`));
    return;
  }
  if (!targetsOf(source).includes(target)) throw new Failure(both(["This server does not translate ", bothNames(source), " to ", bothNames(target), "."], ["这台服务器不支持从", bothNames(source), "到", bothNames(target), "的翻译。"]));
  const wanted = byId("alternatives").checked;
  const values = { q: text, source, target, ...(wanted ? { alternatives: ALTERNATIVES } : {}), ...glossaryFor(source, target) };
  const answer = await post("translate", values, signal, showWaiting, (text) => { if (!signal.aborted) showBeginning(text, target); });
  signal.throwIfAborted();
  showMessage("notice", null);
  showResult(answer, target, wanted);
  if (answer.translatedText) offerSuggestion({ q: text, source, target });
}

// Translates the text now; a request in progress is aborted.
async function translateText() {
  clearTimeout(here.timer);
  here.running?.abort();
  const running = here.running = new AbortController(), text = byId("text").value;
  keepState();
  showViewerLink(text);
  for (const id of ["notice", "failure"]) showMessage(id, null);
  if (!text.trim()) showDetected(null);
  if (!text.trim() || characters() > here.limit) {
    showBusy(false);
    clearResult();
    return;
  }
  showBusy(true);
  try {
    await requestTranslation(text, running.signal);
  } catch (error) {
    if (running.signal.aborted) return;
    clearResult();
    if (!(error instanceof Failure)) throw error;
    showFailure(error);
  } finally {
    if (here.running === running) showBusy(false);
  }
}

// Translates when nothing has been typed for a moment; what is in progress is stale now.
function schedule() {
  clearTimeout(here.timer);
  here.running?.abort();
  if (!byId("text").value.trim()) translateText();
  else here.timer = setTimeout(translateText, here.delay);
}

function typed(event) {
  showText();
  if (!event.isComposing) schedule();  // letters that an input method is still changing into characters are no text
}

function afterChoice() {
  if (chosenSource() !== AUTO) showDetected(null);
  showText();
  showFileDirection();
  showGlossary();
  translateText();
}

// The translation becomes the source.
function swapLanguages() {
  const source = sourceLanguage(), target = chosenTarget(), text = byId("translation").textContent;
  chooseLanguages(target, source);
  if (text) byId("text").value = text;
  afterChoice();
}

// ---- the page -------------------------------------------------------------------------------------------------------

function listen() {
  byId("text").addEventListener("input", typed);
  byId("text").addEventListener("compositionend", schedule);
  byId("clear").addEventListener("click", () => { byId("text").value = ""; byId("text").focus(); showText(); translateText(); });
  byId("source").addEventListener("change", () => { fillTargets(); afterChoice(); });
  byId("target").addEventListener("change", () => { fillTargets(); afterChoice(); });
  byId("swap").addEventListener("click", swapLanguages);
  byId("alternatives").addEventListener("change", translateText);
  byId("copy").addEventListener("click", () => copyText(byId("translation").textContent));
  for (const id of ["soft", "strict"]) byId(id).addEventListener("change", changed);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) { event.preventDefault(); translateText(); }
  });
  window.addEventListener("hashchange", ({ newURL }) => readState(new URL(newURL).hash));  // not location.hash: `keepState` may have replaced it
  document.addEventListener("language", () => { fillLanguages(); });
  listenToFiles();
  listenToSuggestions();
}

function showTexts() {
  bothIn(byId("text"), "placeholder", "Type or paste a text", "输入或粘贴文字");
  bothIn(byId("translation"), "data-placeholder", "Translation", "译文");
  bothIn(byId("translator"), "aria-label", "Translate text", "翻译文字");
  if (/Mac|iPhone|iPad/.test(navigator.platform)) document.querySelectorAll(".command").forEach((key) => { key.textContent = "⌘"; });
}

async function loadServer() {
  const [languages, settings] = await Promise.all(["languages", "frontend/settings"].map(async (path) => (await fetch(path)).json()));
  Object.assign(here, { languages, limit: settings.charLimit, delay: settings.frontendTimeout, suffixes: settings.supportedFilesFormat, suggestions: settings.suggestions });
  if (settings.apiKeys) askForKey();
  return settings.language;
}

function askForKey() {
  const field = byId("key");
  byId("key-setting").hidden = false;
  field.value = kept(KEPT_KEY, "");
  field.addEventListener("input", () => { keep(KEPT_KEY, field.value); schedule(); });
}

async function start() {
  byId("language").append(languageSwitch());
  showTexts();
  let first;
  try {
    first = await loadServer();
  } catch {
    const reload = el("button", { type: "button", onclick: () => location.reload() }, both("Try again", "重试"));
    showMessage("problem", [unreachable().text, " ", reload]);
    return;
  }
  const before = kept(KEPT_CHOICES, {});
  byId("alternatives").checked = before.alternatives === true;
  fillLanguages();
  chooseLanguages(before.source ?? first.source.code);
  chooseLanguages(null, before.target ?? readersLanguage() ?? first.target.code);
  showFormats();
  listen();
  readState(location.hash);
}
start();
