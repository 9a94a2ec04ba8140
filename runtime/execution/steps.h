// The steps from which backends build executables: a kernel over slices, a copy, and a collective's start and wait.

#pragma once

#include <memory>
#include <optional>

#include "absl/functional/any_invocable.h"
#include "runtime/execution/executable.h"

namespace lockstep {

// The addresses for one run of a kernel, in the order of its step's reads and writes. They are addresses of its device.
// The arrays live as long as the call; a kernel that queues its work in the stream copies the addresses out of them.
struct KernelArgs {
  std::byte* const* reads;
  std::byte* const* writes;
  std::byte* scratch;  // aligned to kBufferAlignment; null if the kernel requested none
  Stream* stream;
  int coordinate;  // the rank's coordinate along the kernel's axis

  template <typename T>
  const T* read(size_t i) const {
    return reinterpret_cast<const T*>(reads[i]);
  }
  template <typename T>
  T* write(size_t i) const {
    return reinterpret_cast<T*>(writes[i]);
  }
};

// The result of lowering a node, before memory is planned.
struct Kernel {
  std::string name;  // "onednn.matmul"
  uint64_t scratch_bytes = 0;
  int mesh_axis = -1;       // position in the mesh of the axis along which it needs the rank's coordinate; -1: none
  bool is_reorder = false;  // it moves a value to another layout and computes nothing
  std::optional<Arithmetic> arithmetic;  // of its products, where it does not follow from the op and its dtype
  // For a loop: the scratch bytes that are the arena of its body, the further bytes for the body's constants, and the
  // recomputation in the body.
  uint64_t body_bytes = 0;
  uint64_t constant_bytes = 0;
  Recomputation recomputed;
  absl::AnyInvocable<absl::Status(const KernelArgs&)> run;

  // Returns a copy without the function, which cannot be copied.
  Kernel WithoutRun() const {
    return {name, scratch_bytes, mesh_axis, is_reorder, arithmetic, body_bytes, constant_bytes, recomputed, nullptr};
  }
};

// info.scratch is a slice of kernel.scratch_bytes.
std::unique_ptr<Step> KernelStep(StepInfo info, Kernel kernel);

// Copies info.reads[0] to info.writes[0], of equal size.
std::unique_ptr<Step> CopyStep(StepInfo info);

// Starts, or waits for, info.collective.
std::unique_ptr<Step> CollectiveStep(StepInfo info);

// Pushes info.reads[0], starts a pull into info.writes[0], or waits for it.
std::unique_ptr<Step> ServedStep(StepInfo info);

}  // namespace lockstep
