// Attention over short sequences, whose weights are stored.
//
// N rows, H query heads, Hkv key-value heads, Tq queries, Tk keys, Dk features of queries and keys, Dh of values.
#pragma once

#include <cstdint>

namespace dragoman {

// Element [n][h][t][i] is data[n * row + h * head + t * position + i].
template <typename T>
struct Heads {
  T* data;
  int64_t row, head, position;

  T* at(int64_t n, int64_t h) const { return data + n * row + h * head; }
};

struct AttentionSizes {
  int64_t n, h, hkv, tq, tk, dk, dh;
};

// bias: N x H x Tq x Tk with any strides of the first three, or null.  weights: N x H x Tq x Tk, contiguous.
struct AttentionInputs {
  Heads<const float> q, k, v, bias;
};

// weights = softmax(q k^T / sqrt(Dk) + bias), out = weights v.
void attend(int threads, const AttentionSizes& sizes, const AttentionInputs& in, float* weights, Heads<float> out);

// Gradients of q, k and v from that of out.
void attend_backward(int threads, const AttentionSizes& sizes, const AttentionInputs& in, const float* weights,
                     Heads<const float> grad_out, Heads<float> grad_q, Heads<float> grad_k, Heads<float> grad_v);

}  // namespace dragoman
