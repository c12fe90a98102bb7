// The curves: loss, right answers, learning rate and speed over the steps or the time.

const CHARTS = [
  { title: "Loss", zero: true, format: (v) => significant(v),
    series: [{ key: "loss", name: "training", color: "first" }, { key: "valid_loss", name: "validation", color: "second", points: true }] },
  { title: "Right answers", zero: true, top: 100, format: (v) => percent(v / 100), tick: (v) => percent(v / 100, 0),
    series: [{ key: "exact_match", name: "exact match", color: "first", factor: 100, points: true },
      { key: "bleu", name: "BLEU", color: "second", points: true, format: (v) => v.toFixed(1) }] },
  { title: "Learning rate", zero: true, format: (v) => significant(v), series: [{ key: "learning_rate", name: "rate", color: "first" }] },
  { title: "Speed", zero: true, format: (v) => whole.format(v), series: [{ key: "tokens_per_second", name: "tokens a second", color: "first" }] },
];
let axis = "step";

// At most two points a pixel: the extremes of each stretch are kept, so no spike disappears.
function thin(points, most) {
  if (points.length <= most) return points;
  const kept = [], stretch = Math.ceil(points.length / (most / 2));
  for (let i = 0; i < points.length; i += stretch) {
    const part = points.slice(i, i + stretch);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a)), high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low === high ? [low] : [low, high].sort((a, b) => a[0] - b[0])));
  }
  return kept;
}

const xLabel = (x) => (axis === "step" ? `step ${whole.format(x)}` : duration(x));

function seriesOf(chart) {
  return chart.series.map((series) => ({
    ...series,
    format: series.format || chart.format,
    data: report.history.filter((row) => finite(row[axis]) && finite(row[series.key]))
      .map((row) => [row[axis], row[series.key] * (series.factor || 1)]),
  })).filter((series) => series.data.length);
}

function axes(chart, box, xs, ys, scaleX, scaleY) {
  const [unit, size] = axis === "step" ? ["steps", 1] : xs[1] >= 180 ? ["minutes", 60] : ["seconds", 1];
  const xTicks = niceTicks(xs[0] / size, xs[1] / size, Math.max(3, Math.floor(box.width / 100)));
  const format = chart.tick || ((v) => (Math.abs(v) >= 10 ? whole.format(v) : significant(v)));
  return [
    ...niceTicks(ys[0], ys[1], 4).flatMap((y) => [
      svg("line", { class: "grid", x1: box.left, x2: box.right, y1: scaleY(y), y2: scaleY(y) }),
      svg("text", { x: box.left - 8, y: scaleY(y) + 4, "text-anchor": "end" }, format(y)),
    ]),
    ...xTicks.map((x) => svg("text", { x: scaleX(x * size), y: box.bottom + 18, "text-anchor": "middle" }, significant(x, 6))),
    svg("text", { x: box.right, y: box.bottom + 35, "text-anchor": "end" }, unit),
  ];
}

function drawChart(chart) {
  const all = seriesOf(chart);
  const legend = el("span", { class: "legend" });
  const plot = el("div", { class: "plot", tabindex: "0", role: "slider", "aria-label": `${chart.title}: move along the curve`, "aria-orientation": "horizontal" });
  const figure = el("figure", { class: "chart" }, el("figcaption", {}, el("h3", {}, chart.title), legend), plot);
  byId("charts").append(figure);
  if (!all.length) {
    plot.replaceWith(el("p", { class: "hint" }, "The log holds no such values."));
    return;
  }
  const width = Math.max(260, plot.clientWidth || 520), height = 250;
  const box = { left: chart.title === "Learning rate" ? 78 : 58, right: width - 24, top: 12, bottom: height - 42, width };
  const points = all.flatMap((s) => s.data), places = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
  const xs = [0, report.history.reduce((most, row) => (finite(row[axis]) ? Math.max(most, row[axis]) : most), 0)];
  const ys = [chart.zero ? 0 : Math.min(...points.map((p) => p[1])), chart.top || points.reduce((m, p) => Math.max(m, p[1]), 0) * 1.05 || 1];
  const scaleX = (x) => box.left + ((x - xs[0]) / (xs[1] - xs[0] || 1)) * (box.right - box.left);
  const scaleY = (y) => box.bottom - ((y - ys[0]) / (ys[1] - ys[0] || 1)) * (box.bottom - box.top);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, ...axes(chart, box, xs, ys, scaleX, scaleY));
  for (const s of all) {
    const path = thin(s.data, 2 * width).map(([x, y], i) => `${i ? "L" : "M"}${scaleX(x).toFixed(1)} ${scaleY(y).toFixed(1)}`).join("");
    picture.append(svg("g", { class: s.color }, svg("path", { class: "curve", d: path }),
      ...(s.points && s.data.length < 80 ? s.data.map(([x, y]) => svg("circle", { class: "point", cx: scaleX(x), cy: scaleY(y), r: 3.5 })) : [])));
  }
  const cursor = svg("g", {});
  picture.append(cursor);
  plot.append(picture);

  let place = places.length - 1;
  const nearest = (data, x) => data.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));
  function show(index, withCursor) {
    place = Math.max(0, Math.min(places.length - 1, index));
    const x = places[place], found = all.map((s) => [s, nearest(s.data, x)]);
    legend.replaceChildren(...found.map(([s, p]) => el("span", {}, el("i", { class: s.color }), `${s.name} `, el("b", {}, s.format(p[1])))),
      el("span", {}, withCursor ? xLabel(x) : "at the end"));
    cursor.replaceChildren(...(withCursor ? [svg("line", { class: "cursor", x1: scaleX(x), x2: scaleX(x), y1: box.top, y2: box.bottom }),
      ...found.map(([s, p]) => svg("circle", { class: `point ${s.color}`, cx: scaleX(p[0]), cy: scaleY(p[1]), r: 5 }))] : []));
    plot.setAttribute("aria-valuemin", 0);
    plot.setAttribute("aria-valuemax", places.length - 1);
    plot.setAttribute("aria-valuenow", place);
    plot.setAttribute("aria-valuetext", `${xLabel(x)}: ${found.map(([s, p]) => `${s.name} ${s.format(p[1])}`).join(", ")}`);
  }
  const rest = () => show(places.length - 1, false);
  plot.addEventListener("pointermove", (event) => {
    const x = ((event.clientX - picture.getBoundingClientRect().left) * width) / picture.getBoundingClientRect().width;
    const value = xs[0] + ((x - box.left) / (box.right - box.left)) * (xs[1] - xs[0]);
    show(places.indexOf(places.reduce((a, b) => (Math.abs(b - value) < Math.abs(a - value) ? b : a))), true);
  });
  plot.addEventListener("pointerleave", rest);
  plot.addEventListener("blur", rest);
  plot.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(places.length / 10));
    const moves = { ArrowRight: place + 1, ArrowUp: place + 1, ArrowLeft: place - 1, ArrowDown: place - 1, PageUp: place + page, PageDown: place - page, Home: 0, End: places.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key], true);
  });
  rest();
}

function drawCharts() {
  byId("charts").replaceChildren();
  CHARTS.forEach(drawChart);
}

function showLearning() {
  const choices = [["step", "Steps"], ["seconds", "Time"]];
  byId("axis").append(...choices.map(([key, name]) => el("button", { type: "button", "aria-pressed": String(key === axis), onclick: (event) => {
    axis = key;
    for (const button of byId("axis").children) button.setAttribute("aria-pressed", String(button === event.currentTarget));
    drawCharts();
  } }, name)));
  drawCharts();
}
