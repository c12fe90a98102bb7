// The functions of tiles.h in plain C++, to test the products of AMX on any processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dragoman {

struct TileSizes {
  int rows[8];

  explicit TileSizes(int count) {
    for (int tile = 0; tile < 8; ++tile) rows[tile] = tile < 6 ? count : 16;
  }
};

struct EmulatedTiles {
  TileSizes sizes{0};
  uint8_t bytes[8][16][64];
};
inline thread_local EmulatedTiles emulated;

inline void configure_tiles(const TileSizes& sizes) { emulated.sizes = sizes; }
inline void release_tiles() { emulated.sizes = TileSizes{0}; }

template <int TILE>
inline void zero_tile() {
  std::memset(emulated.bytes[TILE], 0, sizeof(emulated.bytes[TILE]));
}

template <int TILE>
inline void load_tile(const void* from, size_t stride) {
  zero_tile<TILE>();
  for (size_t r = 0; r < static_cast<size_t>(emulated.sizes.rows[TILE]); ++r) {
    std::memcpy(emulated.bytes[TILE][r], static_cast<const char*>(from) + r * stride, 64);
  }
}

template <int TILE>
inline void store_tile(void* to) {
  for (size_t r = 0; r < static_cast<size_t>(emulated.sizes.rows[TILE]); ++r) {
    std::memcpy(static_cast<char*>(to) + r * 64, emulated.bytes[TILE][r], 64);
  }
}

template <int SUMS, int X, int WEIGHTS>
inline void multiply_tiles() {
  for (int r = 0; r < emulated.sizes.rows[SUMS]; ++r) {
    for (int output = 0; output < 16; ++output) {
      int32_t sum;
      std::memcpy(&sum, &emulated.bytes[SUMS][r][4 * output], sizeof(sum));
      for (int k = 0; k < 64; ++k) {
        const auto weight = static_cast<int8_t>(emulated.bytes[WEIGHTS][k / 4][4 * output + k % 4]);
        sum += emulated.bytes[X][r][k] * weight;
      }
      std::memcpy(&emulated.bytes[SUMS][r][4 * output], &sum, sizeof(sum));
    }
  }
}

}  // namespace dragoman
