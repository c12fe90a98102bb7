#include "beam_search.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "output_projection.h"
#include "scheduler.h"

namespace dragoman {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr int ENCODER_BATCH_TOKENS = 512;  // large enough for efficient products, small enough for the L2 cache

bool is_set(const int32_t* stop) { return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; }

double length_penalty(int length, double alpha) { return std::pow((5.0 + length) / 6.0, alpha); }

struct PartialHypothesis {
  std::vector<int32_t> tokens;
  std::vector<float> log_probs;
  float sum = 0;  // of log_probs
  int target_slot = 0;
};

// A sentence that is being decoded.  It owns one source slot and the `beam` target slots beginning at source_slot *
// beam.
struct ActiveSentence {
  int sentence = 0;
  int source_slot = 0;
  const Shortlist* shortlist = nullptr;
  std::vector<PartialHypothesis> beam;  // empty: finished
};

// Decodes sentences of the scheduler in one worker until none is left.
class BeamSearch {
 public:
  BeamSearch(ModelRunner& runner, const SearchRequest& request, Scheduler& scheduler,
           std::vector<std::vector<Hypothesis>>& results, const int32_t* stop)
      : runner_(runner),
        request_(request),
        s_(request.settings),
        scheduler_(scheduler),
        results_(results),
        stop_(stop) {
    runner_.reserve(scheduler.target_lengths, scheduler.source_lengths, scheduler.max_shortlist);
    for (int slot = static_cast<int>(scheduler.source_lengths.size()); slot-- > 0;) free_slots_.push_back(slot);
    attention_offsets_.push_back(0);
    for (int i = 0; request.attention != nullptr && i < request.count; ++i) {
      attention_offsets_.push_back(attention_offsets_.back() + row_length(request.sources, i) * request.limits[i]);
    }
  }

  void run() {
    for (admit(); !active_.empty() && !is_set(stop_); admit()) {
      std::vector<StepRow> rows;
      std::vector<TokenQuery> queries;
      for (const ActiveSentence& a : active_) {
        for (const PartialHypothesis& h : a.beam) {
          const int position = static_cast<int>(h.tokens.size());
          const int32_t token = position == 0 ? s_.bos : h.tokens.back();
          rows.push_back({token, position, h.target_slot, a.source_slot, attention_row(a.sentence, position)});
          queries.push_back(make_query(a, h));
        }
      }
      runner_.step(rows.data(), static_cast<int>(rows.size()));
      const std::vector<TokenScores> scores = top_k_tokens(runner_, queries, s_.beam);
      size_t row = 0;
      for (ActiveSentence& a : active_) {
        const size_t first = row;
        row += a.beam.size();
        expand(a, &scores[first]);
      }
      const auto finished = [](const ActiveSentence& a) { return a.beam.empty(); };
      for (const ActiveSentence& a : active_) {
        if (finished(a)) finish(a);
      }
      active_.erase(std::remove_if(active_.begin(), active_.end(), finished), active_.end());
    }
  }

  const Usage& peak() const { return peak_; }

 private:
  int prefix_length(int sentence) const { return static_cast<int>(row_length(request_.prefixes, sentence)); }

  // Where the attention weights of a target position are written, or null.
  float* attention_row(int sentence, int position) const {
    if (request_.attention == nullptr) return nullptr;
    return request_.attention + attention_offsets_[static_cast<size_t>(sentence)] +
           row_length(request_.sources, sentence) * position;
  }

  // Fill free slots with sentences and encode their sources in batches.
  void admit() {
    while (!free_slots_.empty()) {
      std::vector<int32_t> tokens;
      std::vector<int32_t> lengths;
      std::vector<int32_t> source_slots;
      while (!free_slots_.empty() && static_cast<int>(tokens.size()) < ENCODER_BATCH_TOKENS) {
        const int sentence = scheduler_.next(in_use_);
        if (sentence < 0) break;
        in_use_ += scheduler_.cost(sentence);
        peak_ = elementwise_max(peak_, in_use_);
        ActiveSentence a;
        a.sentence = sentence;
        a.source_slot = free_slots_.back();
        free_slots_.pop_back();
        PartialHypothesis empty;
        empty.target_slot = a.source_slot * s_.beam;
        a.beam.push_back(std::move(empty));
        const int64_t begin = request_.sources.offsets[sentence];
        const int64_t end = request_.sources.offsets[sentence + 1];
        tokens.insert(tokens.end(), request_.sources.ids + begin, request_.sources.ids + end);
        lengths.push_back(static_cast<int32_t>(end - begin));
        source_slots.push_back(a.source_slot);
        if (const RaggedArray& lists = request_.shortlists; lists.offsets != nullptr) {
          a.shortlist = runner_.set_shortlist(a.source_slot, lists.ids + lists.offsets[sentence],
                                              static_cast<int>(row_length(lists, sentence)));
        }
        active_.push_back(std::move(a));
      }
      if (source_slots.empty()) return;
      if (runner_.model().header().encoder_layers > 0) {
        runner_.encode(tokens.data(), lengths.data(), source_slots.data(), static_cast<int>(source_slots.size()));
      }
    }
  }

