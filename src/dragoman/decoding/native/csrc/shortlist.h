// Shortlists: the tokens that the target of a sentence may use, and the output layer of these tokens.
//
// The rows of the output matrix are gathered into a packed matrix when the sentence is admitted to the batch.  A step
// then reads about a thousand rows instead of tens of thousands.  Each sentence has its own shortlist, so results do
// not depend on the batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gemm.h"
#include "thread_pool.h"

namespace dragoman {

// The lists of a shortlist file (dragoman/decoding/shortlist.py); dragoman/decoding/native/engine.py declares the same
// struct for ctypes.
struct ShortlistTable {
  const int32_t* frequent;  // (frequent_count,): tokens for every sentence
  const int32_t* starts;    // (source_size + 1,): source token i has the list ids[starts[i]], ..., ids[starts[i + 1] - 1]
  const int32_t* ids;
  int32_t frequent_count, source_size, id_count;
};

// A set of tokens of a vocabulary.
class TokenSet {
 public:
  explicit TokenSet(int vocab) : bits_((static_cast<size_t>(vocab) + 63) / 64) {}

  void add(const int32_t* tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) bits_[static_cast<size_t>(tokens[i]) / 64] |= uint64_t{1} << (tokens[i] % 64);
  }

  // Remove all tokens and return their number; write them to `tokens` in ascending order, unless it is null.
  int64_t take(int32_t* tokens);

 private:
  std::vector<uint64_t> bits_;
};

// The output layer of one sentence with a shortlist.
class Shortlist {
 public:
  // Memory that `gather` needs for `count` outputs of a matrix.
  static size_t bytes(const PackedMatrix& full, int count);

  // Gather the outputs `tokens` (ascending) of the matrix `full` into `memory`.  The caller keeps both alive.
  void gather(const PackedMatrix& full, const int32_t* tokens, int count, char* memory, ThreadPool& pool);

  const PackedMatrix& matrix() const { return matrix_; }
  int count() const { return count_; }
  int32_t token(int32_t index) const { return tokens_[index]; }
  // Index of a token in the shortlist, or -1.
  int32_t index_of(int32_t token) const;

 private:
  const int32_t* tokens_ = nullptr;
  int count_ = 0;
  PackedMatrix matrix_;
};

}  // namespace dragoman
