// Operators on the bits of integers, and reinterpretation of bits as another type.

#include "core/builder.h"
#include "frontends/onnx/op_table.h"
#include "frontends/onnx/tensor_data.h"

namespace lockstep {
namespace {

absl::Status BitShift(OnnxNode& n) {
  const std::string direction = n.String("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    return n.Error() << "attribute direction is '" << direction << "', expected LEFT or RIGHT";
  return Binary(n, direction == "LEFT" ? "shift_left" : "shift_right");
}

absl::Status BitCast(OnnxNode& n) {
  const absl::StatusOr<DType> dtype = DTypeFromOnnx(static_cast<int>(n.Int("to", 0)));
  if (!dtype.ok()) return n.Unsupported() << "attribute to: " << dtype.status().message();
  n.SetOutput(0, n.b().Op("bitcast", {n.input(0)}, {{"dtype", *dtype}}));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> BitOps() {
  return {
      {"BitwiseAnd", 18, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "and"); }},
      {"BitwiseOr", 18, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "or"); }},
      {"BitwiseXor", 18, kNoEnd, 2, 2, [](OnnxNode& n) { return Binary(n, "xor"); }},
      {"BitwiseNot", 18, kNoEnd, 1, 1, [](OnnxNode& n) { return Unary(n, "not"); }},
      {"BitShift", 11, kNoEnd, 2, 2, BitShift},
      {"BitCast", 26, kNoEnd, 1, 1, BitCast},
  };
}

}  // namespace lockstep
