// Products of int8 weights with quantized activations in the tile registers of AMX.
//
// An instruction multiplies 16 rows of 64 activations with 64 weights of 16 outputs, as many products as 256 vpdpbusd.
// It reads activations and weights as the other kernel of this build does (int8.h), and its sums are as exact, so that
// the results are equal to the last bit.
#pragma once

#include "gemm.h"
#include "int8.h"

// GCC (from 11 on) and Clang have one of these headers if they know the instructions.
#if defined(DRAGOMAN_TILE_INSTRUCTIONS)
#define DRAGOMAN_AMX 1
#elif defined(__AVX512F__) && defined(__linux__)
#if __has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>)
#define DRAGOMAN_AMX 1
#endif
#endif

#if defined(DRAGOMAN_AMX)
#include "tiles.h"
#endif

namespace dragoman {

constexpr int AMX_ROWS = 16;    // rows of a tile
constexpr int AMX_INPUTS = 64;  // bytes of a row: inputs that an instruction multiplies

// Whether this build and this processor support AMX and the operating system permits it.
bool supports_amx();

#if defined(DRAGOMAN_AMX)

// Configures the tiles of this thread for products of `rows` rows, and releases them at the end of the scope.
class TileScope {
 public:
  explicit TileScope(int rows) { configure_tiles(TileSizes(rows < AMX_ROWS ? rows : AMX_ROWS)); }
  ~TileScope() { release_tiles(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Sums of products of 16 rows with 16 outputs.
struct alignas(64) TileSums {
  int32_t sums[AMX_ROWS][AMX_ROWS];
};

// From one set of four inputs of 64 outputs to the next one.
constexpr size_t WEIGHTS_STRIDE = 4 * OUTPUT_BLOCK;

// The products of 16 rows with 64 outputs, or of two times 16 rows (`second`) with 32 outputs, which loads fewer tiles:
// sums[2 * i + j] are then those of rows i with outputs j.  COLD: the weights are not in the cache yet.
template <bool TWO, bool COLD>
inline void multiply_rows(const uint8_t* first, const uint8_t* second, int cols, const int8_t* weights,
                          TileSums (&sums)[4]) {
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  const size_t stride = quantized_row_size(cols);
  for (int k = 0; k < cols; k += AMX_INPUTS, weights += AMX_INPUTS * OUTPUT_BLOCK) {
    if (COLD) prefetch(weights, AMX_INPUTS * OUTPUT_BLOCK);
    load_tile<4>(first + k, stride);
    load_tile<6>(weights, WEIGHTS_STRIDE);
    multiply_tiles<0, 4, 6>();
    load_tile<7>(weights + 64, WEIGHTS_STRIDE);
    multiply_tiles<1, 4, 7>();
    if (TWO) {
      load_tile<5>(second + k, stride);
      multiply_tiles<2, 5, 6>();
      multiply_tiles<3, 5, 7>();
    } else {
      load_tile<6>(weights + 128, WEIGHTS_STRIDE);
      multiply_tiles<2, 4, 6>();
      load_tile<7>(weights + 192, WEIGHTS_STRIDE);
      multiply_tiles<3, 4, 7>();
    }
  }
  store_tile<0>(&sums[0]);
  store_tile<1>(&sums[1]);
  store_tile<2>(&sums[2]);
  store_tile<3>(&sums[3]);
}

// Products of int8 weights, which writes its results as `gemm` does.
class AmxProduct {
 public:
  AmxProduct(const PackedMatrix& w, const GemmInput& x, float* y, int stride, bool accumulate)
      : w_(w),
        x_(x),
        y_(y),
        stride_(static_cast<size_t>(stride)),
        accumulate_(accumulate) {}

  // Compute one block of outputs, in a TileScope of x.rows.
  void compute(int block) {
    const int rows = x_.rows;
    const size_t output = static_cast<size_t>(block) * OUTPUT_BLOCK;
    const int8_t* weights = static_cast<const int8_t*>(w_.weights) + output * static_cast<size_t>(x_.cols);
    for (int begin = 0; begin < rows; begin += 2 * AMX_ROWS) {
      const int middle = begin + AMX_ROWS < rows ? begin + AMX_ROWS : rows;
      const int end = middle + AMX_ROWS < rows ? middle + AMX_ROWS : rows;
      if (middle == end) {
        if (begin == 0) {
          multiply_rows<false, true>(tile_before(middle), nullptr, x_.cols, weights, sums_);
        } else {
          multiply_rows<false, false>(tile_before(middle), nullptr, x_.cols, weights, sums_);
        }
        for (size_t i = 0; i < 4; ++i) write(sums_[i], begin, middle, output + 16 * i);
        continue;
      }
      for (size_t half = 0; half < 2; ++half) {
        const int8_t* own = weights + 128 * half;
        if (begin == 0 && half == 0) {
          multiply_rows<true, true>(tile_before(middle), tile_before(end), x_.cols, own, sums_);
        } else {
          multiply_rows<true, false>(tile_before(middle), tile_before(end), x_.cols, own, sums_);
        }
        for (size_t i = 0; i < 2; ++i) {
          write(sums_[i], begin, middle, output + 32 * half + 16 * i);
          write(sums_[2 + i], middle, end, output + 32 * half + 16 * i);
        }
      }
    }
  }

 private:
  // The tile whose last row is the one before `end`; the last tile may overlap the one before it.
  int first_row(int end) const { return end < AMX_ROWS ? 0 : end - AMX_ROWS; }
  const uint8_t* tile_before(int end) const {
    return x_.quantized + static_cast<size_t>(first_row(end)) * quantized_row_size(x_.cols);
  }

  // Write 16 outputs, from `output` on, of rows `begin` to `end`.
  void write(const TileSums& sums, int begin, int end, size_t output) const {
    for (size_t lane = 0; lane < AMX_ROWS; lane += VEC_SIZE, output += VEC_SIZE) {
      const VecI32 compensation = load_i32(w_.compensation + output);
      const VecF32 scale = load(w_.scales + output), bias = w_.bias == nullptr ? zeros() : load(w_.bias + output);
      for (int row = begin; row < end; ++row) {
        float* to = y_ + static_cast<size_t>(row) * stride_ + output;
        const VecI32 sum = sub(load_i32(&sums.sums[row - first_row(end)][lane]), compensation);
        VecF32 value = mul(to_f32(sum), mul(scale, broadcast(x_.scales[row])));
        if (w_.bias != nullptr) value = add(value, bias);
        store(to, accumulate_ ? add(value, load(to)) : value);
      }
    }
  }

  const PackedMatrix& w_;
  const GemmInput& x_;
  float* const y_;
  const size_t stride_;
  const bool accumulate_;
  TileSums sums_[4];
};

// `gemm` with int8 weights.
inline void gemm_amx(const PackedMatrix& w, const GemmInput& x, float* y, int stride, bool accumulate, int first_block,
                     int last_block) {
  const TileScope tiles(x.rows);
  AmxProduct product(w, x, y, stride, accumulate);
  for (int block = first_block; block < last_block; ++block) product.compute(block);
}

#endif

}  // namespace dragoman
