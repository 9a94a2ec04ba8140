#include "backends/cuda/kernels/attention_kernels.h"

namespace lockstep::cuda {

#define LOCKSTEP_ATTENTION_BF16(K) LOCKSTEP_ATTENTION_KERNELS(K, bf16, BF16)
LOCKSTEP_KERNELS(AttentionBf16, LOCKSTEP_ATTENTION_BF16)

}  // namespace lockstep::cuda
