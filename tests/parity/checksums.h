// Numbers for the programs of test_arm.py, and checksums of results.
#pragma once

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

uint32_t state = 1;
uint32_t next_bits() {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}
// Multiples of 2^-20 in [-scale, scale), so that no library is asked for random numbers.
std::vector<float> numbers(size_t count, float scale) {
  std::vector<float> found(count);
  for (float& x : found) x = scale * (static_cast<float>(next_bits()) / 8388608.0f - 1.0f);
  return found;
}

template <typename T>
void print(const char* name, const std::vector<T>& found) {
  uint64_t sum = 14695981039346656037u;
  const auto* data = reinterpret_cast<const uint8_t*>(found.data());
  for (size_t i = 0; i < found.size() * sizeof(T); ++i) sum = (sum ^ data[i]) * 1099511628211u;
  std::printf("%s %016llx\n", name, static_cast<unsigned long long>(sum));
}

}  // namespace
