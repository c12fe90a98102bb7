// Matrix products in float32 for training, with AVX-512: C = A B, A B + bias, or C + A B.
//
// The loops are those of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", 2008): a block of B
// is copied into panels of PANEL columns, which the innermost loop reads from the first-level cache, while a tile of
// ROWS x PANEL sums stays in registers.  Each element of C is summed in the same order for any number of threads and any
// position in C: a row of C depends on its own row of A only.
#include "matmul.h"

#include <algorithm>
#include <utility>

#include "vector_math.h"

namespace dragoman {
namespace {

constexpr int ROWS = 12;              // of a tile: 24 registers of sums, 2 of B, 1 of A
constexpr int PANEL = 32;             // columns of a tile
constexpr int64_t DEPTH = 512;          // of a block
constexpr int64_t BLOCK_ROWS = 192;     // rows of A and
constexpr int64_t BLOCK_COLUMNS = 512;  // columns of B that stay in the second-level cache together
constexpr double MIN_PARALLEL_PRODUCTS = 2e6;  // below, waking threads takes longer than the products

// Where the sums of a tile start and end.
struct Tile {
  float* c;
  int64_t stride;
  const float* bias;  // added to the first sums, or null
  bool accumulate;    // whether C holds earlier sums
  __mmask16 low, high;
};

// c[i][j] (+)= sum over k of a(i, k) b[k][j]; BY_ROW: a(i, k) = a[i * stride + k], otherwise a[k * stride + i].
// WIDE: whether there are more than 16 columns.
template <int M, bool BY_ROW, bool WIDE>
void multiply_tile(int64_t depth, const float* a, int64_t stride, const float* b, const Tile& tile) {
  __m512 low[M], high[M];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) low[i] = high[i] = _mm512_setzero_ps();
  for (int i = 0; i < M; ++i) {  // C arrives while the sums are computed
    __builtin_prefetch(tile.c + i * tile.stride, 1);
    if constexpr (WIDE) __builtin_prefetch(tile.c + i * tile.stride + 16, 1);
  }
  const float* a0 = a;
  const float* a3 = a + 3 * stride;
  const float* a6 = a + 6 * stride;
  const float* a9 = a + 9 * stride;
  for (int64_t k = 0; k < depth; ++k) {
    const __m512 b_low = _mm512_load_ps(b), b_high = WIDE ? _mm512_load_ps(b + 16) : b_low;
    b += PANEL;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const float* row = i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : a9;
      const __m512 x = _mm512_set1_ps(BY_ROW ? row[(i % 3) * stride] : a[i]);
      low[i] = _mm512_fmadd_ps(x, b_low, low[i]);
      if constexpr (WIDE) high[i] = _mm512_fmadd_ps(x, b_high, high[i]);
    }
    if constexpr (BY_ROW) {
      ++a0, ++a3, ++a6, ++a9;
    } else {
      a += stride;
    }
  }
  __m512 bias_low = _mm512_setzero_ps(), bias_high = bias_low;
  if (tile.bias != nullptr) {
    bias_low = _mm512_maskz_loadu_ps(tile.low, tile.bias);
    bias_high = _mm512_maskz_loadu_ps(tile.high, tile.bias + 16);
  }
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
    float* c = tile.c + i * tile.stride;
    if (tile.accumulate) {
      low[i] = _mm512_add_ps(low[i], _mm512_maskz_loadu_ps(tile.low, c));
      if constexpr (WIDE) high[i] = _mm512_add_ps(high[i], _mm512_maskz_loadu_ps(tile.high, c + 16));
    }
    _mm512_mask_storeu_ps(c, tile.low, _mm512_add_ps(low[i], bias_low));
    if constexpr (WIDE) _mm512_mask_storeu_ps(c + 16, tile.high, _mm512_add_ps(high[i], bias_high));
  }
}

using TileFunction = void (*)(int64_t, const float*, int64_t, const float*, const Tile&);

template <bool BY_ROW, bool WIDE, int... M>
TileFunction tile_function(int64_t rows, std::integer_sequence<int, M...>) {
  static constexpr TileFunction functions[] = {multiply_tile<M + 1, BY_ROW, WIDE>...};
  return functions[rows - 1];
}

template <bool BY_ROW>
TileFunction tile_function(int64_t rows, int64_t columns) {
  constexpr std::make_integer_sequence<int, ROWS> sizes;
  return columns > 16 ? tile_function<BY_ROW, true>(rows, sizes) : tile_function<BY_ROW, false>(rows, sizes);
}

// out[k * PANEL + i] = i < columns ? in[i * stride + k] : 0 for i < 16 and k < depth, of which 16 are used at most.
void transpose_16(const float* in, int64_t stride, int64_t columns, int64_t depth, float* out) {
  __m512 r[16], t[16];
  const __mmask16 lanes = first_lanes(depth);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) r[i] = _mm512_maskz_loadu_ps(i < columns ? lanes : 0, in + i * stride);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xEE);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xDD);
  }
#pragma GCC unroll 16
  for (int k = 0; k < 16; ++k) {
    if (k < depth) _mm512_store_ps(out + k * PANEL, r[k]);
  }
}

