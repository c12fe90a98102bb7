// Matrix products with packed weights.
//
// A weight matrix W (outputs x inputs) is stored in blocks of 64 outputs, in the order in which the kernel reads it:
//   float32    [outputs / 64][inputs][64]
//   bfloat16   [outputs / 64][inputs / 2][64][2]   two inputs of an output are adjacent (vdpbf16ps)
//   int8       [outputs / 64][inputs / 4][64][4]   four inputs of an output are adjacent (vpdpbusd)
// outputs and inputs are padded with zeros to multiples of 64.
//
// int8 quantization is symmetric with one scale per output of the weights, W = scale * q, and one scale per row of the
// activations, max |x| / 127.  The instruction of AVX-512 takes unsigned activations, which are therefore stored with a
// zero point of 128; subtracting compensation = 128 * sum(q) per output removes it.  The sums are exact integers, equal
// on every processor (int8.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

constexpr int OUTPUT_BLOCK = 64;  // outputs per block of packed weights

// The values are stored in the file.
enum class DType : int32_t { float32 = 0, int8 = 1, bfloat16 = 2 };

constexpr size_t size_of(DType dtype) { return dtype == DType::float32 ? 4 : dtype == DType::int8 ? 1 : 2; }

constexpr int padded_outputs(int count) { return (count + OUTPUT_BLOCK - 1) / OUTPUT_BLOCK * OUTPUT_BLOCK; }

// A view of packed weights.
struct PackedMatrix {
  DType dtype = DType::float32;
  int outputs = 0, inputs = 0;  // padded
  const void* weights = nullptr;
  const float* scales = nullptr;          // int8: (outputs,)
  const int32_t* compensation = nullptr;  // int8: (outputs,)
  const float* bias = nullptr;            // (outputs,) or null

  // The 64 outputs of one block as a matrix.
  PackedMatrix block(int index) const;
};

// A view of the activations (rows x cols) in the type that the weights require; the other pointers are null.
struct GemmInput {
  int rows = 0, cols = 0;
  const float* f32 = nullptr;
  const uint16_t* bf16 = nullptr;
  const uint8_t* quantized = nullptr;  // rows of quantize_rows
  const float* scales = nullptr;       // quantized: (rows,)

  // `count` rows starting at row `first`.
  GemmInput slice(int first, int count) const;
};

// Quantize x (rows, cols) to 8 bits, as the instructions of this build take them, with one scale per row.
void quantize_rows(const float* x, int rows, int cols, uint8_t* quantized, float* scales);

// Bytes of `rows` quantized rows.
size_t quantized_size(int rows, int cols);

// Convert to bfloat16, rounding to the nearest, ties to even.
void convert_to_bf16(const float* x, size_t count, uint16_t* bf16);

// The weights of one output as float32: row (inputs,).
void unpack_row(const PackedMatrix& w, int output, float* row);

// Convert from float16.  count: a multiple of 16.
void convert_from_fp16(const uint16_t* x, int count, float* y);

// Whether this build and this processor support bfloat16 products.
bool supports_bf16();

// y[row][output] = W x + bias for the blocks [first_block, last_block) of outputs, or y += W x + bias.
// stride: elements between two rows of y.
void gemm(const PackedMatrix& w, const GemmInput& x, float* y, int stride, bool accumulate, int first_block,
          int last_block);

}  // namespace dragoman
