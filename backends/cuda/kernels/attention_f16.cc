#include "backends/cuda/kernels/attention_kernels.h"

namespace lockstep::cuda {

#define LOCKSTEP_ATTENTION_F16(K) LOCKSTEP_ATTENTION_KERNELS(K, f16, F16)
LOCKSTEP_KERNELS(AttentionF16, LOCKSTEP_ATTENTION_F16)

}  // namespace lockstep::cuda
