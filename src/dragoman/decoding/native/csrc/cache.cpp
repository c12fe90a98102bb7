#include "cache.h"

#include <cstring>
#include <limits>

#include "simd.h"

namespace dragoman {
namespace {

constexpr int PARTS = LANES / W;  // vectors of sixteen numbers
constexpr int CHAINS = 4;         // sums made side by side, for an addition takes longer than its turn

void put(float* to, const float* from) { store(to, load(from)); }
void put(uint16_t* to, const float* from) { store_half(to, load(from)); }

template <typename T>
void append_to(T* keys, T* values, const float* key, const float* value, int d_head, int position) {
  T* column = keys + static_cast<size_t>(position / LANES) * LANES * d_head + position % LANES;
  T* row = values + static_cast<size_t>(position) * d_head;
  for (int d = 0; d < d_head; d += W) {
    put(row + d, value + d);
    T some[W];
    put(some, key + d);
    for (int i = 0; i < W; ++i) column[(d + i) * LANES] = some[i];
  }
}

template <int COUNT, typename T>
inline void fetch(const T* numbers) {
#pragma GCC unroll 8
  for (size_t at = 0; at < COUNT * sizeof(T); at += 64) _mm_prefetch(reinterpret_cast<const char*>(numbers) + at, _MM_HINT_T0);
}

// q K^T scale for sixteen positions; what lies `ahead` of their keys is fetched.
template <typename T>
inline void score_block(const float* q, const T* block, std::ptrdiff_t ahead, int d_head, Vec scale, float* scores) {
  for (int part = 0; part < PARTS; ++part) {
    Vec s[CHAINS];
    for (auto& chain : s) chain = zero();
    for (int d = 0; d < d_head; d += CHAINS) {
      if (part == 0) fetch<CHAINS * LANES>(block + ahead + d * LANES);
#pragma GCC unroll 4
      for (int c = 0; c < CHAINS; ++c) s[c] = fma(all(q[d + c]), load(block + (d + c) * LANES + part * W), s[c]);
    }
    store(scores + part * W, mul(add(add(s[0], s[1]), add(s[2], s[3])), scale));
  }
}

// Scores of `padded` positions -> e^(score - largest), and their sum.  What is -inf becomes next to nothing.
inline float exponentials(float* scores, int padded) {
  Vec most = all(std::numeric_limits<float>::lowest());
  for (int t = 0; t < padded; t += W) most = larger(most, load(scores + t));
  const Vec top = all(largest(most));
  Vec total = zero();
  for (int t = 0; t < padded; t += W) {
    const Vec e = exponential(minus(load(scores + t), top));
    store(scores + t, e);
    total = add(total, e);
  }
  return sum(total);
}

// N vectors of the output side by side, each in `C` sums: of positions t, t + 1 ...
template <int N, int C, typename T>
inline void mix(const float* weights, const T* values, std::ptrdiff_t ahead, int count, int d_head, Vec inverse, float* out) {
  Vec o[C][N];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) o[c][v] = zero();
  int t = 0;
  for (; t + C <= count; t += C, values += C * d_head)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      fetch<N * W>(values + ahead + c * d_head);
#pragma GCC unroll 8
      for (int v = 0; v < N; ++v) o[c][v] = fma(all(weights[t + c]), load(values + c * d_head + v * W), o[c][v]);
    }
  for (; t < count; ++t, values += d_head)
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) o[0][v] = fma(all(weights[t]), load(values + v * W), o[0][v]);
#pragma GCC unroll 8
  for (int v = 0; v < N; ++v) {
#pragma GCC unroll 8
    for (int c = 1; c < C; ++c) o[0][v] = add(o[0][v], o[c][v]);
    store(out + v * W, mul(o[0][v], inverse));
  }
}

template <typename T>
float attend_to(const T* keys, const T* values, std::ptrdiff_t ahead, const float* q, int count, int d_head, float scale, const float* bias, float* scores,
                float* out) {
  const int padded = (count + LANES - 1) / LANES * LANES;
  for (int first = 0; first < padded; first += LANES)
    score_block(q, keys + static_cast<size_t>(first) * d_head, ahead, d_head, all(scale), scores + first);
  for (int t = 0; bias != nullptr && t < count; ++t) scores[t] += bias[t];
  for (int t = count; t < padded; ++t) scores[t] = -std::numeric_limits<float>::infinity();
  const float share = 1.0f / exponentials(scores, padded);
  const Vec inverse = all(share);
  int d = 0;
  for (; d + 4 * W <= d_head; d += 4 * W) mix<4, 2>(scores, values + d, ahead, count, d_head, inverse, out + d);
  for (; d + 2 * W <= d_head; d += 2 * W) mix<2, 4>(scores, values + d, ahead, count, d_head, inverse, out + d);
  for (; d < d_head; d += W) mix<1, 4>(scores, values + d, ahead, count, d_head, inverse, out + d);
  return share;
}

}  // namespace

int64_t Cache::bytes_of(int length, int layers, int heads, int d_head, bool half) {
  const int64_t numbers = int64_t{(length + LANES - 1) / LANES * LANES} * d_head * heads * layers;
  return 2 * numbers * static_cast<int64_t>(half ? sizeof(uint16_t) : sizeof(float));
}

void Cache::reserve(const std::vector<int>& lengths, int layers, int heads, int d_head) {
  constexpr size_t MOST = size_t{1} << 46;  // more than any machine has; what is added stays far below 2^64
  layers_ = layers, heads_ = heads, d_head_ = d_head;
  sequences_.clear();
  size_t total = 0;
  for (const int length : lengths) {
    sequences_.push_back({total, static_cast<size_t>((length + LANES - 1) / LANES * LANES) * static_cast<size_t>(d_head)});
    total += sequences_.back().a_head * static_cast<size_t>(heads) * static_cast<size_t>(layers);
    if (total > MOST) throw std::bad_alloc();
  }
  keys_.of(total * size()), values_.of(total * size());
}

void Cache::append(size_t at, const float* key, const float* value, int position) {
  if (half_) append_to(keys<uint16_t>() + at, values<uint16_t>() + at, key, value, d_head_, position);
  else append_to(keys<float>() + at, values<float>() + at, key, value, d_head_, position);
}

float Cache::attend(size_t at, size_t next, const float* q, int count, float scale, const float* bias, float* scores, float* out) const {
  const auto ahead = static_cast<std::ptrdiff_t>(next - at);
  if (half_) return attend_to(keys<uint16_t>() + at, values<uint16_t>() + at, ahead, q, count, d_head_, scale, bias, scores, out);
  return attend_to(keys<float>() + at, values<float>() + at, ahead, q, count, d_head_, scale, bias, scores, out);
}

void Cache::copy(int from, int to, int length) {
  const size_t key_bytes = static_cast<size_t>((length + LANES - 1) / LANES * LANES) * d_head_ * size();
  const size_t value_bytes = static_cast<size_t>(length) * d_head_ * size();
  for (int layer = 0; layer < layers_; ++layer)
    for (int head = 0; head < heads_; ++head) {
      const size_t a = at(from, layer, head) * size(), b = at(to, layer, head) * size();
      std::memcpy(keys_.get() + b, keys_.get() + a, key_bytes);
      std::memcpy(values_.get() + b, values_.get() + a, value_bytes);
    }
}

}  // namespace dragoman
