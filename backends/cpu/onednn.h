// oneDNN's objects as this backend uses them: memory descriptors for our types, primitives as kernels, exceptions as
// Status. For the emitters of backends/cpu alone.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/shape.h"
#include "core/status.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "runtime/execution/steps.h"

namespace lockstep::cpu {

// Nothing if oneDNN has no such type.
std::optional<dnnl::memory::data_type> OneDnnType(DType dtype);

// A dense row-major tensor. Requires OneDnnType(type.dtype).
dnnl::memory::desc RowMajor(const TensorType& type);

// A dense tensor of N,C,spatial whose memory is N,spatial,C. Requires OneDnnType(type.dtype), and at least 3
// dimensions.
dnnl::memory::desc ChannelsLast(const TensorType& type);

// The name of a layout, "" for row-major: equal descriptors have equal names. Such as "blk16b,s=9216,256,16,1" or
// "s=…".
std::string LayoutName(const dnnl::memory::desc& desc);

// Calls f(), which uses oneDNN, and returns its result; an exception becomes an error with `what` before it:
// Unimplemented where oneDNN has no implementation for what was asked.
template <typename F>
auto CallOneDnn(std::string_view what, F&& f) -> absl::StatusOr<decltype(f())> {
  try {
    return f();
  } catch (const dnnl::error& error) {
    const bool unimplemented = error.status == dnnl_unimplemented;
    return ErrorStream(unimplemented ? absl::StatusCode::kUnimplemented : absl::StatusCode::kInternal)
           << what << ": oneDNN: " << error.what();
  }
}

// An argument of a primitive: DNNL_ARG_SRC and so on, and which of the step's operands it is.
struct PrimitiveArg {
  int arg = 0;
  bool is_write = false;
  size_t position = 0;  // among the reads or the writes
  dnnl::memory::desc desc;
  uint64_t offset = 0;  // bytes
};

// A kernel that executes `primitive` with as many threads as are set now (scoped_threads.h). Its scratchpad (to be
// created with user-managed scratchpad mode) lies in the kernel's scratch memory.
Kernel PrimitiveKernel(std::string name, const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
                       const dnnl::engine& engine, const std::vector<PrimitiveArg>& args);

// Attributes that all primitives are created with.
dnnl::primitive_attr DefaultAttributes();

}  // namespace lockstep::cpu
