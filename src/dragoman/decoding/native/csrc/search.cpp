#include "search.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "words.h"

// Bytes that a search has used from which on they are lent to the system; bench/sanitized.py takes 0, and spoils what is lent.
#ifndef DRAGOMAN_LENT
#define DRAGOMAN_LENT (16 << 20)
#endif

namespace dragoman {
namespace {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();
constexpr int ENCODED_AT_ONCE = 512;  // source words: enough for the products, small enough for the second cache

bool stopped(const int32_t* stop) { return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; }

double penalty(int length, double alpha) { return std::pow((5.0 + length) / 6.0, alpha); }

// A hypothesis that goes on.
struct Beam {
  std::vector<int32_t> words;
  std::vector<float> log_probs;
  float sum = 0;
  int slot = 0;
};

// A sentence at work, in a place of its own: `beam` slots and one memory of the source.
struct Active {
  int sentence = 0, place = 0;
  const Shortlist* words = nullptr;
  std::vector<Beam> beams;
};

int64_t length_of(const Ragged& rows, int row) { return rows.offsets[row + 1] - rows.offsets[row]; }

// What sentences take while they are at work.
Usage& operator+=(Usage& a, const Usage& b) {
  a.rows += b.rows, a.source_tokens += b.source_tokens, a.bytes += b.bytes;
  return a;
}
Usage& operator-=(Usage& a, const Usage& b) { return a += {-b.rows, -b.source_tokens, -b.bytes}; }

// The sentences, what each of them takes, and the places that a worker needs for them.  The largest come first: what is
// short fills the gaps at the end.
class Plan {
 public:
  Plan(const Model& model, const Request& request, int workers)
      : most_{request.settings.rows, request.settings.source_tokens, request.settings.memory / workers}, order_(static_cast<size_t>(request.count)) {
    const Settings& s = request.settings;
    for (int i = 0; i < request.count; ++i) {
      const int source = static_cast<int>(length_of(request.sources, i));
      const int list = request.shortlists.offsets == nullptr ? 0 : static_cast<int>(length_of(request.shortlists, i));
      costs_.push_back({s.beam, int64_t{s.beam} * source, Worker::bytes_of(model, s.beam, request.limits[i], source, list)});
      listed = std::max(listed, list);
    }
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) { return cost(a).bytes > cost(b).bytes; });
    lay_out(request);
  }

  const Usage& cost(int sentence) const { return costs_[static_cast<size_t>(sentence)]; }

  // The next sentence, if the worker has room for it beside what it has: one always fits a worker that has none.
  int next(const Usage& taken) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (taken_ == order_.size()) return -1;
    const int sentence = order_[taken_];
    Usage with = taken;
    with += cost(sentence);
    if (taken.rows > 0 && (with.rows > most_.rows || with.source_tokens > most_.source_tokens || with.bytes > most_.bytes)) return -1;
    ++taken_;
    return sentence;
  }
  void close() {
    std::lock_guard<std::mutex> lock(mutex_);
    taken_ = order_.size();
  }

  std::vector<int> slots, sources;  // target positions of each slot, `beam` slots a place; source words of each place
  int listed = 0;                   // words of the longest shortlist

 private:
  // A worker takes another place when all that it has are taken, so place p is first given to a sentence of which p larger
  // ones are at work: it is at least the p-th in order, and p + 1 of its size fit into the memory.  Later ones are smaller.
  void lay_out(const Request& request) {
    const size_t count = order_.size();
    std::vector<int> limit(count), source(count);  // the largest of the i-th and all that follow
    for (size_t i = count; i-- > 0;) {
      const int sentence = order_[i], words = std::max(1, static_cast<int>(length_of(request.sources, sentence)));
      limit[i] = std::max(request.limits[sentence], i + 1 < count ? limit[i + 1] : 1);
      source[i] = std::max(words, i + 1 < count ? source[i + 1] : 1);
    }
    const auto least = std::min_element(costs_.begin(), costs_.end(), [](const Usage& a, const Usage& b) { return a.source_tokens < b.source_tokens; });
    for (size_t place = 0, first = 0; place < count; ++place) {
      const auto places = static_cast<int64_t>(place) + 1;
      if (place > 0 && (places * least->rows > most_.rows || places * least->source_tokens > most_.source_tokens)) break;
      first = std::max(first, place);
      while (place > 0 && first < count && cost(order_[first]).bytes > most_.bytes / places) ++first;
      if (first == count) break;
      slots.insert(slots.end(), static_cast<size_t>(request.settings.beam), limit[first]);
      sources.push_back(source[first]);
    }
  }

  const Usage most_;
  std::vector<Usage> costs_;
  std::vector<int> order_;
  std::mutex mutex_;
  size_t taken_ = 0;
};

