// Dropout from random bytes.
#pragma once

#include <cstdint>

namespace dragoman {

// out[i] = residual[i] + (random[i] >= threshold ? scale * x[i] : 0); residual: null for zeros.
void drop(int threads, int64_t size, const uint8_t* random, int threshold, float scale, const float* x,
          const float* residual, float* out);

}  // namespace dragoman
