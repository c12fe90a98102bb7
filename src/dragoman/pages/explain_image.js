"use strict";
// An image model: the attention of the class token, or of a patch, drawn on the image.

const PICTURE = 320;

function showImage() {
  const { image } = explanation;
  if (!image) return;
  byId("image").hidden = false;
  const maps = ofStack("encoder"), control = choosers(() => draw());
  control.fill(maps, { layer: maps.at(-1).layer, head: maps.at(-1).averaged || maps.at(-1).weights.shape[0] > 1 ? -1 : 0 });
  byId("image-controls").append(...control.nodes());
  const { across } = image, big = el("div", { class: "on-image", style: `width:${PICTURE}px;height:${PICTURE}px` }), tiles = el("div", { class: "overview" });
  const hint = el("p", { class: "hint two", "aria-live": "polite" });
  const label = image.label === null ? null : el("p", {}, both(["Its label in the data: ", el("b", {}, image.label), "."], ["数据中的标签：", el("b", {}, image.label), "。"]));
  const reset = el("button", { type: "button", onclick: () => select(0) }, both("class token", "类别词元"));
  byId("image-body").append(el("div", { class: "image-view" }, big, el("div", {}, label, el("p", { class: "controls" }, both("Query:", "查询："), reset), hint)),
    el("h3", {}, both("All heads; select one", "全部注意力头（点选一个）")), tiles);
  let query = 0, drawn = null;  // the tiles are drawn for one query

  const buttons = [...Array(across * across).keys()].map((i) => {
    const row = Math.floor(i / across) + 1, column = (i % across) + 1;
    return bothIn(el("button", { type: "button", class: "patch", onclick: () => select(i + 1), onpointerenter: () => point(i + 1), onfocus: () => point(i + 1) }), "aria-label", `Patch in row ${row}, column ${column}`, `第 ${row} 行第 ${column} 列的图像块`);
  });
  roving(buttons, across);
  const overlay = el("canvas", { class: "cells" });
  big.append(imageCanvas(image), overlay, el("div", { class: "patches", style: `grid-template-columns:repeat(${across},1fr)` }, ...buttons));

  const name = (index) => (index ? both(`patch ${explanation.sides.source.pieces[index]}`, `图像块 ${explanation.sides.source.pieces[index]}`) : both("the class token", "类别词元"));
  const current = () => {
    const chosen = control.map, map = maps.find(({ layer }) => layer === chosen.layer);
    return { chosen, map, weights: ofQuery(map, chosen.head) };
  };
  const size = across * across + 1, ofQuery = (map, head) => ofHead(map, head).slice(query * size, (query + 1) * size);
  const select = (index) => { query = index; draw(); };
  function point(index) {
    const { chosen, map, weights } = current();
    hint.replaceChildren(el("span", {}, both([name(query), `: ${percent(weights[index])} of its attention is on `, name(index), `, ${percent(weights[0])} on the class token.`], [name(query), `：${percent(weights[index])} 的注意力落在`, name(index), `上，${percent(weights[0])} 落在类别词元上。`])),
      tensorLine(`${map.name}[0, ${chosen.head < 0 ? ":" : chosen.head}, ${query}, ${index}]`, map.shape, map.paper));
  }
  // The patch with the largest weight has the full colour, because the weights of many patches are all small.
  function cover(canvas, weights) {
    const most = weights.slice(1).reduce((a, b) => Math.max(a, b), 1e-9);
    return paint(canvas, weights.slice(1).map((w) => 0.6 * (w / most) ** 2), across, across, "--second");
  }
  function draw() {
    const { chosen, weights } = current();
    cover(overlay, weights);
    buttons.forEach((button, i) => button.classList.toggle("query", i + 1 === query));
    reset.setAttribute("aria-pressed", String(query === 0));
    const strongestPatch = weights.indexOf(weights.slice(1).reduce((a, b) => Math.max(a, b), 0), 1);
    point(Math.max(1, strongestPatch));
    if (drawn !== query) drawTiles(tiles, maps, control, picture, draw);
    drawn = query;
    markTile(tiles, chosen);
  }
  const picture = (map, head) => [imageCanvas(image), cover(el("canvas", { class: "cells" }), ofQuery(map, head))];
  draw();
  redrawn(() => { drawn = null; draw(); });
}

// Grey or RGB pixels; of more channels the first three.
function imageCanvas({ pixels }) {
  const [height, width, channels] = pixels.shape, bytes = (pixels.bytes ??= unpack(pixels)), canvas = el("canvas", { class: "cells pixels", width, height }), image = new ImageData(width, height);
  for (let i = 0; i < width * height; i += 1) {
    for (let c = 0; c < 3; c += 1) image.data[4 * i + c] = bytes[i * channels + (channels >= 3 ? c : 0)];
    image.data[4 * i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
