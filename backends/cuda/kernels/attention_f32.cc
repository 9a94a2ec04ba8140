#include "backends/cuda/kernels/attention_kernels.h"

namespace lockstep::cuda {

#define LOCKSTEP_ATTENTION_F32(K) LOCKSTEP_ATTENTION_KERNELS(K, f32, float)
LOCKSTEP_KERNELS(AttentionF32, LOCKSTEP_ATTENTION_F32)

}  // namespace lockstep::cuda
