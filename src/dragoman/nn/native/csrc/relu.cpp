#include "relu.h"

#include "row_sums.h"
#include "vector_math.h"

namespace dragoman {

void add_bias_relu(int threads, int64_t rows, int64_t columns, const float* bias, float* x) {
  const __m512 zero = _mm512_setzero_ps();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * columns;
    for (int64_t j = 0; j < columns; j += 16) {
      const __mmask16 lanes = first_lanes(columns - j);
      __m512 y = _mm512_maskz_loadu_ps(lanes, row + j);
      if (bias != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, bias + j));
      _mm512_mask_storeu_ps(row + j, lanes, _mm512_max_ps(zero, y));  // this order of the operands keeps NaN
    }
  }
}

void relu_backward(int threads, int64_t rows, int64_t columns, const float* hidden, float* grad, float* sums) {
  const auto add_block = [=](int64_t first, int64_t end, float* partial) {
    for (int64_t i = first; i < end; ++i) {
      const float* h = hidden + i * columns;
      float* g = grad + i * columns;
      for (int64_t j = 0; j < columns; j += 16) {
        const __mmask16 lanes = first_lanes(columns - j);
        const __m512 value = _mm512_maskz_loadu_ps(lanes, h + j);
        const __mmask16 passed = _mm512_mask_cmp_ps_mask(lanes, value, _mm512_setzero_ps(), _CMP_NLE_UQ);  // or NaN
        const __m512 y = _mm512_maskz_loadu_ps(passed, g + j);
        _mm512_mask_storeu_ps(g + j, lanes, y);
        _mm512_mask_storeu_ps(partial + j, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, partial + j), y));
      }
    }
  };
  sum_over_rows(threads, rows, columns, add_block, sums);
}

}  // namespace dragoman
