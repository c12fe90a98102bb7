#include "output_projection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "simd.h"

namespace dragoman {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();
constexpr double LN_2 = 0.69314718055994530942;  // Windows has no M_LN2
constexpr int GROUP_BLOCKS = 4;  // blocks of the vocabulary whose sums are added up together

// The k largest logits of a row so far and their tokens, in descending order and padded to full vectors.
struct TopK {
  int k = 0;
  float* logits = nullptr;
  int32_t* tokens = nullptr;
  float* required = nullptr;  // logits of the required tokens

  // The logit that a token must exceed to enter.
  float threshold() const { return k == 0 ? -MINUS_INFINITY : logits[k - 1]; }

  // Of equal logits, the token inserted first stays first.  Lanes whose logit is at least the new one stay; the others
  // receive the new one or that of the lane before.
  void insert(float logit, int32_t token) {
    const VecF32 new_logit = broadcast(logit);
    VecF32 before = broadcast(-MINUS_INFINITY);
    VecI32 before_tokens = zeros_i32();
    for (int i = 0; i < k; i += VEC_SIZE) {
      const VecF32 old = load(logits + i), shifted = shift_in(before, old);
      const VecI32 old_tokens = load_i32(tokens + i), shifted_tokens = shift_in(before_tokens, old_tokens);
      const VecMask stays = at_least(old, new_logit), is_new = at_least(shifted, new_logit);
      store(logits + i, select(stays, old, select(is_new, new_logit, shifted)));
      store_i32(tokens + i, select(stays, old_tokens, select(is_new, broadcast_i32(token), shifted_tokens)));
      before = old;
      before_tokens = old_tokens;
    }
  }
};

// The memory of `TopK` for each row in each thread.
class TopKs {
 public:
  TopKs(size_t threads, size_t rows, const TokenQuery* queries) : all_(threads * rows) {
    size_t width = 0, required = 0;
    for (size_t r = 0; r < rows; ++r) {
      width = std::max(width, static_cast<size_t>((queries[r].top_k + VEC_SIZE - 1) / VEC_SIZE * VEC_SIZE));
      required = std::max(required, queries[r].required.size());
    }
    logits_.assign(all_.size() * width, MINUS_INFINITY);
    tokens_.assign(all_.size() * width, -1);
    required_.assign(all_.size() * required, MINUS_INFINITY);
    for (size_t i = 0; i < all_.size(); ++i) {
      all_[i] = {queries[i % rows].top_k, logits_.data() + i * width, tokens_.data() + i * width,
                 required_.data() + i * required};
    }
  }

  TopK& operator[](size_t i) { return all_[i]; }

 private:
  std::vector<TopK> all_;  // [threads][rows]
  std::vector<float> logits_, required_;
  std::vector<int32_t> tokens_;
};

// The sum of e^logit over the tokens of a group of blocks, divided by 2^reference so that it neither overflows nor
// vanishes: the reference is about the largest log2 e^logit that a thread has seen in the row.  Multiplying by powers of
// two is exact, so the sum depends neither on the reference nor on the number of threads.
struct GroupSum {
  float lanes[VEC_SIZE] = {};       // added up at the end of the group
  float reference = MINUS_INFINITY;  // integral
  float limit = MINUS_INFINITY;      // logit that requires a larger reference
  float lowest = MINUS_INFINITY;     // logit below which others are lost in rounding

  // Use the reference that suits a block whose largest logit is `maximum`.
  void raise(float maximum) {
    const float larger = std::nearbyint(maximum * LOG2_E);
    const float shift = std::max(reference - larger, -126.0f);  // smaller sums are lost in rounding anyway
    store(lanes, ldexp(load(lanes), broadcast(shift)));
    reference = larger;
    limit = (larger + HEADROOM) / LOG2_E;
    lowest = (larger - 120.0f) / LOG2_E;
  }

  void add_block(const float* logits) {
    const VecF32 shift = broadcast(reference);
    VecF32 total = load(lanes);
    for (int i = 0; i < OUTPUT_BLOCK; i += VEC_SIZE) {
      const VecF32 clipped = max(broadcast(lowest), load(logits + i));  // this operand order propagates NaN
      const ExpFactors e = shifted_exp(clipped, shift);
      total = fmadd(e.mantissa, e.power, total);
    }
    store(lanes, total);
  }

  float finish() {
    const float sum = reduce_sum(load(lanes));
    store(lanes, zeros());
    return sum;
  }

