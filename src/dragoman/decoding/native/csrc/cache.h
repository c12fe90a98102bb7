// Keys and values of many sequences, and the attention of one query over them.
//
// A head of a sequence lies together, in float32 or in half precision:
//   keys    [positions / 16][d_head][16]     sixteen scores at once without a horizontal sum
//   values  [positions][d_head]
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "room.h"

namespace dragoman {

constexpr int LANES = 16;

class Cache {
 public:
  explicit Cache(bool half) : half_(half) {}

  // Room for a sequence of each of these lengths.
  void reserve(const std::vector<int>& lengths, int layers, int heads, int d_head);
  // Bytes of a sequence of so many positions.
  static int64_t bytes_of(int length, int layers, int heads, int d_head, bool half);
  // Numbers from the start to one head of one layer of one sequence.
  size_t at(int row, int layer, int head) const {
    const Sequence& s = sequences_[static_cast<size_t>(row)];
    return s.begin + static_cast<size_t>(layer * heads_ + head) * s.a_head;
  }
  void append(size_t at, const float* key, const float* value, int position);
  // softmax(q K^T scale + bias) V over `count` positions; `scores` has room for them, rounded up to 16, and holds the
  // weights afterwards, to be multiplied by what is returned.  bias: one number a position, or none.  next: what comes
  // after it, fetched meanwhile, for many sequences are more than a processor's caches hold.
  float attend(size_t at, size_t next, const float* q, int count, float scale, const float* bias, float* scores, float* out) const;
  // The first `length` positions of all heads and layers of one sequence, for another one.
  void copy(int from, int to, int length);
  void lend() { keys_.lend(), values_.lend(); }
  size_t used() const { return keys_.used() + values_.used(); }
  size_t bytes() const { return keys_.bytes() + values_.bytes(); }

 private:
  // Where a sequence begins, and the numbers of one of its heads.
  struct Sequence { size_t begin, a_head; };
  size_t size() const { return half_ ? sizeof(uint16_t) : sizeof(float); }
  template <typename T>
  T* keys() const { return reinterpret_cast<T*>(keys_.get()); }
  template <typename T>
  T* values() const { return reinterpret_cast<T*>(values_.get()); }

  bool half_;
  int layers_ = 0, heads_ = 0, d_head_ = 0;
  std::vector<Sequence> sequences_;
  Room<char> keys_, values_;
};

}  // namespace dragoman
