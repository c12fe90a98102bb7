// Vectors of 16 floats in one or two registers of simd.h: training adds and rounds in the same order in all builds, so
// that they give the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace dragoman {

constexpr int PARTS = 16 / VEC_SIZE;

struct Vec {
  VecF32 part[PARTS];
};

// function of each part.
template <typename Function, typename... Vectors>
inline Vec each(Function function, const Vectors&... x) {
  Vec result;
#pragma GCC unroll 2
  for (int i = 0; i < PARTS; ++i) result.part[i] = function(i, x.part[i]...);
  return result;
}

inline Vec all(float x) {
  return each([x](int) { return broadcast(x); });
}
inline Vec operator+(const Vec& a, const Vec& b) {
  return each([](int, VecF32 x, VecF32 y) { return add(x, y); }, a, b);
}
inline Vec operator-(const Vec& a, const Vec& b) {
  return each([](int, VecF32 x, VecF32 y) { return sub(x, y); }, a, b);
}
inline Vec operator*(const Vec& a, const Vec& b) {
  return each([](int, VecF32 x, VecF32 y) { return mul(x, y); }, a, b);
}
// a * b + c with one rounding.
inline Vec fmadd(const Vec& a, const Vec& b, const Vec& c) {
  return each([](int, VecF32 x, VecF32 y, VecF32 z) { return fmadd(x, y, z); }, a, b, c);
}
// The second operand if either is NaN.
inline Vec max(const Vec& a, const Vec& b) {
  return each([](int, VecF32 x, VecF32 y) { return max(x, y); }, a, b);
}

inline Vec load_all(const float* p) {
  return each([=](int i) { return load(p + i * VEC_SIZE); });
}
inline void store_all(float* p, const Vec& x) {
  for (int i = 0; i < PARTS; ++i) store(p + i * VEC_SIZE, x.part[i]);
}
// Only these lanes are read, the others are `fill`, or written.
inline Vec load(const float* p, Lanes lanes, float fill = 0) {
  return each([=](int i) { return load_lanes(p + i * VEC_SIZE, part_of(lanes, i), fill); });
}
inline void store(float* p, const Vec& x, Lanes lanes) {
  for (int i = 0; i < PARTS; ++i) store_lanes(p + i * VEC_SIZE, x.part[i], part_of(lanes, i));
}

// x where a bit is set, 0 elsewhere.
inline Vec keep(uint32_t bits, const Vec& x) {
  return each([=](int i, VecF32 y) { return select(mask_of(bits >> i * VEC_SIZE), y, zeros()); }, x);
}
// Bit i is set unless x[i] <= limit[i]: also for NaN.
inline uint16_t not_at_most(const Vec& x, const Vec& limit) {
  uint32_t bits = 0;
  for (int i = 0; i < PARTS; ++i) bits |= bits_of(at_least(limit.part[i], x.part[i])) << i * VEC_SIZE;
  return static_cast<uint16_t>(~bits);
}
// Bit i is set if random[i] >= threshold; i < count.
inline uint16_t kept_bits(const uint8_t* random, int64_t count, int threshold) {
  const uint8_t limit = static_cast<uint8_t>(threshold);
  if (count >= 16) return static_cast<uint16_t>(bytes_at_least(random, limit));
  uint8_t bytes[16] = {};
  std::memcpy(bytes, random, count);
  return static_cast<uint16_t>(bytes_at_least(bytes, limit) & ((1u << count) - 1));
}

inline float reduce_sum(const Vec& x) {
  if constexpr (PARTS == 1) return reduce_sum(x.part[0]);
  return reduce_sum(add(x.part[0], x.part[PARTS - 1]));
}
inline float reduce_max(const Vec& x) {
  if constexpr (PARTS == 1) return reduce_max(x.part[0]);
  return reduce_max(max(x.part[0], x.part[PARTS - 1]));
}
// The sum of the elements in double precision.
inline double precise_sum(const Vec& x) {
  float lanes[16];
  store_all(lanes, x);
  double sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = lanes[i];
  for (int size = 8; size > 0; size /= 2) {
    for (int i = 0; i < size; ++i) sums[i] += sums[i + size];
  }
  return sums[0];
}

// e^x for x <= 0: 2^n * e^r with |r| <= ln(2) / 2 and the Taylor series of e^r; the relative error is below 2e-7.
// Results below the smallest normal number become 0: on Intel's processors, scalef takes 100 cycles longer for them.
inline Vec exp(const Vec& v) {
  return each([](int, VecF32 x) {
    const VecF32 lowest = broadcast(-87.0f), clipped = max(lowest, x);  // this order of the operands keeps NaN
    const VecF32 n = round(mul(clipped, broadcast(LOG2_E)));
    VecF32 r = fmadd(n, broadcast(-0.693359375f), clipped);  // ln(2) in two parts, so that r is exact enough
    r = fmadd(n, broadcast(2.12194440e-4f), r);
    VecF32 sum = broadcast(1.0f / 5040);
    for (float factor : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2, 1.0f, 1.0f}) {
      sum = fmadd(sum, r, broadcast(factor));
    }
    return select(at_least(lowest, x), zeros(), ldexp(sum, n));
  }, v);
}

}  // namespace dragoman
