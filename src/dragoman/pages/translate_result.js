"use strict";
// The result: the translation, its alternatives, the terms of the glossary, and messages.

const LONGEST_COMPARED = 400;  // words; the comparison takes the product of the two lengths

function showMessage(id, node) {
  byId(id).hidden = node === null;
  byId(id).replaceChildren(...(node === null ? [] : [node].flat()));
}
const showWaiting = (node) => showMessage("notice", node);

function showFailure(failure) {
  const again = el("button", { type: "button", class: "quiet", onclick: translateText }, both("Try again", "重试"));
  showMessage("failure", failure.again ? [failure.text, again] : [failure.text]);
}

const showBusy = (busy) => byId("result").setAttribute("aria-busy", String(busy));

function clearResult() {
  byId("translation").textContent = "";
  byId("copy").disabled = true;
  for (const id of ["notice", "failure"]) showMessage(id, null);
  showTerms([]);
  showAlternatives([], "");
  offerSuggestion(null);
}

// Shows the first sentences while the rest is translated; the translation before it stays if it begins in the same way.
function showBeginning(text, target) {
  const shown = byId("translation").textContent;
  if (shown.startsWith(text)) return;
  if (!text.startsWith(shown)) clearResult();
  markLanguage(byId("translation"), target);
  byId("translation").append(text.slice(byId("translation").textContent.length));  // screen readers read what is new
}

function showResult(answer, target, wanted) {
  const text = answer.translatedText;
  markLanguage(byId("translation"), target);
  if (byId("translation").textContent !== text) byId("translation").textContent = text;
  byId("copy").disabled = !text;
  offerSuggestion(null);
  showTerms(answer.glossary ?? []);
  showAlternatives(wanted ? answer.alternatives ?? [] : null, text, target);
}

// ---- terms ----------------------------------------------------------------------------------------------------------

const appliedMark = (applied) => el("span", { class: "mark", "aria-hidden": "true" }, applied ? "✓" : "✕");
const appliedWord = (applied) => (applied ? both("applied", "已采用") : both("not applied", "未采用"));

function showTerms(terms) {
  const unique = [...new Map(terms.map((term) => [`${term.source}\n${term.target}\n${term.applied}`, term])).values()];
  byId("terms").hidden = unique.length === 0;
  byId("terms").replaceChildren(...unique.map(({ source, target, applied }) => el("li", { class: applied ? "applied" : "missed" },
    appliedMark(applied), el("bdi", {}, source), " → ", el("bdi", {}, target), " ", el("span", { class: "word" }, appliedWord(applied)))));
  markRows(terms);
}

// ---- alternatives ---------------------------------------------------------------------------------------------------

function wordsOf(text, code) {
  try {
    return [...new Intl.Segmenter(code, { granularity: "word" }).segment(text)].map(({ segment }) => segment);
  } catch {
    return text.split(/(\s+)/);
  }
}

// Of each word of `other`, whether it belongs to the longest common subsequence with `best`.
function commonWords(best, other) {
  const lengths = Array.from({ length: best.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = best.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      lengths[i][j] = best[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const common = other.map(() => false);
  for (let i = 0, j = 0; i < best.length && j < other.length;) {
    if (best[i] === other[j]) { common[j] = true; i++; j++; }
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return common;
}

// The text of an alternative (in no span, of which language.css hides those in the other language of the page), with the words that the translation does not have in bold.
function compared(best, text, code) {
  const [ours, theirs] = [wordsOf(best, code), wordsOf(text, code)];
  if (Math.max(ours.length, theirs.length) > LONGEST_COMPARED) return [text];
  const common = commonWords(ours, theirs);
  return theirs.map((word, i) => (common[i] || !word.trim() ? word : el("b", {}, word)));
}

// texts: null if none were requested.
function showAlternatives(texts, best, code) {
  const box = byId("others");
  box.hidden = texts === null || best === "";
  box.replaceChildren();
  if (box.hidden) return;
  if (texts.length === 0) {
    box.append(el("p", { class: "note" }, both("No alternatives for this text.", "这段文字没有其他译法。")));
    return;
  }
  const items = texts.map((text, i) => {
    const copy = el("button", { type: "button", class: "quiet", onclick: () => copyText(text) }, both("Copy", "复制"));
    bothIn(copy, "aria-label", `Copy alternative ${i + 1}`, `复制第 ${i + 1} 种译法`);
    return el("li", {}, el("div", { class: "option", lang: code, dir: scriptDirection(code) }, ...compared(best, text, code)), copy);
  });
  box.append(el("h3", { class: "visually-hidden" }, both("Alternatives", "其他译法")), el("ol", {}, ...items));
}

// ---- copying --------------------------------------------------------------------------------------------------------

// The clipboard is only available on a secure connection or on the local machine; elsewhere the browser copies a selection.
async function copyText(text) {
  const from = document.activeElement;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "visually-hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    from?.focus();
  }
  showDone(both("Copied", "已复制"));
}

// Shows a short confirmation.
function showDone(node) {
  byId("done").replaceChildren(node);
  clearTimeout(here.done);
  here.done = setTimeout(() => byId("done").replaceChildren(), 3000);
}
