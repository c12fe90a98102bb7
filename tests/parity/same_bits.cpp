// Prints checksums of results of the kernels, which must be equal for all builds with vectors of 8 numbers.
#include <cstdio>
#include <vector>

#include "checksums.h"
#include "gemm.h"
#include "kv_cache.h"
#include "ops.h"
#include "simd.h"

using namespace dragoman;

int main() {
  constexpr int OUTPUTS = 128, WIDTHS[] = {64, 320}, LARGEST_BATCH = 13;
  for (const int inputs : WIDTHS) {
    std::vector<int8_t> weights(size_t{OUTPUTS} * inputs);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<int8_t>(i < 4096 ? 127 : next_bits() % 255 - 127);
    const std::vector<float> scales = numbers(OUTPUTS, 0.01f), bias = numbers(OUTPUTS, 1.0f);
    std::vector<int32_t> compensation(OUTPUTS);
    for (size_t i = 0; i < weights.size(); ++i) compensation[i / (64 * inputs) * 64 + i / 4 % 64] += 128 * weights[i];
    const std::vector<float> floats = numbers(size_t{OUTPUTS} * inputs, 1.0f);
    int differing = 0;
    for (int rows = 1; rows <= LARGEST_BATCH; ++rows) {
      std::vector<float> x = numbers(size_t(rows) * inputs, 3.0f);
      for (int k = 0; k < inputs; ++k) x[k] = 5.0f;  // a row whose sums of magnitudes are the largest
      std::vector<uint8_t> quantized(quantized_size(rows, inputs));
      std::vector<float> row_scales(rows), y(size_t(rows) * OUTPUTS, 0.25f), z = y;
      quantize_rows(x.data(), rows, inputs, quantized.data(), row_scales.data());
      PackedMatrix w;
      w.outputs = OUTPUTS, w.inputs = inputs, w.bias = bias.data();
      GemmInput in;
      in.rows = rows, in.cols = inputs, in.f32 = x.data();
      w.weights = floats.data();
      gemm(w, in, z.data(), OUTPUTS, rows % 2 == 0, 0, OUTPUTS / OUTPUT_BLOCK);
      print("float32", z);
      w.dtype = DType::int8, w.weights = weights.data(), w.scales = scales.data(), w.compensation = compensation.data();
      in.quantized = quantized.data(), in.scales = row_scales.data();
      gemm(w, in, y.data(), OUTPUTS, rows % 2 == 0, 0, OUTPUTS / OUTPUT_BLOCK);
      print("int8", y);
      for (int o = 0; o < OUTPUTS; ++o) {  // the formula for the first row
        int32_t sum = 0;
        for (int k = 0; k < inputs; ++k) sum += 127 * weights[o / 64 * 64 * inputs + k / 4 * 256 + o % 64 * 4 + k % 4];
        const float value = static_cast<float>(sum) * (scales[o] * row_scales[0]) + bias[o];
        differing += y[o] != (rows % 2 == 0 ? value + 0.25f : value);
      }
    }
    std::printf("%d sums differ from the formula\n", differing);
  }
  std::vector<float> x = numbers(4096, 30.0f), y(4096);
  x[0] = __builtin_nanf(""), x[9] = __builtin_inff(), x[18] = -__builtin_inff(), x[27] = -0.0f;
  for (const Activation f : {Activation::relu, Activation::silu, Activation::gelu, Activation::gelu_tanh}) {
    apply_activation(f, x.data(), nullptr, y.data(), 4096);
    for (float& value : y) value = value != value ? 7.0f : value;  // the bits of NaN are free
    print("activation", y);
  }
  std::vector<float> folded;
  for (int i = 32; i < 4096; i += VEC_SIZE) {
    const VecF32 a = load(&x[i]), b = load(&x[i - VEC_SIZE]);
    uint16_t half[VEC_SIZE];
    float lanes[VEC_SIZE];
    store_fp16(half, a);
    for (const VecF32 v : {load(half), shift_in(b, a), select(at_least(a, b), a, b), ldexp(a, broadcast(-7.0f))}) {
      store(lanes, v);
      folded.insert(folded.end(), lanes, lanes + VEC_SIZE);
    }
    folded.push_back(reduce_sum(a));
    folded.push_back(reduce_max(b));
    folded.push_back(static_cast<float>(greater_mask(a, b)));
  }
  print("vectors", folded);
  for (const bool fp16 : {false, true}) {
    KVCache cache(fp16);
    cache.reserve({40}, 1, 1, 48);
    std::vector<float> found(4 * 48), scores(4 * 48), factors(4);
    for (int position = 0; position < 37; ++position) {
      const std::vector<float> key = numbers(48, 1.0f), value = numbers(48, 1.0f);
      cache.append(0, key.data(), value.data(), position);
    }
    const std::vector<float> queries = numbers(4 * 48, 2.0f);
    for (int count = 1; count <= 4; ++count) {
      cache.attend(0, 0, queries.data(), 48, count, 37, 0.3f, nullptr, scores.data(), factors.data(), found.data(), 48);
      print("attention", found);
    }
  }
}
