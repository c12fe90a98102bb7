#include "words.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "simd.h"

namespace dragoman {
namespace {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// The best words of a row so far by their logits, best first.
struct Best {
  std::vector<Candidate> words;  // log_prob is still the logit
  float asked = NOTHING;

  // What a word must exceed to be among the best.
  float least(int width) const { return static_cast<int>(words.size()) < width ? NOTHING : words.back().log_prob; }

  // Of equal logits the word that came first stays first.
  void offer(float logit, int32_t word, int width) {
    size_t place = words.size();
    while (place > 0 && words[place - 1].log_prob < logit) --place;
    if (static_cast<int>(place) >= width) return;
    if (static_cast<int>(words.size()) == width) words.pop_back();
    words.insert(words.begin() + static_cast<std::ptrdiff_t>(place), Candidate{logit, word});
  }
};

// One row's logits of one block of words.  The sum of their exponentials is kept block by block, each beside its largest
// logit: what it comes to then depends neither on the rows beside it nor on the number of threads.
void look(float* logits, int first, int count, const Wish& wish, int width, float* top, float* part, Best& best) {
  for (int i = count; i < BLOCK; ++i) logits[i] = NOTHING;
  Vec most = load(logits);
  for (int i = W; i < BLOCK; i += W) most = larger(most, load(logits + i));
  *top = largest(most);
  Vec total = zero();
  for (int i = 0; i < BLOCK; i += W) total = add(total, exponential(minus(load(logits + i), all(*top))));
  *part = sum(total);  // padding adds e^-87 each, which no float sees beside 1
  if (wish.asked >= first && wish.asked < first + count) best.asked = logits[wish.asked - first];
  if (width == 0 || !(*top > best.least(width))) return;
  for (const int32_t word : wish.banned)
    if (word >= first && word < first + count) logits[word - first] = NOTHING;
  for (int i = 0; i < BLOCK; i += W)
    for (uint32_t good = above(load(logits + i), all(best.least(width))); good != 0; good &= good - 1) {
      const int place = i + __builtin_ctz(good);
      best.offer(logits[place], first + place, width);
    }
}

// log(sum of e^logit) from the blocks' largest logits and sums, both padded to whole vectors.
float log_sum(const float* tops, const float* parts, int padded) {
  Vec most = load(tops);
  for (int b = W; b < padded; b += W) most = larger(most, load(tops + b));
  const float top = largest(most);
  Vec total = zero();
  for (int b = 0; b < padded; b += W) total = fma(load(parts + b), exponential(minus(load(tops + b), all(top))), total);
  return top + std::log(sum(total));
}

void require_finite(float normaliser) {
  if (!std::isfinite(normaliser))
    throw std::runtime_error("the model's probabilities are not numbers (NaN): its weights are damaged or the training diverged; load an earlier checkpoint");
}

// `best_words` of rows that have one matrix of `vocab` words; a wish for each of them.
void find(Team& team, const Matrix& m, int vocab, const Inputs& in, const Wish* wishes, int width, Next* found) {
  const int blocks = m.out / BLOCK, padded = (blocks + W - 1) / W * W;
  const size_t rows = static_cast<size_t>(in.rows), threads = static_cast<size_t>(team.size());
  std::vector<Best> bests(threads * rows);
  for (Best& best : bests) best.words.reserve(static_cast<size_t>(width));  // so that no thread has to ask for memory
  std::vector<float> tops(rows * static_cast<size_t>(padded), NOTHING), parts(tops.size(), 0.0f), logits(threads * rows * BLOCK);
  team.share(blocks, double{1} * in.rows * m.out * m.in, [&](int thread, int begin, int end) {
    float* room = logits.data() + static_cast<size_t>(thread) * rows * BLOCK;
    for (int b = begin; b < end; ++b) {
      product(m.block(b), in, room, BLOCK, false, 0, 1);
      for (size_t r = 0; r < rows; ++r) {
        const size_t at = r * static_cast<size_t>(padded) + static_cast<size_t>(b);
        look(room + r * BLOCK, b * BLOCK, std::min(BLOCK, vocab - b * BLOCK), wishes[r], width, &tops[at], &parts[at],
             bests[static_cast<size_t>(thread) * rows + r]);
      }
    }
  });
  for (size_t r = 0; r < rows; ++r) {
    Best whole = std::move(bests[r]);
    for (size_t thread = 1; thread < threads; ++thread) {
      const Best& other = bests[thread * rows + r];
      whole.asked = std::max(whole.asked, other.asked);
      for (const Candidate& c : other.words) whole.offer(c.log_prob, c.word, width);
    }
    const size_t at = r * static_cast<size_t>(padded);
    const float normaliser = log_sum(&tops[at], &parts[at], padded);
    require_finite(normaliser);
    for (Candidate& c : whole.words) c.log_prob -= normaliser;
    found[r] = Next{std::move(whole.words), Candidate{whole.asked - normaliser, wishes[r].asked}};
  }
}

// The same among the words of a shortlist, which have numbers of their own in there.
void find_among(Team& team, const Shortlist& list, const Inputs& in, const Wish* wishes, int width, Next* found) {
  std::vector<Wish> own(wishes, wishes + in.rows);
  for (Wish& wish : own) {
    for (int32_t& word : wish.banned) word = list.place(word);
    wish.asked = list.place(wish.asked);
  }
  find(team, list.matrix(), list.count(), in, own.data(), width, found);
  for (int r = 0; r < in.rows; ++r) {
    for (Candidate& c : found[r].best) c.word = list.word(c.word);
    found[r].asked.word = wishes[r].asked;
  }
}

}  // namespace

std::vector<Next> best_words(Worker& worker, const std::vector<Wish>& wishes, int width) {
  const Inputs in = worker.hidden();
  std::vector<Next> found(wishes.size());
  for (size_t row = 0, end = 0; row < wishes.size(); row = end) {
    const Shortlist* among = wishes[row].among;
    while (end < wishes.size() && wishes[end].among == among) ++end;
    const Inputs some = in.part(static_cast<int>(row), static_cast<int>(end - row));
    if (among != nullptr) find_among(worker.team(), *among, some, &wishes[row], width, &found[row]);
    else find(worker.team(), worker.model().output, worker.model().sizes().tgt_vocab, some, &wishes[row], width, &found[row]);
  }
  return found;
}

void all_words(Worker& worker, float* log_probs) {
  const Matrix& m = worker.model().output;
  const int vocab = worker.model().sizes().tgt_vocab, blocks = m.out / BLOCK, padded = (blocks + W - 1) / W * W;
  const Inputs in = worker.hidden();
  std::vector<float> logits(static_cast<size_t>(in.rows) * static_cast<size_t>(m.out)), tops(static_cast<size_t>(padded)), parts(tops.size());
  worker.team().share(blocks, double{1} * in.rows * m.out * m.in, [&](int, int begin, int end) { product(m, in, logits.data(), m.out, false, begin, end); });
  Best nobody;
  for (int r = 0; r < in.rows; ++r) {
    float* row = logits.data() + static_cast<size_t>(r) * static_cast<size_t>(m.out);
    std::fill(tops.begin(), tops.end(), NOTHING), std::fill(parts.begin(), parts.end(), 0.0f);
    for (int b = 0; b < blocks; ++b)
      look(row + static_cast<size_t>(b) * BLOCK, b * BLOCK, std::min(BLOCK, vocab - b * BLOCK), Wish{{}, -1, nullptr}, 0, &tops[static_cast<size_t>(b)], &parts[static_cast<size_t>(b)], nobody);
    const float normaliser = log_sum(tops.data(), parts.data(), padded);
    require_finite(normaliser);
    for (int i = 0; i < vocab; ++i) log_probs[static_cast<size_t>(r) * static_cast<size_t>(vocab) + static_cast<size_t>(i)] = row[i] - normaliser;
  }
}

}  // namespace dragoman
