"use strict";
// The glossary: terms of a pair of languages, kept in the browser and sent with each text.

const KEPT_GLOSSARIES = "dragoman-glossaries";
const LONGEST_TERM = 500;
const MARKS = { true: ["applied", "已采用"], false: ["not applied", "未采用"] };
const glossary = { pair: null, marked: [] };

function kept(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}
function keep(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* without storage it lasts as long as the page */ }
}

const pairOf = (source, target) => (source && target && source !== target ? `${source}>${target}` : null);
const glossaries = kept(KEPT_GLOSSARIES, {});

// The parameters of a request.
function glossaryFor(source, target) {
  const { terms = [], strict = false } = glossaries[pairOf(source, target)] ?? {};
  const complete = terms.filter(([from, to]) => from && to);
  return complete.length ? { glossary: Object.fromEntries(complete), glossary_mode: strict ? "strict" : "soft" } : {};
}

const rowInputs = (row) => [...row.querySelectorAll("input")];
const termOf = (row) => rowInputs(row).map((input) => input.value.trim().replace(/\s+/g, " "));
const allRows = () => [...byId("rows").children];

function storeGlossary() {
  const terms = allRows().map(termOf).filter(([from, to]) => from || to);
  const strict = byId("strict").checked;
  Object.assign(glossaries, kept(KEPT_GLOSSARIES, {}));  // another tab may have changed those of other languages
  if (terms.length || strict) glossaries[glossary.pair] = { terms, strict };
  else delete glossaries[glossary.pair];
  keep(KEPT_GLOSSARIES, glossaries);
  showRepeated(terms.map(([from]) => from).filter(Boolean));
}

function showRepeated(sources) {
  const repeated = [...new Set(sources.filter((source, i) => sources.indexOf(source) !== i))].join(", ");
  showMessage("glossary-problem", repeated ? both(`More than one line for: ${repeated}. The last one is used.`, `术语重复：${repeated}。以最后一行为准。`) : null);
}

function changed() {
  const rows = allRows();
  if (rows.length === 0 || termOf(rows.at(-1)).some(Boolean)) addRow();
  const before = JSON.stringify(glossaryFor(...glossary.pair.split(">")));
  storeGlossary();
  if (JSON.stringify(glossaryFor(...glossary.pair.split(">"))) !== before) schedule();
}

// Lines with tabs, as a spreadsheet copies them, become rows.
function paste(event) {
  const lines = event.clipboardData.getData("text").split(/\r?\n/).filter((line) => line.includes("\t"));
  if (lines.length === 0) return;
  event.preventDefault();
  const before = event.target.closest("tr");
  for (const line of lines) {
    const [from, to] = line.split("\t");
    before.before(makeRow(from.trim(), to.trim()));
  }
  if (!termOf(before).some(Boolean) && before !== allRows().at(-1)) before.remove();
  changed();
}

function leaveRow(event) {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  const inputs = allRows().flatMap(rowInputs);
  inputs[inputs.indexOf(event.target) + 1]?.focus();
}

function removeRow(row) {
  const next = row.nextElementSibling ?? row.previousElementSibling;
  row.remove();
  changed();
  rowInputs(next ?? allRows()[0])[0].focus();
}

function makeRow(from = "", to = "") {
  const field = (value, english, chinese, code) => {
    const input = el("input", { type: "text", maxlength: LONGEST_TERM, autocomplete: "off", oninput: changed, onpaste: paste, onkeydown: leaveRow });
    input.value = value;
    markLanguage(input, code);
    return bothIn(input, "aria-label", english, chinese);
  };
  const [source, target] = glossary.pair.split(">");
  const remove = bothIn(el("button", { type: "button", class: "quiet remove", onclick: () => removeRow(row) }, "×"), "aria-label", "Remove this term", "删除此术语");
  const row = el("tr", {}, el("td", {}, field(from, "Term", "原文术语", source)), el("td", {}, field(to, "Translate as", "译为", target)),
    el("td", { class: "applied-cell" }), el("td", {}, remove));
  return row;
}
const addRow = () => byId("rows").append(makeRow());

// Shows of each row whether the last translation applied it; empty if the text does not contain the term.
function markRows(terms) {
  glossary.marked = terms;
  for (const row of allRows()) {
    const [from, to] = termOf(row);
    const found = terms.filter(({ source, target }) => source === from && target === to);
    const cell = row.querySelector(".applied-cell");
    cell.replaceChildren();
    if (!found.length) continue;
    const applied = found.every((term) => term.applied);
    const mark = el("span", { class: applied ? "applied" : "missed" }, appliedMark(applied), el("span", { class: "visually-hidden" }, appliedWord(applied)));
    cell.append(bothIn(mark, "title", ...MARKS[applied]));
  }
}

// Shows the glossary of the present languages; rows that are being edited are left alone.
function showGlossary() {
  const pair = pairOf(sourceLanguage(), chosenTarget());
  byId("glossary-own").hidden = pair === null;
  byId("glossary-none").hidden = pair !== null;
  byId("glossary-pair").replaceChildren(...(pair === null ? [] : [both(...["en", "zh"].map((reader) => directionIn(reader, ...pair.split(">"))))]));
  if (pair === glossary.pair || pair === null) return;
  glossary.pair = pair;
  const { terms = [], strict = false } = glossaries[pair] ?? {};
  byId("strict").checked = strict;
  byId("soft").checked = !strict;
  byId("rows").replaceChildren(...terms.map(([from, to]) => makeRow(from, to)));
  addRow();
  showRepeated(terms.map(([from]) => from).filter(Boolean));
}
