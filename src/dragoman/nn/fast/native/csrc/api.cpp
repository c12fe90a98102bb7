// The C interface, called with ctypes by nn/fast/native/kernels.py, which validates all arguments.
#include "attention.h"
#include "bias.h"
#include "dropout.h"
#include "loss.h"
#include "matmul.h"
#include "norm.h"

using namespace dragoman;

namespace {

AttentionSizes sizes_of(const int64_t* s) { return {s[0], s[1], s[2], s[3], s[4], s[5], s[6]}; }

// strides: row, head and position of each array.
template <typename T>
Heads<T> heads(T* data, const int64_t* strides, int index) {
  return {data, strides[3 * index], strides[3 * index + 1], strides[3 * index + 2]};
}

}  // namespace

extern "C" {

// sizes: m, n, k.  strides: of the rows and columns of a and b, and of the rows of c, in elements.
void dragoman_multiply(int threads, const int64_t* sizes, const int64_t* strides, const float* a, const float* b,
                       const float* bias, int accumulate, float* c) {
  multiply(threads, {sizes[0], sizes[1], sizes[2]}, {a, strides[0], strides[1]}, {b, strides[2], strides[3]}, bias,
           accumulate != 0, c, strides[4]);
}

void dragoman_smoothed_loss(int threads, int64_t rows, int64_t vocab, float* logits, const int64_t* targets,
                            double smoothing, double* sums) {
  smoothed_loss(threads, rows, vocab, logits, targets, smoothing, sums);
}

void dragoman_drop(int threads, int64_t size, const uint8_t* random, int threshold, float scale, const float* x,
                   const float* residual, float* out) {
  drop(threads, size, random, threshold, scale, x, residual, out);
}

void dragoman_add_bias(int threads, int64_t rows, int64_t columns, const float* bias, float* x) {
  add_bias(threads, rows, columns, bias, x);
}

void dragoman_sum_rows(int threads, int64_t rows, int64_t columns, const float* x, float* sums) {
  sum_rows(threads, rows, columns, x, sums);
}

void dragoman_add_bias_relu(int threads, int64_t rows, int64_t columns, const float* bias, float* x,
                            uint16_t* positive) {
  add_bias_relu(threads, rows, columns, bias, x, positive);
}

void dragoman_relu_backward(int threads, int64_t rows, int64_t columns, const uint16_t* positive, float* grad,
                            float* sums) {
  relu_backward(threads, rows, columns, positive, grad, sums);
}

void dragoman_add_and_norm(int threads, int64_t rows, int64_t columns, int threshold, float scale,
                           const uint8_t* random, const float* x, const float* residual, const float* weight,
                           const float* bias, float eps, uint16_t* kept, float* inverse, float* out) {
  add_and_norm(threads, {rows, columns}, {threshold, scale}, random, x, residual, weight, bias, eps, kept, inverse, out);
}

void dragoman_add_and_norm_backward(int threads, int64_t rows, int64_t columns, float scale, const uint16_t* kept,
                                    const float* out, const float* weight, const float* bias, const float* inverse,
                                    const float* grad, float* grad_residual, float* grad_x, float* sums) {
  add_and_norm_backward(threads, {rows, columns}, scale, kept, out, weight, bias, inverse, grad, grad_residual, grad_x,
                        sums);
}

// strides: of q, k, v, bias and out.
void dragoman_attend(int threads, const int64_t* sizes, const int64_t* strides, const float* q, const float* k,
                     const float* v, const float* bias, float* weights, float* out) {
  const AttentionInputs in{heads(q, strides, 0), heads(k, strides, 1), heads(v, strides, 2), heads(bias, strides, 3)};
  attend(threads, sizes_of(sizes), in, weights, heads(out, strides, 4));
}

// strides: of q, k, v and of the gradients of out, q, k and v.
void dragoman_attend_backward(int threads, const int64_t* sizes, const int64_t* strides, const float* q,
                              const float* k, const float* v, const float* weights, const float* grad_out,
                              float* grad_q, float* grad_k, float* grad_v) {
  const AttentionInputs in{heads(q, strides, 0), heads(k, strides, 1), heads(v, strides, 2), {nullptr, 0, 0, 0}};
  attend_backward(threads, sizes_of(sizes), in, weights, heads(grad_out, strides, 3), heads(grad_q, strides, 4),
                  heads(grad_k, strides, 5), heads(grad_v, strides, 6));
}
}
