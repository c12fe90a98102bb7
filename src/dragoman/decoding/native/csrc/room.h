// Memory that a worker keeps from step to step.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace dragoman {

// Zeros at first, grown as needed (what was in it is gone then).  The system gives memory when it is touched: room for the
// longest sentence costs nothing while sentences are short.  HUGE: in huge pages where the system has them, for what is
// touched as a whole.
template <typename T, bool HUGE = false>
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { free(); }

  T* of(size_t count) {
    if (count > size_) {
      free();
      if (count > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
      void* found = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (found == MAP_FAILED) throw std::bad_alloc();
      data_ = static_cast<T*>(found), size_ = count, used_ = 0;
#ifdef MADV_HUGEPAGE
      if (HUGE) madvise(found, count * sizeof(T), MADV_HUGEPAGE);
#endif
    }
    used_ = std::max(used_, count);
    return data_;
  }
  T* get() const { return data_; }
  // What is in it is no longer needed: the system may take the memory, page by page, until it is written to again.
  void lend() {
#ifdef MADV_FREE
    if (used_ > 0) madvise(data_, used(), MADV_FREE);
#endif
    used_ = 0;
  }
  size_t bytes() const { return size_ * sizeof(T); }
  size_t used() const { return used_ * sizeof(T); }  // since it was lent

 private:
  void free() {
    if (data_ != nullptr) munmap(data_, size_ * sizeof(T));
    data_ = nullptr, size_ = 0;
  }
  T* data_ = nullptr;
  size_t size_ = 0, used_ = 0;
};

}  // namespace dragoman
