// The work of a step in one run, and what a machine can do at most: together the least time of the step
// (backends/roofline.h). Plain data.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep {

// The arithmetic of a step, on which depends how many operations a processor can do in a second.
enum class Arithmetic : uint8_t {
  kF32,     // f32 and integers, and loops over 16-bit numbers, which compute in f32
  kF64,     // f64
  kTF32,    // matrix products and convolutions of f32 with the significands of TF32
  k16Bits,  // matrix products and convolutions of f16 or bf16
};

struct Work {
  double operations = 0;  // arithmetic operations, as FlopsOf (core/op_def.h) counts them
  Arithmetic arithmetic = Arithmetic::kF32;
  // The bytes that it must read and write: each operand and result once, and of an operand of which it needs a part,
  // such as a slice, that part.
  uint64_t bytes = 0;
};

struct Ceilings {
  std::string machine;                               // "NVIDIA H200", with the origin of the numbers
  double bytes_per_second = 0;                       // read and written by a copy in its memory
  std::array<double, 4> operations_per_second = {};  // by Arithmetic

  double rate(Arithmetic arithmetic) const { return operations_per_second[static_cast<size_t>(arithmetic)]; }
};

}  // namespace lockstep
