// Which builds of the core this processor and its operating system can run.  This file is compiled for any x86-64
// processor and lies in a library of its own, so that the answer is known before a build with vector instructions is loaded.
#include <cstring>

extern "C" int dragoman_runs(const char* build) {
  __builtin_cpu_init();
  if (std::strcmp(build, "avx512") == 0)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (std::strcmp(build, "avx2") == 0) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return 0;
}
