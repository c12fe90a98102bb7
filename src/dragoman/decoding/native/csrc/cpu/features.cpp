// Checks which builds of the engine this processor and its operating system support.
//
// Compiled for every processor of the architecture into a library of its own: the check must run before a build with
// vector instructions is loaded, because its static initializers may already use them.
#include <cstring>

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#else
#include <cpuid.h>
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

// By cpuid: __builtin_cpu_supports is always false if the runtime library lacks its table, as that of zig does.
DRAGOMAN_EXPORT int dragoman_cpu_supports(const char* build) {
  const bool avx512 = std::strcmp(build, "avx512") == 0;
  if (!avx512 && std::strcmp(build, "avx2") != 0) return 0;
  const unsigned basic = bit_FMA | bit_F16C | bit_OSXSAVE;
  const unsigned extended = avx512 ? bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ : bit_AVX2;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & basic) != basic) return 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (ebx & extended) != extended) return 0;
  if (avx512 && (ecx & bit_AVX512VNNI) == 0) return 0;
  const unsigned registers = avx512 ? 0xe6 : 0x6;  // that the operating system saves
  __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (eax & registers) == registers;
}

#endif
