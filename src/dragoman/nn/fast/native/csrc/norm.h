// Dropout, residual connection and layer normalization in one pass.
#pragma once

#include <cstdint>

namespace dragoman {

// Arrays of the forward pass and of the backward pass; rows x columns, except where stated.
struct NormSizes {
  int64_t rows, columns;
};

// Bytes below `threshold` drop their element, the others are multiplied by `scale`.
struct Dropped {
  int threshold;
  float scale;
};

// s = residual + dropout(x); out = (s - mean) / sqrt(variance + eps) * weight + bias, over the columns of each row.
// random: null without dropout; then kept is not used.  kept: receives a bit per element, 16 of a row in each word.
// weight, bias: of the columns.  inverse: of the rows, 1 / sqrt(variance + eps).
void add_and_norm(int threads, NormSizes sizes, Dropped dropped, const uint8_t* random, const float* x,
                  const float* residual, const float* weight, const float* bias, float eps, uint16_t* kept,
                  float* inverse, float* out);

// Gradients of s (grad_residual) and x (grad_x, not used without dropout) from that of out (grad), and those of weight
// and bias: sums, weight first.  No weight may be 0.
void add_and_norm_backward(int threads, NormSizes sizes, float scale, const uint16_t* kept, const float* out,
                           const float* weight, const float* bias, const float* inverse, const float* grad,
                           float* grad_residual, float* grad_x, float* sums);

}  // namespace dragoman
