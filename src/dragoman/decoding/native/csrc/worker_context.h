// The threads and the memory of a worker, kept for the next search.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "model_runner.h"
#include "thread_pool.h"

namespace dragoman {

// A thread pool and a model runner, reused by consecutive searches.
struct WorkerContext {
  WorkerContext(const Model& model, int threads) : pool(threads), runner(model, pool) {}
  ThreadPool pool;
  ModelRunner runner;
};

// Idle worker contexts.  Creating one with its threads and memory takes as long as translating a short sentence.
class WorkerContextPool {
 public:
  ~WorkerContextPool() { discard_after_fork(); }

  // Return an idle context with that many threads, or a new one.
  std::unique_ptr<WorkerContext> acquire(const Model& model, int threads);
  void release(std::unique_ptr<WorkerContext> context);

 private:
  void discard_after_fork();

  std::mutex mutex_;
  std::vector<std::unique_ptr<WorkerContext>> idle_;
  int process_ = process_id();
};

}  // namespace dragoman
