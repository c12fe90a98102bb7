// The threads and the memory of a worker, kept for the next search.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "model_runner.h"
#include "thread_pool.h"

// A worker context that used more bytes than this releases its pages to the system after the search.
// bench/fuzz_native.py sets 0 and fills released memory with NaN.
#ifndef DRAGOMAN_RELEASE_THRESHOLD
#define DRAGOMAN_RELEASE_THRESHOLD (16 << 20)
#endif

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
  std::unique_ptr<WorkerContext> acquire(const Model& model, int threads) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      discard_after_fork();
      for (auto& context : idle_) {
        if (context->pool.size() != threads) continue;
        std::swap(context, idle_.back());
        std::unique_ptr<WorkerContext> found = std::move(idle_.back());
        idle_.pop_back();
        return found;
      }
    }
    return std::make_unique<WorkerContext>(model, threads);
  }

  // Keep the context for the next search unless the idle ones would hold too much memory.  Even a large context keeps
  // its address space: clearing fresh pages would take a large part of the next search.
  void release(std::unique_ptr<WorkerContext> context) {
    constexpr size_t MAX_IDLE_BYTES = 256 << 20;
    constexpr size_t MAX_IDLE_CONTEXTS = 64;
    std::lock_guard<std::mutex> lock(mutex_);
    size_t idle_bytes = context->runner.capacity_bytes();
    for (const auto& other : idle_) idle_bytes += other->runner.capacity_bytes();
    if (idle_bytes > MAX_IDLE_BYTES || idle_.size() >= MAX_IDLE_CONTEXTS) return;
    if (context->runner.used_bytes() > DRAGOMAN_RELEASE_THRESHOLD) context->runner.release_pages();
    idle_.push_back(std::move(context));
  }

 private:
  // A forked process inherits the contexts of its parent, but not their threads: neither use nor destroy them.
  void discard_after_fork() {
    if (process_ == process_id()) return;
    for (auto& context : idle_) context.release();
    idle_.clear();
    process_ = process_id();
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<WorkerContext>> idle_;
  int process_ = process_id();
};

}  // namespace dragoman
