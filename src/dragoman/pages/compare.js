// The comparison: runs to hide or highlight in the charts, and a table that can be sorted.

const hidden = new Set();

function startLegend() {
  byId("legend").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const group = Number(button.dataset.group);
    if (!hidden.delete(group)) hidden.add(group);
    button.setAttribute("aria-pressed", String(!hidden.has(group)));
    for (const node of document.querySelectorAll(`.plot [data-group="${group}"]`)) node.classList.toggle("off", hidden.has(group));
  });
}

// The run under the pointer, in the legend, a table or a chart, stands out in all charts.
function startHighlight() {
  const groupAt = (target) => (target instanceof Element ? target.closest("[data-group]") : null)?.dataset.group;
  document.addEventListener("pointerover", (event) => {
    const group = groupAt(event.target);
    for (const node of document.querySelectorAll(".plot [data-group]")) node.classList.toggle("faded", group !== undefined && node.dataset.group !== group);
  });
}

function start() {
  byId("language").append(languageSwitch());
  startLegend();
  startHighlight();
  sortable(byId("numbers"));
  byId("numbers").querySelectorAll("thead button").forEach((button, i) => bothIn(button, "title", ...(i ? ["Sort", "排序"] : ["Restore the given order", "恢复原来的顺序"])));
  startCharts(JSON.parse(byId("comparison").textContent).charts, hidden);
}