class Searcher {
 public:
  Searcher(Worker& worker, const Request& request, Plan& plan, std::vector<std::vector<Hypothesis>>& found, const int32_t* stop)
      : worker_(worker), request_(request), s_(request.settings), plan_(plan), found_(found), stop_(stop) {
    worker_.reserve(plan.slots, plan.sources, plan.listed);
    for (int place = static_cast<int>(plan.sources.size()); place-- > 0;) free_.push_back(place);
    attention_at_.push_back(0);
    for (int i = 0; request.attention != nullptr && i < request.count; ++i)
      attention_at_.push_back(attention_at_.back() + length_of(request.sources, i) * request.limits[i]);
  }

  void run() {
    for (admit(); !active_.empty() && !stopped(stop_); admit()) {
      std::vector<Row> rows;
      std::vector<Wish> wishes;
      for (const Active& a : active_)
        for (const Beam& b : a.beams) {
          const int position = static_cast<int>(b.words.size());
          rows.push_back({position == 0 ? s_.bos : b.words.back(), position, b.slot, a.place, attention_of(a.sentence, position)});
          wishes.push_back(wish(a, b));
        }
      worker_.step(rows.data(), static_cast<int>(rows.size()));
      const std::vector<Next> next = best_words(worker_, wishes, s_.beam);
      size_t row = 0;
      for (Active& a : active_) {
        const size_t first = row;
        row += a.beams.size();
        advance(a, &next[first]);
      }
      const auto done = [](const Active& a) { return a.beams.empty(); };
      for (const Active& a : active_)
        if (done(a)) finish(a);
      active_.erase(std::remove_if(active_.begin(), active_.end(), done), active_.end());
    }
  }

  const Usage& most() const { return most_; }

 private:
  int prefix_length(int sentence) const { return static_cast<int>(length_of(request_.prefixes, sentence)); }

  // Where a step's attention goes, if it is wanted.
  float* attention_of(int sentence, int position) const {
    if (request_.attention == nullptr) return nullptr;
    return request_.attention + attention_at_[static_cast<size_t>(sentence)] + length_of(request_.sources, sentence) * position;
  }

  void admit() {
    while (!free_.empty()) {
      std::vector<int32_t> tokens, lengths, places;
      while (!free_.empty() && static_cast<int>(tokens.size()) < ENCODED_AT_ONCE) {
        const int sentence = plan_.next(taken_);
        if (sentence < 0) break;
        take(plan_.cost(sentence));
        Active a;
        a.sentence = sentence, a.place = free_.back();
        free_.pop_back();
        Beam first;
        first.slot = a.place * s_.beam;
        a.beams.push_back(std::move(first));
        const int64_t begin = request_.sources.offsets[sentence], end = request_.sources.offsets[sentence + 1];
        tokens.insert(tokens.end(), request_.sources.ids + begin, request_.sources.ids + end);
        lengths.push_back(static_cast<int32_t>(end - begin)), places.push_back(a.place);
        if (const Ragged& lists = request_.shortlists; lists.offsets != nullptr)
          a.words = worker_.allow(a.place, lists.ids + lists.offsets[sentence], static_cast<int>(length_of(lists, sentence)));
        active_.push_back(std::move(a));
      }
      if (places.empty()) return;
      if (worker_.model().sizes().encoder_layers > 0) worker_.encode(tokens.data(), lengths.data(), places.data(), static_cast<int>(places.size()));
    }
  }

  void take(const Usage& cost) {
    taken_ += cost;
    most_ = {std::max(most_.rows, taken_.rows), std::max(most_.source_tokens, taken_.source_tokens), std::max(most_.bytes, taken_.bytes)};
  }

