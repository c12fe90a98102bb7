// Worked numbers: what a text prints, what our code computed, and how far they are apart.

const gallery = JSON.parse(byId("gallery").textContent);

function drawWorked(item) {
  const printed = item.printed?.map((row) => row.map((x) => x ?? "…"));
  const decimals = Math.max(0, ...(item.printed || []).flat().filter(finite).map((x) => (String(x).split(".")[1] || "").length));
  const plain = (values) => ({ symbol: "", values, decimals, rows: values.map(() => ""), columns: values[0].map(() => "") });
  const ours = drawMatrix(plain(item.ours)), shown = [ours];
  ours.querySelector("figcaption").replaceChildren(el("b", {}, both("computed", "计算值")));
  if (printed) {
    shown.unshift(drawMatrix(plain(printed)));
    shown[0].querySelector("figcaption").replaceChildren(el("b", {}, both("printed", "原文")));
  }
  const apart = item.difference === null ? null : el("p", { class: "agrees" }, item.difference === 0
    ? both("✓ equal", "✓ 完全相同")
    : both(`✓ at most ${significant(item.difference, 2)} apart`, `✓ 相差不超过 ${significant(item.difference, 2)}`));
  return el("article", { class: "worked" },
    el("h3", {}, bothOf(item.title), el("span", { class: "formula" }, ...typeset(item.formula))),
    el("div", { class: "matrices" }, ...shown), apart,
    item.note ? el("p", { class: "remark" }, bothOf(item.note)) : null);
}

function drawChapter(chapter, index) {
  const name = `chapter-${index}`;
  return el("section", { "aria-labelledby": name },
    el("h2", { id: name }, bothOf(chapter.title)), el("p", { class: "what" }, bothOf(chapter.what)),
    el("div", { class: "worked-list" }, ...chapter.items.map(drawWorked)));
}

function start() {
  byId("language").append(languageSwitch());
  byId("chapters").append(...gallery.chapters.map(drawChapter));
  drawWalkthrough(byId("walk-body"), gallery.walk);
}
