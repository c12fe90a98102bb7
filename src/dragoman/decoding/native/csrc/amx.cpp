#include "amx.h"

#if defined(DRAGOMAN_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dragoman {

#if !defined(DRAGOMAN_AMX)

bool supports_amx() { return false; }

#elif defined(DRAGOMAN_TILE_INSTRUCTIONS)

bool supports_amx() { return true; }  // those of a test, in plain C++

#else

static bool permitted() {
  constexpr unsigned AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & AMX_TILE) == 0 || (edx & AMX_INT8) == 0) return false;
  // Linux saves the 8 KiB of tile registers only for processes that have asked for them.
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool supports_amx() {
  static const bool found = permitted();
  return found;
}

#endif

}  // namespace dragoman
