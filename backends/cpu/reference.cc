// Runs an op by its reference meaning: calls the interpreter's function on copies of the operands. Used for element
// types and shapes without a kernel, and for ops with neither a kernel nor a decomposition. Single-threaded and slow.

#include <cstring>

#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

class ReferenceRunner {
 public:
  explicit ReferenceRunner(const Node& node) : op_(&node.op()), attributes_(node.attributes()) {
    for (const Value& operand : node.operands()) operand_types_.push_back(operand.type());
    for (size_t i = 0; i < node.num_results(); ++i) result_types_.push_back(node.type(i));
  }

  absl::Status operator()(const KernelArgs& args) const {
    std::vector<Tensor> operands, results;
    std::vector<const Tensor*> pointers;
    for (const TensorType& type : operand_types_) operands.emplace_back(type);
    for (const TensorType& type : result_types_) results.emplace_back(type);
    for (size_t i = 0; i < operands.size(); ++i) {
      std::memcpy(operands[i].mutable_bytes(), args.reads[i], operands[i].num_bytes());
      pointers.push_back(&operands[i]);
    }
    EvalContext context(*op_, attributes_, pointers, results);
    RETURN_IF_ERROR(op_->eval()(context));
    for (size_t i = 0; i < results.size(); ++i) std::memcpy(args.writes[i], results[i].bytes(), results[i].num_bytes());
    return absl::OkStatus();
  }

 private:
  const OpDef* op_;
  AttributeMap attributes_;
  std::vector<TensorType> operand_types_, result_types_;
};

}  // namespace

absl::Status EmitReference(const Node& node, EmitContext& c) {
  if (!node.op().eval()) return Unimplemented() << "there is no kernel for " << node.Describe();
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  Kernel kernel;
  kernel.name = "reference." + node.op_name();
  kernel.run = ReferenceRunner(node);
  std::vector<int> writes;
  for (size_t i = 0; i < node.num_results(); ++i) writes.push_back(c.Write(node, i));
  c.Add(node, std::move(kernel), std::move(reads), std::move(writes));
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
