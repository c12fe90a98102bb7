// The instructions of AVX-512 that the engine and the kernels of training use, in plain C++, to test both on any
// processor with AVX2.  Vectors are those of the compiler, which divides them into two; lanes are computed one by one.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __AVX512F__ 1

namespace dragoman {
namespace emulated_avx512 {

template <typename Result, typename Operation>
inline Result lanes(Operation operation) {
  Result result;
  for (int i = 0; i < 16; ++i) result[i] = operation(i);
  return result;
}

using Ints = int32_t __attribute__((vector_size(64)));
inline Ints ints(__m512i x) { return reinterpret_cast<Ints>(x); }
template <typename Operation>
inline __m512i int_lanes(Operation operation) {
  return reinterpret_cast<__m512i>(lanes<Ints>(operation));
}

// ---- memory

template <typename Vector>
inline Vector load(const void* p) {
  Vector x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
template <typename Vector>
inline void store(void* p, const Vector& x) {
  std::memcpy(p, &x, sizeof(x));
}

// Elements whose bit of the mask is 0 are neither read nor written.
inline __m512 mask_loadu_ps(__m512 others, __mmask16 mask, const float* p) {
  return lanes<__m512>([&](int i) { return mask >> i & 1 ? p[i] : others[i]; });
}
inline void mask_storeu_ps(float* p, __mmask16 mask, __m512 x) {
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) p[i] = x[i];
  }
}
// ---- arithmetic

inline __m512 set1_ps(float x) {
  return lanes<__m512>([&](int) { return x; });
}
inline __m512i set1_epi32(int32_t x) {
  return int_lanes([&](int) { return x; });
}
inline __m512 fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return lanes<__m512>([&](int i) { return std::fma(a[i], b[i], c[i]); });
}
// The second operand if one is NaN.
inline __m512 max_ps(__m512 a, __m512 b) {
  return lanes<__m512>([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline __m512 min_ps(__m512 a, __m512 b) {
  return lanes<__m512>([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
inline __m512 abs_ps(__m512 x) {
  return lanes<__m512>([&](int i) { return std::fabs(x[i]); });
}
inline __m512 roundscale_ps(__m512 x, int) {
  return lanes<__m512>([&](int i) { return std::nearbyint(x[i]); });
}
inline __m512 scalef_ps(__m512 x, __m512 exponent) {
  return lanes<__m512>([&](int i) { return x[i] * std::exp2(std::floor(exponent[i])); });
}
inline __m512i sub_epi32(__m512i a, __m512i b) { return reinterpret_cast<__m512i>(ints(a) - ints(b)); }
inline __m512i slli_epi32(__m512i x, int bits) {
  return int_lanes([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(ints(x)[i]) << bits); });
}

// Add the products of unsigned bytes of x and signed bytes of w.
inline __m512i dpbusd_epi32(__m512i sums, __m512i x, __m512i w) {
  uint8_t unsigned_bytes[64];
  int8_t signed_bytes[64];
  store(unsigned_bytes, x);
  store(signed_bytes, w);
  return int_lanes([&](int i) {
    int32_t sum = ints(sums)[i];
    for (int k = 4 * i; k < 4 * i + 4; ++k) sum += unsigned_bytes[k] * signed_bytes[k];
    return sum;
  });
}

// Add the products of pairs of bfloat16 numbers.
inline __m512 dpbf16_ps(__m512 sums, __m512bh x, __m512bh w) {
  uint16_t upper_of_x[32], upper_of_w[32];
  store(upper_of_x, x);
  store(upper_of_w, w);
  const auto number = [](uint16_t upper) {
    const uint32_t bits = static_cast<uint32_t>(upper) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  };
  return lanes<__m512>([&](int i) {
    const float first = std::fma(number(upper_of_x[2 * i]), number(upper_of_w[2 * i]), sums[i]);
    return std::fma(number(upper_of_x[2 * i + 1]), number(upper_of_w[2 * i + 1]), first);
  });
}

// ---- comparisons and masks

template <typename Operation>
inline __mmask16 mask_of(Operation operation) {
  unsigned bits = 0;
  for (int i = 0; i < 16; ++i) bits |= static_cast<unsigned>(operation(i)) << i;
  return static_cast<__mmask16>(bits);
}
inline __mmask16 cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  return mask_of([&](int i) {
    switch (predicate) {
      case _CMP_GT_OQ: return a[i] > b[i];
      case _CMP_GE_OQ: return a[i] >= b[i];
      default: std::abort();
    }
  });
}
inline __m512 mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  return lanes<__m512>([&](int i) { return mask >> i & 1 ? b[i] : a[i]; });
}
inline __m512i mask_blend_epi32(__mmask16 mask, __m512i a, __m512i b) {
  return int_lanes([&](int i) { return mask >> i & 1 ? ints(b)[i] : ints(a)[i]; });
}

// ---- order of lanes

// Lanes `first` to `first` + 15 of those of b and then a.
inline __m512i alignr_epi32(__m512i a, __m512i b, int first) {
  return int_lanes([&](int i) { return i + first < 16 ? ints(b)[i + first] : ints(a)[i + first - 16]; });
}
// Two of the four quarters of a, and two of b.
inline __m512 shuffle_f32x4(__m512 a, __m512 b, int order) {
  return lanes<__m512>([&](int i) { return (i < 8 ? a : b)[(order >> (i / 4 * 2) & 3) * 4 + i % 4]; });
}
// In each quarter, two lanes of a and two of b.
inline __m512 shuffle_ps(__m512 a, __m512 b, int order) {
  return lanes<__m512>([&](int i) { return (i % 4 < 2 ? a : b)[i / 4 * 4 + (order >> (i % 4 * 2) & 3)]; });
}
// In each quarter, two lanes of a and b in turn, from `first` on.
inline __m512 unpack_ps(__m512 a, __m512 b, int first) {
  return lanes<__m512>([&](int i) { return (i % 2 == 0 ? a : b)[i / 4 * 4 + first + i % 4 / 2]; });
}
inline __m256 half_of(__m512 x, int which) {
  __m256 halves[2];
  store(halves, x);
  return halves[which];
}

// Combine the halves of x until one lane is left.
template <typename Vector, typename Operation>
inline auto reduced(Vector x, Operation operation) {
  for (int half = sizeof(x) / sizeof(x[0]) / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = operation(x[i], x[i + half]);
  }
  return x[0];
}
inline float reduce_add_ps(__m512 x) {
  return reduced(x, [](float a, float b) { return a + b; });
}
inline float reduce_max_ps(__m512 x) {
  return reduced(x, [](float a, float b) { return a > b ? a : b; });
}

// ---- conversions

inline __m512 cvtepi32_ps(__m512i x) {
  return lanes<__m512>([&](int i) { return static_cast<float>(ints(x)[i]); });
}
inline __m512i cvtps_epi32(__m512 x) {
  return int_lanes([&](int i) { return _mm_cvtss_si32(_mm_set_ss(x[i])); });
}
inline __m128i cvtusepi32_epi8(__m512i x) {
  uint8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(std::min(static_cast<uint32_t>(ints(x)[i]), 255u));
  return load<__m128i>(bytes);
}
inline __m512 cvtph_ps(__m256i x) {
  const __m256 halves[] = {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
  return load<__m512>(halves);
}
inline __m256i cvtps_ph(__m512 x) {
  return _mm256_set_m128i(_mm256_cvtps_ph(half_of(x, 1), _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(half_of(x, 0), _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace emulated_avx512
}  // namespace dragoman

#define DRAGOMAN_EMULATED(name) dragoman::emulated_avx512::name
#define DRAGOMAN_TARGET_BF16  // of gemm.cpp: no instructions of a later processor

#define _mm512_loadu_ps DRAGOMAN_EMULATED(load)<__m512>
#define _mm512_loadu_si512 DRAGOMAN_EMULATED(load)<__m512i>
#define _mm512_storeu_ps DRAGOMAN_EMULATED(store)
#define _mm512_storeu_si512 DRAGOMAN_EMULATED(store)
#define _mm512_mask_loadu_ps DRAGOMAN_EMULATED(mask_loadu_ps)
#define _mm512_mask_storeu_ps DRAGOMAN_EMULATED(mask_storeu_ps)

#define _mm512_setzero_ps() DRAGOMAN_EMULATED(set1_ps)(0.0f)
#define _mm512_setzero_si512() DRAGOMAN_EMULATED(set1_epi32)(0)
#define _mm512_set1_ps DRAGOMAN_EMULATED(set1_ps)
#define _mm512_set1_epi32 DRAGOMAN_EMULATED(set1_epi32)
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_fmadd_ps DRAGOMAN_EMULATED(fmadd_ps)
#define _mm512_max_ps DRAGOMAN_EMULATED(max_ps)
#define _mm512_min_ps DRAGOMAN_EMULATED(min_ps)
#define _mm512_abs_ps DRAGOMAN_EMULATED(abs_ps)
#define _mm512_roundscale_ps DRAGOMAN_EMULATED(roundscale_ps)
#define _mm512_scalef_ps DRAGOMAN_EMULATED(scalef_ps)
#define _mm512_sub_epi32 DRAGOMAN_EMULATED(sub_epi32)
#define _mm512_slli_epi32 DRAGOMAN_EMULATED(slli_epi32)
#define _mm512_dpbusd_epi32 DRAGOMAN_EMULATED(dpbusd_epi32)
#define _mm512_dpbf16_ps DRAGOMAN_EMULATED(dpbf16_ps)

#define _mm512_cmp_ps_mask DRAGOMAN_EMULATED(cmp_ps_mask)
#define _mm512_mask_blend_ps DRAGOMAN_EMULATED(mask_blend_ps)
#define _mm512_mask_blend_epi32 DRAGOMAN_EMULATED(mask_blend_epi32)

#define _mm512_alignr_epi32 DRAGOMAN_EMULATED(alignr_epi32)
#define _mm512_shuffle_f32x4 DRAGOMAN_EMULATED(shuffle_f32x4)
#define _mm512_shuffle_ps DRAGOMAN_EMULATED(shuffle_ps)
#define _mm512_unpacklo_ps(a, b) DRAGOMAN_EMULATED(unpack_ps)(a, b, 0)
#define _mm512_unpackhi_ps(a, b) DRAGOMAN_EMULATED(unpack_ps)(a, b, 2)
#define _mm512_reduce_add_ps DRAGOMAN_EMULATED(reduce_add_ps)
#define _mm512_reduce_max_ps DRAGOMAN_EMULATED(reduce_max_ps)

#define _mm512_castps_si512 reinterpret_cast<__m512i>
#define _mm512_castsi512_ps reinterpret_cast<__m512>
#define _mm512_cvtepi32_ps DRAGOMAN_EMULATED(cvtepi32_ps)
#define _mm512_cvtps_epi32 DRAGOMAN_EMULATED(cvtps_epi32)
#define _mm512_cvtusepi32_epi8 DRAGOMAN_EMULATED(cvtusepi32_epi8)
#define _mm512_cvtph_ps DRAGOMAN_EMULATED(cvtph_ps)
#define _mm512_cvtps_ph(x, rounding) DRAGOMAN_EMULATED(cvtps_ph)(x)
