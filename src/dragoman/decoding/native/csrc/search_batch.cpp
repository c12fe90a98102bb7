#include "search_batch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <utility>

namespace dragoman {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr int ENCODER_BATCH_TOKENS = 512;  // large enough for efficient products, small enough for the L2 cache

double length_penalty(int length, double alpha) { return std::pow((5.0 + length) / 6.0, alpha); }

struct Candidate {
  float sum;
  size_t parent;  // index into the beam
  TokenScore next;
  bool truncated;  // the end of sentence was forced by the length limit
};

}  // namespace

void SearchBatch::add(int64_t id, const Sentence& sentence, int source_slot, std::vector<int> target_slots) {
  ActiveSentence a;
  a.id = id;
  a.sentence = sentence;
  a.source_slot = source_slot;
  a.target_slots = std::move(target_slots);
  PartialHypothesis empty;
  empty.target_slot = a.target_slots[0];
  a.beam.push_back(std::move(empty));
  if (sentence.shortlist != nullptr) {
    a.shortlist = runner_.set_shortlist(source_slot, sentence.shortlist, sentence.shortlist_length);
  }
  added_.push_back(std::move(a));
}

// Encode the added sources in batches.
void SearchBatch::encode_added() {
  const bool has_encoder = runner_.model().header().encoder_layers > 0;
  for (size_t begin = 0, end = 0; has_encoder && begin < added_.size(); begin = end) {
    std::vector<int32_t> tokens;
    std::vector<int32_t> lengths;
    std::vector<int32_t> source_slots;
    for (; end < added_.size() && static_cast<int>(tokens.size()) < ENCODER_BATCH_TOKENS; ++end) {
      const Sentence& s = added_[end].sentence;
      tokens.insert(tokens.end(), s.source, s.source + s.source_length);
      lengths.push_back(s.source_length);
      source_slots.push_back(added_[end].source_slot);
    }
    runner_.encode(tokens.data(), lengths.data(), source_slots.data(), static_cast<int>(end - begin));
  }
  std::move(added_.begin(), added_.end(), std::back_inserter(active_));
  added_.clear();
}

std::vector<FinishedSentence> SearchBatch::remove(const std::vector<int64_t>& ids) {
  std::vector<FinishedSentence> removed;
  for (std::vector<ActiveSentence>* sentences : {&active_, &added_}) {
    const auto is_kept = [&](const ActiveSentence& a) { return std::find(ids.begin(), ids.end(), a.id) == ids.end(); };
    const auto end = std::stable_partition(sentences->begin(), sentences->end(), is_kept);
    for (auto a = end; a != sentences->end(); ++a) {
      removed.push_back({a->id, a->source_slot, std::move(a->target_slots), {}});
    }
    sentences->erase(end, sentences->end());
  }
  return removed;
}

std::vector<FinishedSentence> SearchBatch::step() {
  encode_added();
  std::vector<StepRow> rows;
  std::vector<TokenQuery> queries;
  for (const ActiveSentence& a : active_) {
    for (const PartialHypothesis& h : a.beam) {
      const int position = static_cast<int>(h.tokens.size());
      const int32_t token = position == 0 ? a.sentence.settings->bos : h.tokens.back();
      float* attention = a.sentence.attention;
      if (attention != nullptr) attention += static_cast<std::ptrdiff_t>(a.sentence.source_length) * position;
      rows.push_back({token, position, h.target_slot, a.source_slot, attention});
      queries.push_back(make_query(a, h));
    }
  }
  std::vector<FinishedSentence> finished;
  if (rows.empty()) return finished;
  runner_.step(rows.data(), static_cast<int>(rows.size()));
  const std::vector<TokenScores> scores = top_k_tokens(runner_, queries);
  size_t row = 0;
  for (ActiveSentence& a : active_) {
    const size_t first = row;
    row += a.beam.size();
    expand(a, &scores[first]);
    if (!a.beam.empty()) continue;
    if (a.finished.empty()) {
      throw std::runtime_error(
          "no translation has a probability above 0: the model's output is not finite; load an earlier checkpoint");
    }
    const auto nbest = static_cast<size_t>(a.sentence.settings->nbest);
    std::stable_sort(a.finished.begin(), a.finished.end(),
                     [](const Hypothesis& x, const Hypothesis& y) { return x.score > y.score; });
    if (a.finished.size() > nbest) a.finished.resize(nbest);
    finished.push_back({a.id, a.source_slot, std::move(a.target_slots), std::move(a.finished)});
  }
  active_.erase(
      std::remove_if(active_.begin(), active_.end(), [](const ActiveSentence& a) { return a.beam.empty(); }),
      active_.end());
  return finished;
}

