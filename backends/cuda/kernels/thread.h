// The machine-dependent operations of the kernels in this folder. The kernels are C++ without a library. clang compiles
// them to PTX for GPUs (bazel/gpu_kernels.bzl), and the host's compiler to functions that tests run on the host, where
// backends/codegen/host_grid.h implements the operations.
//
// A kernel has one argument, a struct of plain values whose first kPointers words are device addresses. A family of
// kernels is one file. It lists its kernels once, in a macro, each with the type of its argument, true if threads of a
// block wait for each other (or Together), and the function:
//
//   #define KERNELS(K) K(gather_b4, GatherArgs, false, Gather<uint32_t>) ...
//   LOCKSTEP_KERNELS(Gather, KERNELS)
//
// A grid has one dimension, of blocks of kBlock threads where a kernel does not say otherwise.

#pragma once

#include <stdint.h>

#include "backends/cuda/kernels/block.h"

#ifndef __NVPTX__
#include <vector>

#include "backends/cuda/kernels/host_kernel.h"
#endif

namespace lockstep::cuda {

// How the threads of a block belong together.
struct Together {
  bool meet;             // they wait for each other
  int threads = kBlock;  // in a block
  int blocks = 0;        // that a multiprocessor has at once; their threads share its registers

  constexpr Together(bool threads_meet) : meet(threads_meet) {}
  constexpr Together(int block, int at_once) : meet(true), threads(block), blocks(at_once) {}
};

#define LOCKSTEP_INLINE __attribute__((always_inline))
// Before a loop: unrolls all of it on GPUs, so that an array that it indexes can be in registers.
#ifdef __NVPTX__
#define LOCKSTEP_UNROLL _Pragma("unroll")
#define LOCKSTEP_NO_UNROLL _Pragma("nounroll")
#else
#define LOCKSTEP_UNROLL
#define LOCKSTEP_NO_UNROLL
#endif

#ifdef __NVPTX__

inline uint32_t ThreadOfBlock() { return __nvvm_read_ptx_sreg_tid_x(); }
inline uint32_t BlockOfGrid() { return __nvvm_read_ptx_sreg_ctaid_x(); }
// Waits until all threads of the block have called it.
inline void Barrier() { __syncthreads(); }
// Returns the `value` of the thread with number (own ^ mask); mask < 32. All threads of the warp must call it.
inline uint32_t ShuffleXor(uint32_t value, int mask) {
  return static_cast<uint32_t>(__nvvm_shfl_sync_bfly_i32(-1, static_cast<int>(value), mask, 31));
}
// An address in memory that the threads of a block share.
using SharedAddress = uint32_t;
inline SharedAddress AddressOf(const void* shared) {
  return static_cast<SharedAddress>((uintptr_t)(__attribute__((address_space(3))) const void*)shared);
}
inline uint32_t LoadWord(SharedAddress from) {
  return *(__attribute__((address_space(3))) const uint32_t*)static_cast<uintptr_t>(from);
}
// 16 bytes at a multiple of 16.
using SharedChunk = uint32_t __attribute__((vector_size(16), may_alias));
inline SharedChunk LoadChunk(SharedAddress from) {
  return *(__attribute__((address_space(3))) const SharedChunk*)static_cast<uintptr_t>(from);
}
inline void StoreChunk(SharedAddress to, SharedChunk chunk) {
  *(__attribute__((address_space(3))) SharedChunk*)static_cast<uintptr_t>(to) = chunk;
}
// Starts to copy 16 bytes, or to set 16 bytes to zero if `from`, which is then not read, does not `exist`. Both
// addresses are multiples of 16. `to` is undefined until this thread has waited, and for other threads also until the
// next barrier.
inline void CopyLater(SharedAddress to, const void* from, bool exist) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exist ? 16 : 0) : "memory");
}
// Waits for the copies that this thread has started.
inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// 2^x and the binary logarithm, to about two units in the last place.
inline float Exp2(float x) { return __nvvm_ex2_approx_ftz_f(x); }
inline float Log2(float x) { return __nvvm_lg2_approx_ftz_f(x); }
// Returns x, and hides from the compiler where it is from: it would take the address of a field of the argument, and
// merge a load of 16 bytes in one branch with loads of single elements in another.
inline uint64_t ByValue(uint64_t x) {
  asm("" : "+l"(x));
  return x;
}
// Declares `name`, a type* to memory that the threads of a block share. At most once in a kernel.
#define LOCKSTEP_SHARED(type, name)                    \
  static __attribute__((shared)) type name##_of_block; \
  type* const name = &name##_of_block

