// The program: a Graph owns its Nodes in one list that is always a valid execution order. Frontends and the parser make
// graphs, passes change them, backends and the interpreter read them. One thread at a time may use a Graph.
//
// There is one Node class for all ops: an op, operands, attributes, results. Result types are inferred on insertion,
// and inference is verification: a node that exists is well-typed.
//
// A program has three forms (docs/decisions/0007):
//  * without a mesh: the one-rank program over the global batch, as a user writes it;
//  * placed: with a mesh, and a placement of every value along each axis. Types are still those of the one-rank
//    program, and a collective changes the placement of a value, not the value. New nodes are placed by their ops'
//    rules;
//  * local: a placed program with the types of the part that one rank holds. This form runs. core/local_types.h
//    converts in both directions.

#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/attributes.h"
#include "core/placement.h"
#include "core/setting.h"
#include "core/shape.h"
#include "core/status.h"

namespace lockstep {

class Graph;
class Node;
class OpDef;

// A handle to one result of a node, valid while the node is in its graph. The null Value has no node.
struct Value {
  Node* node = nullptr;
  int index = 0;

  explicit operator bool() const { return node != nullptr; }
  bool operator==(const Value&) const = default;
  const TensorType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
  const std::string& name() const;         // unique in the graph, without the '%'
  const PlacementMap& placements() const;  // without the axes along which the value is replicated
  Placement placement(std::string_view axis) const { return PlacementAlong(placements(), axis); }
};

struct ValueHash {
  size_t operator()(const Value& value) const {
    return std::hash<const void*>()(value.node) * 31 + static_cast<size_t>(value.index);
  }
};

class Node {
 private:
  struct Passkey {};  // only Graph makes nodes

 public:
  Node(Passkey, const OpDef& op, int64_t id) : op_(&op), id_(id) {}
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const OpDef& op() const { return *op_; }
  const std::string& op_name() const;
  bool Is(std::string_view op_name) const { return this->op_name() == op_name; }
  bool is_input() const;  // true for an input of the graph, which computes nothing
  bool is_constant() const;

  // Increases in order of creation within one graph. A deterministic key, unlike the node's address.
  int64_t id() const { return id_; }

  const std::vector<Value>& operands() const { return operands_; }
  Value operand(size_t i) const { return operands_[i]; }
  const AttributeMap& attributes() const { return attributes_; }  // with the op's defaults filled in
  template <typename T>
  const T& attr(std::string_view name) const {  // requires an attribute that the op declares with type T
    const auto it = attributes_.find(name);
    LOCKSTEP_CHECK(it != attributes_.end()) << op_name() << " has no attribute " << name;
    return std::get<T>(it->second);
  }

  size_t num_results() const { return result_types_.size(); }
  Value result(size_t i = 0) { return Value{this, static_cast<int>(i)}; }
  const TensorType& type(size_t i = 0) const { return result_types_[i]; }
  const PlacementMap& placements(size_t i = 0) const { return result_placements_[i]; }
  const std::string& result_name(size_t i = 0) const { return result_names_[i]; }

  // The origin of the node in the model, such as "onnx:/fc1/MatMul" or "torch:encoder.0.fc1/node_MatMul_3"; may be
  // empty.
  const std::string& source() const { return source_; }

  // The nodes that use a result of this node, once for each operand that is one. Results of the graph are not users.
  const std::vector<Node*>& users() const { return users_; }

  // The name of the node in messages: "matmul %z" or "matmul %z (at onnx:/fc1/MatMul)".
  std::string Describe() const;

 private:
  friend class Graph;
  const OpDef* op_;
  int64_t id_;
  std::vector<Value> operands_;
  AttributeMap attributes_;
  std::vector<TensorType> result_types_;
  std::vector<PlacementMap> result_placements_;
  std::vector<std::string> result_names_;
  std::string source_;
  std::vector<Node*> users_;
  std::list<Node>::iterator self_;
};

inline const TensorType& Value::type() const { return node->type(static_cast<size_t>(index)); }
inline const std::string& Value::name() const { return node->result_name(static_cast<size_t>(index)); }
inline const PlacementMap& Value::placements() const { return node->placements(static_cast<size_t>(index)); }

// An input of a graph. Data inputs are given at each call. State inputs (trained variables, optimizer state) live with
// the executable, which updates those that have a next value among the results. Settings keep their value until it is
// set again.
struct Input {
  Value value;  // the result of a node of op `input`, which is not in nodes()
  bool is_state = false;
  std::optional<Setting> setting = {};
  bool is_data() const { return !is_state && !setting; }
  const std::string& name() const { return value.name(); }
  // In a graph without a mesh, the placements that it will have. split(0) on the data axis: dimension 0 is the batch.
  const PlacementMap& placements() const { return value.placements(); }
};

// A result of a graph: a named value, or the next value of the state input of that name.
struct Result {
  std::string name;
  Value value;
  bool is_state = false;
  PlacementMap placements;
};

// The description of a node for Insert. Names default to new ones, attributes to the op's defaults.
struct NodeSpec {
  const OpDef* op = nullptr;
  std::vector<Value> operands;
  AttributeMap attributes;
  std::string source;
  std::vector<std::string> names;
  // The placements of the results, one entry for each, from a parser or a pass that knows them. Verify checks them. If
  // empty, the op's rule decides in a placed graph; in other graphs results are replicated.
  std::vector<PlacementMap> placements = {};
};

// Maps values of a graph to values of another graph, or to other values of the same graph.
using ValueMap = std::unordered_map<Value, Value, ValueHash>;

// The description of a copy of `node`. Operands are mapped by `map`, which must have all of them.
NodeSpec CopyOf(const Node& node, const ValueMap& map);

class Graph {
 public:
  explicit Graph(std::string name = "main") : name_(std::move(name)) {}
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  Graph Clone() const;

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const Mesh& mesh() const { return mesh_; }
  // True if types are those of the part that one rank holds. False without a mesh.
  bool is_local() const { return is_local_; }
  bool is_placed() const { return !mesh_.empty() && !is_local_; }
  void set_mesh(Mesh mesh, bool is_local = false);
  // The mesh of a local graph; else the same axes with one rank each, because types are global. num_ranks() is its
  // number of ranks.
  const Mesh& type_mesh() const { return type_mesh_; }
  int64_t num_ranks() const { return type_mesh_.num_ranks(); }

