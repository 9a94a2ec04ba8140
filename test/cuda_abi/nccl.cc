// runtime/cuda/nccl.h against nccl.h.

#include "runtime/cuda/nccl.h"

#include <nccl.h>

#include "test/cuda_abi/same.h"

template <>
inline constexpr bool lockstep::cuda_abi::kMayBeShorter<lockstep::cuda::ncclConfig_t> = true;

LOCKSTEP_NCCL_ENUMS(LOCKSTEP_SAME_ENUM)
LOCKSTEP_SAME_TYPE(ncclComm_t)
LOCKSTEP_SAME_TYPE(ncclUniqueId)
LOCKSTEP_SAME_TYPE(ncclConfig_t)

static_assert(lockstep::cuda::kNcclUniqueIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(lockstep::cuda::kNcclUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(lockstep::cuda::kNcclConfigVersion == NCCL_VERSION(2, 27, 0));
static_assert(lockstep::cuda::kNcclConfigVersion <= NCCL_VERSION_CODE);

constexpr ::ncclConfig_t kInitial = NCCL_CONFIG_INITIALIZER;

namespace lockstep::cuda {
#define LOCKSTEP_SAME_IN_ID(type, member, initial) LOCKSTEP_SAME_MEMBER(ncclUniqueId, type, member)
LOCKSTEP_NCCL_UNIQUE_ID(LOCKSTEP_SAME_IN_ID)

#define LOCKSTEP_SAME_IN_CONFIG(type, member, initial)                                           \
  LOCKSTEP_SAME_MEMBER(ncclConfig_t, type, member)                                               \
  static_assert(std::string_view(#member) == "size" || std::string_view(#member) == "version" || \
                    ncclConfig_t{}.member == kInitial.member,                                    \
                "the initial value of ncclConfig_t::" #member);
LOCKSTEP_NCCL_CONFIG(LOCKSTEP_SAME_IN_CONFIG)
}  // namespace lockstep::cuda

#define LOCKSTEP_SAME_IN_NCCL(result, name, symbol, parameters) \
  LOCKSTEP_SAME_FUNCTION(NcclApi, name, nccl##name)             \
  LOCKSTEP_SAME_SYMBOL(symbol, nccl##name)
LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_SAME_IN_NCCL)
