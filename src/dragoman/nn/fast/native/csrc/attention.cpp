#include "attention.h"

#include <cmath>

#include "matmul.h"
#include "vector_math.h"

namespace dragoman {
namespace {

// row = softmax(scale * row + bias); a row of -inf becomes NaN, as in PyTorch.
void softmax(int64_t size, float scale, const float* bias, float* row) {
  __m512 highest = _mm512_set1_ps(-INFINITY);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = first_lanes(size - i);
    __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, row + i), _mm512_set1_ps(scale));
    if (bias != nullptr) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(lanes, bias + i));
    _mm512_mask_storeu_ps(row + i, lanes, x);
    highest = _mm512_mask_max_ps(highest, lanes, highest, x);
  }
  const __m512 peak = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = first_lanes(size - i);
    const __m512 x = exp(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, row + i), peak));
    _mm512_mask_storeu_ps(row + i, lanes, x);
    sum = _mm512_mask_add_ps(sum, lanes, sum, x);
  }
  const __m512 inverse = _mm512_set1_ps(1 / _mm512_reduce_add_ps(sum));
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = first_lanes(size - i);
    _mm512_mask_storeu_ps(row + i, lanes, _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, row + i), inverse));
  }
}

// grad = scale * weights * (grad - sum of grad * weights), the gradient of the scaled scores.
void softmax_backward(int64_t size, float scale, const float* weights, float* grad) {
  __m512 along = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = first_lanes(size - i);
    along = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(lanes, weights + i), _mm512_maskz_loadu_ps(lanes, grad + i), along);
  }
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(along)), factor = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < size; i += 16) {
    const __mmask16 lanes = first_lanes(size - i);
    const __m512 difference = _mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, grad + i), mean);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, weights + i), factor);
    _mm512_mask_storeu_ps(grad + i, lanes, _mm512_mul_ps(scaled, difference));
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

void attend(int threads, const AttentionSizes& s, const AttentionInputs& in, float* weights, Heads<float> out) {
#pragma omp parallel num_threads(threads)
  {
    Workspace workspace;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.n * s.h; ++i) {
      attend_head(workspace, s, in, i / s.h, i % s.h, weights + i * s.tq * s.tk, out);
    }
  }
}

void attend_backward(int threads, const AttentionSizes& s, const AttentionInputs& in, const float* weights,
                     Heads<const float> grad_out, Heads<float> grad_q, Heads<float> grad_k, Heads<float> grad_v) {
  const int64_t group = s.h / s.hkv;
  const float scale = 1 / std::sqrt(static_cast<float>(s.dk));
#pragma omp parallel num_threads(threads)
  {
    Workspace workspace;
    float* grad = workspace.reserve(2, s.tq * s.tk);  // of the weights, then of the scores
#pragma omp for schedule(static)
    for (int64_t i = 0; i < s.n * s.hkv; ++i) {
      const int64_t n = i / s.hkv, kv = i % s.hkv;
      const float *k = in.k.at(n, kv), *v = in.v.at(n, kv);
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const bool accumulate = h > kv * group;
        const float *w = weights + (n * s.h + h) * s.tq * s.tk, *g = grad_out.at(n, h);
        multiply_serial(workspace, {s.tk, s.dh, s.tq}, transposed(w, s.tk), rows_of(g, grad_out.position), nullptr,
                        accumulate, grad_v.at(n, kv), grad_v.position);
        multiply_serial(workspace, {s.tq, s.tk, s.dh}, rows_of(g, grad_out.position), transposed(v, in.v.position),
                        nullptr, false, grad, s.tk);
        for (int64_t t = 0; t < s.tq; ++t) softmax_backward(s.tk, scale, w + t * s.tk, grad + t * s.tk);
        multiply_serial(workspace, {s.tq, s.dk, s.tk}, rows_of(grad, s.tk), rows_of(k, in.k.position), nullptr, false,
                        grad_q.at(n, h), grad_q.position);
        multiply_serial(workspace, {s.tk, s.dk, s.tq}, transposed(grad, s.tk), rows_of(in.q.at(n, h), in.q.position),
                        nullptr, accumulate, grad_k.at(n, kv), grad_k.position);
      }
    }
  }
}

}  // namespace dragoman