  // The forced word, or what may not come: padding, the begin, an end that is too early, a repeated n-gram.
  Wish wish(const Active& a, const Beam& b) const {
    Wish w;
    w.among = a.words;
    const int position = static_cast<int>(b.words.size());
    w.asked = position < prefix_length(a.sentence) ? request_.prefixes.ids[request_.prefixes.offsets[a.sentence] + position] : s_.eos;
    w.banned = {s_.pad, s_.bos};
    if (position < s_.min_length) w.banned.push_back(s_.eos);
    const int n = s_.no_repeat_ngram;
    for (int i = 0; n > 0 && i + n <= position; ++i)  // where the last n - 1 words stood before: what followed them
      if (std::equal(b.words.begin() + i, b.words.begin() + i + n - 1, b.words.end() - (n - 1))) w.banned.push_back(b.words[static_cast<size_t>(i + n - 1)]);
    return w;
  }

  // The continuations of all beams; the best K of them: what ends goes to the pool, the rest goes on.
  void advance(Active& a, const Next* next) {
    struct Way { float sum; size_t beam; Candidate to; bool cut; };
    std::vector<Way> ways;
    const int length = static_cast<int>(a.beams[0].words.size()) + 1, limit = request_.limits[a.sentence];
    for (size_t i = 0; i < a.beams.size(); ++i) {
      const Next& n = next[i];
      const auto add = [&](const Candidate& c, bool cut) {
        const float sum = a.beams[i].sum + c.log_prob;
        if (sum > NOTHING) ways.push_back({sum, i, c, cut});
      };
      if (length <= prefix_length(a.sentence)) add(n.asked, false);
      else if (length == limit) add(n.asked, !n.best.empty() && n.best[0].word != s_.eos);
      else if (n.best.empty()) add(n.asked, false);
      else for (const Candidate& c : n.best) add(c, false);
    }
    std::stable_sort(ways.begin(), ways.end(), [](const Way& x, const Way& y) { return x.sum > y.sum; });
    if (static_cast<int>(ways.size()) > s_.beam) ways.resize(static_cast<size_t>(s_.beam));
    std::vector<Beam> grown;
    std::vector<size_t> parents;
    for (const Way& way : ways) {
      Beam b = a.beams[way.beam];
      b.sum = way.sum, b.log_probs.push_back(way.to.log_prob);
      if (way.to.word == s_.eos) {
        collect(a.sentence, std::move(b), way.cut);
        continue;
      }
      b.words.push_back(way.to.word);
      grown.push_back(std::move(b)), parents.push_back(way.beam);
    }
    const bool on = goes_on(a.sentence, grown);
    if (on) settle(a, grown, parents, length);
    a.beams = on ? std::move(grown) : std::vector<Beam>();
  }

  // The first child of a beam keeps its slot; the others copy it to slots that nobody keeps.
  void settle(const Active& a, std::vector<Beam>& grown, const std::vector<size_t>& parents, int length) {
    std::vector<char> kept(static_cast<size_t>(s_.beam), 0);
    std::vector<size_t> copies;
    for (size_t i = 0; i < grown.size(); ++i) {
      char& taken = kept[static_cast<size_t>(grown[i].slot - a.place * s_.beam)];
      if (taken != 0) copies.push_back(i);
      taken = 1;
    }
    int spare = 0;
    for (const size_t i : copies) {
      while (kept[static_cast<size_t>(spare)] != 0) ++spare;
      kept[static_cast<size_t>(spare)] = 1;
      const int to = a.place * s_.beam + spare;
      worker_.copy(a.beams[parents[i]].slot, to, length);
      grown[i].slot = to;
    }
  }

  void collect(int sentence, Beam&& b, bool cut) {
    Hypothesis h;
    h.words = std::move(b.words), h.log_probs = std::move(b.log_probs), h.truncated = cut;
    for (const float x : h.log_probs) h.log_prob += static_cast<double>(x);
    h.score = h.log_prob / penalty(static_cast<int>(h.log_probs.size()), s_.alpha);
    found_[static_cast<size_t>(sentence)].push_back(std::move(h));
  }

