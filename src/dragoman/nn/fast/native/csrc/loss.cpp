#include "loss.h"

#include <cmath>
#include <memory>

#include "vector_math.h"

namespace dragoman {
namespace {

struct RowLoss {
  double smoothed, nll;
};

RowLoss one_row(int64_t vocab, float* row, int64_t target, double smoothing) {
  __m512 highest = _mm512_set1_ps(-INFINITY), total = _mm512_setzero_ps();
  for (int64_t i = 0; i < vocab; i += 16) {
    const __mmask16 lanes = first_lanes(vocab - i);
    const __m512 x = _mm512_maskz_loadu_ps(lanes, row + i);
    highest = _mm512_mask_max_ps(highest, lanes, highest, x);
    total = _mm512_add_ps(total, x);
  }
  const float peak = _mm512_reduce_max_ps(highest), logit = row[target];
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < vocab; i += 16) {
    const __mmask16 lanes = first_lanes(vocab - i);
    const __m512 x = exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, row + i), _mm512_set1_ps(peak)));
    _mm_prefetch(row + vocab + i, _MM_HINT_T1);  // the next row arrives while this one is computed
    _mm512_mask_storeu_ps(row + i, lanes, x);
    sum = _mm512_mask_add_ps(sum, lanes, sum, x);
  }
  const double partition = sum_lanes(sum), log_partition = peak + std::log(partition);
  const __m512 inverse = _mm512_set1_ps(static_cast<float>(1 / partition));
  const __m512 share = _mm512_set1_ps(static_cast<float>(smoothing / static_cast<double>(vocab)));
  for (int64_t i = 0; i < vocab; i += 16) {
    const __mmask16 lanes = first_lanes(vocab - i);
    _mm512_mask_storeu_ps(row + i, lanes, _mm512_fmsub_ps(_mm512_maskz_loadu_ps(lanes, row + i), inverse, share));
  }
  row[target] -= static_cast<float>(1 - smoothing);
  const double nll = log_partition - logit, mean = sum_lanes(total) / static_cast<double>(vocab) - log_partition;
  return {(1 - smoothing) * nll - smoothing * mean, nll};
}

}  // namespace

void smoothed_loss(int threads, int64_t rows, int64_t vocab, float* logits, const int64_t* targets, double smoothing,
                   double* sums) {
  const auto losses = std::make_unique<RowLoss[]>(rows);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) losses[i] = one_row(vocab, logits + i * vocab, targets[i], smoothing);
  for (int64_t i = 0; i < rows; ++i) {  // in this order for any number of threads
    sums[0] += losses[i].smoothed;
    sums[1] += losses[i].nll;
  }
}

}  // namespace dragoman
