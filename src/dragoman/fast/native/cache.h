// Keys and values of many sequences, and the attention of one query over them.
//
// A head of a sequence lies together, in float32 or in half precision:
//   keys    [positions / 16][d_head][16]     sixteen scores at once without a horizontal sum
//   values  [positions][d_head]
#pragma once

#include <cstddef>
#include <cstdint>

#include "room.h"

namespace dragoman {

constexpr int LANES = 16;

class Cache {
 public:
  explicit Cache(bool half) : half_(half) {}

  // Room for `rows` sequences of at most `length` positions.
  void reserve(int rows, int layers, int heads, int length, int d_head);
  // Numbers from the start to one head of one layer of one sequence.
  size_t at(int row, int layer, int head) const { return row * a_row_ + layer * a_layer_ + head * a_head_; }
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
  size_t row_bytes() const { return 2 * a_row_ * size(); }

 private:
  size_t size() const { return half_ ? sizeof(uint16_t) : sizeof(float); }
  template <typename T>
  T* keys() const { return reinterpret_cast<T*>(keys_.get()); }
  template <typename T>
  T* values() const { return reinterpret_cast<T*>(values_.get()); }

  bool half_;
  int layers_ = 0, heads_ = 0, d_head_ = 0;
  size_t a_head_ = 0, a_layer_ = 0, a_row_ = 0;
  Room<char> keys_, values_;
};

}  // namespace dragoman
