// Curves over steps and over time, scores with their intervals, BLEU by source length; a table that can be sorted.

const data = JSON.parse(byId("comparison").textContent);
const hidden = new Set();
const AXES = [["step", "over steps"], ["seconds", "over time"]];
const PANELS = [
  { title: "Loss", metrics: data.metrics.filter((m) => m.loss), log: true, close: false },
  { title: "Scores", metrics: data.metrics.filter((m) => !m.loss), log: false, close: false },
].filter((panel) => panel.metrics.length);
let clips = 0;

const symbol = (group, x, y, scale = 1) =>
  svg("path", { class: "shape", d: group.shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(${scale})` });
const marked = (group) => svg("svg", { class: `mark s${group.color}`, width: 14, height: 14, viewBox: "-7 -7 14 14", "aria-hidden": "true" },
  svg("path", { d: group.shape }));
const clip = (text, room) => (text.length * 6.9 <= room ? text : `${text.slice(0, Math.max(3, Math.floor(room / 6.9) - 1))}…`);
const figure = (value) => (Math.abs(value) >= 100 ? whole.format(value) : value.toFixed(Math.abs(value) >= 10 ? 1 : 3));

// ---- what is drawn ----------------------------------------------------------------------------------------------------

// The value of a line of [x, y] at x, straight between its points.
function at(line, x) {
  const i = line.findIndex((point) => point[0] >= x);
  if (i < 0) return line.at(-1)[1];
  if (i === 0 || line[i][0] === x) return line[i][1];
  const [a, b] = [line[i - 1], line[i]];
  return a[1] + ((b[1] - a[1]) * (x - a[0])) / (b[0] - a[0]);
}

// The mean of several seeds, as far as all of them reach.
function meanOf(lines) {
  const from = Math.max(...lines.map((line) => line[0][0])), to = Math.min(...lines.map((line) => line.at(-1)[0]));
  const places = [...new Set(lines.flat().map((point) => point[0]))].filter((x) => x >= from && x <= to).sort((a, b) => a - b);
  return places.map((x) => [x, lines.reduce((sum, line) => sum + at(line, x), 0) / lines.length]);
}

function seriesOf(key, axis) {
  const place = axis === "step" ? 0 : 1;
  return data.groups.map((group, index) => {
    const lines = group.runs.map((run) => (run.curves[key] || []).map((point) => [point[place], point[2]])).filter((line) => line.length);
    const mean = lines.length > 1 ? meanOf(lines) : [];
    return { group, index, lines: mean.length ? lines : [], main: mean.length ? mean : lines[0] || [] };
  }).filter((series) => series.main.length && !hidden.has(series.index));
}

function logTicks(low, high) {
  for (const steps of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 4, 6, 8]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      ticks.push(...steps.map((s) => Number((s * 10 ** power).toPrecision(6))).filter((t) => t >= low && t <= high));
    }
    if (ticks.length >= 4) return ticks;
  }
  return niceTicks(low, high, 5).filter((t) => t > 0);
}

// Labels at the height of their lines, moved apart so that none covers another.
function spread(labels, top, bottom, distance) {
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, i) => { label.place = Math.max(label.y, i ? labels[i - 1].place + distance : top); });
  let limit = bottom;
  for (const label of [...labels].reverse()) {
    label.place = Math.min(label.place, limit);
    limit = label.place - distance;
  }
  return labels;
}

// ---- a chart of curves ------------------------------------------------------------------------------------------------

// The range of y: everything, or (close up) what the lines reach after their first part.
function rangeOf(all, panel, end) {
  const points = all.flatMap((s) => [s.main, ...s.lines]).flat().filter((p) => !panel.close || p[0] >= 0.35 * end);
  const values = points.map((p) => p[1]);
  let low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!finite(low) || !finite(high)) return [0, 1, false];
  const log = panel.log && low > 0;
  if (log) return [low / (high / low) ** 0.04 * 0.995, high * (high / low) ** 0.04 * 1.005, true];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return panel.close ? [low - room, high + room, false] : [Math.min(0, low), high + room, false];
}

function frame(box, xs, ys, log, scaleX, scaleY, axis) {
  const [unit, size] = axis === "step" ? ["steps", 1] : xs[1] >= 10800 ? ["hours", 3600] : xs[1] >= 180 ? ["minutes", 60] : ["seconds", 1];
  const ticksX = niceTicks(xs[0] / size, xs[1] / size, Math.max(3, Math.floor((box.right - box.left) / 80)));
  const ticksY = log ? logTicks(ys[0], ys[1]) : niceTicks(ys[0], ys[1], 5);
  return [
    ...ticksY.flatMap((y) => [
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: scaleY(y), y2: scaleY(y) }),
      svg("text", { x: box.left - 8, y: scaleY(y) + 4, "text-anchor": "end" }, significant(y, 4)),
    ]),
    svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    ...ticksX.map((x) => svg("text", { x: scaleX(x * size), y: box.bottom + 18, "text-anchor": "middle" }, significant(x, 6))),
    svg("text", { x: box.right, y: box.bottom + 35, "text-anchor": "end" }, unit),
  ];
}

function drawSeries(series, scaleX, scaleY, clipId) {
  const path = (line) => line.map(([x, y], i) => `${i ? "L" : "M"}${scaleX(x).toFixed(1)} ${scaleY(y).toFixed(1)}`).join("");
  const few = series.main.length <= 40;
  return svg("g", { class: `series s${series.group.color}${series.group.dashed ? " dashed" : ""}`, "data-group": series.index, "clip-path": `url(#${clipId})` },
    ...series.lines.map((line) => svg("path", { class: "curve thin", d: path(line) })),
    svg("path", { class: "curve", d: path(series.main) }),
    ...(few ? series.main.map(([x, y]) => symbol(series.group, scaleX(x), scaleY(y), 0.72)) : []));
}

function drawNames(all, box, scaleX, scaleY, width) {
  const labels = all.map((s) => ({ series: s, y: Math.min(box.bottom, Math.max(box.top, scaleY(s.main.at(-1)[1]))) }));
  const room = width - box.right;
  return spread(labels, box.top, box.bottom, 15).map(({ series, y, place }) => {
    const end = Math.min(box.right + 2, scaleX(series.main.at(-1)[0]) + 5);
    return svg("g", { class: `s${series.group.color}`, "data-group": series.index },
      svg("path", { class: "leader", d: `M${end.toFixed(1)} ${y.toFixed(1)}H${box.right + 2}L${box.right + 11} ${place.toFixed(1)}` }),
      symbol(series.group, box.right + 17, place, 0.9),
      svg("text", { class: "name", x: box.right + 25, y: place + 4 }, clip(series.group.name, room - 27)));
  });
}

function drawChart(panel, metric, [axis, says], home) {
  const all = seriesOf(metric.key, axis);
  const plot = el("div", { class: "plot", tabindex: "0", role: "slider", "aria-orientation": "horizontal", "aria-label": `${metric.title} ${says}: move along the curves` });
  home.append(el("figure", { class: "chart" }, el("figcaption", {}, `${metric.title} ${says}`), plot));
  if (!all.length) {
    plot.replaceWith(el("p", { class: "hint" }, "No run that is shown has such values."));
    return;
  }
  const width = Math.max(300, plot.clientWidth || 560), height = 310;
  const longest = Math.max(...all.map((s) => s.group.name.length));
  const box = { left: 46, right: width - Math.min(160, width * 0.3, 34 + longest * 6.9), top: 10, bottom: height - 42 };
  const places = [...new Set(all.flatMap((s) => s.main).map((p) => p[0]))].sort((a, b) => a - b);
  const xs = [0, places.at(-1) || 1], [low, high, log] = rangeOf(all, panel, xs[1]), ys = [low, high];
  const scaleX = (x) => box.left + (x / xs[1]) * (box.right - box.left);
  const part = log ? (y) => Math.log(Math.max(y, 1e-12) / low) / Math.log(high / low) : (y) => (y - low) / (high - low);
  const scaleY = (y) => box.bottom - part(y) * (box.bottom - box.top);
  const clipId = `clip${clips += 1}`, cursor = svg("g", {});
  plot.append(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("clipPath", { id: clipId }, svg("rect", { x: box.left - 5, y: box.top - 5, width: box.right - box.left + 10, height: box.bottom - box.top + 10 })),
    ...frame(box, xs, ys, log, scaleX, scaleY, axis),
    ...all.map((s) => drawSeries(s, scaleX, scaleY, clipId)), ...drawNames(all, box, scaleX, scaleY, width), cursor));
  readOut(plot, { all, places, axis, box, xs, scaleX, scaleY, cursor, width, more: !metric.loss });
}

