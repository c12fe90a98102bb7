// Checks which builds of the engine this processor and its operating system support.
//
// Compiled for every x86-64 processor into a library of its own: the check must run before a build with vector
// instructions is loaded, because its static initializers may already use them.
#include <cstring>

extern "C" int dragoman_cpu_supports(const char* build) {
  __builtin_cpu_init();
  if (std::strcmp(build, "avx512") == 0) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  }
  if (std::strcmp(build, "avx2") == 0) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  }
  return 0;
}
