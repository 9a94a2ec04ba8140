// The steps that backends build executables from: a kernel over slices, a copy, and a collective's start and wait.

#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// The addresses of one run of a kernel, in the order of its step's reads and writes: of its device. The arrays last as
// long as the call; a kernel that puts its work into the stream takes the addresses out of them.
struct KernelArgs {
  std::byte* const* reads;
  std::byte* const* writes;
  std::byte* scratch;  // aligned to kBufferAlignment; null if the kernel asked for none
  Stream* stream;
  int coordinate;  // of the rank along the kernel's axis

  template <typename T>
  const T* read(size_t i) const {
    return reinterpret_cast<const T*>(reads[i]);
  }
  template <typename T>
  T* write(size_t i) const {
    return reinterpret_cast<T*>(writes[i]);
  }
};

// What a backend makes of a node before memory is planned.
struct Kernel {
  std::string name;  // "onednn.matmul"
  uint64_t scratch_bytes = 0;
  int mesh_axis = -1;       // position in the mesh of the axis along which it needs the rank's coordinate; -1: none
  bool is_reorder = false;  // it moves a value into another layout, and computes nothing
  // Of a loop: how many of the scratch bytes are the arena of its body, how many bytes it holds besides, for the body's
  // constants, and what the body computes again.
  uint64_t body_bytes = 0;
  uint64_t constant_bytes = 0;
  Recomputation recomputed;
  absl::AnyInvocable<absl::Status(const KernelArgs&)> run;

  // All but what it does, which cannot be copied.
  Kernel WithoutRun() const {
    return {name, scratch_bytes, mesh_axis, is_reorder, body_bytes, constant_bytes, recomputed, nullptr};
  }
};

// info.scratch is a slice of kernel.scratch_bytes.
std::unique_ptr<Step> KernelStep(StepInfo info, Kernel kernel);

// Copies info.reads[0] to info.writes[0], of equal size.
std::unique_ptr<Step> CopyStep(StepInfo info);

// Starts, or waits for, info.collective.
std::unique_ptr<Step> CollectiveStep(StepInfo info);

// A push of info.reads[0], a pull into info.writes[0], or the wait for it.
std::unique_ptr<Step> ServedStep(StepInfo info);

}  // namespace lockstep
