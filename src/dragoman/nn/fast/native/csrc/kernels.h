// The C interface, called with ctypes by nn/fast/native/kernels.py, which validates all arguments.
//
// Matrices are rows x columns and contiguous, except where strides are given, in elements.  No result depends on the
// number of threads.
#pragma once

#include <cstdint>

extern "C" {

// C = A B + bias, or C += A B + bias; sizes: m, n, k; A: m x k, B: k x n, C: m x n, bias: n values, or null.
// strides: of the rows and columns of A and B, one of which is 1 for each, and of the rows of C.
void dragoman_multiply(int threads, const int64_t* sizes, const int64_t* strides, const float* a, const float* b,
                       const float* bias, int accumulate, float* c);

// Replace each row of logits (rows x vocab) by the gradient of its smoothed loss, softmax(row) - target distribution,
// and add to sums the smoothed losses and the negative log-likelihoods of the rows, in nats.
void dragoman_smoothed_loss(int threads, int64_t rows, int64_t vocab, float* logits, const int64_t* targets,
                            double smoothing, double* sums);

// out[i] = residual[i] + (random[i] >= threshold ? scale * x[i] : 0); residual: null for zeros.
void dragoman_drop(int threads, int64_t size, const uint8_t* random, int threshold, float scale, const float* x,
                   const float* residual, float* out);

// x += bias; bias: of the columns.
void dragoman_add_bias(int threads, int64_t rows, int64_t columns, const float* bias, float* x);

// sums = the sums of x over the rows, the gradient of a bias.
void dragoman_sum_rows(int threads, int64_t rows, int64_t columns, const float* x, float* sums);

// x = max(x + bias, 0); bias: of the columns, or null.
// positive: receives a bit per element, whether the result is not 0, 16 of a row in each word.
void dragoman_add_bias_relu(int threads, int64_t rows, int64_t columns, const float* bias, float* x,
                            uint16_t* positive);

// grad = positive ? grad : 0, and sums = its sums over the rows.
void dragoman_relu_backward(int threads, int64_t rows, int64_t columns, const uint16_t* positive, float* grad,
                            float* sums);

// s = residual + dropout(x); out = (s - mean) / sqrt(variance + eps) * weight + bias, over the columns of each row.
// random: bytes below `threshold` drop their element, the others are multiplied by `scale`; null without dropout.
// kept: receives a bit per element that is not dropped, 16 of a row in each word; not used without dropout.
// weight, bias: of the columns.  inverse: of the rows, 1 / sqrt(variance + eps).
void dragoman_add_and_norm(int threads, int64_t rows, int64_t columns, int threshold, float scale,
                           const uint8_t* random, const float* x, const float* residual, const float* weight,
                           const float* bias, float eps, uint16_t* kept, float* inverse, float* out);

// Gradients of s (grad_residual) and x (grad_x, not used without dropout, when kept is null) from that of out (grad),
// and those of weight and bias: sums, weight first.  No weight may be 0.
void dragoman_add_and_norm_backward(int threads, int64_t rows, int64_t columns, float scale, const uint16_t* kept,
                                    const float* out, const float* weight, const float* bias, const float* inverse,
                                    const float* grad, float* grad_residual, float* grad_x, float* sums);

// weights = softmax(q k^T / sqrt(Dk) + bias), out = weights v.
// sizes: N rows, H query heads, Hkv key-value heads, Tq queries, Tk keys, Dk features of queries and keys, Dh of values.
// strides: row, head and position of q, k, v, bias and out.  weights: N x H x Tq x Tk, contiguous.  bias may be null.
void dragoman_attend(int threads, const int64_t* sizes, const int64_t* strides, const float* q, const float* k,
                     const float* v, const float* bias, float* weights, float* out);

// Gradients of q, k and v from that of out; strides: of q, k, v and of the gradients of out, q, k and v.
void dragoman_attend_backward(int threads, const int64_t* sizes, const int64_t* strides, const float* q,
                              const float* k, const float* v, const float* weights, const float* grad_out,
                              float* grad_q, float* grad_k, float* grad_v);
}
