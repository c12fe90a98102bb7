// A few threads that share each step of one sentence.  They look out for work without sleeping, for a step lasts
// microseconds, and go to sleep when nothing comes for a while.  Nobody waits for a thread that the system did not run
// in time: a part that it has not begun is taken by another.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace dragoman {

class Team {
 public:
  // As many threads as the system gives, at most `threads`, the caller's included.
  explicit Team(int threads) {
    try {
      for (int i = 1; i < threads; ++i) others_.emplace_back([this] { follow(); });
    } catch (const std::exception&) {
    }
    size_ = static_cast<int>(others_.size()) + 1;
  }

  ~Team() {
    over_.store(true);
    wake();
    for (auto& other : others_) other.join();
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // f(part, begin, end) on parts of 0 .. count - 1, one a thread; returns when all are done.  f must not throw, nor share.
  // work: multiplications in all of it; what is little is done alone, for waiting for the others takes microseconds.
  template <typename F>
  void share(int count, double work, const F& f) {
    if (size_ == 1 || count < size_ || work < WORTH_SHARING) return f(0, 0, count);
    count_.store(count, std::memory_order_relaxed);
    parts_.store(size_, std::memory_order_relaxed);
    argument_.store(&f, std::memory_order_relaxed);
    work_.store([](const void* argument, int part, int begin, int end) { (*static_cast<const F*>(argument))(part, begin, end); },
                std::memory_order_relaxed);
    left_.store(size_, std::memory_order_relaxed);
    untaken_.store((++turn_ << 32) + static_cast<uint32_t>(size_), std::memory_order_seq_cst);
    if (asleep_.load() != 0) wake();
    while (take()) continue;
    for (int spins = 0; left_.load(std::memory_order_acquire) != 0; spins += spins < 4096) wait(spins);
  }

 private:
  using Work = void (*)(const void*, int, int, int);

  // Others may need this core to get anything done.
  static void wait(int spins) {
    if (spins < 4096) _mm_pause();
    else std::this_thread::yield();
  }

  void wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    awake_.notify_all();
  }

  // Do a part that nobody has taken, if there is one.
  bool take() {
    for (uint64_t seen = untaken_.load(std::memory_order_acquire); static_cast<uint32_t>(seen) != 0;) {
      // These belong to the turn that was seen if its part is still there to be taken: until then nobody writes others.
      const int64_t count = count_.load(std::memory_order_relaxed), parts = parts_.load(std::memory_order_relaxed);
      const void* argument = argument_.load(std::memory_order_relaxed);
      const Work work = work_.load(std::memory_order_relaxed);
      if (!untaken_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
      const int64_t part = static_cast<uint32_t>(seen) - 1;
      work(argument, static_cast<int>(part), static_cast<int>(count * part / parts), static_cast<int>(count * (part + 1) / parts));
      left_.fetch_sub(1, std::memory_order_release);
      return true;
    }
    return false;
  }

  void follow() {
    for (int spins = 0; !over_.load();) {
      if (take()) {
        spins = 0;
      } else if (spins < 20000) {
        wait(spins++);
      } else {
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.fetch_add(1);
        awake_.wait(lock, [this] { return over_.load() || static_cast<uint32_t>(untaken_.load()) != 0; });
        asleep_.fetch_sub(1);
        spins = 0;
      }
    }
  }

  static constexpr double WORTH_SHARING = 2e5;

  int size_ = 1;
  std::vector<std::thread> others_;
  std::mutex mutex_;
  std::condition_variable awake_;
  std::atomic<int> asleep_{0};
  std::atomic<bool> over_{false};
  uint64_t turn_ = 0;
  // What the caller writes and what the others write lie in cache lines of their own.
  alignas(64) std::atomic<uint64_t> untaken_{0};  // the turn, and how many of its parts nobody has taken
  std::atomic<int> count_{0}, parts_{0};
  std::atomic<const void*> argument_{nullptr};
  std::atomic<Work> work_{nullptr};
  alignas(64) std::atomic<int> left_{0};
};

}  // namespace dragoman