// The required token is the next one of the forced prefix, else the end of sentence.  Suppressed tokens: padding,
// beginning of sentence, an end before min_length, and tokens that would repeat an n-gram.
TokenQuery SearchBatch::make_query(const ActiveSentence& a, const PartialHypothesis& h) {
  const SearchSettings& s = *a.sentence.settings;
  TokenQuery query;
  query.top_k = s.beam;
  query.shortlist = a.shortlist;
  const int position = static_cast<int>(h.tokens.size());
  query.required_token = position < a.sentence.prefix_length ? a.sentence.prefix[position] : s.eos;
  query.suppressed = {s.pad, s.bos};
  if (position < s.min_length) query.suppressed.push_back(s.eos);
  const int n = s.no_repeat_ngram;
  for (int i = 0; n > 0 && i + n <= position; ++i) {
    // Suppress the token that followed an earlier occurrence of the last n - 1 tokens.
    if (std::equal(h.tokens.begin() + i, h.tokens.begin() + i + n - 1, h.tokens.end() - (n - 1))) {
      query.suppressed.push_back(h.tokens[static_cast<size_t>(i + n - 1)]);
    }
  }
  return query;
}

namespace {

Hypothesis finished_hypothesis(std::vector<int32_t>&& tokens, std::vector<float>&& log_probs, double alpha,
                               bool truncated) {
  Hypothesis h;
  h.tokens = std::move(tokens);
  h.log_probs = std::move(log_probs);
  h.truncated = truncated;
  for (const float x : h.log_probs) h.log_prob += static_cast<double>(x);
  h.score = h.log_prob / length_penalty(static_cast<int>(h.log_probs.size()), alpha);
  return h;
}

// Whether a hypothesis whose tokens have the log-probability `best_sum` can still enter the n-best list: its
// log-probability can only decrease, and it is divided by at most the penalty of the longest target.
bool can_improve(const Sentence& sentence, const std::vector<Hypothesis>& finished, float best_sum) {
  const int nbest = sentence.settings->nbest;
  std::vector<double> scores;
  for (const Hypothesis& h : finished) scores.push_back(h.score);
  if (static_cast<int>(scores.size()) < nbest) return true;
  std::nth_element(scores.begin(), scores.begin() + (nbest - 1), scores.end(), std::greater<double>());
  const double best_score = static_cast<double>(best_sum) / length_penalty(sentence.limit, sentence.settings->alpha);
  return best_score > scores[static_cast<size_t>(nbest - 1)];
}

}  // namespace

// Expand the beam by one token and prune it to the best K candidates.  Finished ones are moved to the results.
void SearchBatch::expand(ActiveSentence& a, const TokenScores* scores) {
  std::vector<Candidate> candidates;
  const int length = static_cast<int>(a.beam[0].tokens.size()) + 1;
  const auto beam = static_cast<size_t>(a.sentence.settings->beam);
  const int32_t eos = a.sentence.settings->eos;
  for (size_t i = 0; i < a.beam.size(); ++i) {
    const TokenScores& row = scores[i];
    const auto add_candidate = [&](const TokenScore& next, bool truncated) {
      const float sum = a.beam[i].sum + next.log_prob;
      if (sum > MINUS_INFINITY) candidates.push_back({sum, i, next, truncated});
    };
    if (length <= a.sentence.prefix_length) {
      add_candidate(row.required, false);
    } else if (length == a.sentence.limit) {
      add_candidate(row.required, !row.top_k.empty() && row.top_k[0].token != eos);
    } else if (row.top_k.empty()) {
      add_candidate(row.required, false);
    } else {
      for (const TokenScore& next : row.top_k) add_candidate(next, false);
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& x, const Candidate& y) { return x.sum > y.sum; });
  if (candidates.size() > beam) candidates.resize(beam);
  std::vector<PartialHypothesis> expanded;
  std::vector<size_t> parents;
  for (const Candidate& candidate : candidates) {
    PartialHypothesis h = a.beam[candidate.parent];
    h.sum = candidate.sum;
    h.log_probs.push_back(candidate.next.log_prob);
    if (candidate.next.token == eos) {
      a.finished.push_back(finished_hypothesis(std::move(h.tokens), std::move(h.log_probs),
                                               a.sentence.settings->alpha, candidate.truncated));
      continue;
    }
    h.tokens.push_back(candidate.next.token);
    expanded.push_back(std::move(h));
    parents.push_back(candidate.parent);
  }
  // The candidates are sorted: the first one has the largest sum.
  const bool continues = !expanded.empty() && can_improve(a.sentence, a.finished, expanded[0].sum);
  if (continues) assign_slots(a, expanded, parents, length);
  a.beam = continues ? std::move(expanded) : std::vector<PartialHypothesis>();
}

// The first child of a hypothesis keeps its target slot; for the others it is copied to unused slots.
void SearchBatch::assign_slots(const ActiveSentence& a, std::vector<PartialHypothesis>& expanded,
                               const std::vector<size_t>& parents, int length) {
  std::vector<int> unused = a.target_slots;
  std::vector<size_t> copies;
  for (size_t i = 0; i < expanded.size(); ++i) {
    const auto found = std::find(unused.begin(), unused.end(), expanded[i].target_slot);
    if (found == unused.end()) {
      copies.push_back(i);
    } else {
      unused.erase(found);
    }
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    runner_.copy_slot(a.beam[parents[copies[i]]].target_slot, unused[i], length);
    expanded[copies[i]].target_slot = unused[i];
  }
}

}  // namespace dragoman