  // --- Inputs and results --------------------------------------------------------------------------------------------
  absl::StatusOr<Value> AddInput(std::string name, TensorType type, bool is_state = false,
                                 PlacementMap placements = {});
  // Adds a replicated f64 scalar. A value outside of the range is an error.
  absl::StatusOr<Value> AddSetting(std::string name, Setting setting);
  // Adds an input like `input`, which is of another graph, with another type and other placements.
  absl::StatusOr<Value> AddInputLike(const Input& input, TensorType type, PlacementMap placements);
  const std::vector<Input>& inputs() const { return inputs_; }
  const Input* FindInput(std::string_view name) const;  // null if there is none
  void set_input_placements(size_t i, PlacementMap placements);
  absl::Status RemoveInput(std::string_view name);  // an error if it is used

  absl::Status AddResult(std::string name, Value value, PlacementMap placements = {});
  // `value` becomes the next value of the state input `name`, of the same type.
  absl::Status AddStateResult(std::string_view name, Value value, PlacementMap placements = {});
  const std::vector<Result>& results() const { return results_; }
  const Result* FindResult(std::string_view name, bool is_state = false) const;  // null if there is none
  void set_result_value(size_t i, Value value) { results_[i].value = value; }
  void set_result_placements(size_t i, PlacementMap placements) { results_[i].placements = std::move(placements); }
  void RemoveResult(size_t i) { results_.erase(results_.begin() + static_cast<std::ptrdiff_t>(i)); }

  // --- Nodes ---------------------------------------------------------------------------------------------------------
  // In execution order. The list is changed only by the members below.
  const std::list<Node>& nodes() const { return *nodes_; }
  std::list<Node>& nodes() { return *nodes_; }

  // Inserts a node before `before` (at the end if null) and infers its result types. An error is the op's, with the
  // source added.
  absl::StatusOr<Node*> Insert(NodeSpec spec, Node* before = nullptr);
  // Inserts CopyOf(node, map), and adds its results to the map.
  absl::StatusOr<Node*> InsertCopy(const Node& node, ValueMap& map, Node* before = nullptr);
  void Erase(Node* node);                              // requires that no result is used
  void MoveBefore(Node* node, Node* before);           // to the end if null; the caller keeps the order valid
  void SetOperand(Node* node, size_t i, Value value);  // requires a value of the same type
  absl::Status SetAttribute(Node* node, std::string_view name, Attribute value);  // result types must stay
  void ReplaceUses(Value from, Value to);            // in operands and in results; requires the same type
  void SetName(Value value, std::string_view hint);  // the hint, or the hint with a number if it is taken
  bool IsUsed(Value value) const;                    // by a node or as a result

  // The exact text form; equal programs have equal text (see core/printer.h).
  std::string ToString() const;

 private:
  std::string UniqueName(std::string_view hint);
  void AddUsers(Node* node);
  void RemoveUser(Value value, Node* user);
  Node& NewNode(const OpDef& op, std::list<Node>& list, std::list<Node>::iterator where);

  std::string name_;
  Mesh mesh_, type_mesh_;
  bool is_local_ = false;
  std::vector<Input> inputs_;
  std::vector<Result> results_;
  // Behind pointers, so that moving a Graph does not move its nodes.
  std::unique_ptr<std::list<Node>> input_nodes_ = std::make_unique<std::list<Node>>();
  std::unique_ptr<std::list<Node>> nodes_ = std::make_unique<std::list<Node>>();
  std::unordered_set<std::string> names_;
  int64_t next_id_ = 0;
  int64_t next_name_ = 0;
};

}  // namespace lockstep
