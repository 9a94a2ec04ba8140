// oneDNN's objects in this backend: memory descriptors for our types, primitives as kernels, exceptions as Status. Used
// only by the emitters of backends/cpu.

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

// Returns nothing if oneDNN has no such type.
std::optional<dnnl::memory::data_type> OneDnnType(DType dtype);

// The descriptor of a dense row-major tensor. Requires OneDnnType(type.dtype).
dnnl::memory::desc RowMajor(const TensorType& type);

// The descriptor of a dense N,C,spatial tensor with memory order N,spatial,C. Requires OneDnnType(type.dtype) and at
// least 3 dimensions.
dnnl::memory::desc ChannelsLast(const TensorType& type);

// Returns the name of a layout, such as "blk16b,s=9216,256,16,1" or "s=…"; "" for row-major. Equal descriptors have
// equal names.
std::string LayoutName(const dnnl::memory::desc& desc);

// Calls f(), which uses oneDNN, and returns its result. An exception becomes an error that begins with `what`; it is
// Unimplemented if oneDNN has no implementation of what was requested.
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

// An argument of a primitive, such as DNNL_ARG_SRC, and the step's operand that it refers to.
struct PrimitiveArg {
  int arg = 0;
  bool is_write = false;
  size_t position = 0;  // among the reads or the writes
  dnnl::memory::desc desc;
  uint64_t offset = 0;  // bytes
};

// Returns a kernel that executes `primitive` with as many threads as are set now (scoped_threads.h). Its scratchpad is
// part of the kernel's scratch memory; the primitive must have been created in user-managed scratchpad mode.
Kernel PrimitiveKernel(std::string name, const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
                       const dnnl::engine& engine, const std::vector<PrimitiveArg>& args);

// Returns the attributes with which all primitives are created.
dnnl::primitive_attr DefaultAttributes();

}  // namespace lockstep::cpu
