// Matrix products in float32.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

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

// Buffers of one thread, aligned to cache lines, that grow as needed.
class Workspace {
 public:
  // The content of the buffer is undefined.
  float* reserve(int index, int64_t floats) {
    Buffer& buffer = buffers_[index];
    if (buffer.size < floats) {
      const int64_t bytes = (floats * 4 + 63) / 64 * 64;
      buffer.data.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
      if (buffer.data == nullptr) throw std::bad_alloc();
      buffer.size = floats;
    }
    return buffer.data.get();
  }

 private:
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  struct Buffer {
    std::unique_ptr<float, Free> data;
    int64_t size = 0;
  };
  Buffer buffers_[4];
};

// C = A B + bias, or C += A B + bias; bias: n values, or null.  c: rows of n contiguous values, c_stride apart.
void multiply_serial(Workspace& workspace, const Sizes& sizes, const Matrix& a, const Matrix& b, const float* bias,
                     bool accumulate, float* c, int64_t c_stride);

}  // namespace dragoman
