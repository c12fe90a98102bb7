#include "dropout.h"

#include <algorithm>

#include "vector_math.h"

namespace dragoman {

void drop(int threads, int64_t size, const uint8_t* random, int threshold, float scale, const float* x,
          const float* residual, float* out) {
  constexpr int64_t PART = 1 << 14;
  const __m128i limit = _mm_set1_epi8(static_cast<char>(threshold));
  const __m512 factor = _mm512_set1_ps(scale);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t begin = 0; begin < size; begin += PART) {
    const int64_t end = std::min(begin + PART, size);
    for (int64_t i = begin; i < end; i += 16) {
      const __mmask16 lanes = first_lanes(end - i);
      const __mmask16 kept = _mm_mask_cmpge_epu8_mask(lanes, _mm_maskz_loadu_epi8(lanes, random + i), limit);
      __m512 y = _mm512_maskz_mul_ps(kept, _mm512_maskz_loadu_ps(kept, x + i), factor);
      if (residual != nullptr) y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(lanes, residual + i));
      _mm512_mask_storeu_ps(out + i, lanes, y);
    }
  }
}

}  // namespace dragoman
