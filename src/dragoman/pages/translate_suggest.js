"use strict";
// A better translation, which the reader writes and the server stores for its operator, if the operator wants it.

const suggestion = { of: null, sending: null };

// of: {q, source, target} of the translation that is shown, or null.
function offerSuggestion(of) {
  suggestion.of = here.suggestions ? of : null;
  suggestion.sending?.abort();
  byId("suggest").hidden = suggestion.of === null;
  byId("suggestion").hidden = true;
}

function openSuggestion() {
  const better = byId("better");
  better.value = byId("translation").textContent;
  markLanguage(better, suggestion.of.target);
  showMessage("suggestion-problem", null);
  byId("suggest").hidden = true;
  byId("suggestion").hidden = false;
  better.focus();
}

function closeSuggestion() {
  suggestion.sending?.abort();
  byId("suggestion").hidden = true;
  byId("suggest").hidden = false;
  byId("suggest").focus();
}

async function sendSuggestion() {
  const text = byId("better").value.trim();
  if (!text || text === byId("translation").textContent.trim()) {
    showMessage("suggestion-problem", both("Change the translation first.", "请先修改译文。"));
    return;
  }
  suggestion.sending?.abort();
  const { signal } = suggestion.sending = new AbortController();
  const waits = (node) => showMessage("suggestion-problem", node);
  try {
    await post("suggest", { ...suggestion.of, s: text }, signal, waits);
    signal.throwIfAborted();
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Failure)) throw error;
    showMessage("suggestion-problem", error.text);
    return;
  }
  closeSuggestion();
  showDone(both("Thank you. The suggestion was stored.", "谢谢，建议已保存。"));
}

function listenToSuggestions() {
  byId("suggest").addEventListener("click", openSuggestion);
  byId("send-suggestion").addEventListener("click", sendSuggestion);
  byId("leave-suggestion").addEventListener("click", closeSuggestion);
  byId("better").addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") closeSuggestion();
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    event.stopPropagation();  // elsewhere, these keys translate the text
    sendSuggestion();
  });
  document.querySelectorAll(".with-suggestions").forEach((node) => { node.hidden = !here.suggestions; });
}