#define LOCKSTEP_KERNEL_(kernel, Args, together, ...)                                                           \
  extern "C" __attribute__((global, launch_bounds(Together(together).threads, Together(together).blocks))) void \
  kernel(Args args) {                                                                                           \
    __VA_ARGS__(args);                                                                                          \
  }
#define LOCKSTEP_KERNELS(Family, LIST) LIST(LOCKSTEP_KERNEL_)

#else

extern "C" {
uint32_t grid_thread();
uint32_t grid_block(uint32_t axis);
void grid_barrier();
uint32_t grid_shuffle(uint32_t value, uint32_t mask);
void grid_product(const uint32_t* a, const uint32_t* b, float* c, float (*multiply)(uint32_t, uint32_t));
void grid_matrices(const void* row, uint32_t* words, bool transposed);
void grid_copy_later(void* to, const void* from, int64_t bytes);
void grid_await_copies();
void* grid_shared(int64_t bytes);
}

inline uint32_t ThreadOfBlock() { return grid_thread(); }
inline uint32_t BlockOfGrid() { return grid_block(0); }
inline void Barrier() { grid_barrier(); }
inline uint32_t ShuffleXor(uint32_t value, int mask) { return grid_shuffle(value, static_cast<uint32_t>(mask)); }
using SharedAddress = uintptr_t;
inline SharedAddress AddressOf(const void* shared) { return reinterpret_cast<SharedAddress>(shared); }
inline uint32_t LoadWord(SharedAddress from) { return *reinterpret_cast<const uint32_t*>(from); }
using SharedChunk = uint32_t __attribute__((vector_size(16), may_alias));
inline SharedChunk LoadChunk(SharedAddress from) { return *reinterpret_cast<const SharedChunk*>(from); }
inline void StoreChunk(SharedAddress to, SharedChunk chunk) { *reinterpret_cast<SharedChunk*>(to) = chunk; }
inline void CopyLater(SharedAddress to, const void* from, bool exist) {
  grid_copy_later(reinterpret_cast<void*>(to), from, exist ? 16 : 0);
}
inline void WaitForCopies() { grid_await_copies(); }
inline float Exp2(float x) { return __builtin_exp2f(x); }
inline float Log2(float x) { return __builtin_log2f(x); }
inline uint64_t ByValue(uint64_t x) { return x; }
#define LOCKSTEP_SHARED(type, name) type* const name = static_cast<type*>(grid_shared(sizeof(type)))

#define LOCKSTEP_KERNEL_(kernel, Args, together, ...)                                                       \
  {#kernel, [](void** parameters) { __VA_ARGS__(*static_cast<const Args*>(parameters[0])); }, sizeof(Args), \
   Args::kPointers, Together(together).meet},
#define LOCKSTEP_KERNELS(Family, LIST) \
  std::vector<HostKernel> Family##HostKernels() { return {LIST(LOCKSTEP_KERNEL_)}; }

#endif

// x y + z with one rounding. Other products and sums are each rounded.
inline float MultiplyAdd(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
// The larger of both; a NaN is ignored.
inline float Larger(float x, float y) { return __builtin_fmaxf(x, y); }

// Returns the number of this thread in the grid, whose blocks have kBlock threads.
inline int64_t ThreadOfGrid() { return static_cast<int64_t>(BlockOfGrid()) * kBlock + ThreadOfBlock(); }

// Calls f with kCount - 1, ..., 1, 0. Use it for loops over arrays in the argument: an array that is indexed with a
// value unknown to the compiler would be copied.
template <int kCount, typename F>
LOCKSTEP_INLINE inline void Downwards(const F& f) {
  if constexpr (kCount > 0) {
    f(kCount - 1);
    Downwards<kCount - 1>(f);
  }
}

// Reports error 0 of the operation (CudaStream::RegisterErrors).
inline void Report(uint64_t* error_word, uint32_t error_id) {
  *const_cast<volatile uint64_t*>(error_word) = static_cast<uint64_t>(error_id) << 32;
}

}  // namespace lockstep::cuda
