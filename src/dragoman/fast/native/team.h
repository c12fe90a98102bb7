// A few threads that share each step of one sentence.  They wait by spinning, for a step lasts microseconds, and go to
// sleep when nothing comes for a while.
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
      for (int place = 1; place < threads; ++place) others_.emplace_back([this, place] { follow(place); });
    } catch (const std::exception&) {
    }
    size_ = static_cast<int>(others_.size()) + 1;
  }

  ~Team() {
    work_ = nullptr;
    call();
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
    count_ = count;
    argument_ = &f;
    work_ = [](const void* argument, int part, int begin, int end) { (*static_cast<const F*>(argument))(part, begin, end); };
    left_.store(size_ - 1, std::memory_order_relaxed);
    call();
    f(0, 0, count / size_);
    for (int spins = 0; left_.load(std::memory_order_acquire) != 0; ++spins) wait(spins);
  }

 private:
  // Others may need this core to get anything done.
  static void wait(int spins) {
    if (spins < 4096) _mm_pause();
    else std::this_thread::yield();
  }

  void call() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      turn_.fetch_add(1, std::memory_order_release);
    }
    if (asleep_.load() != 0) awake_.notify_all();
  }

  void follow(int place) {
    for (unsigned seen = 0;;) {
      for (int spins = 0; turn_.load(std::memory_order_acquire) == seen; ++spins) {
        if (spins < 20000) {
          wait(spins);
          continue;
        }
        std::unique_lock<std::mutex> lock(mutex_);
        asleep_.fetch_add(1);
        awake_.wait(lock, [&] { return turn_.load(std::memory_order_acquire) != seen; });
        asleep_.fetch_sub(1);
      }
      ++seen;
      if (work_ == nullptr) return;
      const int64_t count = count_;
      work_(argument_, place, static_cast<int>(count * place / size_), static_cast<int>(count * (place + 1) / size_));
      left_.fetch_sub(1, std::memory_order_release);
    }
  }

  static constexpr double WORTH_SHARING = 2e5;

  int size_ = 1;
  std::vector<std::thread> others_;
  std::mutex mutex_;
  std::condition_variable awake_;
  std::atomic<int> asleep_{0};
  // What the caller writes and what the others write lie in cache lines of their own.
  alignas(64) std::atomic<unsigned> turn_{0};
  int count_ = 0;
  const void* argument_ = nullptr;
  void (*work_)(const void*, int, int, int) = nullptr;
  alignas(64) std::atomic<int> left_{0};
};

}  // namespace dragoman
