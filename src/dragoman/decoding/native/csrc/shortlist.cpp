#include "shortlist.h"

#include <algorithm>

namespace dragoman {
namespace {

// In packed weights of every dtype, 4 bytes hold adjacent inputs of one output: a float32, 2 bfloat16 or 4 int8.  A
// block is an array [groups][64] of such groups.
constexpr size_t GROUP_BYTES = 4;

size_t groups_per_output(const PackedMatrix& m) {
  return static_cast<size_t>(m.inputs) * size_of(m.dtype) / GROUP_BYTES;
}

// Gather one block of at most 64 outputs; the remainder repeats the last output and is ignored.
// Output by output, because one strided stream through memory is prefetched by the processor.
void gather_block(const PackedMatrix& full, const int32_t* tokens, int count, uint32_t* block) {
  const size_t groups = groups_per_output(full);
  for (int i = 0; i < OUTPUT_BLOCK; ++i) {
    const auto token = static_cast<size_t>(tokens[std::min(i, count - 1)]);
    const uint32_t* source = static_cast<const uint32_t*>(full.weights) + token / OUTPUT_BLOCK * OUTPUT_BLOCK * groups +
                             token % OUTPUT_BLOCK;
    for (size_t g = 0; g < groups; ++g) block[g * OUTPUT_BLOCK + static_cast<size_t>(i)] = source[g * OUTPUT_BLOCK];
  }
}

// Gather scales, compensation or bias, one value per output, and advance `memory`.
template <typename T>
const T* gather_values(const T* full, const int32_t* tokens, int count, char*& memory) {
  if (full == nullptr) return nullptr;
  T* values = reinterpret_cast<T*>(memory);
  for (int i = 0; i < padded_outputs(count); ++i) values[i] = full[tokens[std::min(i, count - 1)]];
  memory += static_cast<size_t>(padded_outputs(count)) * sizeof(T);
  return values;
}

}  // namespace

int64_t TokenSet::take(int32_t* tokens) {
  int64_t count = 0;
  for (size_t word = 0; word < bits_.size(); ++word) {
    uint64_t& bits = bits_[word];
    if (tokens == nullptr) {
      count += __builtin_popcountll(bits);
      bits = 0;
    }
    for (; bits != 0; bits &= bits - 1) tokens[count++] = static_cast<int32_t>(64 * word) + __builtin_ctzll(bits);
  }
  return count;
}

size_t Shortlist::bytes(const PackedMatrix& full, int count) {
  const size_t arrays = (full.scales != nullptr) + (full.compensation != nullptr) + (full.bias != nullptr);
  return static_cast<size_t>(padded_outputs(count)) * (groups_per_output(full) * GROUP_BYTES + arrays * sizeof(float));
}

void Shortlist::gather(const PackedMatrix& full, const int32_t* tokens, int count, char* memory, ThreadPool& pool) {
  tokens_ = tokens;
  count_ = count;
  matrix_ = full;
  matrix_.outputs = padded_outputs(count);
  auto* weights = reinterpret_cast<uint32_t*>(memory);
  matrix_.weights = weights;
  const double cost = double{1} * matrix_.outputs * matrix_.inputs;
  pool.parallel_for(matrix_.outputs / OUTPUT_BLOCK, cost, [&](int, int begin, int end) {
    for (int b = begin; b < end; ++b) {
      const int first = b * OUTPUT_BLOCK;
      gather_block(full, tokens + first, std::min(OUTPUT_BLOCK, count - first),
                   weights + static_cast<size_t>(first) * groups_per_output(full));
    }
  });
  memory += static_cast<size_t>(matrix_.outputs) * groups_per_output(full) * GROUP_BYTES;
  matrix_.scales = gather_values(full.scales, tokens, count, memory);
  matrix_.compensation = gather_values(full.compensation, tokens, count, memory);
  matrix_.bias = gather_values(full.bias, tokens, count, memory);
}

int32_t Shortlist::index_of(int32_t token) const {
  const int32_t* found = std::lower_bound(tokens_, tokens_ + count_, token);
  return found != tokens_ + count_ && *found == token ? static_cast<int32_t>(found - tokens_) : -1;
}

}  // namespace dragoman
