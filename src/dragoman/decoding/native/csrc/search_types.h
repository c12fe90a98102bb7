// The request and the results of a search.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "phrases.h"

namespace dragoman {

// dragoman/decoding/native/engine.py declares the same structs for ctypes.

struct SearchSettings {
  int32_t beam, nbest, min_length, no_repeat_ngram;
  int32_t shrink_beam;  // 1: each finished hypothesis makes the beam of its sentence narrower by one; 0: it does not
  int32_t recombine;    // of unfinished hypotheses with this many equal last tokens, the best one stays; 0: off
  int32_t early_end;    // 1: a hypothesis that would not enter the n-best list by ending next leaves the beam; 0: not
  int32_t bos, eos, pad;
  int32_t rows;  // hypotheses that one worker decodes at once
  int32_t threads;
  double alpha;           // exponent of the length penalty ((5 + length) / 6)^alpha
  double beam_threshold;  // largest distance from the log-probability of the best hypothesis of a step; 0: no limit
  int64_t source_tokens;  // that one worker decodes at once; a source counts once per hypothesis
  int64_t memory;         // bytes of caches and shortlists of all workers; one sentence per worker is always admitted
};

// Peak use by one worker.
struct Usage {
  int64_t rows, source_tokens, bytes;
};

// Row i is ids[offsets[i]], ..., ids[offsets[i + 1] - 1].
struct RaggedArray {
  const int32_t* ids;
  const int64_t* offsets;
};

struct SearchRequest {
  SearchSettings settings;
  int32_t count;         // sentences
  RaggedArray sources;   // each with the end of sentence; of a decoder-only model: prompts, or empty rows
  RaggedArray prefixes;  // forced first tokens of each target
  // Ascending tokens of each sentence, including the end of sentence and its prefix; null offsets: the whole
  // vocabulary.
  RaggedArray shortlists;
  // Phrases that the targets must contain or prefer; null offsets: none.  Sentence i has the phrases phrase_counts[i],
  // ..., phrase_counts[i + 1] - 1, with the bonus bonuses[i]; 0: they are required.
  RaggedArray phrases;
  const int64_t* phrase_counts;
  const float* bonuses;
  const uint8_t* const* inside;  // of each sentence: null, or (target vocabulary,): 1 for tokens that continue a word
  const int32_t* limits;         // (count,): maximum target length, including the end of sentence
  float* attention;  // null, or with beam 1: (limit, source length) per sentence, concatenated; initially zeros
  Usage* usage;      // null, or receives the peak use
};

// One sentence to search.  The caller keeps the arrays and the settings alive.
struct Sentence {
  const SearchSettings* settings;  // rows, threads, source_tokens and memory are not used
  const int32_t* source;
  const int32_t* prefix;     // forced first tokens of the target
  const int32_t* shortlist;  // null: the whole vocabulary
  int source_length, prefix_length, shortlist_length;
  int limit;         // maximum target length, including the end of sentence
  float* attention;  // null, or (limit, source_length)
  const Phrases* phrases = nullptr;
};

struct Hypothesis {
  std::vector<int32_t> tokens;   // without the end of sentence
  std::vector<float> log_probs;  // with that of the end of sentence
  double log_prob = 0;
  double score = 0;  // log_prob divided by the length penalty
  bool truncated = false;
};

inline int64_t row_length(const RaggedArray& rows, int row) { return rows.offsets[row + 1] - rows.offsets[row]; }

// The positions that a target needs at most, with the prompt before it.
inline int target_positions(const SearchRequest& r, int i, bool has_encoder) {
  return r.limits[i] + (has_encoder ? 0 : static_cast<int>(row_length(r.sources, i)));
}

// attention: where the weights of the sentence are written, or null.
inline Sentence sentence_of(const SearchRequest& r, int i, float* attention) {
  const auto row = [i](const RaggedArray& rows) {
    return rows.offsets == nullptr ? nullptr : rows.ids + rows.offsets[i];
  };
  const auto length = [i](const RaggedArray& rows) {
    return rows.offsets == nullptr ? 0 : static_cast<int>(row_length(rows, i));
  };
  return {&r.settings,        row(r.sources),       row(r.prefixes), row(r.shortlists), length(r.sources),
          length(r.prefixes), length(r.shortlists), r.limits[i],     attention};
}

inline Phrases phrases_of(const SearchRequest& r, int i, int vocab) {
  Phrases found;
  if (r.phrases.offsets == nullptr) return found;
  for (int64_t p = r.phrase_counts[i]; p < r.phrase_counts[i + 1]; ++p) {
    found.ids.emplace_back(r.phrases.ids + r.phrases.offsets[p], r.phrases.ids + r.phrases.offsets[p + 1]);
  }
  found.bonus = r.bonuses[i];
  found.required = found.bonus == 0;
  if (r.inside[i] != nullptr) found.inside.assign(r.inside[i], r.inside[i] + vocab);
  return found;
}

inline Usage& operator+=(Usage& a, const Usage& b) {
  a.rows += b.rows;
  a.source_tokens += b.source_tokens;
  a.bytes += b.bytes;
  return a;
}

inline Usage& operator-=(Usage& a, const Usage& b) { return a += {-b.rows, -b.source_tokens, -b.bytes}; }

inline Usage elementwise_max(const Usage& a, const Usage& b) {
  return {std::max(a.rows, b.rows), std::max(a.source_tokens, b.source_tokens), std::max(a.bytes, b.bytes)};
}

}  // namespace dragoman
