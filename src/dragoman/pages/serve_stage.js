"use strict";
// One source text and its output: tokens to select, and lines to the tokens that they attend to.

const LEAST_WEIGHT = 0.03, MOST_LINKS = 24;

// How a subword of sentencepiece is displayed; "▁" is the space before a word.
function shownPiece(piece) {
  if (piece === "</s>") return { text: "∎", kind: "end", begins: true };
  if (piece === "<s>") return { text: "⊢", kind: "end", begins: true };
  if (piece === "\n") return { text: "⏎", kind: "line", begins: false };
  if (piece === "▁") return { text: "\u00a0", kind: "space", begins: true };
  const byte = /^<0x([0-9A-F]{2})>$/.exec(piece);
  if (byte) return { text: byte[1], kind: "byte", begins: false };
  return { text: piece.replaceAll("▁", "\u00a0").replace(/^\u00a0/, ""), kind: "", begins: piece.startsWith("▁") };
}

// {shape: [L, H, S], data} -> the weights of a layer and head, or with -1 of their mean, over the S positions.
function weightsOf(attention, layer, head) {
  const [layers, heads, places] = attention.shape;
  const chosen = (one, count) => (one < 0 ? [...Array(count).keys()] : [one]);
  return [...meanOf(attention, chosen(layer, layers).flatMap((l) => chosen(head, heads).map((h) => l * heads + h)), places)];
}

// Lines break between words only: a subword is appended to its word.
function makeWords(home) {
  function add(node, { begins, kind }) {
    const last = home.lastElementChild;
    const fresh = begins || !last || last.tagName === "BR" || last.lastElementChild.classList.contains("end");
    if (fresh) home.append(el("span", { class: "word" }));
    home.lastElementChild.append(node);
    if (kind === "line") home.append(el("br"));
  }
  function remove(node) {
    const word = node.parentElement;
    if (word.nextElementSibling?.tagName === "BR") word.nextElementSibling.remove();
    node.remove();
    if (!word.childElementCount) word.remove();
  }
  return { add, remove };
}

// model: an entry of /models; on: {enter, leave, choose}, each called with a token.
function makeStage(model, on) {
  const lines = svg("svg", { class: model.writes === "translation" ? "links cross" : "links", "aria-hidden": "true" });
  const source = el("div", { class: "words source" }), target = el("div", { class: "words target", role: "group" });
  const before = model.writes === "continuation";
  const node = el("div", { class: before ? "stage before" : "stage" }, before ? null : source, target, lines);
  const words = makeWords(target), tokens = [];
  let places = [];  // the attended nodes that precede the output
  bothIn(target, "aria-label", "Output; move with the arrow keys, press Enter to see the attention of a token", "输出；用方向键移动，按回车键查看词元的注意力");
  if (model.languages) for (const [home, code] of [[source, model.languages[0]], [target, model.languages[1]]]) {
    if (/^[a-z]{2,3}(-|$)/i.test(code)) home.lang = code;
  }
  if (before) {
    places = [sourcePiece("<s>")];
    words.add(places[0], shownPiece("<s>"));
  }

  function sourcePiece(piece) {
    const { text, kind } = shownPiece(piece);
    return el("span", { class: `piece ${kind}` }, text, el("small", { "aria-hidden": "true" }));
  }

  function read(pieces) {
    if (before) return;
    const own = makeWords(source);
    places = pieces.map(sourcePiece);
    pieces.forEach((piece, s) => own.add(places[s], shownPiece(piece)));
  }

  function makeToken(token, place) {
    const looks = shownPiece(token.piece), p = Math.exp(token.log_prob), name = standalone(token.piece);
    const button = el("button", { type: "button", class: `piece token ${looks.kind}`, tabindex: tokens.length || place ? -1 : 0, "aria-pressed": "false",
      onclick: () => on.choose(token), onpointerenter: () => on.enter(token), onpointerleave: () => on.leave(), onfocus: () => on.enter(token), onblur: () => on.leave(), style: `--doubt: ${(token.given ? 0 : Math.min(1, Math.max(0, 1 - p))).toFixed(3)}` }, looks.text);
    button.classList.toggle("given", token.given);
    bothIn(button, "aria-label", `${inLanguage(name, "en")}, ${percent(p)}`, `${inLanguage(name, "zh")}，${percent(p)}`);
    Object.assign(token, { node: button, stage: api, place, p });
    words.add(button, looks);
    return token;
  }

  function take({ from, tokens: fresh, settled }) {
    for (const token of tokens.splice(from).reverse()) words.remove(token.node);
    fresh.forEach((token, i) => tokens.push(makeToken(token, from + i)));
    target.classList.toggle("unsettled", !settled);
    if (tokens.length && !tokens.some((token) => token.node.tabIndex === 0)) tokens[0].node.tabIndex = 0;  // always reached by Tab
    return tokens.at(-1);
  }

  function clear() {
    lines.replaceChildren();
    for (const seen of node.querySelectorAll(".seen, .on")) {
      seen.classList.remove("seen", "on");
      const share = seen.querySelector("small");
      if (share) share.textContent = "";
    }
  }

  // Lines and shades from a token to the positions that it attends to.
  function draw(token, weights) {
    clear();
    token.node.classList.add("on");
    if (!weights) return;
    const seen = before ? [...places, ...tokens.map((other) => other.node)] : places;
    const most = weights.map((w, s) => ({ w, node: seen[s] })).filter(({ w, node: there }) => there && w >= LEAST_WEIGHT).sort((a, b) => a.w - b.w);
    for (const { w, node: there } of most) {
      there.classList.add("seen");
      there.style.setProperty("--weight", w.toFixed(3));
      const share = there.querySelector("small");
      if (share && w >= 0.05) share.textContent = (100 * w).toFixed(0);
    }
    lines.setAttribute("viewBox", `0 0 ${node.clientWidth} ${node.clientHeight}`);
    lines.append(...most.slice(-MOST_LINKS).map(({ w, node: there }) => svg("path", { class: "link", pathLength: 1, d: route(token.node, there),
      "stroke-width": (0.8 + 4.2 * w).toFixed(2), "stroke-opacity": (0.12 + 0.78 * w).toFixed(2) })));
  }

  // offsetLeft and offsetTop ignore the transform of tokens that are still animated.
  function route(from, to) {
    const x = (it) => it.offsetLeft + it.offsetWidth / 2;
    if (!before) {
      const [x1, y1, x2, y2] = [x(from), from.offsetTop, x(to), to.offsetTop + to.offsetHeight], bend = Math.max(14, (y1 - y2) / 2);
      return `M${x1} ${y1}C${x1} ${y1 - bend} ${x2} ${y2 + bend} ${x2} ${y2}`;
    }
    const [x1, y1, x2, y2] = [x(from), from.offsetTop + 3, x(to), to.offsetTop + 3], rise = Math.min(26, 8 + Math.hypot(x1 - x2, y1 - y2) / 8);
    return `M${x1} ${y1}C${x1} ${y1 - rise} ${x2} ${y2 - rise} ${x2} ${y2}`;
  }

  const api = { node, tokens, read, take, draw, clear };
  return api;
}
