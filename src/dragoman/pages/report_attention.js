// The cross-attention of one sentence.

function showAttention() {
  const { source_tokens: source, target_tokens: written, weights: layers } = report.attention;
  if (!layers.length || !source.length || !written.length) {
    byId("attention").append(el("p", { class: "hint" }, both("No attention was recorded.", "没有记录注意力。")));
    for (const id of ["layer", "head"]) byId(id).parentElement.hidden = true;
    return;
  }
  const maps = layers.map((weights, layer) => ({ layer, weights })), heads = [-1, ...headsOf(maps[0])];
  const columns = [...source.keys()].filter((c) => source[c] !== "</s>");
  // The head with the clearest alignment: the sum over the source tokens of the largest weight on each.
  const best = bestHead(maps, heads, (values, n, m) => columns.reduce((sum, c) => sum + Math.max(...Array.from({ length: n }, (_, r) => values[r * m + c])), 0));
  fillHeads(byId("layer"), byId("head"), maps, best);
  const [rows, words] = [readablePieces(written), readablePieces(source)];
  const sentence = (word, share, from) => both(`For “${word("en")}”, ${share} of the attention is on “${from("en")}”.`, `生成“${word("zh")}”时，${share} 的注意力落在“${from("zh")}”上。`);
  const describe = (values, r, c) => [r === null ? both(
    `Point at a square or a ${target.en} token, or focus the map and press the arrow keys. The map opens on the head with the clearest alignment; “·” marks a token inside a word.`,
    `将指针移到方格或${target.zh}词元上，或用键盘选中图后按方向键。打开时显示对齐最清晰的注意力头；“·”表示词内部的词元。`)
    : sentence((code) => inLanguage(rows[r], code), percent(values[r * source.length + c], 0), (code) => inLanguage(words[c], code))];
  function draw() {
    const map = maps[Number(byId("layer").value)], values = ofHead(map, Number(byId("head").value));
    showWeights(byId("attention"), byId("attention-hint"), { rows, columns: words, values, n: rows.length, m: words.length, cross: true, lang: report.target_code },
      { en: `cross-attention from ${target.en} to English tokens`, zh: `从${target.zh}词元到英语词元的交叉注意力` }, byId("attention").clientWidth, (r, c) => describe(values, r, c));
  }
  for (const id of ["layer", "head"]) byId(id).addEventListener("change", draw);
  draw();
  redrawn(draw);
}
