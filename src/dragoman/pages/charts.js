// Charts of charts.py: values under the pointer or at the position chosen with the arrow keys, and the choice of a view.

// plot: the element around the SVG.  chart: `readout(...)` of charts.py.  hidden: numbers of groups to leave out.
function showValues(plot, chart, hidden = new Set()) {
  const xs = [...new Set(chart.lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  const cursor = el("div", { class: "position", hidden: "" }), tip = el("div", { class: "tip", hidden: "" });
  const closest = (points, x, at = (point) => point) => points.reduce((a, b) => (Math.abs(at(b) - x) < Math.abs(at(a) - x) ? b : a));
  const label = (x, code) => `${chart.ticks.length ? chart.ticks[x] : significant(x, 5)} ${inLanguage(chart.unit, code)}`;
  let index = xs.length - 1;
  plot.append(cursor, tip);

  function show(wanted) {
    index = Math.max(0, Math.min(xs.length - 1, wanted));
    const x = xs[index], [left, right] = chart.box, [first, last] = chart.x;
    const share = left + ((right - left) * (x - first)) / (last - first);
    const found = chart.lines.filter((line) => !hidden.has(line.group)).map((line) => [line, significant(closest(line.points, x, (p) => p[0])[1], 4)]);
    cursor.hidden = tip.hidden = false;
    cursor.style.left = `${100 * share}%`;
    tip.style.cssText = share > 0.55 ? `right: ${100 * (1 - share) + 2}%` : `left: ${100 * share + 2}%`;
    tip.replaceChildren(el("p", {}, both(label(x, "en"), label(x, "zh"))), ...found.map(([line, value]) =>
      el("div", { class: `s${line.group % 8}` }, el("i"), el("span", {}, bothOf(line.name)), el("b", {}, value))));
    plot.setAttribute("aria-valuenow", index);
    plot.setAttribute("aria-valuetext", `${label(x)}: ${found.map(([line, value]) => `${inLanguage(line.name)} ${value}`).join(", ")}`);
  }
  const hide = () => { cursor.hidden = tip.hidden = true; };
  plot.setAttribute("aria-valuemin", 0);
  plot.setAttribute("aria-valuemax", xs.length - 1);
  plot.setAttribute("aria-valuenow", index);
  plot.addEventListener("pointermove", (event) => {
    const frame = plot.getBoundingClientRect(), [left, right] = chart.box, [first, last] = chart.x;
    const share = ((event.clientX - frame.left) / frame.width - left) / (right - left);
    show(xs.indexOf(closest(xs, first + share * (last - first))));
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(xs.length / 10));
    const moves = { ArrowRight: index + 1, ArrowUp: index + 1, ArrowLeft: index - 1, ArrowDown: index - 1, PageUp: index + page, PageDown: index - page, Home: 0, End: xs.length - 1 };
    if (event.key === "Escape") hide();
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  });
}

// A pressed button `data-choice="axis" value="step"` shows the figures of its panel with `data-axis="step"`.
function chooseViews(panel) {
  panel.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-choice]");
    if (!button) return;
    const { choice } = button.dataset;
    for (const other of panel.querySelectorAll(`button[data-choice="${choice}"]`)) other.setAttribute("aria-pressed", String(other === button));
    const chosen = [...panel.querySelectorAll('button[data-choice][aria-pressed="true"]')].map((pressed) => [pressed.dataset.choice, pressed.value]);
    for (const figure of panel.querySelectorAll("figure")) figure.hidden = chosen.some(([name, value]) => figure.dataset[name] !== value);
  });
}

function startCharts(charts, hidden) {
  document.querySelectorAll(".plot[data-chart]").forEach((plot) => showValues(plot, charts[plot.dataset.chart], hidden));
  document.querySelectorAll(".panel").forEach(chooseViews);
}
