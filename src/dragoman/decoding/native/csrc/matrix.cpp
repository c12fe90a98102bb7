#include "matrix.h"

#include "simd.h"

namespace dragoman {
namespace {

// A tile is R rows by GROUP vectors of a block: as many sums as the registers hold beside one column of weights.
constexpr int VECTORS = BLOCK / W;
constexpr int GROUP = 4;
constexpr int TILE = W == 16 ? 6 : 2;
constexpr int AHEAD = 8192;  // bytes of weights that are fetched before they are needed

inline void fetch(const void* weights, int bytes) {
#pragma GCC unroll 8
  for (int at = 0; at < bytes; at += 64) _mm_prefetch(static_cast<const char*>(weights) + AHEAD + at, _MM_HINT_T0);
}

// The sums of a row are made in the same order whatever rows are beside it, so that a batch changes no bit.
template <int R>
inline void float_tile(const Inputs& x, int row, const float* weights, int in, Vec (&sums)[R][GROUP]) {
  for (int k = 0; k < in; ++k, weights += BLOCK) {
    if (R <= 2) fetch(weights, GROUP * W * 4);
    Vec columns[GROUP];
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) columns[v] = load(weights + v * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec input = all(x.floats[static_cast<size_t>(row + r) * x.width + k]);
#pragma GCC unroll 8
      for (int v = 0; v < GROUP; ++v) sums[r][v] = fma(input, columns[v], sums[r][v]);
    }
  }
}

template <int R>
inline void byte_tile(const Inputs& x, int row, const int8_t* weights, int in, Ints (&sums)[R][GROUP]) {
  for (int k = 0; k < in; k += 4, weights += 4 * BLOCK) {
    fetch(weights, GROUP * W * 4);
    Ints columns[GROUP];
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) columns[v] = load_bytes(weights + v * 4 * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints input = four_bytes(x.bytes + static_cast<size_t>(row + r) * x.width + k);
#pragma GCC unroll 8
      for (int v = 0; v < GROUP; ++v) dot(sums[r][v], input, columns[v]);
    }
  }
}

#if defined(__AVX512F__)
#define DRAGOMAN_BFLOAT16 __attribute__((target("avx512bf16")))

template <int R>
DRAGOMAN_BFLOAT16 inline void brain_tile(const Inputs& x, int row, const uint16_t* weights, int in, Vec (&out)[R][GROUP]) {
  Vec sums[R][GROUP];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) sums[r][v] = _mm512_setzero_ps();
  for (int k = 0; k < in; k += 2, weights += 2 * BLOCK) {
    __m512i columns[GROUP];
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) columns[v] = _mm512_loadu_si512(weights + v * 2 * W);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      int32_t two;
      std::memcpy(&two, x.brains + static_cast<size_t>(row + r) * x.width + k, sizeof(two));
      const __m512i input = _mm512_set1_epi32(two);
#pragma GCC unroll 8
      for (int v = 0; v < GROUP; ++v) sums[r][v] = _mm512_dpbf16_ps(sums[r][v], (__m512bh)input, (__m512bh)columns[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) out[r][v] = sums[r][v];
}
#else
template <int R>
inline void brain_tile(const Inputs&, int, const uint16_t*, int, Vec (&)[R][GROUP]) {}
#endif

inline void put(float* y, Vec value, const float* bias, bool accumulate) {
  if (bias != nullptr) value = add(value, load(bias));
  store(y, accumulate ? add(value, load(y)) : value);
}

template <int R>
void byte_rows(const Matrix& w, const Inputs& x, int row, size_t begin, int first, float* y, int stride, bool accumulate) {
  Ints sums[R][GROUP];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) sums[r][v] = no_ints();
  byte_tile<R>(x, row, static_cast<const int8_t*>(w.weights) + begin * w.in + first * W * 4, w.in, sums);
