// Matrix products in float32.
#pragma once

#include <cstdint>

namespace dragoman {

// Elements data[i * row + j * column]; one of row and column is 1.
struct Matrix {
  const float* data;
  int64_t row, column;

  Matrix from(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
};

// C is m x n, A is m x k, B is k x n.
struct Sizes {
  int64_t m, n, k;
};

// C = A B + bias, or C += A B + bias; bias: n values, or null.  c: rows of n contiguous values, c_stride apart.
// threads: at most this many; the result does not depend on it.
void multiply(int threads, const Sizes& sizes, const Matrix& a, const Matrix& b, const float* bias, bool accumulate,
              float* c, int64_t c_stride);

}  // namespace dragoman
