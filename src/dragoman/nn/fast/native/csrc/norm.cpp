// Dropout, residual connection and layer normalization in one pass.
#include <cmath>
#include <vector>

#include "kernels.h"
#include "row_sums.h"
#include "vector_math.h"

using namespace dragoman;

namespace {

// Bytes below `threshold` drop their element, the others are multiplied by `scale`.
struct Dropped {
  int threshold;
  float scale;
};

// sum = residual + dropout(x); return the sum of its elements.
float add_row(int64_t columns, Dropped dropped, const uint8_t* random, const float* x, const float* residual,
              uint16_t* kept, float* sum) {
  Vec total = all(0);
  for (int64_t j = 0; j < columns; j += 16) {
    const Lanes lanes = first_lanes(columns - j);
    Vec y = load(x + j, lanes);
    if (random != nullptr) {
      kept[j / 16] = kept_bits(random + j, columns - j, dropped.threshold);
      y = keep(kept[j / 16], y * all(dropped.scale));
    }
    y = y + load(residual + j, lanes);
    store(sum + j, y, lanes);
    total = total + y;
  }
  return reduce_sum(total);
}

// row = (row - mean) * inverse * weight + bias; return inverse.
float normalize_row(int64_t columns, float mean, float eps, const float* weight, const float* bias, float* row) {
  const Vec center = all(mean);
  Vec squares = all(0);
  for (int64_t j = 0; j < columns; j += 16) {
    const Vec y = load(row + j, first_lanes(columns - j), mean) - center;
    squares = fmadd(y, y, squares);
  }
  const float inverse = 1 / std::sqrt(reduce_sum(squares) / static_cast<float>(columns) + eps);
  for (int64_t j = 0; j < columns; j += 16) {
    const Lanes lanes = first_lanes(columns - j);
    const Vec y = (load(row + j, lanes) - center) * all(inverse);
    store(row + j, fmadd(y, load(weight + j, lanes), load(bias + j, lanes)), lanes);
  }
  return inverse;
}

// What the backward pass of a row reads: the parameters of the norm, and 1 / weight.
struct Parameters {
  int64_t columns;
  const float *weight, *bias, *reciprocal;

  // The result of the norm before weight and bias: of mean 0 and standard deviation 1.
  Vec normed(const float* out, int64_t j, Lanes lanes) const {
    return (load(out + j, lanes) - load(bias + j, lanes)) * load(reciprocal + j, lanes);
  }
};

// The means of the gradient of the normed row, and of its product with this row.
struct Means {
  float gradient, product;
};

// Return the means; add the gradients of weight and bias to `partial`.
Means backward_sums(const Parameters& p, const float* out, const float* grad, float* partial) {
  Vec total = all(0), along = all(0);
  for (int64_t j = 0; j < p.columns; j += 16) {
    const Lanes lanes = first_lanes(p.columns - j);
    const Vec n = p.normed(out, j, lanes), g = load(grad + j, lanes), scaled = g * load(p.weight + j, lanes);
    total = total + scaled;
    along = fmadd(scaled, n, along);
    float *of_weight = partial + j, *of_bias = partial + p.columns + j;
    store(of_weight, fmadd(g, n, load(of_weight, lanes)), lanes);
    store(of_bias, g + load(of_bias, lanes), lanes);
  }
  const float size = static_cast<float>(p.columns);
  return {reduce_sum(total) / size, reduce_sum(along) / size};
}

// Write the gradients of residual and x; kept: bits of this row, or null without dropout.
void backward_row(const Parameters& p, Means means, float inverse, float scale, const uint16_t* kept, const float* out,
                  const float* grad, float* grad_residual, float* grad_x) {
  for (int64_t j = 0; j < p.columns; j += 16) {
    const Lanes lanes = first_lanes(p.columns - j);
    const Vec centered = fmadd(load(grad + j, lanes), load(p.weight + j, lanes), all(-means.gradient));
    const Vec found = fmadd(all(-means.product), p.normed(out, j, lanes), centered) * all(inverse);
    store(grad_residual + j, found, lanes);
    if (kept != nullptr) store(grad_x + j, keep(kept[j / 16], found * all(scale)), lanes);
  }
}

}  // namespace

void dragoman_add_and_norm(int threads, int64_t rows, int64_t columns, int threshold, float scale,
                           const uint8_t* random, const float* x, const float* residual, const float* weight,
                           const float* bias, float eps, uint16_t* kept, float* inverse, float* out) {
  const int64_t words = (columns + 15) / 16;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t at = i * columns;
    const float total = add_row(columns, {threshold, scale}, random == nullptr ? nullptr : random + at, x + at, residual + at,
                                random == nullptr ? nullptr : kept + i * words, out + at);
    inverse[i] = normalize_row(columns, total / static_cast<float>(columns), eps, weight, bias, out + at);
  }
}

void dragoman_add_and_norm_backward(int threads, int64_t rows, int64_t columns, float scale, const uint16_t* kept,
                                    const float* out, const float* weight, const float* bias, const float* inverse,
                                    const float* grad, float* grad_residual, float* grad_x, float* sums) {
  const int64_t words = (columns + 15) / 16;
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
  sum_over_rows(threads, rows, 2 * columns, add_block, sums);
}
