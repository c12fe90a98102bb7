// Greedy and beam search over many sentences with continuous batching: a sentence that ends makes room for the next
// one.
#pragma once

#include <cstdint>
#include <vector>

#include "model.h"
#include "search_types.h"
#include "worker_context.h"

namespace dragoman {

// Return the n-best list of each sentence, best first.
// stop: another thread may set it to 1 at any time; the search then throws std::runtime_error.
// Throws std::runtime_error if the model's output is not finite.
std::vector<std::vector<Hypothesis>> beam_search(const Model& model, WorkerContextPool& contexts,
                                                 const SearchRequest& request, const int32_t* stop);

}  // namespace dragoman
