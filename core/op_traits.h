// The properties of ops that are single words. Passes and backends ask for properties and not for the op's name
// (docs/decisions/0011). Other properties are functions of the op's block: see OpDef in core/op_def.h.
// test/op_cases/op_traits_test.cc and elementwise_traits_test.cc compare the traits with the op's reference meaning,
// and backends/codegen/heavy_ops_test.cc compares kExpensive with the code generated for an element.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

enum OpTrait : uint32_t {
  // --- Kinds of ops. Each op has at least one of these: op_traits_test.cc checks it.
  kElementwise = 1u << 0,  // result element i depends on element i of each operand alone; all shapes equal
  // Computes nothing: each element of a result is a bitwise copy of an element of an operand or an attribute.
  kMovement = 1u << 1,
  kGenerator = 1u << 2,  // an element follows from its index (and the rank): see OpDef::Counts
  kReduction = 1u << 3,  // see OpDef::Reduces
  // All ranks of a mesh axis take part: never duplicated, removed only everywhere, kept in order.
  kCollective = 1u << 4,
  kOptimizer = 1u << 5,  // results are next values of the leading operands, which it may overwrite
  kOpaque = 1u << 6,     // the dependence of result elements on operand elements is not described

  // --- Further properties.
  kCommutative = 1u << 7,       // in its two operands
  kIdempotent = 1u << 8,        // one operand, no attributes: f(f(x)) is f(x)
  kInvolution = 1u << 9,        // one operand, no attributes: f(f(x)) is x
  kKeepsOrder = 1u << 10,       // a movement that keeps row-major order: the result may share the operand's memory
  kRematerialised = 1u << 11,   // elements are recomputed where they are read instead of being stored and loaded
  kOneRankIdentity = 1u << 12,  // along a mesh axis of one rank, result i is operand i
  kExpensive = 1u << 13,        // elementwise, tens of instructions an element: few elements are worth a thread
  kSteps = 1u << 14,            // elementwise, steps at multiples of 1/2 only: a rounded operand may cross a step
  kChecksData = 1u << 15,       // has a constraint on the data: the program ends with an error if it does not hold
  kEndsGradients = 1u << 16,    // gradients treat its results as constants
  kLoop = 1u << 17,             // runs the graph of its attribute `body`, which passes change like any graph
  kOfServers = 1u << 18,        // exchanges a value with the parameter servers, which update it
};

// All traits, each with its name in docs/ops.md.
struct OpTraitName {
  OpTrait trait;
  std::string_view name;
};
const std::vector<OpTraitName>& AllOpTraits();

// The precision in which an op of f32 computes in mixed precision training (passes/training/precision.h). It is that of
// PyTorch's autocast lists for CUDA, not CPU, because most models are written for CUDA. Ops on none of these lists
// follow their operands in both.
enum class PrecisionRule {
  kFull,           // operands and results of f32
  kLow,            // operands and results of 16 bits
  kComputesInF32,  // computes in f32; the first result has the precision of the first operand, the others are f32
  kFollows,        // the precision of the operands
  kAsDeclared,     // results of the dtype written in the program
};

// The name of the rule in docs/precision.md: "16 bits", "f32", ….
std::string_view PrecisionRuleName(PrecisionRule rule);

}  // namespace lockstep
