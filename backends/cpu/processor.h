// The instructions that kernels may use, and a description of the processor that determines the bits of their results.
// The CPU backend calls it before it creates the first primitive. Any thread may call it.

#pragma once

#include <string>
#include <string_view>

#include "backends/codegen/loop_compiler.h"
#include "core/dtype.h"
#include "core/status.h"

namespace lockstep::cpu {

// Limits oneDNN to an instruction set: "sse41", "avx2" or "avx512"; empty means all that the processor has. The limit
// is for the whole process and must be set before oneDNN's first primitive. Returns InvalidArgument for another name or
// an instruction set that the processor lacks, FailedPrecondition if it is called too late.
absl::Status SetInstructionSet(std::string_view isa);

// True if the processor multiplies and adds 16-bit floats, f16 or bf16, at least as fast as f32 with the instruction
// set to which oneDNN is limited. Call it after SetInstructionSet.
bool HasFastProducts(DType dtype);

// Returns the options that limit the loop compiler to `isa`, which SetInstructionSet must accept.
LoopCompiler::Options LoopOptionsFor(std::string_view isa);

// Returns text that differs between processes whose kernels may compute different bits, with one fact per line:
// oneDNN's version and instruction set, LLVM's version, the processor that loops are compiled for, and each of its
// features.
absl::StatusOr<std::string> ProcessorFingerprint(std::string_view isa);

}  // namespace lockstep::cpu