  // The required token is the next one of the forced prefix, else the end of sentence.  Suppressed tokens: padding,
  // beginning of sentence, an end before min_length, and tokens that would repeat an n-gram.
  TokenQuery make_query(const ActiveSentence& a, const PartialHypothesis& h) const {
    TokenQuery query;
    query.shortlist = a.shortlist;
    const int position = static_cast<int>(h.tokens.size());
    query.required_token = position < prefix_length(a.sentence)
                               ? request_.prefixes.ids[request_.prefixes.offsets[a.sentence] + position]
                               : s_.eos;
    query.suppressed = {s_.pad, s_.bos};
    if (position < s_.min_length) query.suppressed.push_back(s_.eos);
    const int n = s_.no_repeat_ngram;
    for (int i = 0; n > 0 && i + n <= position; ++i) {
      // Suppress the token that followed an earlier occurrence of the last n - 1 tokens.
      if (std::equal(h.tokens.begin() + i, h.tokens.begin() + i + n - 1, h.tokens.end() - (n - 1))) {
        query.suppressed.push_back(h.tokens[static_cast<size_t>(i + n - 1)]);
      }
    }
    return query;
  }

  struct Candidate {
    float sum;
    size_t parent;  // index into the beam
    TokenScore next;
    bool truncated;  // the end of sentence was forced by the length limit
  };

  // Expand the beam by one token and prune it to the best K candidates.  Finished ones are moved to the results.
  void expand(ActiveSentence& a, const TokenScores* scores) {
    std::vector<Candidate> candidates;
    const int length = static_cast<int>(a.beam[0].tokens.size()) + 1;
    const int limit = request_.limits[a.sentence];
    for (size_t i = 0; i < a.beam.size(); ++i) {
      const TokenScores& row = scores[i];
      const auto add_candidate = [&](const TokenScore& next, bool truncated) {
        const float sum = a.beam[i].sum + next.log_prob;
        if (sum > MINUS_INFINITY) candidates.push_back({sum, i, next, truncated});
      };
      if (length <= prefix_length(a.sentence)) {
        add_candidate(row.required, false);
      } else if (length == limit) {
        add_candidate(row.required, !row.top_k.empty() && row.top_k[0].token != s_.eos);
      } else if (row.top_k.empty()) {
        add_candidate(row.required, false);
      } else {
        for (const TokenScore& next : row.top_k) add_candidate(next, false);
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& x, const Candidate& y) { return x.sum > y.sum; });
    if (static_cast<int>(candidates.size()) > s_.beam) candidates.resize(static_cast<size_t>(s_.beam));
    std::vector<PartialHypothesis> expanded;
    std::vector<size_t> parents;
    for (const Candidate& candidate : candidates) {
      PartialHypothesis h = a.beam[candidate.parent];
      h.sum = candidate.sum;
      h.log_probs.push_back(candidate.next.log_prob);
      if (candidate.next.token == s_.eos) {
        add_finished(a.sentence, std::move(h), candidate.truncated);
        continue;
      }
      h.tokens.push_back(candidate.next.token);
      expanded.push_back(std::move(h));
      parents.push_back(candidate.parent);
    }
    const bool continues = can_improve(a.sentence, expanded);
    if (continues) assign_slots(a, expanded, parents, length);
    a.beam = continues ? std::move(expanded) : std::vector<PartialHypothesis>();
  }

  // The first child of a hypothesis keeps its target slot; for the others it is copied to unused slots.
  void assign_slots(const ActiveSentence& a, std::vector<PartialHypothesis>& expanded,
                    const std::vector<size_t>& parents, int length) {
    const int first_slot = a.source_slot * s_.beam;
    std::vector<char> in_use(static_cast<size_t>(s_.beam), 0);
    std::vector<size_t> copies;
    for (size_t i = 0; i < expanded.size(); ++i) {
      char& used = in_use[static_cast<size_t>(expanded[i].target_slot - first_slot)];
      if (used != 0) copies.push_back(i);
      used = 1;
    }
    int unused = 0;
    for (const size_t i : copies) {
      while (in_use[static_cast<size_t>(unused)] != 0) ++unused;
      in_use[static_cast<size_t>(unused)] = 1;
      runner_.copy_slot(a.beam[parents[i]].target_slot, first_slot + unused, length);
      expanded[i].target_slot = first_slot + unused;
    }
  }

