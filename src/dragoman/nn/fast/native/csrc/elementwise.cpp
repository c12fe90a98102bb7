// Dropout, and biases with their activation.
#include <algorithm>

#include "kernels.h"
#include "row_sums.h"
#include "vector_math.h"

using namespace dragoman;

void dragoman_drop(int threads, int64_t size, const uint8_t* random, int threshold, float scale, const float* x,
                   const float* residual, float* out) {
  constexpr int64_t PART = 1 << 14;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t begin = 0; begin < size; begin += PART) {
    const int64_t end = std::min(begin + PART, size);
    for (int64_t i = begin; i < end; i += 16) {
      const Lanes lanes = first_lanes(end - i);
      Vec y = keep(kept_bits(random + i, end - i, threshold), load(x + i, lanes) * all(scale));
      if (residual != nullptr) y = y + load(residual + i, lanes);
      store(out + i, y, lanes);
    }
  }
}

void dragoman_add_bias(int threads, int64_t rows, int64_t columns, const float* bias, float* x) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * columns;
    for (int64_t j = 0; j < columns; ++j) row[j] += bias[j];
  }
}

void dragoman_sum_rows(int threads, int64_t rows, int64_t columns, const float* x, float* sums) {
  const auto add_block = [=](int64_t first, int64_t end, float* partial) {
    for (int64_t i = first; i < end; ++i) {
      for (int64_t j = 0; j < columns; ++j) partial[j] += x[i * columns + j];
    }
  };
  sum_over_rows(threads, rows, columns, add_block, sums);
}

void dragoman_add_bias_relu(int threads, int64_t rows, int64_t columns, const float* bias, float* x,
                            uint16_t* positive) {
  const int64_t words = (columns + 15) / 16;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) {
    float* row = x + i * columns;
    for (int64_t j = 0; j < columns; j += 16) {
      const Lanes lanes = first_lanes(columns - j);
      Vec y = load(row + j, lanes);
      if (bias != nullptr) y = y + load(bias + j, lanes);
      store(row + j, max(all(0), y), lanes);  // this order of the operands keeps NaN
      positive[i * words + j / 16] = not_at_most(y, all(0));
    }
  }
}

void dragoman_relu_backward(int threads, int64_t rows, int64_t columns, const uint16_t* positive, float* grad,
                            float* sums) {
  const int64_t words = (columns + 15) / 16;
  const auto add_block = [=](int64_t first, int64_t end, float* partial) {
    for (int64_t i = first; i < end; ++i) {
      float* row = grad + i * columns;
      for (int64_t j = 0; j < columns; j += 16) {
        const Lanes lanes = first_lanes(columns - j);
        const Vec y = keep(positive[i * words + j / 16], load(row + j, lanes));
        store(row + j, y, lanes);
        store(partial + j, load(partial + j, lanes) + y, lanes);
      }
    }
  };
  sum_over_rows(threads, rows, columns, add_block, sums);
}
