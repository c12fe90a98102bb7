// Compares gemm_amx with the formula of the product, number by number; test_amx.py compiles and runs it.
// Argument: the first block of outputs that is computed; those before it must not change.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "amx.h"

using namespace dragoman;

namespace {

constexpr int OUTPUTS = 128, STRIDE = OUTPUTS + 7;

// The number of outputs that differ.
int differences(std::mt19937& random, int first_block, int rows, int cols, bool accumulate, bool with_bias) {
  const size_t row_size = quantized_row_size(cols);
  std::vector<int8_t> weights(static_cast<size_t>(OUTPUTS * cols));
  std::vector<uint8_t> x(static_cast<size_t>(rows) * row_size);
  std::vector<float> scales(OUTPUTS), bias(OUTPUTS), row_scales(static_cast<size_t>(rows));
  for (auto& w : weights) w = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  for (auto& v : x) v = static_cast<uint8_t>(1 + random() % 255);
  for (auto& s : scales) s = static_cast<float>(random() % 1000) / 1e4f;
  for (auto& s : row_scales) s = static_cast<float>(random() % 1000) / 1e3f;
  for (auto& b : bias) b = static_cast<float>(random() % 1000) / 10.0f;
  const auto weight = [&](int output, int k) {
    return weights[static_cast<size_t>(output / 64 * 64 * cols + k / 4 * 256 + output % 64 * 4 + k % 4)];
  };
  std::vector<int32_t> compensation(OUTPUTS);
  for (int o = 0; o < OUTPUTS; ++o) {
    for (int k = 0; k < cols; ++k) compensation[static_cast<size_t>(o)] += 128 * weight(o, k);
  }
  PackedMatrix w;
  w.dtype = DType::int8;
  w.outputs = OUTPUTS;
  w.inputs = cols;
  w.weights = weights.data();
  w.scales = scales.data();
  w.compensation = compensation.data();
  w.bias = with_bias ? bias.data() : nullptr;
  GemmInput in;
  in.rows = rows;
  in.cols = cols;
  in.quantized = x.data();
  in.scales = row_scales.data();
  std::vector<float> y(static_cast<size_t>(rows * STRIDE), 3.0f);
  gemm_amx(w, in, y.data(), STRIDE, accumulate, first_block, OUTPUTS / 64);

  int found = 0;
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < STRIDE; ++o) {
      volatile float expected = 3.0f;  // volatile: rounded after every operation
      if (o >= first_block * 64 && o < OUTPUTS) {
        int sum = 0;
        for (int k = 0; k < cols; ++k) {
          sum += (x[static_cast<size_t>(r) * row_size + static_cast<size_t>(k)] - 128) * weight(o, k);
        }
        volatile float scale = scales[static_cast<size_t>(o)] * row_scales[static_cast<size_t>(r)];
        volatile float value = static_cast<float>(sum) * scale;
        if (with_bias) value = value + bias[static_cast<size_t>(o)];
        expected = accumulate ? value + expected : value;
      }
      found += y[static_cast<size_t>(r * STRIDE + o)] != expected;
    }
  }
  return found;
}

}  // namespace

int main(int, char** arguments) {
#if !defined(DRAGOMAN_TILE_INSTRUCTIONS)
  if (!supports_amx()) {  // also asks the operating system for permission
    std::puts("AMX is not permitted");
    return 0;
  }
#endif
  std::mt19937 random(20170612);
  const int first_block = std::atoi(arguments[1]);
  int found = 0, products = 0;
  for (int rows : {1, 2, 8, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 70}) {
    for (int cols : {64, 192}) {
      for (bool accumulate : {false, true}) {
        for (bool with_bias : {false, true}) {
          found += differences(random, first_block, rows, cols, accumulate, with_bias);
          ++products;
        }
      }
    }
  }
#if defined(DRAGOMAN_TILE_INSTRUCTIONS)
  found += emulated.configured;
#endif
  std::printf("%d products, %d outputs differ\n", products, found);
  return found != 0;
}
