// What kernels may use of the processor, and what describes the bits that they compute. The CPU backend calls it before
// it creates the first primitive. Any thread.

#pragma once

#include <string>
#include <string_view>

#include "backends/codegen/loop_compiler.h"
#include "core/dtype.h"
#include "core/status.h"

namespace lockstep::cpu {

// Holds oneDNN to an instruction set: "sse41", "avx2" or "avx512", or whatever the processor has if `isa` is empty. It
// is for the whole process and must come before oneDNN's first primitive. InvalidArgument for another name or what the
// processor lacks, FailedPrecondition if it comes too late.
absl::Status SetInstructionSet(std::string_view isa);

// Whether the processor multiplies and adds floats of 16 bits, f16 or bf16, as quickly as f32 at least, as far as the
// instruction set that oneDNN is held to has it. After SetInstructionSet.
bool HasQuickProductsOf(DType dtype);

// How the loop compiler keeps to `isa`, one that SetInstructionSet takes.
LoopCompiler::Options LoopOptionsFor(std::string_view isa);

// Text in which processes differ whose kernels may compute different bits, a line for each thing: oneDNN's version and
// instruction set, LLVM's version and the processor that loops are compiled for, and each feature of it.
absl::StatusOr<std::string> ProcessorFingerprint(std::string_view isa);

}  // namespace lockstep::cpu
