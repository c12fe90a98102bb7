// Sums over the rows of a matrix, in an order that does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dragoman {

// sums[j] = sum over blocks of rows of what `add_block(first row, end, partial)` adds to partial[j]; j < width.
template <typename AddBlock>
void sum_over_rows(int threads, int64_t rows, int64_t width, AddBlock add_block, float* sums) {
  constexpr int64_t BLOCK = 32;
  const int64_t blocks = (rows + BLOCK - 1) / BLOCK;
  std::vector<float> partial(blocks * width);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < blocks; ++i) {
    add_block(i * BLOCK, std::min((i + 1) * BLOCK, rows), partial.data() + i * width);
  }
  std::fill(sums, sums + width, 0.0f);
  for (int64_t i = 0; i < blocks; ++i) {
    for (int64_t j = 0; j < width; ++j) sums[j] += partial[i * width + j];
  }
}

}  // namespace dragoman