 private:
  static constexpr float HEADROOM = 60.0f;
};

bool any_greater(const float* logits, float limit) {
  uint32_t found = 0;
  for (int i = 0; i < OUTPUT_BLOCK; i += VEC_SIZE) found |= greater_mask(load(logits + i), broadcast(limit));
  return found != 0;
}

float maximum_of(const float* logits) {
  VecF32 maxima = load(logits);
  for (int i = VEC_SIZE; i < OUTPUT_BLOCK; i += VEC_SIZE) maxima = max(maxima, load(logits + i));
  return reduce_max(maxima);
}

// Process the logits (64,) of one row and one block of tokens first, ..., first + count - 1: update the sum and the top
// K.  Most blocks have no logit that changes anything but the sum.
void scan_block(float* logits, int first, int count, const TokenQuery& query, GroupSum& sum, TopK& top_k) {
  for (int i = count; i < OUTPUT_BLOCK; ++i) logits[i] = MINUS_INFINITY;
  for (size_t i = 0; i < query.required.size(); ++i) {
    const int32_t token = query.required[i];
    if (token >= first && token < first + count) top_k.required[i] = logits[token - first];
  }
  if (!any_greater(logits, std::min(sum.limit, top_k.threshold()))) {
    sum.add_block(logits);
    return;
  }
  const float maximum = maximum_of(logits);
  if (maximum > sum.limit) sum.raise(maximum);
  sum.add_block(logits);
  if (top_k.k == 0) return;
  for (const int32_t token : query.suppressed) {
    if (token >= first && token < first + count) logits[token - first] = MINUS_INFINITY;
  }
  for (int i = 0; i < OUTPUT_BLOCK; i += VEC_SIZE) {
    uint32_t mask = greater_mask(load(logits + i), broadcast(top_k.threshold()));
    for (; mask != 0; mask &= mask - 1) {
      const int index = i + __builtin_ctz(mask);
      top_k.insert(logits[index], first + index);
    }
  }
}

// log(sum of e^logit) from the sums of all groups and their references, both padded to full vectors.
float log_normalizer(const float* sums, const float* references, int padded) {
  VecF32 maxima = load(references);
  for (int g = VEC_SIZE; g < padded; g += VEC_SIZE) maxima = max(maxima, load(references + g));
  const float maximum = reduce_max(maxima);
  VecF32 total = zeros();
  for (int g = 0; g < padded; g += VEC_SIZE) {
    const VecF32 shift = max(broadcast(-126.0f), sub(load(references + g), broadcast(maximum)));
    total = add(total, ldexp(load(sums + g), shift));
  }
  int exponent;  // the logarithm of the mantissa does not depend on the reference
  const float mantissa = std::frexp(reduce_sum(total), &exponent);
  return static_cast<float>(std::log(mantissa) + (maximum + exponent) * LN_2);
}

void require_finite(float normalizer) {
  if (!std::isfinite(normalizer)) {
    throw std::runtime_error(
        "the model's output is NaN or infinite: the weights are damaged or the training diverged; load an earlier "
        "checkpoint");
  }
}

// `top_k_tokens` for rows that share one output matrix of `vocab` tokens.
void project(ThreadPool& pool, const PackedMatrix& m, int vocab, const GemmInput& in, const TokenQuery* queries,
             TokenScores* results) {
  const int blocks = m.outputs / OUTPUT_BLOCK;
  const int groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
  const int padded = (groups + VEC_SIZE - 1) / VEC_SIZE * VEC_SIZE;
  const size_t rows = static_cast<size_t>(in.rows);
  const size_t threads = static_cast<size_t>(pool.size());
  TopKs top_k(threads, rows, queries);
  std::vector<GroupSum> running(threads * rows);                                        // [threads][rows]
  std::vector<float> references(rows * static_cast<size_t>(padded), MINUS_INFINITY);  // [rows][padded]
  std::vector<float> sums(references.size(), 0.0f);                                   // [rows][padded]
  std::vector<float> logits(threads * rows * OUTPUT_BLOCK);                           // [threads][rows][64]
  pool.parallel_for(groups, double{1} * in.rows * m.outputs * m.inputs, [&](int thread, int begin, int end) {
    const size_t first_row = static_cast<size_t>(thread) * rows;
    float* block_logits = logits.data() + first_row * OUTPUT_BLOCK;
    for (int g = begin; g < end; ++g) {
      for (int b = g * GROUP_BLOCKS; b < std::min(blocks, (g + 1) * GROUP_BLOCKS); ++b) {
        gemm(m.block(b), in, block_logits, OUTPUT_BLOCK, false, 0, 1);
        const int count = std::min(OUTPUT_BLOCK, vocab - b * OUTPUT_BLOCK);
        for (size_t r = 0; r < rows; ++r) {
          scan_block(block_logits + r * OUTPUT_BLOCK, b * OUTPUT_BLOCK, count, queries[r], running[first_row + r],
                     top_k[first_row + r]);
        }
      }
      for (size_t r = 0; r < rows; ++r) {
        const size_t index = r * static_cast<size_t>(padded) + static_cast<size_t>(g);
        references[index] = running[first_row + r].reference;
        sums[index] = running[first_row + r].finish();
      }
    }
  });
  for (size_t r = 0; r < rows; ++r) {
    TopK& merged = top_k[r];
    for (size_t thread = 1; thread < threads; ++thread) {
      const TopK& other = top_k[thread * rows + r];
      for (size_t i = 0; i < queries[r].required.size(); ++i) {
        merged.required[i] = std::max(merged.required[i], other.required[i]);
      }
      for (int i = 0; i < other.k && other.logits[i] > merged.threshold(); ++i) {
        merged.insert(other.logits[i], other.tokens[i]);
      }
    }
    const size_t index = r * static_cast<size_t>(padded);
    const float normalizer = log_normalizer(&sums[index], &references[index], padded);
    require_finite(normalizer);
    results[r].top_k.reserve(static_cast<size_t>(merged.k));
    results[r].required.reserve(queries[r].required.size());
    for (int i = 0; i < merged.k && merged.logits[i] > MINUS_INFINITY; ++i) {
      results[r].top_k.push_back({merged.logits[i] - normalizer, merged.tokens[i]});
    }
    for (size_t i = 0; i < queries[r].required.size(); ++i) {
      results[r].required.push_back({merged.required[i] - normalizer, queries[r].required[i]});
    }
  }
}

// The same over a shortlist: token ids are translated to indices of the shortlist and back.
void project_shortlist(ThreadPool& pool, const Shortlist& shortlist, const GemmInput& in, const TokenQuery* queries,
                       TokenScores* results) {
  std::vector<TokenQuery> indexed(queries, queries + in.rows);
  for (TokenQuery& query : indexed) {
    for (int32_t& token : query.suppressed) token = shortlist.index_of(token);
    for (int32_t& token : query.required) token = shortlist.index_of(token);
  }
  project(pool, shortlist.matrix(), shortlist.count(), in, indexed.data(), results);
  for (int r = 0; r < in.rows; ++r) {
    for (TokenScore& s : results[r].top_k) s.token = shortlist.token(s.token);
    for (size_t i = 0; i < results[r].required.size(); ++i) results[r].required[i].token = queries[r].required[i];
  }
}

}  // namespace

