// The bias of a linear layer, alone or with the activation of a feed-forward network.
#pragma once

#include <cstdint>

namespace dragoman {

// x += bias; x: rows x columns; bias: of the columns.
void add_bias(int threads, int64_t rows, int64_t columns, const float* bias, float* x);

// sums = the sums of x over the rows, the gradient of a bias.
void sum_rows(int threads, int64_t rows, int64_t columns, const float* x, float* sums);

// x = max(x + bias, 0); x: rows x columns; bias: of the columns, or null.
// positive: receives a bit per element, whether the result is not 0, 16 of a row in each word.
void add_bias_relu(int threads, int64_t rows, int64_t columns, const float* bias, float* x, uint16_t* positive);

// grad = positive ? grad : 0, and sums = its sums over the rows.
void relu_backward(int threads, int64_t rows, int64_t columns, const uint16_t* positive, float* grad, float* sums);

}  // namespace dragoman