#pragma GCC unroll 8
  for (int v = 0; v < GROUP; ++v) {
    const size_t at = begin + (first + v) * W;
    const Vec scale = load(w.scales + at);
    const Ints shift = load_ints(w.shift + at);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec value = mul(to_floats(minus(sums[r][v], shift)), mul(scale, all(x.scales[row + r])));
      put(y + static_cast<size_t>(row + r) * stride + at, value, w.bias == nullptr ? nullptr : w.bias + at, accumulate);
    }
  }
}

template <int R>
void float_rows(const Matrix& w, const Inputs& x, int row, size_t begin, int first, float* y, int stride, bool accumulate) {
  Vec sums[R][GROUP];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) sums[r][v] = zero();
  if (w.kind == Numbers::float32)
    float_tile<R>(x, row, static_cast<const float*>(w.weights) + begin * w.in + first * W, w.in, sums);
  else
    brain_tile<R>(x, row, static_cast<const uint16_t*>(w.weights) + begin * w.in + first * W * 2, w.in, sums);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < GROUP; ++v) {
      const size_t at = begin + (first + v) * W;
      put(y + static_cast<size_t>(row + r) * stride + at, sums[r][v], w.bias == nullptr ? nullptr : w.bias + at, accumulate);
    }
}

// Rows `row` .. of one block in tiles of R rows, what is left in smaller ones.
template <int R>
void rows_of(const Matrix& w, const Inputs& x, int row, int block, float* y, int stride, bool accumulate) {
  const size_t begin = static_cast<size_t>(block) * BLOCK;
  for (; row + R <= x.rows; row += R)
    for (int first = 0; first < VECTORS; first += GROUP) {
      if (w.kind == Numbers::int8) byte_rows<R>(w, x, row, begin, first, y, stride, accumulate);
      else float_rows<R>(w, x, row, begin, first, y, stride, accumulate);
    }
  if constexpr (R > 1) rows_of<R - 1>(w, x, row, block, y, stride, accumulate);
}

}  // namespace

Matrix Matrix::block(int number) const {
  const size_t first = static_cast<size_t>(number) * BLOCK;
  Matrix b = *this;
  b.out = BLOCK;
  b.weights = static_cast<const char*>(weights) + first * static_cast<size_t>(in) * size_of(kind);
  if (scales != nullptr) b.scales = scales + first, b.shift = shift + first;
  if (bias != nullptr) b.bias = bias + first;
  return b;
}

Inputs Inputs::part(int first, int count) const {
  const size_t at = static_cast<size_t>(first) * static_cast<size_t>(width);
  Inputs some = *this;
  some.rows = count;
  if (floats != nullptr) some.floats = floats + at;
  if (brains != nullptr) some.brains = brains + at;
  if (bytes != nullptr) some.bytes = bytes + at, some.scales = scales + first;
  return some;
}

void quantize(const float* x, int rows, int width, uint8_t* bytes, float* scales) {
  for (int r = 0; r < rows; ++r, x += width, bytes += width) {
    Vec most = zero(), nothing = zero();
    for (int k = 0; k < width; k += W) {
      most = larger(most, magnitude(load(x + k)));
      nothing = fma(load(x + k), zero(), nothing);
    }
    const float top = largest(most);
    scales[r] = top / 127.0f + sum(nothing);  // what is not finite stays so: bytes could not tell
    const Vec inverse = all(top > 1e-30f ? 127.0f / top : 0.0f);
    for (int k = 0; k < width; k += W) store_bytes(bytes + k, nearest(fma(load(x + k), inverse, all(128.0f))));
  }
}

void shorten(const float* x, size_t count, uint16_t* brains) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof(bits));
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    brains[i] = is_nan ? 0x7FC0 : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);  // to the nearest, ties to even
  }
}

void widen(const uint16_t* x, int count, float* y) {
  for (int i = 0; i < count; i += W) store(y + i, load(x + i));
}

bool has_bfloat16() {
#if defined(__AVX512F__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

void product(const Matrix& w, const Inputs& x, float* y, int stride, bool accumulate, int begin, int end) {
  for (int block = begin; block < end; ++block) rows_of<TILE>(w, x, 0, block, y, stride, accumulate);
}

}  // namespace dragoman
