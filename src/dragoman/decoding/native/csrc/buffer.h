// Anonymous memory that is kept between steps and between searches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "platform.h"

namespace dragoman {

// A page-aligned array.  The operating system commits pages on first access, so reserving memory for the
// longest possible sentence costs nothing while sentences are short.
// HugePages: request transparent huge pages, for arrays that are read from end to end.
template <typename T, bool HugePages = false>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(); }

  // Return storage for at least `count` elements.  Growing replaces the content with zeros; otherwise it is kept.
  T* reserve(size_t count) {
    if (count > capacity_) {
      free();
      if (count > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
      void* pages = map_pages(count * sizeof(T), HugePages);
      if (pages == nullptr) throw std::bad_alloc();
      data_ = static_cast<T*>(pages);
      capacity_ = count;
      used_ = 0;
    }
    used_ = std::max(used_, count);
    return data_;
  }

  T* data() const { return data_; }

  // Discard the content, so that the operating system may reclaim the pages.
  void release_pages() {
    if (used_ > 0) discard_pages(data_, used_bytes());
    used_ = 0;
  }

  size_t capacity_bytes() const { return capacity_ * sizeof(T); }
  // The largest size reserved since the last `release_pages`.
  size_t used_bytes() const { return used_ * sizeof(T); }

 private:
  void free() {
    if (data_ != nullptr) unmap_pages(data_, capacity_ * sizeof(T));
    data_ = nullptr;
    capacity_ = 0;
  }

  T* data_ = nullptr;
  size_t capacity_ = 0;  // elements
  size_t used_ = 0;      // elements
};

}  // namespace dragoman