// Copy a block of B (depth x columns) into panels [k][PANEL], with zeros for missing columns, except in a half of 16
// without any, which is not read.
void pack_b(const Matrix& b, int64_t depth, int64_t columns, float* out) {
  for (int64_t j = 0; j < columns; j += PANEL, out += depth * PANEL) {
    const int64_t width = std::min<int64_t>(PANEL, columns - j);
    if (b.column == 1) {
      const __mmask16 low = first_lanes(width), high = first_lanes(width - 16);
      for (int64_t k = 0; k < depth; ++k) {
        const float* in = b.data + k * b.row + j;
        _mm512_store_ps(out + k * PANEL, _mm512_maskz_loadu_ps(low, in));
        _mm512_store_ps(out + k * PANEL + 16, _mm512_maskz_loadu_ps(high, in + 16));
      }
      continue;
    }
    for (int64_t half = 0; half < width; half += 16) {
      const float* in = b.data + (j + half) * b.column;
      for (int64_t k = 0; k < depth; k += 16) {
        transpose_16(in + k, b.column, width - half, depth - k, out + k * PANEL + half);
      }
    }
  }
}

// Copy a block of A whose columns are contiguous (rows x depth) into panels [k][ROWS].
void pack_a(const Matrix& a, int64_t rows, int64_t depth, float* out) {
  for (int64_t i = 0; i < rows; i += ROWS, out += depth * ROWS) {
    const __mmask16 lanes = first_lanes(std::min<int64_t>(ROWS, rows - i));
    for (int64_t k = 0; k < depth; ++k) {
      _mm512_mask_storeu_ps(out + k * ROWS, first_lanes(ROWS), _mm512_maskz_loadu_ps(lanes, a.data + k * a.column + i));
    }
  }
}

struct Block {
  int64_t rows, columns, depth;
  const float* bias;
  bool accumulate;
};

// One block of rows against all panels of a packed block of B.
void multiply_block(const Block& block, const Matrix& a, const float* packed_b, float* c, int64_t c_stride, float* buffer) {
  const bool by_row = a.column == 1;
  if (!by_row) pack_a(a, block.rows, block.depth, buffer);
  for (int64_t j = 0; j < block.columns; j += PANEL) {
    const float* panel = packed_b + j * block.depth;
    const int64_t width = block.columns - j;
    Tile tile{nullptr, c_stride, block.bias == nullptr ? nullptr : block.bias + j, block.accumulate,
              first_lanes(width), first_lanes(width - 16)};
    for (int64_t i = 0; i < block.rows; i += ROWS) {
      const int64_t rows = std::min<int64_t>(ROWS, block.rows - i);
      tile.c = c + i * c_stride + j;
      if (by_row) {
        tile_function<true>(rows, width)(block.depth, a.data + i * a.row, a.row, panel, tile);
      } else {
        tile_function<false>(rows, width)(block.depth, buffer + i * block.depth, ROWS, panel, tile);
      }
    }
  }
}

// Smallest multiple of `unit` of which `parts` cover `size`.
int64_t share(int64_t size, int64_t parts, int64_t unit) {
  const int64_t units = (size + unit - 1) / unit;
  return (units + parts - 1) / parts * unit;
}

}  // namespace

void multiply_serial(Workspace& workspace, const Sizes& sizes, const Matrix& a, const Matrix& b, const float* bias,
                     bool accumulate, float* c, int64_t c_stride) {
  const int64_t depth = std::min(sizes.k, DEPTH);
  float* packed_b = workspace.reserve(0, depth * ((std::min(sizes.n, BLOCK_COLUMNS) + PANEL - 1) / PANEL * PANEL));
  float* packed_a = workspace.reserve(1, depth * (std::min(sizes.m, BLOCK_ROWS) + ROWS) + 16);
  for (int64_t j = 0; j < sizes.n; j += BLOCK_COLUMNS) {
    for (int64_t k = 0; k < sizes.k; k += DEPTH) {
      Block block{0, std::min(BLOCK_COLUMNS, sizes.n - j), std::min(DEPTH, sizes.k - k), nullptr, accumulate || k > 0};
      if (bias != nullptr && k == 0) block.bias = bias + j;
      pack_b(b.from(k, j), block.depth, block.columns, packed_b);
      for (int64_t i = 0; i < sizes.m; i += BLOCK_ROWS) {
        block.rows = std::min(BLOCK_ROWS, sizes.m - i);
        multiply_block(block, a.from(i, k), packed_b, c + i * c_stride + j, c_stride, packed_a);
      }
    }
  }
}

void multiply(int threads, const Sizes& sizes, const Matrix& a, const Matrix& b, const float* bias, bool accumulate,
              float* c, int64_t c_stride) {
  if (static_cast<double>(sizes.m) * sizes.n * sizes.k < MIN_PARALLEL_PRODUCTS) threads = 1;
  const bool by_rows = sizes.m >= sizes.n;
  const int64_t step = by_rows ? share(sizes.m, threads, ROWS) : share(sizes.n, threads, PANEL);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) {
    const int64_t i = by_rows ? part * step : 0, j = by_rows ? 0 : part * step;
    const Sizes own{by_rows ? std::min(step, sizes.m - i) : sizes.m, by_rows ? sizes.n : std::min(step, sizes.n - j),
                    sizes.k};
    if (own.m <= 0 || own.n <= 0) continue;
    Workspace workspace;
    multiply_serial(workspace, own, a.from(i, 0), b.from(0, j), bias == nullptr ? nullptr : bias + j, accumulate,
                    c + i * c_stride + j, c_stride);
  }
}

}  // namespace dragoman
