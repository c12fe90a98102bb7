// Matrix products in float32: C = A B, A B + bias, or C + A B.
//
// The loops are those of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", 2008): a block of B
// is copied into panels of PANEL columns, which the innermost loop reads from the first-level cache, while a tile of
// ROWS x PANEL sums stays in registers.  Each element of C is summed in the same order for any number of threads and any
// position in C: a row of C depends on its own row of A only.
#include "matmul.h"

#include <algorithm>
#include <utility>

#include "kernels.h"
#include "vector_math.h"

using namespace dragoman;

namespace {

constexpr int WIDTH = VEC_SIZE == 16 ? 2 : 1;  // of a tile, in vectors of 16
constexpr int PANEL = 16 * WIDTH;              // columns of a tile
// Rows of a tile.  Sums, B and A are in 24 + 2 + 1 of 32 registers with AVX-512, in 12 + 2 + 1 of 16 with AVX2.
constexpr int ROWS = VEC_SIZE == 16 ? 12 : 6;
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
  int64_t width;      // columns, of which at most PANEL are computed
};

// c[i][j] (+)= sum over k of a(i, k) b[k][j]; BY_ROW: a(i, k) = a[i * a_stride + k], otherwise a[k * a_stride + i].
// N: vectors of 16 columns.
template <int M, bool BY_ROW, int N>
void multiply_tile(int64_t depth, const float* a, int64_t a_stride, const float* b, const Tile& tile) {
  Vec sums[M][N];
#pragma GCC unroll 16
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) {
      sums[i][j] = all(0);
      __builtin_prefetch(tile.c + i * tile.stride + 16 * j, 1);  // C arrives while the sums are computed
    }
  }
  const float* a0 = a;
  const float* a3 = a + 3 * a_stride;
  const float* a6 = a + 6 * a_stride;
  const float* a9 = a + 9 * a_stride;
  for (int64_t k = 0; k < depth; ++k) {
    Vec columns[N];
#pragma GCC unroll 2
    for (int j = 0; j < N; ++j) columns[j] = load_all(b + 16 * j);
    b += PANEL;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      const float* row = i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : a9;
      const Vec x = all(BY_ROW ? row[(i % 3) * a_stride] : a[i]);
#pragma GCC unroll 2
      for (int j = 0; j < N; ++j) sums[i][j] = fmadd(x, columns[j], sums[i][j]);
    }
    if constexpr (BY_ROW) {
      ++a0, ++a3, ++a6, ++a9;
    } else {
      a += a_stride;
    }
  }
#pragma GCC unroll 2
  for (int j = 0; j < N; ++j) {
    const int64_t stride = tile.stride;
    const Lanes lanes = first_lanes(tile.width - 16 * j);
    const Vec bias = tile.bias == nullptr ? all(0) : load(tile.bias + 16 * j, lanes);
    float* c = tile.c + 16 * j;
    const bool accumulate = tile.accumulate;
#pragma GCC unroll 16
    for (int i = 0; i < M; ++i) {
      if (accumulate) sums[i][j] = sums[i][j] + load(c + i * stride, lanes);
      store(c + i * stride, sums[i][j] + bias, lanes);
    }
  }
}

using TileFunction = void (*)(int64_t, const float*, int64_t, const float*, const Tile&);

template <bool BY_ROW, int N, int... M>
TileFunction tile_function(int64_t rows, std::integer_sequence<int, M...>) {
  static constexpr TileFunction functions[] = {multiply_tile<M + 1, BY_ROW, N>...};
  return functions[rows - 1];
}

template <bool BY_ROW>
TileFunction tile_function(int64_t rows, int64_t columns) {
  constexpr std::make_integer_sequence<int, ROWS> sizes;
  return columns > 16 ? tile_function<BY_ROW, WIDTH>(rows, sizes) : tile_function<BY_ROW, 1>(rows, sizes);
}

// out[k * PANEL + i] = i < columns ? in[i * stride + k] : 0 for i < 16 and k < VEC_SIZE; of rows k < depth.
void transpose_part(const float* in, int64_t stride, int64_t columns, int64_t depth, float* out) {
  const Lanes lanes = first_lanes(depth);
  for (int part = 0; part < 16; part += VEC_SIZE) {
    VecF32 r[VEC_SIZE];
#pragma GCC unroll 16
    for (int i = 0; i < VEC_SIZE; ++i) {
      r[i] = part + i < columns ? load_lanes(in + (part + i) * stride, lanes, 0) : zeros();
    }
    transpose(r);
#pragma GCC unroll 16
    for (int k = 0; k < VEC_SIZE; ++k) {
      if (k < depth) store(out + k * PANEL + part, r[k]);
    }
  }
}

// Copy a block of B (depth x columns) into panels [k][PANEL], with zeros for missing columns, except in a half of 16
// without any, which is not read.
void pack_b(const Matrix& b, int64_t depth, int64_t columns, float* out) {
  for (int64_t j = 0; j < columns; j += PANEL, out += depth * PANEL) {
    const int64_t width = std::min<int64_t>(PANEL, columns - j);
    if (b.column == 1) {
      for (int64_t k = 0; k < depth; ++k) {
        const float* in = b.data + k * b.row + j;
        for (int i = 0; i < PANEL; i += 16) store_all(out + k * PANEL + i, load(in + i, first_lanes(width - i)));
      }
      continue;
    }
    for (int64_t half = 0; half < width; half += 16) {
      const float* in = b.data + (j + half) * b.column;
      for (int64_t k = 0; k < depth; k += VEC_SIZE) {
        transpose_part(in + k, b.column, width - half, depth - k, out + k * PANEL + half);
      }
    }
  }
}

// Copy a block of A whose columns are contiguous (rows x depth) into panels [k][ROWS].
void pack_a(const Matrix& a, int64_t rows, int64_t depth, float* out) {
  for (int64_t i = 0; i < rows; i += ROWS, out += depth * ROWS) {
    const Lanes lanes = first_lanes(std::min<int64_t>(ROWS, rows - i));
    for (int64_t k = 0; k < depth; ++k) {  // the next store overwrites the elements beyond ROWS; the last are padding
      store_all(out + k * ROWS, load(a.data + k * a.column + i, lanes));
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
    Tile tile{nullptr, c_stride, block.bias == nullptr ? nullptr : block.bias + j, block.accumulate, width};
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

namespace dragoman {

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

}  // namespace dragoman

void dragoman_multiply(int threads, const int64_t* sizes, const int64_t* strides, const float* a, const float* b,
                       const float* bias, int accumulate, float* c) {
  const int64_t m = sizes[0], n = sizes[1], depth = sizes[2], c_stride = strides[4];
  const Matrix left{a, strides[0], strides[1]}, right{b, strides[2], strides[3]};
  if (static_cast<double>(m) * n * depth < MIN_PARALLEL_PRODUCTS) threads = 1;
  const bool by_rows = m >= n;
  const int64_t step = by_rows ? share(m, threads, ROWS) : share(n, threads, PANEL);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) {
    const int64_t i = by_rows ? part * step : 0, j = by_rows ? 0 : part * step;
    const Sizes own{by_rows ? std::min(step, m - i) : m, by_rows ? n : std::min(step, n - j), depth};
    if (own.m <= 0 || own.n <= 0) continue;
    Workspace workspace;
    multiply_serial(workspace, own, left.from(i, 0), right.from(0, j), bias == nullptr ? nullptr : bias + j,
                    accumulate != 0, c + i * c_stride + j, c_stride);
  }
}
