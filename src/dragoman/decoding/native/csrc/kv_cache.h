// Key/value cache of many sequences, and the attention of one query over one sequence.
//
// Each head of each layer of a sequence is contiguous, in float32 or float16 (fp16):
//   keys    [positions / 16][d_head][16]   16 scores are computed at once, without horizontal sums
//   values  [positions][d_head]
// The number of positions is padded to a multiple of 16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "buffer.h"

namespace dragoman {

constexpr int KV_BLOCK = 16;  // positions per block of keys

class KVCache {
 public:
  explicit KVCache(bool fp16) : fp16_(fp16) {}

  // Allocate one sequence for each of `lengths` (in positions).
  void reserve(const std::vector<int>& lengths, int layers, int heads, int d_head);
  // Bytes of one sequence.
  static int64_t sequence_bytes(int length, int layers, int heads, int d_head, bool fp16);

  // Index of the first element of a head, for `append` and `attend`.
  size_t head_offset(int sequence, int layer, int head) const {
    const Sequence& s = sequences_[static_cast<size_t>(sequence)];
    return s.offset + static_cast<size_t>(layer * heads_ + head) * s.head_size;
  }

  // Write the key and the value of one position, both (d_head,).
  void append(size_t head, const float* key, const float* value, int position);

  // output (d_head,) = softmax(scale * q K^T + bias) V over the first `count` positions of `head`.
  // bias: (count,) or null.  scores: scratch space of `count` elements rounded up to 16; on return, scores[t] times the
  // returned factor is the attention weight of position t.  next_head: prefetched meanwhile, because the caches of many
  // sequences exceed the processor's caches.
  float attend(size_t head, size_t next_head, const float* q, int count, float scale, const float* bias, float* scores,
               float* output) const;

  // The same for up to MAX_QUERIES queries, which share the keys and values that are loaded: queries are q_stride apart,
  // outputs output_stride, and scores `count` rounded up to 16.  factors: receives one per query.
  void attend(size_t head, size_t next_head, const float* q, int q_stride, int queries, int count, float scale,
              const float* bias, float* scores, float* factors, float* output, int output_stride) const;
  static constexpr int MAX_QUERIES = 4;

  // A number of positions, rounded up to full blocks.
  static int padded(int length) { return (length + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK; }

  // Copy the first `length` positions of all heads and layers to another sequence.
  void copy(int from, int to, int length);

  void release_pages() {
    keys_.release_pages();
    values_.release_pages();
  }
  size_t used_bytes() const { return keys_.used_bytes() + values_.used_bytes(); }
  size_t capacity_bytes() const { return keys_.capacity_bytes() + values_.capacity_bytes(); }

 private:
  struct Sequence {
    size_t offset;     // elements before its first head
    size_t head_size;  // elements per head: padded positions * d_head
  };

  size_t element_size() const { return fp16_ ? sizeof(uint16_t) : sizeof(float); }
  template <typename T>
  T* keys() const {
    return reinterpret_cast<T*>(keys_.data());
  }
  template <typename T>
  T* values() const {
    return reinterpret_cast<T*>(values_.data());
  }

  bool fp16_;
  int layers_ = 0, heads_ = 0, d_head_ = 0;
  std::vector<Sequence> sequences_;
  Buffer<char> keys_, values_;
};

}  // namespace dragoman
