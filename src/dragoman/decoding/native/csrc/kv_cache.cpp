#include "kv_cache.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "simd.h"

namespace dragoman {
namespace {

constexpr int BLOCK_VECS = KV_BLOCK / VEC_SIZE;  // vectors per block of 16 positions
constexpr int ACCUMULATORS = 4;                  // independent sums, which hide the latency of an addition

void convert(float* to, const float* from) { store(to, load(from)); }
void convert(uint16_t* to, const float* from) { store_fp16(to, load(from)); }

template <typename T>
void append_to(T* keys, T* values, const float* key, const float* value, int d_head, int position) {
  T* key_column = keys + static_cast<size_t>(position / KV_BLOCK) * KV_BLOCK * d_head + position % KV_BLOCK;
  T* value_row = values + static_cast<size_t>(position) * d_head;
  for (int d = 0; d < d_head; d += VEC_SIZE) {
    convert(value_row + d, value + d);
    T converted[VEC_SIZE];
    convert(converted, key + d);
    for (int i = 0; i < VEC_SIZE; ++i) key_column[(d + i) * KV_BLOCK] = converted[i];
  }
}

template <int COUNT, typename T>
inline void prefetch(const T* data) {
#pragma GCC unroll 8
  for (size_t byte = 0; byte < COUNT * sizeof(T); byte += 64) {
    prefetch_line(reinterpret_cast<const char*>(data) + byte);
  }
}

// scores[t] = scale * q . k_t of QUERIES queries for the 16 positions t of one block of keys; `q` and `scores` have a
// distance of q_stride and score_stride between the queries.
// prefetch_distance: from this block to the data that is needed next.
template <int QUERIES, typename T>
inline void score_block(const float* q, int q_stride, const T* keys, std::ptrdiff_t prefetch_distance, int d_head,
                        VecF32 scale, float* scores, int score_stride) {
  for (int vec = 0; vec < BLOCK_VECS; ++vec) {
    VecF32 sums[QUERIES][ACCUMULATORS];
    for (auto& of_query : sums)
      for (auto& sum : of_query) sum = zeros();
    for (int d = 0; d < d_head; d += ACCUMULATORS) {
      if (vec == 0) prefetch<ACCUMULATORS * KV_BLOCK>(keys + prefetch_distance + d * KV_BLOCK);
#pragma GCC unroll 4
      for (int a = 0; a < ACCUMULATORS; ++a) {
        const VecF32 key = load(keys + (d + a) * KV_BLOCK + vec * VEC_SIZE);
#pragma GCC unroll 4
        for (int i = 0; i < QUERIES; ++i) sums[i][a] = fmadd(broadcast(q[i * q_stride + d + a]), key, sums[i][a]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < QUERIES; ++i) {
      const VecF32 sum = add(add(sums[i][0], sums[i][1]), add(sums[i][2], sums[i][3]));
      store(scores + i * score_stride + vec * VEC_SIZE, mul(sum, scale));
    }
  }
}

// Replace scores by e^(score - max) and return their sum.  -inf becomes e^-87.
inline float exp_and_sum(float* scores, int padded) {
  VecF32 maxima = broadcast(std::numeric_limits<float>::lowest());
  for (int t = 0; t < padded; t += VEC_SIZE) maxima = max(maxima, load(scores + t));
  const VecF32 maximum = broadcast(reduce_max(maxima));
  VecF32 total = zeros();
  for (int t = 0; t < padded; t += VEC_SIZE) {
    const VecF32 e = exp(sub(load(scores + t), maximum));
    store(scores + t, e);
    total = add(total, e);
  }
  return reduce_sum(total);
}

// output[i] = factor * sum over t of weights[t] * values[t][i] of QUERIES queries, for VECS vectors of i.
// Positions are distributed over 4 independent sums, whatever VECS and QUERIES are, so that results do not depend on
// them.
template <int VECS, int QUERIES, typename T>
inline void weighted_sum(const float* weights, int weight_stride, const T* values, std::ptrdiff_t prefetch_distance,
                         int count, int d_head, const float* factors, float* output, int output_stride) {
  constexpr int STREAMS = 4;
  VecF32 sums[QUERIES][STREAMS][VECS];
#pragma GCC unroll 8
  for (int i = 0; i < QUERIES; ++i)
#pragma GCC unroll 8
    for (int s = 0; s < STREAMS; ++s)
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) sums[i][s][v] = zeros();
  int t = 0;
  for (; t + STREAMS <= count; t += STREAMS, values += STREAMS * d_head)
#pragma GCC unroll 8
    for (int s = 0; s < STREAMS; ++s) {
      prefetch<VECS * VEC_SIZE>(values + prefetch_distance + s * d_head);
#pragma GCC unroll 8
      for (int v = 0; v < VECS; ++v) {
        const VecF32 value = load(values + s * d_head + v * VEC_SIZE);
#pragma GCC unroll 8
        for (int i = 0; i < QUERIES; ++i) {
          sums[i][s][v] = fmadd(broadcast(weights[i * weight_stride + t + s]), value, sums[i][s][v]);
        }
      }
    }
  for (; t < count; ++t, values += d_head)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) {
      const VecF32 value = load(values + v * VEC_SIZE);
#pragma GCC unroll 8
      for (int i = 0; i < QUERIES; ++i) {
        sums[i][0][v] = fmadd(broadcast(weights[i * weight_stride + t]), value, sums[i][0][v]);
      }
    }
#pragma GCC unroll 8
  for (int i = 0; i < QUERIES; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < VECS; ++v) {
#pragma GCC unroll 8
      for (int s = 1; s < STREAMS; ++s) sums[i][0][v] = add(sums[i][0][v], sums[i][s][v]);
      store(output + i * output_stride + v * VEC_SIZE, mul(sums[i][0][v], broadcast(factors[i])));
    }
}

template <int QUERIES, typename T>
void attend_to(const T* keys, const T* values, std::ptrdiff_t prefetch_distance, const float* q, int q_stride, int count,
               int d_head, float scale, const float* bias, float* scores, float* factors, float* output,
               int output_stride) {
  const int padded = KVCache::padded(count);
  for (int first = 0; first < padded; first += KV_BLOCK) {
    score_block<QUERIES>(q, q_stride, keys + static_cast<size_t>(first) * d_head, prefetch_distance, d_head,
                         broadcast(scale), scores + first, padded);
  }
  for (int i = 0; i < QUERIES; ++i) {
    float* own = scores + i * padded;
    for (int t = 0; bias != nullptr && t < count; ++t) own[t] += bias[t];
    for (int t = count; t < padded; ++t) own[t] = -std::numeric_limits<float>::infinity();
    factors[i] = 1.0f / exp_and_sum(own, padded);
  }
  // Four queries and one vector, or one query and two vectors: the sums fit into the registers.
  constexpr int VECS = QUERIES == 1 ? 2 : 1;
  int d = 0;
  for (; d + VECS * VEC_SIZE <= d_head; d += VECS * VEC_SIZE) {
    weighted_sum<VECS, QUERIES>(scores, padded, values + d, prefetch_distance, count, d_head, factors, output + d,
                                output_stride);
  }
  for (; d < d_head; d += VEC_SIZE) {
    weighted_sum<1, QUERIES>(scores, padded, values + d, prefetch_distance, count, d_head, factors, output + d,
                             output_stride);
  }
}

// `attend_to` for up to 4 queries.
template <typename T>
void attend_queries(const T* keys, const T* values, std::ptrdiff_t prefetch_distance, const float* q, int q_stride,
                    int queries, int count, int d_head, float scale, const float* bias, float* scores, float* factors,
                    float* output, int output_stride) {
  const auto attend = [&](auto number) {
    attend_to<decltype(number)::value>(keys, values, prefetch_distance, q, q_stride, count, d_head, scale, bias, scores,
                                       factors, output, output_stride);
  };
  switch (queries) {
    case 1: return attend(std::integral_constant<int, 1>());
    case 2: return attend(std::integral_constant<int, 2>());
    case 3: return attend(std::integral_constant<int, 3>());
    default: return attend(std::integral_constant<int, 4>());
  }
}

}  // namespace

int64_t KVCache::sequence_bytes(int length, int layers, int heads, int d_head, bool fp16) {
  const int64_t elements = int64_t{KVCache::padded(length)} * d_head * heads * layers;
  return 2 * elements * static_cast<int64_t>(fp16 ? sizeof(uint16_t) : sizeof(float));
}

void KVCache::reserve(const std::vector<int>& lengths, int layers, int heads, int d_head) {
  constexpr size_t MAX_ELEMENTS = size_t{1} << 46;  // more than any machine holds; the sum below cannot overflow
  layers_ = layers;
  heads_ = heads;
  d_head_ = d_head;
  sequences_.clear();
  size_t total = 0;
  for (const int length : lengths) {
    sequences_.push_back({total, static_cast<size_t>(KVCache::padded(length)) * static_cast<size_t>(d_head)});
    total += sequences_.back().head_size * static_cast<size_t>(heads) * static_cast<size_t>(layers);
    if (total > MAX_ELEMENTS) throw std::bad_alloc();
  }
  keys_.reserve(total * element_size());
  values_.reserve(total * element_size());
}

void KVCache::append(size_t head, const float* key, const float* value, int position) {
  if (fp16_) {
    append_to(keys<uint16_t>() + head, values<uint16_t>() + head, key, value, d_head_, position);
  } else {
    append_to(keys<float>() + head, values<float>() + head, key, value, d_head_, position);
  }
}

float KVCache::attend(size_t head, size_t next_head, const float* q, int count, float scale, const float* bias,
                      float* scores, float* output) const {
  float factor;
  attend(head, next_head, q, 0, 1, count, scale, bias, scores, &factor, output, 0);
  return factor;
}

void KVCache::attend(size_t head, size_t next_head, const float* q, int q_stride, int queries, int count, float scale,
                     const float* bias, float* scores, float* factors, float* output, int output_stride) const {
  const auto distance = static_cast<std::ptrdiff_t>(next_head - head);
  const auto attend_in = [&](const auto* keys, const auto* values) {
    attend_queries(keys, values, distance, q, q_stride, queries, count, d_head_, scale, bias, scores, factors, output,
                   output_stride);
  };
  if (fp16_) return attend_in(keys<uint16_t>() + head, values<uint16_t>() + head);
  attend_in(keys<float>() + head, values<float>() + head);
}

void KVCache::copy(int from, int to, int length) {
  const size_t key_bytes = static_cast<size_t>(KVCache::padded(length)) * d_head_ * element_size();
  const size_t value_bytes = static_cast<size_t>(length) * d_head_ * element_size();
  for (int layer = 0; layer < layers_; ++layer) {
    for (int head = 0; head < heads_; ++head) {
      const size_t source = head_offset(from, layer, head) * element_size();
      const size_t target = head_offset(to, layer, head) * element_size();
      std::memcpy(keys_.data() + target, keys_.data() + source, key_bytes);
      std::memcpy(values_.data() + target, values_.data() + source, value_bytes);
    }
  }
}

}  // namespace dragoman
