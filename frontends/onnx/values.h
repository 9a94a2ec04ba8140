// The values of an ONNX graph while it is imported: which Value of ours each name means, and which are known constants.
// Internal to the frontend; used by one import.

#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "core/builder.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

class OnnxValues {
 public:
  explicit OnnxValues(Builder& builder) : builder_(builder) {}

  // A value that is in the graph. An error if the name has one already.
  absl::Status Define(const std::string& name, Value value);
  // A tensor that enters the graph as a constant when Get first asks for it.
  absl::Status DefineConstant(const std::string& name, Tensor value);
  // What a state holds at first: no constant to the graph, but readable where an operator needs a fixed number.
  void SetInitialValue(Value state, Tensor value) { initial_values_.insert_or_assign(state, std::move(value)); }

  // The value that the input `name`, defined as `value`, will have. Where an operator needs it, it is relied upon.
  void SetGivenValue(const std::string& name, Value value, Tensor given);
  // The inputs whose given values an operator has asked for, straight or through others.
  const std::set<std::string>& relied_upon() const { return relied_upon_; }

  bool Has(const std::string& name) const { return values_.count(name) || constants_.count(name); }
  // A constant that nobody has got yet, so that it is not in the graph.
  bool IsUndefinedConstant(const std::string& name) const { return constants_.count(name) > 0; }
  Value Get(const std::string& name);  // requires Has(name); null if the builder has failed
  // The value if it is known before the program runs, else null. Requires Has(name).
  const Tensor* FindConstant(const std::string& name);
  const Tensor* FindFixed(const std::string& name) const;   // the same, but null if it follows from given values
  const Tensor* FindInitialValue(const std::string& name);  // the same, and the initial value of a state

  // Evaluates `node`, an integer or boolean computation on known small values such as shapes, and remembers its
  // results.
  absl::Status Fold(const Node& node);

 private:
  struct Known {
    Tensor value;
    std::set<std::string> from;  // the inputs whose given values it follows from
  };

  const Known* FindKnown(Value value) const;

  Builder& builder_;
  std::unordered_map<std::string, Value> values_;
  std::unordered_map<std::string, Tensor> constants_;  // not in the graph yet
  std::unordered_map<Value, Known, ValueHash> known_;
  std::unordered_map<Value, Tensor, ValueHash> initial_values_;
  std::set<std::string> relied_upon_;
};

}  // namespace lockstep
