#include "norm.h"

#include <cmath>
#include <vector>

#include "row_sums.h"
#include "vector_math.h"

namespace dragoman {
namespace {

// sum = residual + dropout(x); return the sum of its elements.
float add_row(int64_t columns, Dropped dropped, const uint8_t* random, const float* x, const float* residual,
              uint16_t* kept, float* sum) {
  const __m128i limit = _mm_set1_epi8(static_cast<char>(dropped.threshold));
  const __m512 scale = _mm512_set1_ps(dropped.scale);
  __m512 total = _mm512_setzero_ps();
  for (int64_t j = 0; j < columns; j += 16) {
    const __mmask16 lanes = first_lanes(columns - j);
    __m512 y;
    if (random == nullptr) {
      y = _mm512_maskz_loadu_ps(lanes, x + j);
    } else {
      const __mmask16 stays = _mm_mask_cmpge_epu8_mask(lanes, _mm_maskz_loadu_epi8(lanes, random + j), limit);
      kept[j / 16] = stays;
      y = _mm512_maskz_mul_ps(stays, _mm512_maskz_loadu_ps(stays, x + j), scale);
    }
    y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, residual + j));
    _mm512_mask_storeu_ps(sum + j, lanes, y);
    total = _mm512_add_ps(total, y);
  }
  return _mm512_reduce_add_ps(total);
}

// row = (row - mean) * inverse * weight + bias; return inverse.
float normalize_row(int64_t columns, float mean, float eps, const float* weight, const float* bias, float* row) {
  const __m512 center = _mm512_set1_ps(mean);
  __m512 squares = _mm512_setzero_ps();
  for (int64_t j = 0; j < columns; j += 16) {
    const __mmask16 lanes = first_lanes(columns - j);
    const __m512 y = _mm512_maskz_sub_ps(lanes, _mm512_maskz_loadu_ps(lanes, row + j), center);
    squares = _mm512_fmadd_ps(y, y, squares);
  }
  const float inverse = 1 / std::sqrt(_mm512_reduce_add_ps(squares) / static_cast<float>(columns) + eps);
  const __m512 factor = _mm512_set1_ps(inverse);
  for (int64_t j = 0; j < columns; j += 16) {
    const __mmask16 lanes = first_lanes(columns - j);
    const __m512 y = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, row + j), center), factor);
    const __m512 w = _mm512_maskz_loadu_ps(lanes, weight + j), b = _mm512_maskz_loadu_ps(lanes, bias + j);
    _mm512_mask_storeu_ps(row + j, lanes, _mm512_fmadd_ps(y, w, b));
  }
  return inverse;
}

// What the backward pass of a row reads: the parameters of the norm, and 1 / weight.
struct Parameters {
  int64_t columns;
  const float *weight, *bias, *reciprocal;

  // The result of the norm before weight and bias: of mean 0 and standard deviation 1.
  __m512 normed(const float* out, int64_t j, __mmask16 lanes) const {
    const __m512 y = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, out + j), _mm512_maskz_loadu_ps(lanes, bias + j));
    return _mm512_mul_ps(y, _mm512_maskz_loadu_ps(lanes, reciprocal + j));
  }
};

// The means of the gradient of the normed row, and of its product with this row.
struct Means {
  float gradient, product;
};

// Return the means; add the gradients of weight and bias to `partial`.
Means backward_sums(const Parameters& p, const float* out, const float* grad, float* partial) {
  __m512 total = _mm512_setzero_ps(), along = _mm512_setzero_ps();
  for (int64_t j = 0; j < p.columns; j += 16) {
    const __mmask16 lanes = first_lanes(p.columns - j);
    const __m512 n = p.normed(out, j, lanes), g = _mm512_maskz_loadu_ps(lanes, grad + j);
    const __m512 scaled = _mm512_mul_ps(g, _mm512_maskz_loadu_ps(lanes, p.weight + j));
    total = _mm512_add_ps(total, scaled);
    along = _mm512_fmadd_ps(scaled, n, along);
    float *of_weight = partial + j, *of_bias = partial + p.columns + j;
    _mm512_mask_storeu_ps(of_weight, lanes, _mm512_fmadd_ps(g, n, _mm512_maskz_loadu_ps(lanes, of_weight)));
    _mm512_mask_storeu_ps(of_bias, lanes, _mm512_add_ps(g, _mm512_maskz_loadu_ps(lanes, of_bias)));
  }
  const float size = static_cast<float>(p.columns);
  return {_mm512_reduce_add_ps(total) / size, _mm512_reduce_add_ps(along) / size};
}

// Write the gradients of residual and x; kept: bits of this row, or null without dropout.
void backward_row(const Parameters& p, Means means, float inverse, float scale, const uint16_t* kept, const float* out,
                  const float* grad, float* grad_residual, float* grad_x) {
  const __m512 mean = _mm512_set1_ps(means.gradient), slope = _mm512_set1_ps(means.product);
  const __m512 factor = _mm512_set1_ps(inverse), kept_scale = _mm512_set1_ps(scale);
  for (int64_t j = 0; j < p.columns; j += 16) {
    const __mmask16 lanes = first_lanes(p.columns - j);
    const __m512 weight = _mm512_maskz_loadu_ps(lanes, p.weight + j);
    const __m512 centered = _mm512_fmsub_ps(_mm512_maskz_loadu_ps(lanes, grad + j), weight, mean);
    const __m512 found = _mm512_mul_ps(_mm512_fnmadd_ps(slope, p.normed(out, j, lanes), centered), factor);
    _mm512_mask_storeu_ps(grad_residual + j, lanes, found);
    if (kept != nullptr) _mm512_mask_storeu_ps(grad_x + j, lanes, _mm512_maskz_mul_ps(kept[j / 16], found, kept_scale));
  }
}

}  // namespace

void add_and_norm(int threads, NormSizes sizes, Dropped dropped, const uint8_t* random, const float* x,
                  const float* residual, const float* weight, const float* bias, float eps, uint16_t* kept,
                  float* inverse, float* out) {
  const int64_t columns = sizes.columns, words = (columns + 15) / 16;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < sizes.rows; ++i) {
    const int64_t at = i * columns;
    const float total = add_row(columns, dropped, random == nullptr ? nullptr : random + at, x + at, residual + at,
                                random == nullptr ? nullptr : kept + i * words, out + at);
    inverse[i] = normalize_row(columns, total / static_cast<float>(columns), eps, weight, bias, out + at);
  }
}

void add_and_norm_backward(int threads, NormSizes sizes, float scale, const uint16_t* kept, const float* out,
                           const float* weight, const float* bias, const float* inverse, const float* grad,
                           float* grad_residual, float* grad_x, float* sums) {
  const int64_t columns = sizes.columns, words = (columns + 15) / 16;
  std::vector<float> reciprocal(columns);
  for (int64_t j = 0; j < columns; ++j) reciprocal[j] = 1 / weight[j];
  const Parameters parameters{columns, weight, bias, reciprocal.data()};
  const auto add_block = [=, &parameters](int64_t first, int64_t end, float* partial) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t at = i * columns;
      const Means means = backward_sums(parameters, out + at, grad + at, partial);
      backward_row(parameters, means, inverse[i], scale, kept == nullptr ? nullptr : kept + i * words, out + at,
                   grad + at, grad_residual + at, grad_x + at);
    }
  };
  sum_over_rows(threads, sizes.rows, 2 * columns, add_block, sums);
}

}  // namespace dragoman
