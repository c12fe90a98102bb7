// Products with packed matrices.
//
// A matrix (out x in) lies in blocks of 64 outputs, in the order in which a product reads it, front to back:
//   float32    [out / 64][in][64]
//   bfloat16   [out / 64][in / 2][64][2]    two inputs of an output side by side,
//   int8       [out / 64][in / 4][64][4]    or four, as the dot-product instructions want
// in and out are padded with zeros to multiples of 64.
//
// int8: an output's weights have one scale, w = scale * q.  A row of inputs has one scale too, max |x| / 127, and its
// numbers are shifted by 128 to be unsigned; `shift` holds 128 * sum of an output's q, which takes that away again.
// Sums are of whole numbers: exact, and the same on every processor.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

constexpr int BLOCK = 64;

enum class Numbers : int32_t { float32 = 0, int8 = 1, bfloat16 = 2 };

constexpr size_t size_of(Numbers kind) { return kind == Numbers::float32 ? 4 : kind == Numbers::int8 ? 1 : 2; }

struct Matrix {
  Numbers kind = Numbers::float32;
  int out = 0, in = 0;             // padded
  const void* weights = nullptr;
  const float* scales = nullptr;   // int8: (out,)
  const int32_t* shift = nullptr;  // int8: (out,)
  const float* bias = nullptr;     // (out,) or none

  // The 64 outputs of one block, as a matrix of their own.
  Matrix block(int number) const;
};

// Rows of inputs, as the matrix they meet wants them.
struct Inputs {
  int rows = 0, width = 0;
  const float* floats = nullptr;
  const uint16_t* brains = nullptr;
  const uint8_t* bytes = nullptr;
  const float* scales = nullptr;  // (rows,), of bytes

  // `count` rows from `first` on.
  Inputs part(int first, int count) const;
};

// x (rows x width) -> bytes and a scale a row.
void quantize(const float* x, int rows, int width, uint8_t* bytes, float* scales);

// x (count) -> bfloat16, the nearest.
void shorten(const float* x, size_t count, uint16_t* brains);

// x (count, a multiple of 16) in half precision -> y.
void widen(const uint16_t* x, int count, float* y);

// Whether this processor multiplies bfloat16.
bool has_bfloat16();

// y[row][output] = W x + bias for the blocks begin .. end - 1 of outputs, or y += that.
void product(const Matrix& w, const Inputs& x, float* y, int stride, bool accumulate, int begin, int end);

}  // namespace dragoman
