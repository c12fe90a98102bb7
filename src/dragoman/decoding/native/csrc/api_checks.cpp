#include "api_checks.h"

#include <algorithm>
#include <cmath>

namespace dragoman {

void refuse(const std::string& message) { throw std::invalid_argument(message); }

void require(bool condition, const char* message) {
  if (!condition) refuse(message);
}

void require_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    refuse(std::string(name) + " = " + std::to_string(value) + "; accepted: " + std::to_string(low) + " to " +
           std::to_string(high));
  }
}

void check_ids(const int32_t* ids, int64_t count, int vocab, const char* name) {
  for (int64_t i = 0; i < count; ++i) require_range(name, ids[i], 0, vocab - 1);
}

void check_ragged(const RaggedArray& rows, int count, int vocab, const char* name, const char* row) {
  if (rows.offsets == nullptr || rows.offsets[0] != 0) refuse(std::string(name) + " offsets must start at 0");
  const bool ordered = std::is_sorted(rows.offsets, rows.offsets + count + 1);  // the last one is then the size of ids
  if (!ordered) refuse(std::string(name) + " offsets must not decrease");
  for (int i = 0; i < count; ++i) {
    for (int64_t at = rows.offsets[i]; at < rows.offsets[i + 1]; ++at) {
      if (rows.ids[at] < 0 || rows.ids[at] >= vocab) {
        const std::string where = std::string(row) + " " + std::to_string(i + 1) + ": " + name;
        require_range(where.c_str(), rows.ids[at], 0, vocab - 1);
      }
    }
  }
}

namespace {

template <typename F>
void check_shortlist(const SearchRequest& r, int sentence, const F& refuse_sentence) {
  const auto row_begin = [](const RaggedArray& rows, int row) { return rows.ids + rows.offsets[row]; };
  const int32_t* begin = row_begin(r.shortlists, sentence);
  const int32_t* end = row_begin(r.shortlists, sentence + 1);
  if (std::adjacent_find(begin, end, std::greater_equal<int32_t>()) != end) {
    refuse_sentence("the shortlist must be strictly ascending");
  }
  const auto contains = [&](int32_t token) { return std::binary_search(begin, end, token); };
  if (!contains(r.settings.eos)) refuse_sentence("the shortlist must contain the end of sentence");
  if (!std::all_of(row_begin(r.prefixes, sentence), row_begin(r.prefixes, sentence + 1), contains)) {
    refuse_sentence("the shortlist must contain the forced prefix");
  }
}

// Return the number of tokens of all phrases of a sentence.
template <typename F>
int64_t check_phrases(const SearchRequest& r, int sentence, const F& refuse_sentence) {
  const int64_t first = r.phrase_counts[sentence];
  const int64_t last = r.phrase_counts[sentence + 1];
  for (int64_t p = first; p < last; ++p) {
    if (r.phrases.offsets[p + 1] == r.phrases.offsets[p]) refuse_sentence("a phrase has no tokens");
  }
  const int32_t* begin = r.phrases.ids + r.phrases.offsets[first];
  const int32_t* end = r.phrases.ids + r.phrases.offsets[last];
  const SearchSettings& s = r.settings;
  for (const int32_t* id = begin; id < end; ++id) {
    if (*id == s.pad || *id == s.bos || *id == s.eos) refuse_sentence("a phrase contains a special token");
    if (r.shortlists.offsets == nullptr) continue;
    const int32_t* list = r.shortlists.ids;
    if (!std::binary_search(list + r.shortlists.offsets[sentence], list + r.shortlists.offsets[sentence + 1], *id)) {
      refuse_sentence("the shortlist must contain the phrases");
    }
  }
  if (!std::isfinite(r.bonuses[sentence]) || r.bonuses[sentence] < 0) {
    refuse_sentence("the bonus of phrases must be 0 (required) or positive");
  }
  return r.bonuses[sentence] == 0 ? end - begin : 0;
}

}  // namespace

void check_request(const Header& h, const SearchRequest& r) {
  const SearchSettings& s = r.settings;
  require(r.count >= 0, "the number of sentences must not be negative");
  require_range("beam", s.beam, 1, MAX_BEAM);
  require_range("nbest", s.nbest, 1, s.beam);
  require_range("shrink_beam", s.shrink_beam, 0, 1);
  require_range("early_end", s.early_end, 0, 1);
  require_range("rows", s.rows, s.beam, MAX_SLOTS);
  require_range("threads", s.threads, 1, MAX_THREADS);
  if (r.attention != nullptr) {
    require(s.beam == 1 && h.encoder_layers > 0, "attention weights require beam = 1 and a model with an encoder");
  }
  require(s.min_length >= 0 && s.no_repeat_ngram >= 0 && s.recombine >= 0 && s.alpha >= 0 && s.beam_threshold >= 0,
          "min_length, no_repeat_ngram, recombine, alpha and beam_threshold must not be negative");
  for (const int32_t id : {s.bos, s.eos, s.pad}) require_range("special token", id, 0, h.tgt_vocab - 1);
  const bool has_encoder = h.encoder_layers > 0;
  check_ragged(r.sources, r.count, has_encoder ? h.src_vocab : h.tgt_vocab, "source token");
  check_ragged(r.prefixes, r.count, h.tgt_vocab, "prefix token");
  if (r.shortlists.offsets != nullptr) check_ragged(r.shortlists, r.count, h.tgt_vocab, "shortlist token");
  for (int64_t i = 0; i < r.prefixes.offsets[r.count]; ++i) {
    const int32_t id = r.prefixes.ids[i];
    require(id != s.bos && id != s.eos && id != s.pad, "a prefix must not contain padding, begin or end of sentence");
  }
  if (r.phrases.offsets != nullptr) {
    require(r.phrase_counts != nullptr && r.bonuses != nullptr && r.inside != nullptr && r.phrase_counts[0] == 0,
            "phrases require counts, bonuses and tables of each sentence");
    for (int i = 0; i < r.count; ++i) {
      require(r.phrase_counts[i] <= r.phrase_counts[i + 1], "the counts of phrases must not decrease");
    }
    check_ragged(r.phrases, static_cast<int>(r.phrase_counts[r.count]), h.tgt_vocab, "phrase token", "phrase");
  }
  for (int i = 0; i < r.count; ++i) {
    const int64_t source = r.sources.offsets[i + 1] - r.sources.offsets[i];
    const int64_t prefix = r.prefixes.offsets[i + 1] - r.prefixes.offsets[i];
    const auto refuse_sentence = [&](const std::string& message) {
      refuse("sentence " + std::to_string(i + 1) + ": " + message);
    };
    if (has_encoder && source == 0) refuse_sentence("the source is empty");
    if (r.shortlists.offsets != nullptr) check_shortlist(r, i, refuse_sentence);
    if (source > h.max_positions) {
      refuse_sentence(std::to_string(source) + " source tokens; the packed model has " +
                      std::to_string(h.max_positions) + " positions");
    }
    const int64_t phrases = r.phrases.offsets == nullptr ? 0 : check_phrases(r, i, refuse_sentence);
    const int64_t min_limit = std::max<int64_t>(prefix + phrases, s.min_length) + 1;
    const int64_t max_limit = h.max_positions - (has_encoder ? 0 : source);
    if (r.limits[i] < min_limit || r.limits[i] > max_limit) {
      refuse_sentence("limit = " + std::to_string(r.limits[i]) + " target tokens; accepted: " +
                      std::to_string(min_limit) + " to " + std::to_string(max_limit));
    }
  }
}

}  // namespace dragoman
