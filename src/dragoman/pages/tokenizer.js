"use strict";
// Text to the ids of a sentencepiece model and back, in plain JavaScript without DOM; a test compares it with sentencepiece.

// The code points that the rule "nmt" of sentencepiece removes, and those that it reads as a space.
const REMOVED = /[\u0001-\u0008\u000b\u000e-\u001f\u007f\u008f\u009f]/g, SPACES = /[\t\n\f\r\u1680\u200b-\u200f\u2028\u2029\u2581\ufeff\ufffd]/g;

// Segmentation as sentencepiece does it.  pieces: [text, score] by id, without a score if no text is encoded to it.  kind: bpe, unigram, or char.
// normalization: nmt_nfkc, nfkc or identity.  prefix: a text begins with a space.  trim: other spaces at its ends and repeated ones are removed.
class Tokenizer {
  constructor({ pieces, kind, normalization, prefix, trim }) {
    Object.assign(this, { kind, normalization, prefix, trim, pieces: pieces.map(([text]) => text), scores: pieces.map(([, score]) => score) });
    this.ids = new Map(pieces.flatMap(([text, score], id) => (score === null ? [] : [[text, id]])));
    this.bytes = new Map(pieces.flatMap(([text], id) => (/^<0x[0-9A-F]{2}>$/.test(text) ? [[parseInt(text.slice(3, 5), 16), id]] : [])));
    this.longest = Math.max(...[...this.ids.keys()].map((text) => [...text].length));
    this.lowest = Math.min(...this.scores.filter((score) => score !== null));
  }

  encode(text, unknown = 1) {
    let plain = this.normalization === "nmt_nfkc" ? text.replace(REMOVED, "").replace(SPACES, " ") : text;
    if (this.normalization !== "identity") plain = plain.normalize("NFKC");
    if (this.trim) plain = plain.replace(/ +/g, " ").replace(/^ | $/g, "");
    if (!plain) return [];
    const symbols = [...`${this.prefix ? " " : ""}${plain}`.replaceAll(" ", "▁")], pieces = this.kind === "bpe" ? this.#merge(symbols) : this.kind === "unigram" ? this.#best(symbols) : symbols;
    const ids = pieces.flatMap((piece) => this.ids.get(piece) ?? (this.bytes.size ? [...new TextEncoder().encode(piece)].map((byte) => this.bytes.get(byte)) : unknown));
    return ids.filter((id, i) => id !== unknown || ids[i - 1] !== unknown);
  }

  // Byte-pair encoding (Sennrich et al. 2016): the adjacent pair with the best score is joined until no pair is a piece.
  #merge(symbols) {
    for (;;) {
      let place = -1, most = -Infinity;
      for (let i = 0; i + 1 < symbols.length; i += 1) {
        const score = this.scores[this.ids.get(symbols[i] + symbols[i + 1])] ?? -Infinity;
        if (score > most) [place, most] = [i, score];
      }
      if (place < 0) return symbols;
      symbols.splice(place, 2, symbols[place] + symbols[place + 1]);
    }
  }

  // Unigram model (Kudo 2018): the segmentation with the largest sum of scores (Viterbi).  An unknown character has the lowest score − 10.
  #best(symbols) {
    const best = [{ score: 0 }];
    for (let end = 1; end <= symbols.length; end += 1) {
      best[end] = { score: -Infinity };
      for (let from = Math.max(0, end - this.longest); from < end; from += 1) {
        const piece = symbols.slice(from, end).join(""), own = this.scores[this.ids.get(piece)] ?? (end - from === 1 ? this.lowest - 10 : -Infinity);
        const score = Math.fround(best[from].score + own);
        if (score > best[end].score) best[end] = { score, from, piece };
      }
    }
    const pieces = [];
    for (let end = symbols.length; end > 0; end = best[end].from) pieces.unshift(best[end].piece);
    return pieces;
  }

  decode(ids, unknown = 1) {
    const bytes = new Map([...this.bytes].map(([byte, id]) => [id, byte])), parts = [];
    for (const id of ids) {
      if (!bytes.has(id)) parts.push(id === unknown ? " ⁇ " : this.scores[id] === null ? "" : this.pieces[id]);
      else if (Array.isArray(parts.at(-1))) parts.at(-1).push(bytes.get(id));
      else parts.push([bytes.get(id)]);
    }
    const read = (codes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(codes));
    const text = parts.map((part) => (Array.isArray(part) ? read(part) : part)).join("");
    return (this.trim ? text.replace(/^▁+/, "") : this.prefix ? text.replace(/^▁/, "") : text).replaceAll("▁", " ");
  }
}

if (typeof module !== "undefined") module.exports = Tokenizer;
