// Worked examples: the numbers that a source prints, those computed here, and whether they agree.

const gallery = JSON.parse(byId("gallery").textContent);

const typesetBoth = (text) => both(typeset(text.en), typeset(text.zh));

const VERDICTS = {
  equal: ["✓", (n) => both(n === 1 ? "1 number agrees" : `${n} numbers agree`, `${n} 个数一致`)],
  explained: ["≠", (n) => both(n === 1 ? "1 differs, see the note" : `${n} differ, see the note`, `${n} 个不同，见说明`)],
  given: ["○", (n) => both(n === 1 ? "1 is given" : `${n} are given`, `${n} 个为给定`)],
};

// How many printed numbers agree, differ and are given.
function drawVerdicts(counts, difference) {
  return el("ul", { class: "verdicts" }, ...Object.entries(VERDICTS).filter(([kind]) => counts[kind]).map(([kind, [sign, text]]) =>
    el("li", { class: kind }, el("span", { "aria-hidden": "true" }, `${sign} `), text(counts[kind]),
      kind === "equal" && difference > 1e-9 ? both(` (within ${significant(difference, 2)})`, `（相差不超过 ${significant(difference, 2)}）`) : "")));
}

const countVerdicts = (verdicts) => verdicts.flat().filter(Boolean).reduce((counts, kind) => ({ ...counts, [kind]: (counts[kind] || 0) + 1 }), {});

function drawWorked(item) {
  const decimals = Math.max(0, ...(item.as_printed || []).flat().map((x) => (x.split(".")[1] || "").length));
  const plain = (values, name) => {
    const figure = drawMatrix({ symbol: "", values, decimals, rows: values.map(() => ""), columns: values[0].map(() => "") });
    figure.querySelector("figcaption b").replaceChildren(name);
    return figure;
  };
  const shown = [];
  if (item.printed) {
    // In the notation of the source, with its trailing zeros.
    const texts = item.as_printed.flat(), kinds = item.verdicts.flat();
    shown.push(plain(item.printed, both("printed", "原文")));
    shown[0].querySelector(".power")?.remove();
    shown[0].querySelectorAll("td").forEach((cell, i) => {
      cell.textContent = texts[i];
      if (kinds[i] === "explained") cell.classList.add("explained");
    });
  }
  if (item.computed) shown.push(plain(item.computed, both("computed", "计算值")));
  return el("article", { class: "worked" },
    el("h3", {}, bothOf(item.title), el("span", { class: "formula" }, ...typeset(item.formula))),
    el("div", { class: "matrices" }, ...shown), item.verdicts ? drawVerdicts(countVerdicts(item.verdicts), item.difference) : null,
    item.note ? el("p", { class: "remark" }, typesetBoth(item.note)) : null);
}

function drawChapter(chapter, index) {
  const name = `chapter-${index}`;
  return el("section", { "aria-labelledby": name },
    el("h2", { id: name }, bothOf(chapter.title)), el("p", { class: "what" }, typesetBoth(chapter.text)), drawVerdicts(chapter.counts),
    el("div", { class: "worked-list" }, ...chapter.examples.map(drawWorked)));
}

function start() {
  byId("language").append(languageSwitch());
  byId("chapters").append(...gallery.chapters.map(drawChapter));
  drawWalkthrough(byId("walk-body"), gallery.walkthrough);
}
