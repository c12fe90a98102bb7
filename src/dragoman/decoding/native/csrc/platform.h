// What the engine needs of the operating system: pages of memory, files, and the id of the process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#if defined(_WIN32)
#if !defined(__clang__)
#error "GCC for Windows does not align vectors of 32 bytes on the stack: use Clang"
#endif
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <fcntl.h>
#include <io.h>
#include <sys/stat.h>
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace dragoman {

#if defined(_WIN32)

inline void* map_pages(size_t bytes, bool) {
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}
inline void unmap_pages(void* pages, size_t) { VirtualFree(pages, 0, MEM_RELEASE); }
inline void discard_pages(void* pages, size_t bytes) { VirtualAlloc(pages, bytes, MEM_RESET, PAGE_READWRITE); }

inline int open_file(const std::string& path) {
  std::wstring wide(path.size(), L'\0');  // UTF-16 has at most as many units as UTF-8 has bytes
  const int length = static_cast<int>(path.size());
  wide.resize(static_cast<size_t>(MultiByteToWideChar(CP_UTF8, 0, path.data(), length, wide.data(), length)));
  return _wopen(wide.c_str(), _O_RDONLY | _O_BINARY | _O_NOINHERIT);
}
inline int64_t file_size(int file) {
  struct _stat64 status;
  if (_fstat64(file, &status) != 0) return -1;
  return (status.st_mode & _S_IFMT) == _S_IFREG ? status.st_size : 0;
}
inline int64_t read_file(int file, char* to, size_t bytes) {
  return _read(file, to, static_cast<unsigned>(std::min(bytes, size_t{1} << 30)));
}
inline void close_file(int file) { _close(file); }

inline void increment_counter(int) {}  // there is no eventfd, and Python does not ask for it

inline int process_id() { return static_cast<int>(GetCurrentProcessId()); }

#else

// Zeros, whose pages the operating system commits on first access; null if it refuses.  huge: request huge pages.
inline void* map_pages(size_t bytes, bool huge) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
#if defined(MADV_HUGEPAGE)
  if (huge) madvise(pages, bytes, MADV_HUGEPAGE);
#else
  static_cast<void>(huge);
#endif
  return pages;
}
inline void unmap_pages(void* pages, size_t bytes) { munmap(pages, bytes); }
// The operating system may reclaim each page until it is written again; its content is then lost.
inline void discard_pages(void* pages, size_t bytes) {
#if defined(MADV_FREE)
  madvise(pages, bytes, MADV_FREE);
#endif
}

// A descriptor, or -1 and errno.  path: UTF-8.  O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
inline int open_file(const std::string& path) { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }
// Its bytes, 0 if it is not a regular file, or -1 and errno.
inline int64_t file_size(int file) {
  struct stat status;
  if (fstat(file, &status) != 0) return -1;
  return S_ISREG(status.st_mode) ? static_cast<int64_t>(status.st_size) : 0;
}
// Read the next bytes and return their number, 0 at the end, or -1 and errno.
inline int64_t read_file(int file, char* to, size_t bytes) { return read(file, to, bytes); }
inline void close_file(int file) { close(file); }

// Add 1 to an eventfd.  This can only fail if the counter is at its maximum, and then the reader is woken anyway.
inline void increment_counter(int descriptor) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(descriptor, &one, sizeof one);
}

// Differs in a forked process.
inline int process_id() { return getpid(); }

#endif

}  // namespace dragoman
