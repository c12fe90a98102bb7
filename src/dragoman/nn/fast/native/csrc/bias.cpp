#include "bias.h"

#include "row_sums.h"
#include "vector_math.h"

namespace dragoman {

void add_bias(int threads, int64_t rows, int64_t columns, const float* bias, float* x) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * columns;
    for (int64_t j = 0; j < columns; ++j) row[j] += bias[j];
  }
}

void sum_rows(int threads, int64_t rows, int64_t columns, const float* x, float* sums) {
  const auto add_block = [=](int64_t first, int64_t end, float* partial) {
    for (int64_t i = first; i < end; ++i) {
      for (int64_t j = 0; j < columns; ++j) partial[j] += x[i * columns + j];
    }
  };
  sum_over_rows(threads, rows, columns, add_block, sums);
}

void add_bias_relu(int threads, int64_t rows, int64_t columns, const float* bias, float* x, uint16_t* positive) {
  const __m512 zero = _mm512_setzero_ps();
  const int64_t words = (columns + 15) / 16;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * columns;
    for (int64_t j = 0; j < columns; j += 16) {
      const __mmask16 lanes = first_lanes(columns - j);
      __m512 y = _mm512_maskz_loadu_ps(lanes, row + j);
      if (bias != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, bias + j));
      _mm512_mask_storeu_ps(row + j, lanes, _mm512_max_ps(zero, y));  // this order of the operands keeps NaN
      positive[i * words + j / 16] = _mm512_mask_cmp_ps_mask(lanes, y, zero, _CMP_NLE_UQ);  // or NaN
    }
  }
}

void relu_backward(int threads, int64_t rows, int64_t columns, const uint16_t* positive, float* grad, float* sums) {
  const int64_t words = (columns + 15) / 16;
  const auto add_block = [=](int64_t first, int64_t end, float* partial) {
    for (int64_t i = first; i < end; ++i) {
      float* row = grad + i * columns;
      for (int64_t j = 0; j < columns; j += 16) {
        const __mmask16 lanes = first_lanes(columns - j);
        const __m512 y = _mm512_maskz_loadu_ps(positive[i * words + j / 16], row + j);
        _mm512_mask_storeu_ps(row + j, lanes, y);
        _mm512_mask_storeu_ps(partial + j, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, partial + j), y));
      }
    }
  };
  sum_over_rows(threads, rows, columns, add_block, sums);
}

}  // namespace dragoman
