// Element-wise operations between the matrix products: normalization, activations and rotary position embeddings.
#pragma once

#include <cstdint>

namespace dragoman {

// The values are stored in the file header.
enum class Activation : int32_t { relu, gelu, gelu_tanh, silu, sigmoid };

// Parameters of LayerNorm or RMSNorm; the arrays are (padded d_model,).
struct Norm {
  int size = 0;  // features without padding
  float eps = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;  // LayerNorm only
  bool subtract_mean = true;    // true: LayerNorm; false: RMSNorm
  bool present = false;         // false: identity
};

// y = (x - mean) / sqrt(var + eps) * weight + bias, without mean and bias for RMSNorm.
// x and y (width,) may be the same array; the padding stays 0.
void normalize(const Norm& norm, const float* x, float* y, int width);

// y = f(x), or f(x) * gate if gate is not null; all (width,).
void apply_activation(Activation f, const float* x, const float* gate, float* y, int width);

// One step of an SSRU: cell = f * cell + (1 - f) * candidates with f = sigmoid(gates), and y += relu(cell).
// All arrays are (width,).
void advance_ssru(const float* candidates, const float* gates, float* cell, float* y, int width);

// Rotate the pairs (x[i], x[i + half]) of a head by the angles of one position.  cos, sin: (half,).
void apply_rotary(float* head, const float* cos, const float* sin, int half);

}  // namespace dragoman
