// Checks which builds of the engine this processor and its operating system support.
//
// Compiled for every processor of the architecture into a library of its own: the check must run before a build with
// vector instructions is loaded, because its static initializers may already use them.
#include <cstring>

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#if defined(_WIN32)
#define DRAGOMAN_EXPORT extern "C" __declspec(dllexport)
#else
#define DRAGOMAN_EXPORT extern "C"
#endif

#if defined(__aarch64__)

#if defined(__APPLE__)
static bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
static bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
static bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }
#else
// Bits of the kernel's interface (ASIMDDP, I8MM), which older headers do not name.
static bool has_dotprod() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }
static bool has_i8mm() { return (getauxval(AT_HWCAP2) >> 13 & 1) != 0; }
#endif

DRAGOMAN_EXPORT int dragoman_cpu_supports(const char* build) {
  if (std::strcmp(build, "i8mm") == 0) return has_dotprod() && has_i8mm();
  if (std::strcmp(build, "dotprod") == 0) return has_dotprod();
  return std::strcmp(build, "neon") == 0;  // part of the architecture
}

#else

DRAGOMAN_EXPORT int dragoman_cpu_supports(const char* build) {
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

#endif
