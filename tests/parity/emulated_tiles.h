// The instructions of tiles.h in plain C++, to test the products of AMX on any processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace dragoman {

struct EmulatedTiles {
  TileSizes sizes{0};
  uint8_t bytes[8][16][64];
  bool configured = false;
};
inline thread_local EmulatedTiles emulated;

inline void configure_tiles(const TileSizes& sizes) {
  bool valid = !emulated.configured && sizes.palette == 1 && sizes.start_row == 0;
  for (int tile = 0; tile < 16; ++tile) {
    valid = valid && sizes.rows[tile] <= 16 && sizes.row_bytes[tile] == (tile < 8 ? 64 : 0);
  }
  if (!valid) std::abort();
  emulated.sizes = sizes;
  emulated.configured = true;
}

inline void release_tiles() { emulated.configured = false; }

template <int TILE>
inline void zero_tile() {
  if (!emulated.configured) std::abort();
  std::memset(emulated.bytes[TILE], 0, sizeof(emulated.bytes[TILE]));
}

template <int TILE>
inline void load_tile(const void* from, size_t stride) {
  zero_tile<TILE>();
  for (size_t r = 0; r < emulated.sizes.rows[TILE]; ++r) {
    std::memcpy(emulated.bytes[TILE][r], static_cast<const char*>(from) + r * stride, 64);
  }
}

template <int TILE>
inline void store_tile(void* to) {
  for (size_t r = 0; r < emulated.sizes.rows[TILE]; ++r) {
    std::memcpy(static_cast<char*>(to) + r * 64, emulated.bytes[TILE][r], 64);
  }
}

template <int SUMS, int X, int WEIGHTS>
inline void multiply_tiles() {
  const uint8_t* rows = emulated.sizes.rows;
  if (!emulated.configured || rows[SUMS] != rows[X] || rows[WEIGHTS] != 16) std::abort();
  for (size_t r = 0; r < rows[SUMS]; ++r) {
    for (size_t output = 0; output < 16; ++output) {
      int32_t sum;
      std::memcpy(&sum, &emulated.bytes[SUMS][r][4 * output], sizeof(sum));
      for (size_t k = 0; k < 64; ++k) {
        const auto weight = static_cast<int8_t>(emulated.bytes[WEIGHTS][k / 4][4 * output + k % 4]);
        sum += emulated.bytes[X][r][k] * weight;
      }
      std::memcpy(&emulated.bytes[SUMS][r][4 * output], &sum, sizeof(sum));
    }
  }
}

}  // namespace dragoman
