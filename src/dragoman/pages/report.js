// The demo's report: headline figures, translations and settings.
const report = JSON.parse(byId("report").textContent);

const target = { en: report.target, zh: report.chinese.target ?? report.target };

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
  const time = duration(report.seconds), [correct, all] = [whole.format(right), whole.format(report.test_items)];
  byId("language").append(languageSwitch());
  byId("lead").append(both(`In ${time.en} this Transformer learned to spell numbers and dates in ${target.en}. It translates ${correct} of ${all} texts outside its training set without a mistake.`,
    `这个 Transformer 用 ${time.zh}学会了用${target.zh}书写数字和日期。训练集以外的 ${all} 条文本中，它译对了 ${correct} 条。`));
  const millions = report.parameters >= 1e6 ? `${significant(report.parameters / 1e6)} M` : whole.format(report.parameters);
  const tiles = [
    [["Exact match on unseen texts", "未见文本的完全匹配率"], percent(report.exact_match, 1),
      [`${correct} of ${all}; 95 % interval ${percent(low, 1)} to ${percent(high, 1)}`, `${all} 条中 ${correct} 条；95% 置信区间 ${percent(low, 1)} 至 ${percent(high, 1)}`]],
    [["Training time", "训练时间"], both(time.en, time.zh), [`on ${report.device}`, `设备：${report.device}`]],
    [["Steps", "步数"], finite(last("step")) ? whole.format(last("step")) : "–", [`last loss ${significant(last("loss"))}`, `最后的损失 ${significant(last("loss"))}`]],
    [["Parameters", "参数量"], millions, [`${whole.format(report.parameters)} trained numbers`, `${whole.format(report.parameters)} 个可学习的数`]],
    [["Tokens per second", "每秒词元数"], finite(speed) ? whole.format(speed) : "–", ["median; source and target without padding", "中位数；源和目标合计，不含填充"]],
  ];
  byId("figures").append(...tiles.map(([name, value, note]) =>
    el("div", {}, el("dt", {}, both(...name)), el("dd", {}, el("span", { class: "value" }, value), el("span", { class: "note" }, both(...note))))));
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
  const answer = sample.correct ? null : el("span", { class: "answer" }, both("correct: ", "正确译文："), ...marked(sample.reference, sample.translation, "good"));
  const translation = sample.correct ? [sample.translation] : sample.translation ? marked(sample.translation, sample.reference, "bad") : [both("(nothing)", "（空）")];
  return el("tr", { class: sample.correct ? "right" : "wrong" },
    el("td", { class: "mark" }, sample.correct ? both("✓ correct", "✓ 正确") : both("✗ wrong", "✗ 错误")),
    el("td", { lang: "en" }, sample.source),
    el("td", { lang: report.target_code }, ...translation, answer),
    el("td", { class: "number" }, el("span", { class: "score-name" }, both("search score ", "搜索得分 ")), finite(sample.score) ? sample.score.toFixed(3).replace("-", "−") : "–"));
}

function showSamples() {
  const sorted = [...report.samples].sort((a, b) => a.correct - b.correct || a.score - b.score);
  const kinds = { all: [["All", "全部"], () => true], wrong: [["Mistakes", "错误"], (s) => !s.correct], right: [["Correct", "正确"], (s) => s.correct] };
  let kind = "all", limit = FIRST_ROWS;
  const search = el("input", { type: "search", oninput: () => draw() });
  bothIn(search, "placeholder", "Search", "搜索");
  bothIn(search, "aria-label", "Search the translations", "搜索译文");
  const status = el("p", { class: "hint", role: "status" });
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more", onclick: () => { limit = Infinity; draw(); } });
  const buttons = Object.entries(kinds).map(([key, [name, test]]) => el("button", { type: "button", "aria-pressed": String(key === kind), onclick: (event) => {
    kind = key;
    pressOnly(buttons, event.currentTarget);
    draw();
  } }, both(...name), ` (${whole.format(sorted.filter(test).length)})`));
  byId("filters").append(...buttons, search);
  const heads = [["Result", "结果"], ["English", "英语"], [`${target.en} (model)`, `${target.zh}（模型）`]];
  byId("sample-table").append(el("table", {}, el("caption", { class: "visually-hidden" }, both("Unseen texts and their translations", "未见文本及其译文")),
    el("thead", {}, el("tr", {}, ...heads.map((name) => el("th", { scope: "col" }, both(...name))),
      el("th", { scope: "col", class: "number" }, both("search score", "搜索得分")))), body), more, status);

  function draw() {
    const word = search.value.trim().toLocaleLowerCase();
    const matches = (s) => kinds[kind][1](s) && [s.source, s.reference, s.translation].some((text) => text.toLocaleLowerCase().includes(word));
    const found = sorted.filter(matches);
    body.replaceChildren(...found.slice(0, limit).map(sampleRow));
    more.hidden = found.length <= limit;
    const [shown, count, all] = [Math.min(limit, found.length), found.length, sorted.length].map((n) => whole.format(n));
    more.replaceChildren(both(`Show all ${count}`, `显示全部 ${count} 条`));
    status.replaceChildren(found.length ? both(`${shown} of ${count} shown. The search score is a log-probability with length penalty; closer to 0 is more confident.`,
      `共 ${count} 条，显示 ${shown} 条。搜索得分是经长度惩罚的对数概率，越接近 0，模型越有把握。`)
      : kind === "wrong" && !word ? both(`No mistakes among these ${all}.`, `这 ${all} 条中没有错误。`) : both("No matches.", "没有匹配的条目。"));
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
  const shown = [...(loose.length ? [[both("general", "一般设置"), Object.fromEntries(loose)]] : []), ...sections];
  const text = (value) => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));
  byId("run").append(shown.length ? el("div", { class: "settings" }, ...shown.map(([name, table]) => el("div", {}, el("h3", {}, name),
    el("dl", {}, ...flat(table).flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, text(value))])))))
    : el("p", { class: "hint" }, both("No settings.", "没有配置。")));
}

// ---- start ----------------------------------------------------------------------------------------------------------

function start() {
  drawParts({ figures: showFigures, attention: showAttention, "sample-table": showSamples, run: showRun });
  startCharts(report.charts);
}
