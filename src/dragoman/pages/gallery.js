// Worked examples: the numbers that a source prints, those computed here, and whether they agree.

const gallery = JSON.parse(byId("gallery").textContent);

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

const exampleName = (chapter, index) => `example-${chapter + 1}-${index + 1}`;
const differs = (item) => item.mistake || (item.verdicts || []).flat().includes("explained");

function drawWorked(item, name) {
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
  return el("article", { class: differs(item) ? "worked differs" : "worked", id: name },
    el("h3", {}, bothOf(item.title), el("span", { class: "formula" }, ...typeset(item.formula))),
    el("div", { class: "matrices" }, ...shown), item.verdicts ? drawVerdicts(countVerdicts(item.verdicts), item.difference) : null,
    item.mistake ? el("p", { class: "mistake" }, el("span", { "aria-hidden": "true" }, "⚠ "), both("Rests on a mistake of the source, see the note", "以原文的错误为依据，见说明")) : null,
    item.note ? el("p", { class: "remark" }, typesetBoth(item.note)) : null);
}

function drawChapter(chapter, index) {
  const name = `chapter-${index}`;
  return el("section", { "aria-labelledby": name, class: chapter.examples.some(differs) ? null : "agrees" },
    el("h2", { id: name }, bothOf(chapter.title)), el("p", { class: "what" }, typesetBoth(chapter.text)), drawVerdicts(chapter.counts),
    el("div", { class: "worked-list" }, ...chapter.examples.map((item, i) => drawWorked(item, exampleName(index, i)))));
}

// Links to all chapters and examples, and a filter.
function drawContents() {
  const chapters = gallery.chapters.map((chapter, i) => el("li", {},
    el("a", { href: `#chapter-${i}` }, bothOf(chapter.title)),
    el("details", {}, el("summary", {}, both(`${chapter.examples.length} examples`, `${chapter.examples.length} 个例子`)),
      el("ol", {}, ...chapter.examples.map((item, j) => el("li", { class: differs(item) ? "differs" : null },
        el("a", { href: `#${exampleName(i, j)}` }, bothOf(item.title))))))));
  const walk = el("li", {}, el("a", { href: "#walk" }, both("A complete training step", "一步完整的训练")));
  const count = gallery.chapters.flatMap((chapter) => chapter.examples).filter(differs).length;
  const filter = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
    const pressed = filter.getAttribute("aria-pressed") !== "true";
    filter.setAttribute("aria-pressed", String(pressed));
    document.body.classList.toggle("only-differences", pressed);
  } }, both(`Only differences and mistakes (${count})`, `只看差异与错误（${count} 处）`));
  return [bothIn(el("nav", {}, el("ol", {}, ...chapters, walk)), "aria-label", "Contents", "目录"), el("div", { class: "controls" }, filter)];
}

function start() {
  byId("language").append(languageSwitch());
  if (gallery.chapters.length) byId("contents").append(...drawContents());
  byId("chapters").append(...gallery.chapters.map(drawChapter));
  let walk = null;
  const figure = drawFigure(gallery.walkthrough.figure, { controls: false, readable: named, onLayer: (stack, layer) => walk.layer(stack, layer) });
  walk = drawWalkthrough(byId("walk-body"), gallery.walkthrough, { onStation: (layer, direction) => figure.show({ layer, mode: direction === "backward" ? direction : "forward" }) });
  byId("figure-body").append(figure.node);
  if (!gallery.chapters.length) byId("figure-body").before(drawGuide(walk, figure));
}
