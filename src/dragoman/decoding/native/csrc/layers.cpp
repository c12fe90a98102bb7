#include "layers.h"

#include <cmath>

#include "simd.h"

namespace dragoman {

void normalise(const Norm& norm, const float* x, float* y, int width) {
  const float count = static_cast<float>(norm.true_width);
  float mean = 0;
  if (norm.centred) {
    Vec total = zero();
    for (int i = 0; i < width; i += W) total = add(total, load(x + i));
    mean = sum(total) / count;
  }
  const Vec middle = all(mean);
  const int whole = norm.true_width / W * W;
  Vec squares = zero();
  for (int i = 0; i < whole; i += W) {
    const Vec d = minus(load(x + i), middle);
    squares = fma(d, d, squares);
  }
  float rest = 0;
  for (int i = whole; i < norm.true_width; ++i) rest += (x[i] - mean) * (x[i] - mean);
  const float variance = (sum(squares) + rest) / count;
  const Vec inverse = all(1.0f / std::sqrt(variance + norm.eps));
  for (int i = 0; i < width; i += W) {
    const Vec normed = mul(mul(minus(load(x + i), middle), inverse), load(norm.weight + i));
    store(y + i, norm.bias == nullptr ? normed : add(normed, load(norm.bias + i)));
  }
}

namespace {

template <Activation f>
Vec activated(Vec v) {
  switch (f) {
    case Activation::relu: return larger(zero(), v);  // in this order NaN stays NaN
    case Activation::silu: return mul(v, logistic(v));
    case Activation::sigmoid: return logistic(v);
    case Activation::gelu: return mul(mul(all(0.5f), v), add(all(1.0f), error_function(mul(v, all(0.70710678f)))));
    case Activation::gelu_tanh:  // 0.5 (1 + tanh z) = logistic(2 z)
      return mul(v, logistic(mul(all(1.5957691216f), mul(v, fma(mul(v, v), all(0.044715f), all(1.0f))))));
  }
  return v;
}

template <Activation f>
void activate_row(const float* x, const float* gate, float* y, int width) {
  for (int i = 0; i < width; i += W) {
    const Vec v = activated<f>(load(x + i));
    store(y + i, gate == nullptr ? v : mul(v, load(gate + i)));
  }
}

}  // namespace

void activate(Activation f, const float* x, const float* gate, float* y, int width) {
  switch (f) {
    case Activation::relu: return activate_row<Activation::relu>(x, gate, y, width);
    case Activation::silu: return activate_row<Activation::silu>(x, gate, y, width);
    case Activation::sigmoid: return activate_row<Activation::sigmoid>(x, gate, y, width);
    case Activation::gelu: return activate_row<Activation::gelu>(x, gate, y, width);
    case Activation::gelu_tanh: return activate_row<Activation::gelu_tanh>(x, gate, y, width);
  }
}

void rotate(float* head, const float* cosines, const float* sines, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace dragoman