// The values of all runs at one place: under the pointer, or moved along by the arrow keys.
function readOut(plot, chart) {
  const { all, places, axis, box, xs, scaleX, scaleY, cursor, width } = chart;
  const tip = el("div", { class: "tip", hidden: "" });
  plot.append(tip);
  let place = places.length - 1;
  const nearest = (line, x) => line.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  const says = (x) => (axis === "step" ? `step ${whole.format(x)}` : duration(x));
  function show(index) {
    place = Math.max(0, Math.min(places.length - 1, index));
    const x = places[place];
    const found = all.map((s) => ({ s, point: nearest(s.main, x), ended: s.main.at(-1)[0] < x }))
      .sort((a, b) => (chart.more ? b.point[1] - a.point[1] : a.point[1] - b.point[1]));
    const text = (point) => figure(point[1]);
    tip.replaceChildren(el("p", {}, says(x)), ...found.map(({ s, point, ended }) =>
      el("div", ended ? { class: "ended", title: "had ended before" } : {}, marked(s.group), s.group.name, el("b", {}, text(point)))));
    tip.hidden = false;
    const left = scaleX(x) > (box.left + box.right) / 2;
    tip.style.cssText = left ? `right: ${((width - scaleX(x) + 12) / width) * 100}%` : `left: ${((scaleX(x) + 12) / width) * 100}%`;
    cursor.replaceChildren(svg("line", { class: "cursor", x1: scaleX(x), x2: scaleX(x), y1: box.top, y2: box.bottom }),
      ...found.filter(({ point }) => scaleY(point[1]) >= box.top - 5 && scaleY(point[1]) <= box.bottom + 5)
        .map(({ s, point }) => svg("g", { class: `s${s.group.color}` }, symbol(s.group, scaleX(point[0]), scaleY(point[1]), 1.2))));
    plot.setAttribute("aria-valuenow", place);
    plot.setAttribute("aria-valuetext", `${says(x)}: ${found.map(({ s, point }) => `${s.group.name} ${text(point)}`).join(", ")}`);
  }
  const rest = () => { tip.hidden = true; cursor.replaceChildren(); };
  plot.setAttribute("aria-valuemin", 0);
  plot.setAttribute("aria-valuemax", places.length - 1);
  plot.setAttribute("aria-valuenow", place);
  plot.addEventListener("pointermove", (event) => {
    const frame = plot.firstChild.getBoundingClientRect(), x = ((event.clientX - frame.left) * width) / frame.width;
    const value = ((x - box.left) / (box.right - box.left)) * xs[1];
    show(places.indexOf(places.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a))));
  });
  plot.addEventListener("pointerleave", rest);
  plot.addEventListener("blur", rest);
  plot.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(places.length / 10));
    const moves = { ArrowRight: place + 1, ArrowUp: place + 1, ArrowLeft: place - 1, ArrowDown: place - 1, PageUp: place + page, PageDown: place - page, Home: 0, End: places.length - 1 };
    if (event.key === "Escape") rest();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}

