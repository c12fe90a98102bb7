// Assigns sentences to workers within their budgets, and sizes the slots of a worker.
#pragma once

#include <mutex>
#include <vector>

#include "model.h"
#include "search_types.h"

namespace dragoman {

// Shared by all workers of a search.  Sentences are admitted by decreasing memory, so that short ones fill the
// remaining space at the end.
class Scheduler {
 public:
  Scheduler(const Model& model, const SearchRequest& request, int workers);

  const Usage& cost(int sentence) const { return costs_[static_cast<size_t>(sentence)]; }

  // Return the next sentence if it fits into a worker that uses `in_use`, else -1.  One sentence always fits into an
  // idle worker.
  int next(const Usage& in_use);
  // Make `next` return -1 from now on.
  void close();

  std::vector<int> target_lengths;  // positions of each target slot, `beam` slots per source slot
  std::vector<int> source_lengths;  // positions of each source slot
  int max_shortlist = 0;            // tokens of the largest shortlist

 private:
  const Usage budget_;  // per worker
  std::vector<Usage> costs_;
  std::vector<int> lengths_;  // positions of each target
  std::vector<int> order_;  // sentences by decreasing memory
  std::mutex mutex_;
  size_t next_ = 0;  // index into order_
};

}  // namespace dragoman
