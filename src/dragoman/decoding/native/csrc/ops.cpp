#include "ops.h"

#include <cmath>

#include "simd.h"

namespace dragoman {

void normalize(const Norm& norm, const float* x, float* y, int width) {
  const float size = static_cast<float>(norm.size);
  float mean = 0;
  if (norm.subtract_mean) {
    VecF32 total = zeros();
    for (int i = 0; i < width; i += VEC_SIZE) total = add(total, load(x + i));  // the padding adds 0
    mean = reduce_sum(total) / size;
  }
  const VecF32 mean_vec = broadcast(mean);
  // The padding must not contribute mean^2 to the variance: only full vectors without padding are vectorized.
  const int vectorized = norm.size / VEC_SIZE * VEC_SIZE;
  VecF32 squares = zeros();
  for (int i = 0; i < vectorized; i += VEC_SIZE) {
    const VecF32 deviation = sub(load(x + i), mean_vec);
    squares = fmadd(deviation, deviation, squares);
  }
  float remainder = 0;
  for (int i = vectorized; i < norm.size; ++i) remainder += (x[i] - mean) * (x[i] - mean);
  const float variance = (reduce_sum(squares) + remainder) / size;
  const VecF32 inverse_std = broadcast(1.0f / std::sqrt(variance + norm.eps));
  for (int i = 0; i < width; i += VEC_SIZE) {
    const VecF32 scaled = mul(mul(sub(load(x + i), mean_vec), inverse_std), load(norm.weight + i));
    store(y + i, norm.bias == nullptr ? scaled : add(scaled, load(norm.bias + i)));
  }
}

namespace {

template <Activation f>
VecF32 activate(VecF32 x) {
  switch (f) {
    case Activation::relu: return max(zeros(), x);  // this operand order propagates NaN
    case Activation::silu: return mul(x, sigmoid(x));
    case Activation::sigmoid: return sigmoid(x);
    case Activation::gelu:  // x / 2 (1 + erf(x / sqrt(2)))
      return mul(mul(broadcast(0.5f), x), add(broadcast(1.0f), erf(mul(x, broadcast(0.70710678f)))));
    case Activation::gelu_tanh:  // x / 2 (1 + tanh(z)) = x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3)
      return mul(
          x, sigmoid(mul(broadcast(1.5957691216f), mul(x, fmadd(mul(x, x), broadcast(0.044715f), broadcast(1.0f))))));
  }
  return x;
}

template <Activation f>
void activate_row(const float* x, const float* gate, float* y, int width) {
  for (int i = 0; i < width; i += VEC_SIZE) {
    const VecF32 activated = activate<f>(load(x + i));
    store(y + i, gate == nullptr ? activated : mul(activated, load(gate + i)));
  }
}

}  // namespace

void apply_activation(Activation f, const float* x, const float* gate, float* y, int width) {
  switch (f) {
    case Activation::relu: return activate_row<Activation::relu>(x, gate, y, width);
    case Activation::silu: return activate_row<Activation::silu>(x, gate, y, width);
    case Activation::sigmoid: return activate_row<Activation::sigmoid>(x, gate, y, width);
    case Activation::gelu: return activate_row<Activation::gelu>(x, gate, y, width);
    case Activation::gelu_tanh: return activate_row<Activation::gelu_tanh>(x, gate, y, width);
  }
}

void advance_ssru(const float* candidates, const float* gates, float* cell, float* y, int width) {
  for (int i = 0; i < width; i += VEC_SIZE) {
    const VecF32 candidate = load(candidates + i);
    const VecF32 advanced = fmadd(sigmoid(load(gates + i)), sub(load(cell + i), candidate), candidate);
    store(cell + i, advanced);
    store(y + i, add(load(y + i), max(zeros(), advanced)));  // this operand order propagates NaN
  }
}

void apply_rotary(float* head, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + VEC_SIZE <= half; i += VEC_SIZE) {
    const VecF32 a = load(head + i), b = load(head + i + half), c = load(cos + i), s = load(sin + i);
    store(head + i, sub(mul(a, c), mul(b, s)));
    store(head + i + half, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = head[i];
    const float b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

}  // namespace dragoman