// ---- the panels -------------------------------------------------------------------------------------------------------

function toggle(text, pressed, act) {
  return el("button", { type: "button", "aria-pressed": String(pressed), onclick: act }, text);
}

function drawPanel(panel) {
  const metric = panel.metrics.find((m) => m.key === panel.key) || panel.metrics[0];
  const again = (change) => () => { Object.assign(panel, change); drawPanel(panel); };
  const choices = panel.metrics.length > 1 ? panel.metrics.map((m) => toggle(m.title, m === metric, again({ key: m.key }))) : [];
  const charts = el("div", { class: "charts" });
  panel.home.replaceChildren(el("div", { class: "heading" }, el("h3", {}, panel.title),
    el("div", { class: "controls" }, ...choices, el("span", { class: "gap" }),
      toggle("log scale", panel.log, again({ log: !panel.log })), toggle("close-up", panel.close, again({ close: !panel.close })))), charts);
  for (const axis of AXES) drawChart(panel, metric, axis, charts);
}

function showPanels() {
  for (const panel of PANELS) {
    panel.home = el("div", { class: "panel" });
    byId("panels").append(panel.home);
    drawPanel(panel);
  }
  if (!PANELS.length) byId("panels").append(el("p", { class: "hint" }, "The logs hold no losses or scores."));
}

