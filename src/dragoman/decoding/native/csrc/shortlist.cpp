#include "shortlist.h"

#include <algorithm>

namespace dragoman {
namespace {

constexpr size_t UNIT = 4;  // bytes of an output's inputs that lie side by side, in every kind of numbers

int padded(int count) { return (count + BLOCK - 1) / BLOCK * BLOCK; }

size_t units(const Matrix& m) { return static_cast<size_t>(m.in) * size_of(m.kind) / UNIT; }

// The words of one block; what is left of the last one repeats its last word, and nobody looks at it.  Word by word: one
// stream through memory, which the processor sees coming.
void gather_block(const Matrix& whole, const int32_t* words, int count, uint32_t* to) {
  const size_t steps = units(whole);
  for (int i = 0; i < BLOCK; ++i) {
    const auto word = static_cast<size_t>(words[std::min(i, count - 1)]);
    const uint32_t* from = static_cast<const uint32_t*>(whole.weights) + word / BLOCK * BLOCK * steps + word % BLOCK;
    for (size_t step = 0; step < steps; ++step) to[step * BLOCK + static_cast<size_t>(i)] = from[step * BLOCK];
  }
}

// One number a word: its scale, its shift or its bias.  Moves the room on.
template <typename T>
const T* gather_numbers(const T* whole, const int32_t* words, int count, char*& room) {
  if (whole == nullptr) return nullptr;
  T* to = reinterpret_cast<T*>(room);
  for (int i = 0; i < padded(count); ++i) to[i] = whole[words[std::min(i, count - 1)]];
  room += static_cast<size_t>(padded(count)) * sizeof(T);
  return to;
}

}  // namespace

size_t Shortlist::bytes(const Matrix& whole, int count) {
  const size_t numbers = (whole.scales != nullptr) + (whole.shift != nullptr) + (whole.bias != nullptr);
  return static_cast<size_t>(padded(count)) * (units(whole) * UNIT + numbers * sizeof(float));
}

void Shortlist::gather(const Matrix& whole, const int32_t* words, int count, char* room, Team& team) {
  words_ = words, count_ = count;
  matrix_ = whole;
  matrix_.out = padded(count);
  auto* weights = reinterpret_cast<uint32_t*>(room);
  matrix_.weights = weights;
  team.share(matrix_.out / BLOCK, double{1} * matrix_.out * matrix_.in, [&](int, int begin, int end) {
    for (int b = begin; b < end; ++b) {
      const int first = b * BLOCK;
      gather_block(whole, words + first, std::min(BLOCK, count - first), weights + static_cast<size_t>(first) * units(whole));
    }
  });
  room += static_cast<size_t>(matrix_.out) * units(whole) * UNIT;
  matrix_.scales = gather_numbers(whole.scales, words, count, room);
  matrix_.shift = gather_numbers(whole.shift, words, count, room);
  matrix_.bias = gather_numbers(whole.bias, words, count, room);
}

int32_t Shortlist::place(int32_t word) const {
  const int32_t* found = std::lower_bound(words_, words_ + count_, word);
  return found != words_ + count_ && *found == word ? static_cast<int32_t>(found - words_) : -1;
}

}  // namespace dragoman
