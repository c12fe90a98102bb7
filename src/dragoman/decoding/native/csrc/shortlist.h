// The output layer of one sentence with a shortlist: the rows of the output matrix for the tokens that the sentence may
// use, gathered into a packed matrix when the sentence is admitted to the batch.
//
// A step then reads about a thousand rows instead of tens of thousands.  Each sentence has its own shortlist, so
// results do not depend on the batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gemm.h"
#include "thread_pool.h"

namespace dragoman {

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
