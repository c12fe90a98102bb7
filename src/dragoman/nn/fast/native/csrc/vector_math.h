// Functions of vectors of 16 floats.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <initializer_list>

#if defined(DRAGOMAN_VECTOR_INSTRUCTIONS)
#include DRAGOMAN_VECTOR_INSTRUCTIONS  // of a test: those of AVX-512 in plain C++
#endif

namespace dragoman {

// The first `count` lanes; none if it is negative.
inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? 0xFFFF : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1);
}

// The sum of the lanes in double precision.
inline double sum_lanes(__m512 x) {
  return _mm512_reduce_add_pd(_mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256(x)),
                                            _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1))));
}

// e^x for x <= 0: 2^n * e^r with |r| <= ln(2) / 2 and the Taylor series of e^r; the relative error is below 2e-7.
// Results below the smallest normal number become 0: on Intel's processors, scalef takes 100 cycles longer for them.
inline __m512 exp(__m512 x) {
  const __m512 lowest = _mm512_set1_ps(-87.0f);
  const __mmask16 is_normal = _mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ);  // or NaN
  x = _mm512_max_ps(lowest, x);  // this order of the operands keeps NaN
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);  // ln(2) in two parts, so that r is exact enough
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 sum = _mm512_set1_ps(1.0f / 5040);
  for (float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f}) {
    sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(factor));
  }
  return _mm512_maskz_scalef_ps(is_normal, sum, n);
}

}  // namespace dragoman
