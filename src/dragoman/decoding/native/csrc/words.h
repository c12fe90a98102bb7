// The best next words of each row, found while the output product is made: the logits are never stored.
#pragma once

#include <vector>

#include "worker.h"

namespace dragoman {

struct Candidate {
  float log_prob;
  int32_t word;
};

// What may come next in a row.
struct Wish {
  std::vector<int32_t> banned;  // words that may not
  int32_t asked = 0;            // a word whose log-probability is wanted in any case
  const Shortlist* among = nullptr;  // the words of its sentence, `asked` is one of them; all words where there is none
};

struct Next {
  std::vector<Candidate> best;  // best first, the banned ones left out
  Candidate asked;
};

// The `width` best next words of each row of the last step by log-probability; fewer where fewer may come.  Rows of one
// shortlist lie side by side, and their probabilities are those among its words.
// Throws std::runtime_error where the model's numbers are not finite.
std::vector<Next> best_words(Worker& worker, const std::vector<Wish>& wishes, int width);

// Log-probabilities (rows, tgt_vocab) of all words.
void all_words(Worker& worker, float* log_probs);

}  // namespace dragoman
