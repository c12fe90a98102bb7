// The order of search results: lessons first, then guides; indexes, tables and notes for developers last.
const PLACES = [
  [/^docs\/learn\/(?!class|concepts|errata|numbers|README)/, 10],
  [/^(CHANGELOG|README|recipes\/|docs\/(design|index|mutation)$)/, -5],
  [/^docs\/((architectures|guides|inside)\/|[a-z-]+$)/, 3],
];

var Scorer = {
  score: ([page, , , , score]) => score + (PLACES.find(([pattern]) => pattern.test(page))?.[1] ?? 0),
  // As Sphinx has them.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
