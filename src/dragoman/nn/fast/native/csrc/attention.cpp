// Attention over short sequences, whose weights are stored.
#include <cmath>

#include "kernels.h"
#include "matmul.h"
#include "vector_math.h"

using namespace dragoman;

namespace {

struct AttentionSizes {
  explicit AttentionSizes(const int64_t* s) : n(s[0]), h(s[1]), hkv(s[2]), tq(s[3]), tk(s[4]), dk(s[5]), dh(s[6]) {}
  int64_t n, h, hkv, tq, tk, dk, dh;
};

// Element [n][h][t][i] of array `index` is data[n * row + h * head + t * position + i].
template <typename T>
struct Heads {
  Heads(T* array, const int64_t* strides, int index)
      : data(array), row(strides[3 * index]), head(strides[3 * index + 1]), position(strides[3 * index + 2]) {}
  T* data;
  int64_t row, head, position;

  T* at(int64_t n, int64_t h) const { return data + n * row + h * head; }
};

struct AttentionInputs {
  Heads<const float> q, k, v, bias;
};

// row = softmax(scale * row + bias); a row of -inf becomes NaN, as in PyTorch.
void softmax(int64_t size, float scale, const float* bias, float* row) {
  Vec highest = all(-INFINITY);
  for (int64_t i = 0; i < size; i += 16) {
    const Lanes lanes = first_lanes(size - i);
    Vec x = load(row + i, lanes, -INFINITY) * all(scale);
    if (bias != nullptr) x = x + load(bias + i, lanes);
    store(row + i, x, lanes);
    highest = max(highest, x);
  }
  const Vec peak = all(reduce_max(highest));
  Vec sum = all(0);
  for (int64_t i = 0; i < size; i += 16) {
    const Lanes lanes = first_lanes(size - i);
    const Vec x = exp(load(row + i, lanes, -INFINITY) - peak);
    store(row + i, x, lanes);
    sum = sum + x;
  }
  const Vec inverse = all(1 / reduce_sum(sum));
  for (int64_t i = 0; i < size; i += 16) {
    const Lanes lanes = first_lanes(size - i);
    store(row + i, load(row + i, lanes) * inverse, lanes);
  }
}

// grad = scale * weights * (grad - sum of grad * weights), the gradient of the scaled scores.
void softmax_backward(int64_t size, float scale, const float* weights, float* grad) {
  Vec along = all(0);
  for (int64_t i = 0; i < size; i += 16) {
    const Lanes lanes = first_lanes(size - i);
    along = fmadd(load(weights + i, lanes), load(grad + i, lanes), along);
  }
  const Vec mean = all(reduce_sum(along)), factor = all(scale);
  for (int64_t i = 0; i < size; i += 16) {
    const Lanes lanes = first_lanes(size - i);
    const Vec difference = load(grad + i, lanes) - mean;
    store(grad + i, load(weights + i, lanes) * factor * difference, lanes);
  }
}

Matrix rows_of(const float* data, int64_t stride) { return {data, stride, 1}; }
Matrix transposed(const float* data, int64_t stride) { return {data, 1, stride}; }

void attend_head(Workspace& workspace, const AttentionSizes& s, const AttentionInputs& in, int64_t n, int64_t h,
                 float* weights, const Heads<float>& out) {
  const int64_t kv = h / (s.h / s.hkv);
  const float* bias = in.bias.data == nullptr ? nullptr : in.bias.at(n, h);
  multiply_serial(workspace, {s.tq, s.tk, s.dk}, rows_of(in.q.at(n, h), in.q.position),
                  transposed(in.k.at(n, kv), in.k.position), nullptr, false, weights, s.tk);
  const float scale = 1 / std::sqrt(static_cast<float>(s.dk));
  for (int64_t t = 0; t < s.tq; ++t) {
    softmax(s.tk, scale, bias == nullptr ? nullptr : bias + t * in.bias.position, weights + t * s.tk);
  }
  multiply_serial(workspace, {s.tq, s.dh, s.tk}, rows_of(weights, s.tk), rows_of(in.v.at(n, kv), in.v.position),
                  nullptr, false, out.at(n, h), out.position);
}

}  // namespace

void dragoman_attend(int threads, const int64_t* sizes, const int64_t* strides, const float* q, const float* k,
                     const float* v, const float* bias, float* weights, float* out) {
  const AttentionSizes s(sizes);
  const AttentionInputs in{{q, strides, 0}, {k, strides, 1}, {v, strides, 2}, {bias, strides, 3}};
  const Heads<float> result(out, strides, 4);
#pragma omp parallel num_threads(threads)
  {
    Workspace workspace;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.n * s.h; ++i) {
      attend_head(workspace, s, in, i / s.h, i % s.h, weights + i * s.tq * s.tk, result);
    }
  }
}

void dragoman_attend_backward(int threads, const int64_t* sizes, const int64_t* strides, const float* q,
                              const float* k, const float* v, const float* weights, const float* grad_out,
                              float* grad_q, float* grad_k, float* grad_v) {
  const AttentionSizes s(sizes);
  const Heads<const float> queries(q, strides, 0), keys(k, strides, 1), values(v, strides, 2), out(grad_out, strides, 3);
  const Heads<float> to_q(grad_q, strides, 4), to_k(grad_k, strides, 5), to_v(grad_v, strides, 6);
  const int64_t group = s.h / s.hkv;
  const float scale = 1 / std::sqrt(static_cast<float>(s.dk));
#pragma omp parallel num_threads(threads)
  {
    Workspace workspace;
    float* grad = workspace.reserve(2, s.tq * s.tk);  // of the weights, then of the scores
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.n * s.hkv; ++i) {
      const int64_t n = i / s.hkv, kv = i % s.hkv;
      const float *key = keys.at(n, kv), *value = values.at(n, kv);
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const bool accumulate = h > kv * group;
        const float *w = weights + (n * s.h + h) * s.tq * s.tk, *g = out.at(n, h);
        multiply_serial(workspace, {s.tk, s.dh, s.tq}, transposed(w, s.tk), rows_of(g, out.position), nullptr,
                        accumulate, to_v.at(n, kv), to_v.position);
        multiply_serial(workspace, {s.tq, s.tk, s.dh}, rows_of(g, out.position), transposed(value, values.position),
                        nullptr, false, grad, s.tk);
        for (int64_t t = 0; t < s.tq; ++t) softmax_backward(s.tk, scale, w + t * s.tk, grad + t * s.tk);
        multiply_serial(workspace, {s.tq, s.dk, s.tk}, rows_of(grad, s.tk), rows_of(key, keys.position), nullptr, false,
                        to_q.at(n, h), to_q.position);
        multiply_serial(workspace, {s.tk, s.dk, s.tq}, transposed(grad, s.tk), rows_of(queries.at(n, h), queries.position),
                        nullptr, accumulate, to_k.at(n, kv), to_k.position);
      }
    }
  }
}
