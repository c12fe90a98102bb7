// Worked examples: the numbers that a source prints, those computed here, and their largest difference.

const gallery = JSON.parse(byId("gallery").textContent);

const typesetBoth = (text) => both(typeset(text.en), typeset(text.zh));

function drawWorked(item) {
  const printed = item.printed?.map((row) => row.map((x) => x ?? "…"));
  const decimals = Math.max(0, ...(item.printed || []).flat().filter(finite).map((x) => (String(x).split(".")[1] || "").length));
  const plain = (values) => ({ symbol: "", values, decimals, rows: values.map(() => ""), columns: values[0].map(() => "") });
  const computed = drawMatrix(plain(item.computed)), shown = [computed];
  computed.querySelector("figcaption").replaceChildren(el("b", {}, both("computed", "计算值")));
  if (printed) {
    shown.unshift(drawMatrix(plain(printed)));
    shown[0].querySelector("figcaption").replaceChildren(el("b", {}, both("printed", "原文")));
  }
  const difference = item.difference === null ? null : el("p", { class: "agrees" }, item.difference === 0
    ? both("✓ equal", "✓ 完全相同")
    : both(`✓ differs by at most ${significant(item.difference, 2)}`, `✓ 相差不超过 ${significant(item.difference, 2)}`));
  return el("article", { class: "worked" },
    el("h3", {}, bothOf(item.title), el("span", { class: "formula" }, ...typeset(item.formula))),
    el("div", { class: "matrices" }, ...shown), difference,
    item.note ? el("p", { class: "remark" }, typesetBoth(item.note)) : null);
}

function drawChapter(chapter, index) {
  const name = `chapter-${index}`;
  return el("section", { "aria-labelledby": name },
    el("h2", { id: name }, bothOf(chapter.title)), el("p", { class: "what" }, typesetBoth(chapter.text)),
    el("div", { class: "worked-list" }, ...chapter.examples.map(drawWorked)));
}

function start() {
  byId("language").append(languageSwitch());
  byId("chapters").append(...gallery.chapters.map(drawChapter));
  drawWalkthrough(byId("walk-body"), gallery.walkthrough);
}