  void add_finished(int sentence, PartialHypothesis&& partial, bool truncated) {
    Hypothesis h;
    h.tokens = std::move(partial.tokens);
    h.log_probs = std::move(partial.log_probs);
    h.truncated = truncated;
    for (const float x : h.log_probs) h.log_prob += static_cast<double>(x);
    h.score = h.log_prob / length_penalty(static_cast<int>(h.log_probs.size()), s_.alpha);
    results_[static_cast<size_t>(sentence)].push_back(std::move(h));
  }

  // Whether a hypothesis of the beam can still enter the n-best list: its log-probability can only decrease, and it is
  // divided by at most the penalty of the longest target.
  bool can_improve(int sentence, const std::vector<PartialHypothesis>& beam) const {
    if (beam.empty()) return false;
    float best_sum = beam[0].sum;
    for (const PartialHypothesis& h : beam) best_sum = std::max(best_sum, h.sum);
    std::vector<double> scores;
    for (const Hypothesis& h : results_[static_cast<size_t>(sentence)]) scores.push_back(h.score);
    if (static_cast<int>(scores.size()) < s_.nbest) return true;
    std::nth_element(scores.begin(), scores.begin() + (s_.nbest - 1), scores.end(), std::greater<double>());
    const double best_score = static_cast<double>(best_sum) / length_penalty(request_.limits[sentence], s_.alpha);
    return best_score > scores[static_cast<size_t>(s_.nbest - 1)];
  }

  // Sort the n-best list of a finished sentence and free its slot.
  void finish(const ActiveSentence& a) {
    auto& hypotheses = results_[static_cast<size_t>(a.sentence)];
    if (hypotheses.empty()) {
      throw std::runtime_error(
          "no translation has a probability above 0: the model's output is not finite; load an earlier checkpoint");
    }
    std::stable_sort(hypotheses.begin(), hypotheses.end(),
                     [](const Hypothesis& x, const Hypothesis& y) { return x.score > y.score; });
    if (static_cast<int>(hypotheses.size()) > s_.nbest) hypotheses.resize(static_cast<size_t>(s_.nbest));
    free_slots_.push_back(a.source_slot);
    in_use_ -= scheduler_.cost(a.sentence);
  }

  ModelRunner& runner_;
  const SearchRequest& request_;
  const SearchSettings& s_;
  Scheduler& scheduler_;
  std::vector<std::vector<Hypothesis>>& results_;  // by sentence; each sentence is written by one worker only
  const int32_t* stop_;
  std::vector<ActiveSentence> active_;
  std::vector<int> free_slots_;  // source slots
  Usage in_use_{}, peak_{};
  std::vector<int64_t> attention_offsets_;  // by sentence, into request.attention
};

}  // namespace

// With at least as many sentences as threads, each worker has one thread.  With fewer sentences, there is one worker
// per sentence and the threads are divided among the workers.
std::vector<std::vector<Hypothesis>> beam_search(const Model& model, WorkerContextPool& contexts,
                                                 const SearchRequest& request, const int32_t* stop) {
  std::vector<std::vector<Hypothesis>> results(static_cast<size_t>(request.count));
  if (request.count == 0) return results;
  const int threads = request.settings.threads;
  const int workers = std::min(threads, request.count);
  Scheduler scheduler(model, request, workers);
  Usage peak{};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&](int worker) {
    try {
      // The first workers get one thread more if the threads cannot be divided equally.
      const int pool_size = threads / workers + (worker < threads % workers);
      std::unique_ptr<WorkerContext> context = contexts.acquire(model, pool_size);
      BeamSearch search(context->runner, request, scheduler, results, stop);
      search.run();
      const Usage worker_peak = search.peak();
      contexts.release(std::move(context));
      std::lock_guard<std::mutex> lock(mutex);
      peak = elementwise_max(peak, worker_peak);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
      scheduler.close();  // the other workers only finish what they have begun
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(workers));
  try {
    for (int i = 1; i < workers; ++i) others.emplace_back(work, i);
  } catch (const std::exception&) {
    // The system refused to create a thread: the existing workers decode all sentences.
  }
  work(0);
  for (auto& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
  if (is_set(stop)) throw std::runtime_error("interrupted");
  if (request.usage != nullptr) *request.usage = peak;
  return results;
}

}  // namespace dragoman
