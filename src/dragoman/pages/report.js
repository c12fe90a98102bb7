// The demo's report: headline figures, translations and settings.
const report = JSON.parse(byId("report").textContent);

const percent = (share, digits = 1) => (finite(share) ? `${(100 * share).toFixed(digits)}\u00a0%` : "–");

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : NaN;
}

// Wilson's interval, which unlike the normal approximation is accurate near 100 %.
function interval(share, count) {
  const z = 1.96, d = 1 + (z * z) / count, middle = (share + (z * z) / (2 * count)) / d;
  const half = (z / d) * Math.sqrt((share * (1 - share)) / count + (z * z) / (4 * count * count));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

// ---- headline -------------------------------------------------------------------------------------------------------

function showFigures() {
  const right = Math.round(report.exact_match * report.test_items);
  const rows = report.history.filter((row) => finite(row.step));
  const last = (key) => rows.map((row) => row[key]).filter(finite).at(-1);
  const speed = median(rows.map((row) => row.tokens_per_second).filter(finite));
  const [low, high] = interval(report.exact_match, Math.max(1, report.test_items));
  byId("lead").textContent =
    `In ${duration(report.seconds)} this Transformer learned to spell numbers and dates in ${report.target}. ` +
    `It translates ${whole.format(right)} of ${whole.format(report.test_items)} texts outside its training set without a mistake.`;
  const millions = report.parameters >= 1e6 ? `${significant(report.parameters / 1e6)} M` : whole.format(report.parameters);
  const tiles = [
    ["Exact match on unseen texts", percent(report.exact_match),
      `${whole.format(right)} of ${whole.format(report.test_items)}; 95 % interval ${percent(low)} to ${percent(high)}`],
    ["Training time", duration(report.seconds), `on ${report.device}`],
    ["Steps", finite(last("step")) ? whole.format(last("step")) : "–", `last loss ${significant(last("loss"))}`],
    ["Parameters", millions, `${whole.format(report.parameters)} trained numbers`],
    ["Tokens per second", finite(speed) ? whole.format(speed) : "–", "median; source and target without padding"],
  ];
  byId("figures").append(...tiles.map(([name, value, note]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, el("span", { class: "value" }, value), el("span", { class: "note" }, note)))));
}

// ---- translations ---------------------------------------------------------------------------------------------------

const FIRST_ROWS = 20;

// Marks the text between the longest common prefix and the longest common suffix.
function marked(text, other, kind) {
  let start = 0, end = 0;
  while (start < Math.min(text.length, other.length) && text[start] === other[start]) start += 1;
  while (end < Math.min(text.length, other.length) - start && text.at(-1 - end) === other.at(-1 - end)) end += 1;
  const middle = text.slice(start, text.length - end);
  return [text.slice(0, start), middle ? el("mark", { class: kind }, middle) : null, text.slice(text.length - end)];
}

function sampleRow(sample) {
  const answer = sample.correct ? null : el("span", { class: "answer" }, "correct: ", ...marked(sample.reference, sample.translation, "good"));
  const translation = sample.correct ? [sample.translation] : marked(sample.translation || "(nothing)", sample.reference, "bad");
  return el("tr", { class: sample.correct ? "right" : "wrong" },
    el("td", { class: "mark" }, sample.correct ? "✓ correct" : "✗ wrong"),
    el("td", { lang: "en" }, sample.source),
    el("td", { lang: report.target_code }, ...translation, answer),
    el("td", { class: "number" }, finite(sample.score) ? sample.score.toFixed(3).replace("-", "−") : "–"));
}

function showSamples() {
  const sorted = [...report.samples].sort((a, b) => a.correct - b.correct || a.score - b.score);
  const kinds = { all: ["All", () => true], wrong: ["Mistakes", (s) => !s.correct], right: ["Correct", (s) => s.correct] };
  let kind = "all", limit = FIRST_ROWS;
  const search = el("input", { type: "search", placeholder: "Search", "aria-label": "Search the translations", oninput: () => draw() });
  const status = el("p", { class: "hint", role: "status" });
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more", onclick: () => { limit = Infinity; draw(); } });
  const buttons = Object.entries(kinds).map(([key, [name, test]]) => el("button", { type: "button", "aria-pressed": String(key === kind), onclick: (event) => {
    kind = key;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
    draw();
  } }, `${name} (${whole.format(sorted.filter(test).length)})`));
  byId("filters").append(...buttons, search);
  byId("sample-table").append(el("table", {}, el("caption", { class: "visually-hidden" }, "Unseen texts and their translations"),
    el("thead", {}, el("tr", {}, ...["", "English", `${report.target} (model)`].map((name) => el("th", { scope: "col" }, name)),
      el("th", { scope: "col", class: "number", title: "Log-probability with length penalty; closer to 0 is more confident" }, "score"))), body), more, status);

  function draw() {
    const word = search.value.trim().toLocaleLowerCase();
    const matches = (s) => kinds[kind][1](s) && [s.source, s.reference, s.translation].some((text) => text.toLocaleLowerCase().includes(word));
    const found = sorted.filter(matches);
    body.replaceChildren(...found.slice(0, limit).map(sampleRow));
    more.hidden = found.length <= limit;
    more.textContent = `Show all ${whole.format(found.length)}`;
    status.textContent = found.length ? `${whole.format(Math.min(limit, found.length))} of ${whole.format(found.length)} shown. `
      + "The score is a log-probability with length penalty; closer to 0 is more confident."
      : kind === "wrong" && !word ? `No mistakes among these ${whole.format(sorted.length)}.` : "No matches.";
  }
  draw();
}

// ---- settings -------------------------------------------------------------------------------------------------------

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const flat = (table, prefix = "") => Object.entries(table).flatMap(([key, value]) =>
  isTable(value) ? flat(value, `${prefix}${key}.`) : [[prefix + key, value]]);

function showRun() {
  const sections = Object.entries(report.config).filter(([, value]) => isTable(value));
  const loose = Object.entries(report.config).filter(([, value]) => !isTable(value));
  const shown = [...(loose.length ? [["general", Object.fromEntries(loose)]] : []), ...sections];
  const text = (value) => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));
  byId("run").append(shown.length ? el("div", { class: "settings" }, ...shown.map(([name, table]) => el("div", {}, el("h3", {}, name),
    el("dl", {}, ...flat(table).flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, text(value))])))))
    : el("p", { class: "hint" }, "No settings."));
}

// ---- start ----------------------------------------------------------------------------------------------------------

// A part that fails shows an error in its place; the other parts remain.
function start() {
  const parts = { figures: showFigures, attention: showAttention, "sample-table": showSamples, run: showRun };
  for (const [id, show] of Object.entries(parts)) {
    try {
      show();
    } catch (error) {
      byId(id).append(el("p", { class: "problem", role: "alert" }, `Cannot draw this part: ${error.message}`));
    }
  }
  startCharts(report.charts);
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAttention, 120);
  });
}
