// What stands between the products: norms, activations, rotary positions.
#pragma once

#include <cstdint>

namespace dragoman {

enum class Activation : int32_t { relu, gelu, gelu_tanh, silu, sigmoid };

struct Norm {
  int true_width = 0;           // what lies behind it is padding
  float eps = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;  // none: root mean square only
  bool centred = true;          // false: RMSNorm
  bool present = false;
};

// x (width) -> y, which may be x; padding stays 0.
void normalise(const Norm& norm, const float* x, float* y, int width);

// f(x) -> y, or f(x) * gate.
void activate(Activation f, const float* x, const float* gate, float* y, int width);

// Pairs (x_i, x_{i + half}) of a head turned by the angles of a position.
void rotate(float* head, const float* cosines, const float* sines, int half);

}  // namespace dragoman
