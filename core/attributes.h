// The attributes of a node. Their types are a small closed set, so that printing, parsing, hashing, comparing and
// cloning are written once for all ops. Plain values; any thread.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/dtype.h"
#include "core/setting.h"
#include "core/tensor.h"

namespace lockstep {

class Graph;

// A graph inside a node, such as the body of a fusion. Immutable, and therefore shared between the clones of its node.
// Two regions are equal if their texts are equal.
class Region {
 public:
  Region();  // a graph without inputs, nodes and results
  explicit Region(Graph graph);
  bool empty() const;
  const Graph& graph() const { return *graph_; }
  bool operator==(const Region& other) const;
  std::string ToString() const;

 private:
  std::shared_ptr<const Graph> graph_;
};

// The value of an attribute whose number is an operand of the node, an f64 scalar. Only attributes with
// OpDef::OrOperand may have it. Such operands come after the op's own.
struct OperandRef {
  int64_t index = 0;  // among the node's operands
  bool operator==(const OperandRef&) const = default;
};

// Strings are identifiers such as `sum` or `data`, or any text in quotes.
using Attribute =
    std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, DType, Tensor, Region, OperandRef>;

// Ordered, so that what is printed and hashed does not depend on the order of insertion.
using AttributeMap = std::map<std::string, Attribute, std::less<>>;

// The name of the alternative that the attribute holds: "bool", "int", "float", "string", "ints", "dtype", "tensor",
// "region" or "operand".
std::string_view AttributeTypeName(const Attribute& attribute);
template <typename T>
std::string_view AttributeTypeName() {
  return AttributeTypeName(Attribute(T()));
}

// The text form: "true", "3", "0.1", "sum", "\"a b\"", "[1, 2]", "f32", "dense<f32[]: 1.0>".
std::string AttributeToString(const Attribute& attribute);

// `text` in double quotes, with `"`, `\\` and newlines escaped.
std::string Quoted(std::string_view text);

// The number of attributes that are operands.
size_t NumOperandRefs(const AttributeMap& attributes);

// "{axis=data, kind=sum}", or "" for an empty map.
std::string AttributesToString(const AttributeMap& attributes);

}  // namespace lockstep
