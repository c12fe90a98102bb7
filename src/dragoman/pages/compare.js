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

function startSorting() {
  const table = byId("numbers"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], given = [...body.rows];
  const value = (row, i) => Number(row.cells[i].dataset.value ?? NaN);
  heads.forEach((head, i) => {
    const button = el("button", { type: "button", onclick: () => {
      const ascending = head.getAttribute("aria-sort") === "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      if (i) head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      body.append(...(i ? [...given].sort((a, b) => {
        const [p, q] = [value(a, i), value(b, i)];
        return Number.isNaN(p) - Number.isNaN(q) || (ascending ? p - q : q - p) || 0;
      }) : given));
    } }, ...head.childNodes);
    head.replaceChildren(bothIn(button, "title", ...(i ? ["Sort", "排序"] : ["Restore the given order", "恢复原来的顺序"])));
  });
}

function start() {
  byId("language").append(languageSwitch());
  startLegend();
  startHighlight();
  startSorting();
  startCharts(JSON.parse(byId("comparison").textContent).charts, hidden);
}
