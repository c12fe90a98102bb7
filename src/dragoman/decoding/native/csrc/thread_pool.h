// A small thread pool for parallel loops that last microseconds.
//
// The threads poll for work before they sleep, because waking a sleeping thread takes longer than a decoding step.  The
// caller takes part in the loop and runs every part that no other thread has claimed, so a thread that the operating
// system does not schedule in time never delays it.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "simd.h"

namespace dragoman {

class ThreadPool {
 public:
  // threads: including the calling thread.  The pool is smaller if the system refuses to create more.
  // worker_spins: polls before a thread without work sleeps.
  explicit ThreadPool(int threads, int worker_spins = 20000) : worker_spins_(worker_spins) {
    try {
      for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { worker_loop(); });
    } catch (const std::exception&) {
    }
    size_ = max_size();
  }

  ~ThreadPool() {
    stop_.store(true);
    wake_all();
    for (auto& thread : threads_) thread.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Number of ranges of the next loops.
  int size() const { return size_; }
  int max_size() const { return static_cast<int>(threads_.size()) + 1; }
  // Use only some of the threads from now on, 1 to max_size.
  void use(int threads) { size_ = std::max(1, std::min(threads, max_size())); }

  // Split [0, count) into one range per thread, call f(part, begin, end) for each and return when all have finished.
  // f must neither throw nor call parallel_for.
  // cost: multiplications in all iterations together; cheap loops run on the calling thread only.
  template <typename F>
  void parallel_for(int count, double cost, const F& f) {
    if (size_ == 1 || count < size_ || cost < MIN_PARALLEL_COST) return f(0, 0, count);
    count_.store(count, std::memory_order_relaxed);
    parts_.store(size_, std::memory_order_relaxed);
    function_.store(&f, std::memory_order_relaxed);
    const Call call = [](const void* function, int part, int begin, int end) {
      (*static_cast<const F*>(function))(part, begin, end);
    };
    call_.store(call, std::memory_order_relaxed);
    unfinished_.store(size_, std::memory_order_relaxed);
    unclaimed_.store((++generation_ << 32) + static_cast<uint32_t>(size_), std::memory_order_seq_cst);
    if (sleeping_.load() != 0) wake_all();
    while (run_unclaimed_part()) continue;
    for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; spins += spins < CALLER_SPINS) pause(spins);
  }

 private:
  using Call = void (*)(const void*, int, int, int);

  static constexpr double MIN_PARALLEL_COST = 2e5;
  static constexpr int CALLER_SPINS = 4096;   // polls before the core is offered to other threads

  // Another thread may need this core to make progress: yield after a while.
  static void pause(int spins) {
    if (spins < CALLER_SPINS) {
      spin_pause();
    } else {
      std::this_thread::yield();
    }
  }

  void wake_all() {
    std::lock_guard<std::mutex> lock(mutex_);
    wakeup_.notify_all();
  }

  // Claim and run one part.  Return false if none is left.
  bool run_unclaimed_part() {
    for (uint64_t claim = unclaimed_.load(std::memory_order_acquire); static_cast<uint32_t>(claim) != 0;) {
      // These values belong to the generation in `claim` if the exchange below succeeds: the caller changes them only
      // when no part is unclaimed.
      const int64_t count = count_.load(std::memory_order_relaxed);
      const int64_t parts = parts_.load(std::memory_order_relaxed);
      const void* function = function_.load(std::memory_order_relaxed);
      const Call call = call_.load(std::memory_order_relaxed);
      if (!unclaimed_.compare_exchange_weak(claim, claim - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        continue;
      }
      const int64_t part = static_cast<uint32_t>(claim) - 1;
      const int begin = static_cast<int>(count * part / parts);
      const int end = static_cast<int>(count * (part + 1) / parts);
      call(function, static_cast<int>(part), begin, end);
      unfinished_.fetch_sub(1, std::memory_order_release);
      return true;
    }
    return false;
  }

  void worker_loop() {
    for (int spins = 0; !stop_.load();) {
      if (run_unclaimed_part()) {
        spins = 0;
      } else if (spins < worker_spins_) {
        pause(spins++);
      } else {
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        wakeup_.wait(lock, [this] { return stop_.load() || static_cast<uint32_t>(unclaimed_.load()) != 0; });
        sleeping_.fetch_sub(1);
        spins = 0;
      }
    }
  }

  const int worker_spins_;
  int size_ = 1;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wakeup_;
  std::atomic<int> sleeping_{0};
  std::atomic<bool> stop_{false};
  uint64_t generation_ = 0;
  // Written by the caller; in another cache line than the counter that all threads write.
  alignas(64) std::atomic<uint64_t> unclaimed_{0};  // high 32 bits: generation; low 32 bits: parts not yet claimed
  std::atomic<int> count_{0}, parts_{0};
  std::atomic<const void*> function_{nullptr};
  std::atomic<Call> call_{nullptr};
  alignas(64) std::atomic<int> unfinished_{0};
};

}  // namespace dragoman
