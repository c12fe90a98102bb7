// One vector of floats, as wide as the processor has them: 16 with AVX-512, 8 with AVX2.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace dragoman {

#if defined(__AVX512F__)

constexpr int W = 16;
using Vec = __m512;
using Ints = __m512i;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec all(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline Vec load(const uint16_t* half) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(half))); }
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec smaller(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec nearest(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec magnitude(Vec x) { return _mm512_abs_ps(x); }
inline Vec with_sign_of(Vec size, Vec sign) {
  return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(size), _mm512_and_si512(_mm512_castps_si512(sign), _mm512_set1_epi32(INT32_MIN))));
}
inline Vec scaled(Vec x, Vec whole) { return _mm512_scalef_ps(x, whole); }
inline uint32_t above(Vec x, Vec limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GT_OQ); }
inline float sum(Vec x) { return _mm512_reduce_add_ps(x); }
inline float largest(Vec x) { return _mm512_reduce_max_ps(x); }
inline Vec to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Ints no_ints() { return _mm512_setzero_si512(); }
inline Ints load_ints(const int32_t* p) { return _mm512_loadu_si512(p); }
inline Ints minus(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Ints load_bytes(const int8_t* p) { return _mm512_loadu_si512(p); }
inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
// Written out because GCC 12 copies the sums of its own intrinsic through memory.
inline void dot(Ints& sums, Ints u8, Ints s8) { asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(u8), "v"(s8)); }
inline void store_bytes(uint8_t* p, Vec whole) {  // 0 .. 255
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(whole)));
}
inline void store_half(uint16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#else

constexpr int W = 8;
using Vec = __m256;
using Ints = __m256i;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec all(float x) { return _mm256_set1_ps(x); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline Vec load(const uint16_t* half) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half))); }
inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec smaller(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec magnitude(Vec x) { return _mm256_andnot_ps(all(-0.0f), x); }
inline Vec with_sign_of(Vec size, Vec sign) { return _mm256_or_ps(size, _mm256_and_ps(sign, _mm256_set1_ps(-0.0f))); }
inline Vec scaled(Vec x, Vec whole) {  // x 2^whole
  return x * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127)), 23));
}
inline uint32_t above(Vec x, Vec limit) {  // a bit a number
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GT_OQ)));
}
inline float sum(Vec x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
inline float largest(Vec x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
inline Vec to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Ints no_ints() { return _mm256_setzero_si256(); }
inline Ints load_ints(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Ints minus(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Ints load_bytes(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline Ints all_ints(int32_t x) { return _mm256_set1_epi32(x); }
inline void dot(Ints& sums, Ints u8, Ints s8) {
#if defined(__AVXVNNI__)
  sums = _mm256_dpbusd_avx_epi32(sums, u8, s8);
#else
  // maddubs would saturate: widen to 16 bits first, so that every processor gives the same sums.
  const __m256i low = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(u8)), _mm256_cvtepi8_epi16(_mm256_castsi256_si128(s8)));
  const __m256i high = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(u8, 1)), _mm256_cvtepi8_epi16(_mm256_extracti128_si256(s8, 1)));
  // Neighbouring pairs are halves of one output; hadd pairs them within 128-bit lanes, the permutation puts lanes right.
  sums = _mm256_add_epi32(sums, _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xD8));
#endif
}
inline void store_bytes(uint8_t* p, Vec whole) {
  const __m256i x = _mm256_cvtps_epi32(whole);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
inline void store_half(uint16_t* p, Vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#endif

// Four neighbouring bytes, once for each 32-bit place.
inline Ints four_bytes(const uint8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof(four));
  return all_ints(four);
}

inline Vec add(Vec a, Vec b) { return a + b; }
inline Vec minus(Vec a, Vec b) { return a - b; }
inline Vec quotient(Vec a, Vec b) { return a / b; }
inline Vec mul(Vec a, Vec b) { return a * b; }

// e^x with a relative error below (2 + |x| / 2) 2^-23, from -87 to 88, and as there beyond: 2^n 2^r, |r| <= 1/2, the latter
// by a polynomial that is 1 at 0.
inline Vec exponential(Vec x) {
  const Vec log2e = all(1.44269504f), clipped = smaller(all(88.0f), larger(all(-87.0f), x));  // in this order NaN stays NaN
  const Vec n = nearest(mul(clipped, log2e)), r = fma(clipped, log2e, -n);
  Vec p = all(1.32647273e-3f);
  for (const float c : {9.67151299e-3f, 5.55073358e-2f, 2.40222424e-1f, 6.93147004e-1f, 1.0f}) p = fma(p, r, all(c));
  return scaled(p, n);
}

inline Vec logistic(Vec x) { return quotient(all(1.0f), add(all(1.0f), exponential(minus(zero(), x)))); }

// The error function to 6e-7, of which 1.5e-7 are the formula's (Abramowitz and Stegun 1964, 7.1.26); odd by construction.
inline Vec error_function(Vec x) {
  const Vec size = magnitude(x);
  const Vec t = quotient(all(1.0f), fma(all(0.3275911f), size, all(1.0f)));
  Vec p = all(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = fma(p, t, all(c));
  const Vec beyond = minus(all(1.0f), mul(mul(p, t), exponential(minus(zero(), mul(x, x)))));
  return with_sign_of(beyond, x);
}

}  // namespace dragoman