std::vector<TokenScores> top_k_tokens(ModelRunner& runner, const std::vector<TokenQuery>& queries) {
  const GemmInput in = runner.hidden_states();
  std::vector<TokenScores> results(queries.size());
  for (size_t begin = 0, end = 0; begin < queries.size(); begin = end) {
    const Shortlist* shortlist = queries[begin].shortlist;
    while (end < queries.size() && queries[end].shortlist == shortlist) ++end;
    const GemmInput slice = in.slice(static_cast<int>(begin), static_cast<int>(end - begin));
    if (shortlist != nullptr) {
      project_shortlist(runner.pool(), *shortlist, slice, &queries[begin], &results[begin]);
    } else {
      project(runner.pool(), runner.model().output, runner.model().header().tgt_vocab, slice, &queries[begin],
              &results[begin]);
    }
  }
  return results;
}

void all_log_probs(ModelRunner& runner, float* log_probs) {
  const PackedMatrix& m = runner.model().output;
  const int vocab = runner.model().header().tgt_vocab;
  const int blocks = m.outputs / OUTPUT_BLOCK;
  const int groups = (blocks + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
  const int padded = (groups + VEC_SIZE - 1) / VEC_SIZE * VEC_SIZE;
  const GemmInput in = runner.hidden_states();
  std::vector<float> logits(static_cast<size_t>(in.rows) * static_cast<size_t>(m.outputs));  // [rows][outputs]
  std::vector<float> references(static_cast<size_t>(padded));
  std::vector<float> sums(references.size());
  runner.pool().parallel_for(blocks, double{1} * in.rows * m.outputs * m.inputs, [&](int, int begin, int end) {
    gemm(m, in, logits.data(), m.outputs, false, begin, end);
  });
  const TokenQuery no_query;
  TopK unused;
  for (int r = 0; r < in.rows; ++r) {
    float* row = logits.data() + static_cast<size_t>(r) * static_cast<size_t>(m.outputs);
    float* row_log_probs = log_probs + static_cast<size_t>(r) * static_cast<size_t>(vocab);
    std::fill(references.begin(), references.end(), MINUS_INFINITY);
    std::fill(sums.begin(), sums.end(), 0.0f);
    GroupSum running;
    for (int b = 0; b < blocks; ++b) {
      scan_block(row + static_cast<size_t>(b) * OUTPUT_BLOCK, b * OUTPUT_BLOCK,
                 std::min(OUTPUT_BLOCK, vocab - b * OUTPUT_BLOCK), no_query, running, unused);
      if ((b + 1) % GROUP_BLOCKS == 0 || b + 1 == blocks) {
        const auto group = static_cast<size_t>(b / GROUP_BLOCKS);
        references[group] = running.reference;
        sums[group] = running.finish();
      }
    }
    const float normalizer = log_normalizer(sums.data(), references.data(), padded);
    require_finite(normalizer);
    for (int i = 0; i < vocab; ++i) row_log_probs[i] = row[i] - normalizer;
  }
}

}  // namespace dragoman
