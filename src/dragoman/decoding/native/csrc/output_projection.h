// The output layer: from the hidden states of a step to log-probabilities.
//
// For a search, the product, the softmax normalizer and the selection of the K best tokens are fused block by block;
// the logits of the whole vocabulary are never stored.
#pragma once

#include <vector>

#include "model_runner.h"

namespace dragoman {

struct TokenScore {
  float log_prob;
  int32_t token;
};

// The tokens that are scored for one row.
struct TokenQuery {
  std::vector<int32_t> suppressed;       // excluded from the top K
  std::vector<int32_t> required;         // scored in any case, suppressed or not
  const Shortlist* shortlist = nullptr;  // null: the whole vocabulary; it contains the required tokens
  int top_k = 0;                         // number of best tokens
};

struct TokenScores {
  std::vector<TokenScore> top_k;  // best first
  std::vector<TokenScore> required;
};

// Return the `top_k` best tokens of each row of the last step; fewer if fewer are allowed.
// Rows with the same shortlist must be adjacent.  Their probabilities sum to 1 over the shortlist.
// Throws std::runtime_error if the normalizer is not finite.
std::vector<TokenScores> top_k_tokens(ModelRunner& runner, const std::vector<TokenQuery>& queries);

// Write the log-probabilities (rows, tgt_vocab) of the last step.
void all_log_probs(ModelRunner& runner, float* log_probs);

}  // namespace dragoman
