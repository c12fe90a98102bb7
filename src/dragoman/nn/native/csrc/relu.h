// The activation of a feed-forward network, in place.
#pragma once

#include <cstdint>

namespace dragoman {

// x = max(x + bias, 0); x: rows x columns; bias: of the columns, or null.
void add_bias_relu(int threads, int64_t rows, int64_t columns, const float* bias, float* x);

// grad = hidden > 0 ? grad : 0, and sums = its sums over the rows; hidden: the result of add_bias_relu.
void relu_backward(int threads, int64_t rows, int64_t columns, const float* hidden, float* grad, float* sums);

}  // namespace dragoman
