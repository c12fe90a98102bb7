// The instructions of AMX on tile registers, which have up to 16 rows of 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dragoman {

// The size of each tile, in the form that ldtilecfg reads.
struct alignas(64) TileSizes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};

  // Tiles 0 to 3: sums; 4 and 5: activations, which have as many rows; 6 and 7: weights.
  explicit TileSizes(int count) {
    for (int tile = 0; tile < 8; ++tile) rows[tile] = static_cast<uint8_t>(tile < 6 ? count : 16);
  }
};

}  // namespace dragoman

#if defined(DRAGOMAN_TILE_INSTRUCTIONS)
#include DRAGOMAN_TILE_INSTRUCTIONS  // of a test: the same in plain C++
#else

namespace dragoman {

// Written in inline assembly because the load intrinsics of GCC 12 do not tell the compiler that they read memory.
inline void configure_tiles(const TileSizes& sizes) { asm volatile("ldtilecfg %0" ::"m"(sizes)); }
inline void release_tiles() { asm volatile("tilerelease"); }

template <int TILE>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

// stride: bytes from a row to the next one.
template <int TILE>
inline void load_tile(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
inline void store_tile(void* to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(size_t{64}), "i"(TILE) : "memory");
}

// Add the products of unsigned activations and signed weights.
template <int SUMS, int X, int WEIGHTS>
inline void multiply_tiles() {
  asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
}

}  // namespace dragoman

#endif
