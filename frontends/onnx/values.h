// The values of an ONNX graph during import: the value of each name, and the values that are known constants. Names
// live in scopes: the file's graph, a body of one of its nodes, a function. Internal to the frontend; used by one
// import.

#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/builder.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {

// A sequence. Its number of elements and its values are known at import.
struct OnnxSequence {
  DType dtype = DType::kF32;  // of each element
  std::vector<Value> elements;
};
// An empty optional, or an input that a function's call does not give.
struct OnnxNothing {};
// The meaning of a name. A non-empty optional is represented by its content.
using OnnxValue = std::variant<OnnxNothing, Value, OnnxSequence>;

// "a tensor", "a sequence" or "an empty optional", for messages.
std::string_view KindOf(const OnnxValue& value);

// "onnx:/loop/Loop[3]/" and "Add" are "onnx:/loop/Loop[3]/Add"; a leading '/' of the name is not doubled.
std::string SourceIn(const std::string& place, const std::string& name);
// The same without "onnx:" or "torch:": the name that a value called `name` at `place` gets in the graph.
std::string NameIn(const std::string& place, const std::string& name);

class OnnxValues {
 public:
  // Opens the scope of the file's graph.
  explicit OnnxValues(Builder& builder);

  // --- Scopes. Names are defined in the innermost one, where they may hide outer ones. -------------------------------
  // `place` is the beginning of the sources in the scope: "onnx:/loop/Loop[3]/". A body sees the names of the scopes
  // around it, a function does not.
  void OpenScope(std::string place, bool sees_outer);
  void CloseScope();
  const std::string& place() const { return scopes_.back().place; }
  bool is_in_body() const { return scopes_.size() > 1; }

  // Defines a name as a value of the graph, or as one of the other kinds. Returns an error if the name is defined
  // already.
  absl::Status Define(const std::string& name, OnnxValue value);
  // Defines a constant, which is added to the graph when Get first asks for it.
  absl::Status DefineConstant(const std::string& name, Tensor value);
  // Sets the initial value of a state. It is not a constant of the graph, but operators that need a fixed number may
  // read it. `value` must not move or change during the import.
  void SetInitialValue(Value state, const Tensor* value) { initial_values_.insert_or_assign(state, value); }

  // Sets the value that the input `name`, defined as `value`, will have. If an operator needs it, relied_upon() names
  // the input.
  void SetGivenValue(const std::string& name, Value value, Tensor given);
  // The inputs whose given values an operator has asked for, directly or through other values.
  const std::set<std::string>& relied_upon() const { return relied_upon_; }

  bool Has(const std::string& name) const { return ScopeOf(name).has_value(); }
  bool IsInInnermost(const std::string& name) const { return ScopeOf(name) == scopes_.size() - 1; }
  // True for a constant that no Get has asked for, so that it is not in the graph yet.
  bool IsUndefinedConstant(const std::string& name) const;
  bool IsTensor(const std::string& name) const;      // requires Has(name)
  bool IsNothing(const std::string& name) const;     // requires Has(name)
  const OnnxValue& GetAny(const std::string& name);  // requires Has(name)
  Value Get(const std::string& name);                // requires IsTensor(name); never null
  // The value if it is known at import, else null; also null if it is not a tensor. Requires Has(name).
  const Tensor* FindConstant(const std::string& name);
  const Tensor* FindDataIndependent(const std::string& name) const;  // the same, but null if it depends on given values
  const Tensor* FindInitialValue(const std::string& name);           // the same, or the initial value of a state
  const Tensor* FindConstant(Value value);

  // Evaluates `node` if it is a computation on small known values, such as shapes, and remembers its results. Does
  // nothing if evaluation would take long, for the node alone or for all nodes so far.
  absl::Status Fold(const Node& node);
  // Must be called before the node is erased from the graph.
  void Forget(Node& node);

 private:
  struct Known {
    Tensor value;
    std::set<std::string> from;  // the inputs on whose given values it depends
  };
  struct Scope {
    std::string place;
    bool sees_outer = false;
    std::unordered_map<std::string, OnnxValue> values;
    std::unordered_map<std::string, Tensor> constants;  // not in the graph yet
  };

  std::optional<size_t> ScopeOf(const std::string& name) const;  // the innermost visible scope with the name
  const Known* FindKnown(Value value) const;

  Builder& builder_;
  std::vector<Scope> scopes_;
  std::unordered_map<Value, Known, ValueHash> known_;
  std::unordered_map<Value, const Tensor*, ValueHash> initial_values_;
  std::set<std::string> relied_upon_;
  double folding_ = 0;  // number of operations of all folded nodes
};

}  // namespace lockstep
