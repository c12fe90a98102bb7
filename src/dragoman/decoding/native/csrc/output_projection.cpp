#include "output_projection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "simd.h"

namespace dragoman {
namespace {

constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

// The K largest logits of a row so far, in descending order.
struct TopK {
  std::vector<TokenScore> tokens;  // log_prob holds the logit
  std::vector<float> required;     // logits of the required tokens

  // The logit that a token must exceed to enter.
  float threshold(int k) const { return static_cast<int>(tokens.size()) < k ? MINUS_INFINITY : tokens.back().log_prob; }

  // Of equal logits, the token inserted first stays first.
  void insert(float logit, int32_t token, int k) {
    size_t index = tokens.size();
    while (index > 0 && tokens[index - 1].log_prob < logit) --index;
    if (static_cast<int>(index) >= k) return;
    if (static_cast<int>(tokens.size()) == k) tokens.pop_back();
    tokens.insert(tokens.begin() + static_cast<std::ptrdiff_t>(index), TokenScore{logit, token});
  }
};

// Process the logits (64,) of one row and one block of tokens first, ..., first + count - 1: write the maximum and the
// sum of e^(logit - maximum), and update the top K.
// The sums are kept per block, each relative to the maximum of its block, so the normalizer depends neither on the
// batch nor on the number of threads.
void scan_block(float* logits, int first, int count, const TokenQuery& query, float* block_max, float* block_sum,
                TopK& top_k) {
  const int k = query.top_k;
  for (int i = count; i < OUTPUT_BLOCK; ++i) logits[i] = MINUS_INFINITY;
  VecF32 maxima = load(logits);
  for (int i = VEC_SIZE; i < OUTPUT_BLOCK; i += VEC_SIZE) maxima = max(maxima, load(logits + i));
  *block_max = reduce_max(maxima);
  VecF32 total = zeros();
  for (int i = 0; i < OUTPUT_BLOCK; i += VEC_SIZE) {
    total = add(total, exp(sub(load(logits + i), broadcast(*block_max))));
  }
  *block_sum = reduce_sum(total);  // padding adds e^-87 per element, which rounding removes from a sum of at least 1
  for (size_t i = 0; i < query.required.size(); ++i) {
    const int32_t token = query.required[i];
    if (token >= first && token < first + count) top_k.required[i] = logits[token - first];
  }
  if (k == 0 || !(*block_max > top_k.threshold(k))) return;
  for (const int32_t token : query.suppressed) {
    if (token >= first && token < first + count) logits[token - first] = MINUS_INFINITY;
  }
  for (int i = 0; i < OUTPUT_BLOCK; i += VEC_SIZE) {
    uint32_t mask = greater_mask(load(logits + i), broadcast(top_k.threshold(k)));
    for (; mask != 0; mask &= mask - 1) {
      const int index = i + __builtin_ctz(mask);
      top_k.insert(logits[index], first + index, k);
    }
  }
}

// log(sum of e^logit) from the maxima and sums of all blocks, both padded to full vectors.
float log_normalizer(const float* block_max, const float* block_sum, int padded) {
  VecF32 maxima = load(block_max);
  for (int b = VEC_SIZE; b < padded; b += VEC_SIZE) maxima = max(maxima, load(block_max + b));
  const float maximum = reduce_max(maxima);
  VecF32 total = zeros();
  for (int b = 0; b < padded; b += VEC_SIZE) {
    total = fmadd(load(block_sum + b), exp(sub(load(block_max + b), broadcast(maximum))), total);
  }
  return maximum + std::log(reduce_sum(total));
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
  const int padded = (blocks + VEC_SIZE - 1) / VEC_SIZE * VEC_SIZE;
  const size_t rows = static_cast<size_t>(in.rows);
  const size_t threads = static_cast<size_t>(pool.size());
  std::vector<TopK> top_k(threads * rows);                               // [threads][rows]
  for (size_t i = 0; i < top_k.size(); ++i) {  // no allocation inside the parallel loop
    top_k[i].tokens.reserve(static_cast<size_t>(queries[i % rows].top_k));
    top_k[i].required.assign(queries[i % rows].required.size(), MINUS_INFINITY);
  }
  std::vector<float> block_max(rows * static_cast<size_t>(padded), MINUS_INFINITY);  // [rows][padded]
  std::vector<float> block_sum(block_max.size(), 0.0f);                              // [rows][padded]
  std::vector<float> logits(threads * rows * OUTPUT_BLOCK);                          // [threads][rows][64]
  pool.parallel_for(blocks, double{1} * in.rows * m.outputs * m.inputs, [&](int thread, int begin, int end) {
    float* block_logits = logits.data() + static_cast<size_t>(thread) * rows * OUTPUT_BLOCK;
    for (int b = begin; b < end; ++b) {
      gemm(m.block(b), in, block_logits, OUTPUT_BLOCK, false, 0, 1);
      for (size_t r = 0; r < rows; ++r) {
        const size_t index = r * static_cast<size_t>(padded) + static_cast<size_t>(b);
        scan_block(block_logits + r * OUTPUT_BLOCK, b * OUTPUT_BLOCK, std::min(OUTPUT_BLOCK, vocab - b * OUTPUT_BLOCK),
                   queries[r], &block_max[index], &block_sum[index], top_k[static_cast<size_t>(thread) * rows + r]);
      }
    }
  });
  for (size_t r = 0; r < rows; ++r) {
    TopK merged = std::move(top_k[r]);
    for (size_t thread = 1; thread < threads; ++thread) {
      const TopK& other = top_k[thread * rows + r];
      for (size_t i = 0; i < merged.required.size(); ++i) {
        merged.required[i] = std::max(merged.required[i], other.required[i]);
      }
      for (const TokenScore& s : other.tokens) merged.insert(s.log_prob, s.token, queries[r].top_k);
    }
    const size_t index = r * static_cast<size_t>(padded);
    const float normalizer = log_normalizer(&block_max[index], &block_sum[index], padded);
    require_finite(normalizer);
    for (TokenScore& s : merged.tokens) s.log_prob -= normalizer;
    results[r].top_k = std::move(merged.tokens);
    for (size_t i = 0; i < merged.required.size(); ++i) {
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
  const int padded = (blocks + VEC_SIZE - 1) / VEC_SIZE * VEC_SIZE;
  const GemmInput in = runner.hidden_states();
  std::vector<float> logits(static_cast<size_t>(in.rows) * static_cast<size_t>(m.outputs));  // [rows][outputs]
  std::vector<float> block_max(static_cast<size_t>(padded));
  std::vector<float> block_sum(block_max.size());
  runner.pool().parallel_for(blocks, double{1} * in.rows * m.outputs * m.inputs, [&](int, int begin, int end) {
    gemm(m, in, logits.data(), m.outputs, false, begin, end);
  });
  const TokenQuery no_query;
  TopK unused;
  for (int r = 0; r < in.rows; ++r) {
    float* row = logits.data() + static_cast<size_t>(r) * static_cast<size_t>(m.outputs);
    float* row_log_probs = log_probs + static_cast<size_t>(r) * static_cast<size_t>(vocab);
    std::fill(block_max.begin(), block_max.end(), MINUS_INFINITY);
    std::fill(block_sum.begin(), block_sum.end(), 0.0f);
    for (int b = 0; b < blocks; ++b) {
      scan_block(row + static_cast<size_t>(b) * OUTPUT_BLOCK, b * OUTPUT_BLOCK,
                 std::min(OUTPUT_BLOCK, vocab - b * OUTPUT_BLOCK), no_query, &block_max[static_cast<size_t>(b)],
                 &block_sum[static_cast<size_t>(b)], unused);
    }
    const float normalizer = log_normalizer(block_max.data(), block_sum.data(), padded);
    require_finite(normalizer);
    for (int i = 0; i < vocab; ++i) row_log_probs[i] = row[i] - normalizer;
  }
}

}  // namespace dragoman