  // Whether one that goes on can still be among the n best: a sum only falls, and is divided by at most the last penalty.
  bool goes_on(int sentence, const std::vector<Beam>& beams) const {
    if (beams.empty()) return false;
    float most = beams[0].sum;
    for (const Beam& b : beams) most = std::max(most, b.sum);
    std::vector<double> scores;
    for (const Hypothesis& h : found_[static_cast<size_t>(sentence)]) scores.push_back(h.score);
    if (static_cast<int>(scores.size()) < s_.nbest) return true;
    std::nth_element(scores.begin(), scores.begin() + (s_.nbest - 1), scores.end(), std::greater<double>());
    return static_cast<double>(most) / penalty(request_.limits[sentence], s_.alpha) > scores[static_cast<size_t>(s_.nbest - 1)];
  }

  void finish(const Active& a) {
    auto& pool = found_[static_cast<size_t>(a.sentence)];
    if (pool.empty()) throw std::runtime_error("no translation has a probability above 0: the model's output is not finite; retrain it");
    std::stable_sort(pool.begin(), pool.end(), [](const Hypothesis& x, const Hypothesis& y) { return x.score > y.score; });
    if (static_cast<int>(pool.size()) > s_.nbest) pool.resize(static_cast<size_t>(s_.nbest));
    free_.push_back(a.place);
    taken_ -= plan_.cost(a.sentence);
  }

  Worker& worker_;
  const Request& request_;
  const Settings& s_;
  Plan& plan_;
  std::vector<std::vector<Hypothesis>>& found_;
  const int32_t* stop_;
  std::vector<Active> active_;
  std::vector<int> free_;
  Usage taken_{}, most_{};  // now, and at any time
  std::vector<int64_t> attention_at_;  // where each sentence's begins
};

}  // namespace

// A forked process has the crews of its parent, but not their threads: they can neither work nor be sent away.
void Crews::forget_the_parents() {
  if (process_ == getpid()) return;
  for (auto& crew : idle_) crew.release();
  idle_.clear(), process_ = getpid();
}

std::unique_ptr<Crew> Crews::take(const Model& model, int threads) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    forget_the_parents();
    for (auto& crew : idle_)
      if (crew->team.size() == threads) {
        std::swap(crew, idle_.back());
        std::unique_ptr<Crew> found = std::move(idle_.back());
        idle_.pop_back();
        return found;
      }
  }
  return std::make_unique<Crew>(model, threads);
}

// Fresh memory has to be cleared, which takes a good part of the next search: even a large crew keeps its own, as far as the
// system does not need it meanwhile.
void Crews::give(std::unique_ptr<Crew> crew) {
  constexpr size_t MOST_BYTES = 256 << 20, MOST_CREWS = 64;
  std::lock_guard<std::mutex> lock(mutex_);
  size_t idle = crew->worker.bytes();
  for (const auto& other : idle_) idle += other->worker.bytes();
  if (idle > MOST_BYTES || idle_.size() >= MOST_CREWS) return;
  if (crew->worker.used() > DRAGOMAN_LENT) crew->worker.lend();
  idle_.push_back(std::move(crew));
}

// Many sentences: one to a thread at a time.  Fewer than threads: several threads on each step of one.
std::vector<std::vector<Hypothesis>> search(const Model& model, Crews& crews, const Request& request, const int32_t* stop) {
  std::vector<std::vector<Hypothesis>> found(static_cast<size_t>(request.count));
  if (request.count == 0) return found;
  const int threads = request.settings.threads, workers = std::min(threads, request.count);
  Plan plan(model, request, workers);
  Usage most{};
  std::exception_ptr failure;
  std::mutex mutex;
  // Every thread belongs to a crew: the first crews have one more where they cannot all have the same number.
  const auto work = [&](int number) {
    try {
      std::unique_ptr<Crew> crew = crews.take(model, threads / workers + (number < threads % workers));
      Searcher searcher(crew->worker, request, plan, found, stop);
      searcher.run();
      const Usage its = searcher.most();
      crews.give(std::move(crew));
      std::lock_guard<std::mutex> lock(mutex);
      most = {std::max(most.rows, its.rows), std::max(most.source_tokens, its.source_tokens), std::max(most.bytes, its.bytes)};
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
      plan.close();  // so that the others need not finish what nobody will see
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(workers));
  try {
    for (int i = 1; i < workers; ++i) others.emplace_back(work, i);
  } catch (const std::exception&) {  // fewer threads than asked for: the work is the same
  }
  work(0);
  for (auto& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
  if (stopped(stop)) throw std::runtime_error("interrupted");
  if (request.usage != nullptr) *request.usage = most;
  return found;
}

}  // namespace dragoman
