// The words that one sentence may use: their columns of the output matrix, gathered into a matrix of their own when the
// sentence is admitted.  A step then reads a thousand words in place of tens of thousands, and what a row finds still
// depends on nothing but its sentence.
#pragma once

#include <cstddef>
#include <cstdint>

#include "matrix.h"
#include "team.h"

namespace dragoman {

class Shortlist {
 public:
  // What `count` outputs of a matrix need, with all that belongs to them.
  static size_t bytes(const Matrix& whole, int count);

  // words: outputs of `whole`, in ascending order; they and the room stay the caller's.
  void gather(const Matrix& whole, const int32_t* words, int count, char* room, Team& team);

  const Matrix& matrix() const { return matrix_; }
  int count() const { return count_; }
  int32_t word(int32_t place) const { return words_[place]; }
  int32_t place(int32_t word) const;  // -1 where the word is not in it

 private:
  const int32_t* words_ = nullptr;
  int count_ = 0;
  Matrix matrix_;
};

}  // namespace dragoman