function showLegend() {
  byId("legend").append(...data.groups.map((group, index) => el("button", { type: "button", "aria-pressed": "true", "data-group": index, onclick: (event) => {
    if (!hidden.delete(index)) hidden.add(index);
    event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(index)));
    draw();
  } }, marked(group), group.name)));
}

// A run under the pointer, in the legend, a table or a chart, stands out everywhere.
function showHighlight() {
  const groupAt = (target) => (target instanceof Element ? target.closest("[data-group]") : null)?.dataset.group;
  document.addEventListener("pointerover", (event) => {
    const group = groupAt(event.target);
    for (const node of document.querySelectorAll(".plot [data-group]")) node.classList.toggle("faded", group !== undefined && node.dataset.group !== group);
  });
}

// ---- the test set -----------------------------------------------------------------------------------------------------

function drawScores(key, title) {
  const rows = data.groups.map((group, index) => ({ group, index, runs: group.runs.map((run) => run[key]).filter(Boolean) }))
    .filter((row) => row.runs.length && !hidden.has(row.index));
  const plot = el("div", { class: "plot" });
  byId("scores").append(el("figure", { class: "chart" }, el("figcaption", {}, `${title}, with the 95 % interval`), plot));
  if (!rows.length) return;
  const width = Math.max(300, plot.clientWidth || 560), step = 34, height = rows.length * step + 44;
  const longest = Math.max(...rows.map((row) => row.group.name.length));
  const box = { left: Math.min(180, width * 0.35, 34 + longest * 6.9), right: width - 54, top: 6, bottom: height - 32 };
  const ends = rows.flatMap((row) => row.runs.flatMap(([score, half]) => [score - half, score + half]));
  const room = (Math.max(...ends) - Math.min(...ends) || 1) * 0.06, low = Math.max(0, Math.min(...ends) - room), high = Math.max(...ends) + room;
  const scale = (value) => box.left + ((value - low) / (high - low)) * (box.right - box.left);
  const mean = (row, i) => row.runs.reduce((sum, run) => sum + run[i], 0) / row.runs.length;
  plot.append(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: the numbers are in the table above` },
    ...niceTicks(low, high, 5).flatMap((x) => [
      svg("line", { class: "grid", x1: scale(x), x2: scale(x), y1: box.top, y2: box.bottom }),
      svg("text", { x: scale(x), y: box.bottom + 18, "text-anchor": "middle" }, significant(x, 4))]),
    ...rows.map((row, i) => {
      const y = box.top + step * (i + 0.5), score = mean(row, 0), half = mean(row, 1);
      return svg("g", { class: `s${row.group.color}`, "data-group": row.index },
        svg("line", { class: "whisker", x1: scale(score - half), x2: scale(score + half), y1: y, y2: y }),
        ...[-half, half].map((d) => svg("line", { class: "whisker", x1: scale(score + d), x2: scale(score + d), y1: y - 4, y2: y + 4 })),
        ...(row.runs.length > 1 ? row.runs.map((run) => svg("circle", { class: "small", cx: scale(run[0]), cy: y + 10, r: 2.5 })) : []),
        symbol(row.group, scale(score), y, 1.25),
        svg("text", { class: "name", x: box.left - 14, y: y + 4, "text-anchor": "end" }, clip(row.group.name, box.left - 16)),
        svg("text", { class: "figure", x: width, y: y + 4, "text-anchor": "end" }, score.toFixed(2)));
    })));
}

function drawLengths() {
  const rows = data.groups.map((group, index) => ({ group, index })).filter(({ group, index }) => group.lengths.length && !hidden.has(index));
  const plot = el("div", { class: "plot" });
  byId("lengths").replaceChildren(el("figure", { class: "chart" }, el("figcaption", {}, "BLEU by the length of the source; under each group of lengths how many lines it has"), plot));
  if (!rows.length) return;
  const buckets = rows[0].group.lengths, width = Math.max(300, plot.clientWidth || 1100), height = 340;
  const longest = Math.max(...rows.map(({ group }) => group.name.length));
  const box = { left: 46, right: width - Math.min(180, width * 0.3, 34 + longest * 6.9), top: 10, bottom: height - 48 };
  const high = Math.max(1, ...rows.flatMap(({ group }) => group.lengths.map((b) => b[2] + b[3]))) * 1.04;
  const stride = (box.right - box.left) / buckets.length, shift = Math.min(9, (0.7 * stride) / rows.length);
  const scaleY = (y) => box.bottom - (Math.max(0, y) / high) * (box.bottom - box.top);
  const x = (i, k) => box.left + stride * (i + 0.5) + shift * (k - (rows.length - 1) / 2);
  const drawn = rows.map(({ group, index }, k) => svg("g", { class: `series s${group.color}${group.dashed ? " dashed" : ""}`, "data-group": index },
    svg("path", { class: "curve", d: group.lengths.map((b, i) => `${i ? "L" : "M"}${x(i, k).toFixed(1)} ${scaleY(b[2]).toFixed(1)}`).join("") }),
    ...group.lengths.map((b, i) => svg("line", { class: "whisker thin", x1: x(i, k), x2: x(i, k), y1: scaleY(b[2] - b[3]), y2: scaleY(b[2] + b[3]) })),
    ...group.lengths.map((b, i) => svg("g", {}, svg("title", {}, `${group.name}, ${b[0]}: ${b[2].toFixed(1)} ± ${b[3].toFixed(1)}`), symbol(group, x(i, k), scaleY(b[2]))))));
  const ends = rows.map(({ group, index }) => ({ group, index, main: [[group.lengths.length - 1, group.lengths.at(-1)[2]]] }));
  plot.append(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "BLEU by source length: the numbers are in the table below" },
    ...niceTicks(0, high, 5).flatMap((y) => [
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: scaleY(y), y2: scaleY(y) }),
      svg("text", { x: box.left - 8, y: scaleY(y) + 4, "text-anchor": "end" }, significant(y, 4))]),
    ...buckets.flatMap((b, i) => [
      svg("text", { class: "figure", x: box.left + stride * (i + 0.5), y: box.bottom + 20, "text-anchor": "middle" }, b[0]),
      svg("text", { x: box.left + stride * (i + 0.5), y: box.bottom + 36, "text-anchor": "middle" }, `${whole.format(b[1])} lines`)]),
    ...drawn, ...drawNames(ends, box, (i) => x(i, rows.length - 1) + 6, scaleY, width)));
}

function drawTest() {
  if (!byId("scores")) return;
  byId("scores").replaceChildren();
  drawScores("bleu", "BLEU");
  drawScores("chrf", "chrF");
  drawLengths();
}

// ---- the table --------------------------------------------------------------------------------------------------------

function showSorting() {
  const table = byId("numbers"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], given = [...body.rows];
  const value = (row, i) => { const text = row.cells[i].dataset.value; return text === undefined ? NaN : Number(text); };
  heads.forEach((head, i) => {
    const button = el("button", { type: "button", title: i ? "Sort" : "In the order given", onclick: () => {
      const up = head.getAttribute("aria-sort") === "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      if (i) head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = i ? [...given].sort((a, b) => {
        const [p, q] = [value(a, i), value(b, i)];
        return Number.isNaN(p) - Number.isNaN(q) || (up ? p - q : q - p) || 0;
      }) : given;
      body.append(...rows);
    } }, head.textContent);
    head.replaceChildren(button);
  });
}

// ---- start ------------------------------------------------------------------------------------------------------------

function draw() {
  PANELS.forEach(drawPanel);
  drawTest();
}

// A part that cannot be drawn says so in its place; the others stay.
function start() {
  const parts = { legend: showLegend, panels: showPanels, scores: drawTest, numbers: showSorting, learning: showHighlight };
  for (const [id, show] of Object.entries(parts)) {
    try {
      show();
    } catch (error) {
      (byId(id) || document.body).after(el("p", { class: "problem", role: "alert" }, `This part cannot be drawn: ${error.message}`));
    }
  }
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(draw, 120);
  });
}
