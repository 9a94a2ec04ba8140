// The values of an ONNX graph while it is imported: what each name means, and which values are known constants. Names
// live in scopes: the file's graph, a body of a node in it, a function. Internal to the frontend; used by one import.

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

// A sequence. How many elements it has, and which values they are, is known when importing.
struct OnnxSequence {
  DType dtype = DType::kF32;  // of each element
  std::vector<Value> elements;
};
// An optional that is empty, or an input that the call of a function does not give.
struct OnnxNothing {};
// What a name means. An optional that is not empty is what it holds.
using OnnxValue = std::variant<OnnxNothing, Value, OnnxSequence>;

// "a tensor", "a sequence" or "an empty optional", for messages.
std::string_view KindOf(const OnnxValue& value);

// "onnx:/loop/Loop[3]/" and "Add" are "onnx:/loop/Loop[3]/Add"; a '/' that the name begins with is not doubled.
std::string SourceIn(const std::string& place, const std::string& name);
// The same without "onnx:" or "torch:": the name in the graph of a value that is called `name` at `place`.
std::string NameIn(const std::string& place, const std::string& name);

class OnnxValues {
 public:
  // The scope of the file's graph is open.
  explicit OnnxValues(Builder& builder);

  // --- Scopes. Names are defined in the innermost one, where they may hide outer ones. -------------------------------
  // `place` begins the sources of what is in the scope: "onnx:/loop/Loop[3]/". A body sees the names of the scopes
  // around it, a function does not.
  void OpenScope(std::string place, bool sees_outer);
  void CloseScope();
  const std::string& place() const { return scopes_.back().place; }
  bool is_in_body() const { return scopes_.size() > 1; }

  // A value that is in the graph, or one of the other kinds. An error if the name has one already.
  absl::Status Define(const std::string& name, OnnxValue value);
  // A tensor that enters the graph as a constant when Get first asks for it.
  absl::Status DefineConstant(const std::string& name, Tensor value);
  // What a state holds at first: no constant to the graph, but readable where an operator needs a fixed number. The
  // value stays where it is while the import goes on.
  void SetInitialValue(Value state, const Tensor* value) { initial_values_.insert_or_assign(state, value); }

  // The value that the input `name`, defined as `value`, will have. Where an operator needs it, it is relied upon.
  void SetGivenValue(const std::string& name, Value value, Tensor given);
  // The inputs whose given values an operator has asked for, straight or through others.
  const std::set<std::string>& relied_upon() const { return relied_upon_; }

  bool Has(const std::string& name) const { return ScopeOf(name).has_value(); }
  bool IsInInnermost(const std::string& name) const { return ScopeOf(name) == scopes_.size() - 1; }
  // A constant that nobody has got yet, so that it is not in the graph.
  bool IsUndefinedConstant(const std::string& name) const;
  bool IsTensor(const std::string& name) const;      // requires Has(name)
  bool IsNothing(const std::string& name) const;     // requires Has(name)
  const OnnxValue& GetAny(const std::string& name);  // requires Has(name)
  Value Get(const std::string& name);                // requires IsTensor(name); never null
  // The value if it is known before the program runs, else null; also null if it is no tensor. Requires Has(name).
  const Tensor* FindConstant(const std::string& name);
  const Tensor* FindFixed(const std::string& name) const;   // the same, but null if it follows from given values
  const Tensor* FindInitialValue(const std::string& name);  // the same, and the initial value of a state
  const Tensor* FindConstant(Value value);

  // Evaluates `node`, a computation on known small values such as shapes, and remembers its results; not if that takes
  // long, by itself or with those before it.
  absl::Status Fold(const Node& node);
  // The node is about to leave the graph.
  void Forget(Node& node);

 private:
  struct Known {
    Tensor value;
    std::set<std::string> from;  // the inputs whose given values it follows from
  };
  struct Scope {
    std::string place;
    bool sees_outer = false;
    std::unordered_map<std::string, OnnxValue> values;
    std::unordered_map<std::string, Tensor> constants;  // not in the graph yet
  };

  std::optional<size_t> ScopeOf(const std::string& name) const;  // the innermost that has the name and may be seen
  const Known* FindKnown(Value value) const;

  Builder& builder_;
  std::vector<Scope> scopes_;
  std::unordered_map<Value, Known, ValueHash> known_;
  std::unordered_map<Value, const Tensor*, ValueHash> initial_values_;
  std::set<std::string> relied_upon_;
  double folding_ = 0;  // operations of all that was folded
};

}  // namespace lockstep
