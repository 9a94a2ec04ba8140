#include "core/graph.h"

#include <algorithm>
#include <unordered_map>

#include "core/op_def.h"
#include "core/placement_rules.h"
#include "core/printer.h"

namespace lockstep {

const std::string& Node::op_name() const { return op_->name(); }
bool Node::is_input() const { return op_ == &InputOp(); }
bool Node::is_constant() const { return Is("constant"); }

std::string Node::Describe() const {
  std::string text = op_name();
  if (!result_names_.empty()) text += " %" + result_names_[0];
  if (!source_.empty()) text += " (at " + source_ + ")";
  return text;
}

Node& Graph::NewNode(const OpDef& op, std::list<Node>& list, std::list<Node>::iterator where) {
  const auto it = list.emplace(where, Node::Passkey(), op, next_id_++);
  it->self_ = it;
  return *it;
}

Graph Graph::Clone() const {
  Graph copy(name_);
  copy.mesh_ = mesh_;
  copy.type_mesh_ = type_mesh_;
  copy.is_local_ = is_local_;
  ValueMap map;
  const auto clone_node = [&](const Node& node, std::list<Node>& list) -> Node& {
    Node& clone = copy.NewNode(*node.op_, list, list.end());
    for (Value operand : node.operands_) clone.operands_.push_back(map.at(operand));
    clone.attributes_ = node.attributes_;
    clone.result_types_ = node.result_types_;
    clone.result_placements_ = node.result_placements_;
    clone.result_names_ = node.result_names_;
    clone.source_ = node.source_;
    copy.AddUsers(&clone);
    for (int i = 0; i < static_cast<int>(node.num_results()); ++i) map[{const_cast<Node*>(&node), i}] = {&clone, i};
    return clone;
  };
  for (const Input& input : inputs_) {
    copy.inputs_.push_back(input);
    copy.inputs_.back().value = clone_node(*input.value.node, *copy.input_nodes_).result();
  }
  for (const Node& node : *nodes_) clone_node(node, *copy.nodes_);
  for (const Result& result : results_) {
    copy.results_.push_back(result);
    copy.results_.back().value = map.at(result.value);
  }
  copy.names_ = names_;
  copy.next_name_ = next_name_;
  return copy;
}

void Graph::set_mesh(Mesh mesh, bool is_local) {
  mesh_ = std::move(mesh);
  is_local_ = is_local && !mesh_.empty();
  std::vector<MeshAxis> axes = mesh_.axes();
  if (!is_local_) {
    for (MeshAxis& axis : axes) axis.size = 1;
  }
  type_mesh_ = Mesh(std::move(axes));
}

void Graph::set_input_placements(size_t i, PlacementMap placements) {
  inputs_[i].value.node->result_placements_ = {WithoutReplicated(std::move(placements))};
}

absl::StatusOr<Value> Graph::AddInput(std::string name, TensorType type, bool is_state, PlacementMap placements) {
  if (name.empty()) return InvalidArgument() << "an input of graph @" << name_ << " has no name";
  if (!names_.insert(name).second)
    return InvalidArgument() << "two values of graph @" << name_ << " are named %" << name;
  Node& node = NewNode(InputOp(), *input_nodes_, input_nodes_->end());
  node.result_types_ = {std::move(type)};
  node.result_names_ = {std::move(name)};
  node.result_placements_ = {WithoutReplicated(std::move(placements))};
  inputs_.push_back({node.result(), is_state});
  return node.result();
}

absl::StatusOr<Value> Graph::AddSetting(std::string name, Setting setting) {
  if (!setting.range.Contains(setting.value)) {
    return InvalidArgument() << "setting %" << name << " is " << setting.value << ", expected "
                             << setting.range.ToString();
  }
  ASSIGN_OR_RETURN(const Value value, AddInput(std::move(name), TensorType{DType::kF64, Shape()}));
  inputs_.back().setting = setting;
  return value;
}

absl::StatusOr<Value> Graph::AddInputLike(const Input& input, TensorType type, PlacementMap placements) {
  ASSIGN_OR_RETURN(const Value value, AddInput(input.name(), std::move(type), input.is_state, std::move(placements)));
  inputs_.back().setting = input.setting;
  return value;
}

const Input* Graph::FindInput(std::string_view name) const {
  for (const Input& input : inputs_) {
    if (input.name() == name) return &input;
  }
  return nullptr;
}

absl::Status Graph::RemoveInput(std::string_view name) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (inputs_[i].name() != name) continue;
    if (IsUsed(inputs_[i].value)) return FailedPrecondition() << "input %" << name << " is used";
    names_.erase(std::string(name));
    input_nodes_->erase(inputs_[i].value.node->self_);
    inputs_.erase(inputs_.begin() + static_cast<std::ptrdiff_t>(i));
    return absl::OkStatus();
  }
  return NotFound() << "graph @" << name_ << " has no input %" << name;
}

absl::Status Graph::AddResult(std::string name, Value value, PlacementMap placements) {
  if (FindResult(name)) return InvalidArgument() << "graph @" << name_ << " has two results named " << name;
  results_.push_back({std::move(name), value, false, std::move(placements)});
  return absl::OkStatus();
}

absl::Status Graph::AddStateResult(std::string_view name, Value value, PlacementMap placements) {
  const Input* input = FindInput(name);
  if (!input || !input->is_state) return InvalidArgument() << "graph @" << name_ << " has no state input %" << name;
  if (FindResult(name, true)) return InvalidArgument() << "state %" << name << " has two next values";
  if (input->value.type() != value.type()) {
    return InvalidArgument() << "the next value of state %" << name << " has type " << value.type() << ", the state "
                             << input->value.type();
  }
  results_.push_back({std::string(name), value, true, std::move(placements)});
  return absl::OkStatus();
}

const Result* Graph::FindResult(std::string_view name, bool is_state) const {
  for (const Result& result : results_) {
    if (result.name == name && result.is_state == is_state) return &result;
  }
  return nullptr;
}

absl::StatusOr<Node*> Graph::Insert(NodeSpec spec, Node* before) {
  const OpDef& op = *spec.op;
  const auto located = [&](const absl::Status& status) {
    if (spec.source.empty()) return status;
    return absl::Status(status.code(), std::string(status.message()) + ", at " + spec.source);
  };
  auto attributes = op.CompleteAttributes(std::move(spec.attributes));
  if (!attributes.ok()) return located(attributes.status());
  std::vector<TensorType> operand_types;
  for (Value operand : spec.operands) operand_types.push_back(operand.type());
  auto types = op.InferTypes(operand_types, *attributes, mesh_, is_local_);
  if (!types.ok()) return located(types.status());
  for (const TensorType& type : *types) {
    if (!IsAddressable(type))
      return located(InvalidArgument() << op.name() << ": the result " << type << " is too large to address");
  }
  if (is_placed() && spec.placements.empty()) {
    auto placements = PlaceResults(op, *attributes, spec.operands, *types, mesh_);
    if (!placements.ok()) return located(placements.status());
    spec.placements = *std::move(placements);
  }
  spec.placements.resize(types->size());

  Node& node = NewNode(op, *nodes_, before ? before->self_ : nodes_->end());
  node.operands_ = std::move(spec.operands);
  node.attributes_ = *std::move(attributes);
  node.result_types_ = *std::move(types);
  for (PlacementMap& placements : spec.placements)
    node.result_placements_.push_back(WithoutReplicated(std::move(placements)));
  node.source_ = std::move(spec.source);
  for (size_t i = 0; i < node.result_types_.size(); ++i) {
    node.result_names_.push_back(UniqueName(i < spec.names.size() ? spec.names[i] : ""));
  }
  AddUsers(&node);
  return &node;
}

NodeSpec CopyOf(const Node& node, const ValueMap& map) {
  NodeSpec spec{&node.op(), {}, node.attributes(), node.source(), {}};
  for (Value operand : node.operands()) spec.operands.push_back(map.at(operand));
  for (size_t i = 0; i < node.num_results(); ++i) {
    spec.names.push_back(node.result_name(i));
    spec.placements.push_back(node.placements(i));
  }
  return spec;
}

absl::StatusOr<Node*> Graph::InsertCopy(const Node& node, ValueMap& map, Node* before) {
  ASSIGN_OR_RETURN(Node* const copy, Insert(CopyOf(node, map), before));
  for (size_t i = 0; i < node.num_results(); ++i) map[const_cast<Node&>(node).result(i)] = copy->result(i);
  return copy;
}

void Graph::Erase(Node* node) {
  for (size_t i = 0; i < node->num_results(); ++i) {
    LOCKSTEP_CHECK(!IsUsed(node->result(i))) << node->Describe() << " is still used";
    names_.erase(node->result_names_[i]);
  }
  for (Value operand : node->operands_) RemoveUser(operand, node);
  nodes_->erase(node->self_);
}

void Graph::MoveBefore(Node* node, Node* before) {
  nodes_->splice(before ? before->self_ : nodes_->end(), *nodes_, node->self_);
}

void Graph::SetOperand(Node* node, size_t i, Value value) {
  LOCKSTEP_CHECK(node->operands_[i].type() == value.type()) << node->Describe() << " operand " << i;
  RemoveUser(node->operands_[i], node);
  node->operands_[i] = value;
  value.node->users_.push_back(node);
}

absl::Status Graph::SetAttribute(Node* node, std::string_view name, Attribute value) {
  AttributeMap attributes = node->attributes_;
  attributes.insert_or_assign(std::string(name), std::move(value));
  ASSIGN_OR_RETURN(attributes, node->op().CompleteAttributes(std::move(attributes)));
  std::vector<TensorType> operand_types;
  for (Value operand : node->operands_) operand_types.push_back(operand.type());
  ASSIGN_OR_RETURN(const std::vector<TensorType> types,
                   node->op().InferTypes(operand_types, attributes, mesh_, is_local_));
  if (types != node->result_types_)
    return InvalidArgument() << node->Describe() << ": attribute " << name << " changes the result type";
  node->attributes_ = std::move(attributes);
  return absl::OkStatus();
}

void Graph::ReplaceUses(Value from, Value to) {
  LOCKSTEP_CHECK(from.type() == to.type()) << "%" << from.name() << " by %" << to.name();
  if (from == to) return;
  const std::vector<Node*> users = from.node->users_;
  for (Node* user : users) {
    for (size_t i = 0; i < user->operands_.size(); ++i) {
      if (user->operands_[i] == from) SetOperand(user, i, to);
    }
  }
  for (Result& result : results_) {
    if (result.value == from) result.value = to;
  }
}

void Graph::SetName(Value value, std::string_view hint) {
  std::string& name = value.node->result_names_[static_cast<size_t>(value.index)];
  if (name == hint) return;
  names_.erase(name);
  name = UniqueName(hint);
}

bool Graph::IsUsed(Value value) const {
  for (const Node* user : value.node->users_) {
    if (std::find(user->operands_.begin(), user->operands_.end(), value) != user->operands_.end()) return true;
  }
  return std::any_of(results_.begin(), results_.end(), [&](const Result& result) { return result.value == value; });
}

std::string Graph::ToString() const { return PrintGraph(*this); }

std::string Graph::UniqueName(std::string_view hint) {
  std::string name(hint);
  if (!name.empty() && names_.insert(name).second) return name;
  if (name.empty()) {
    do name = std::to_string(next_name_++);
    while (!names_.insert(name).second);
    return name;
  }
  for (int64_t i = 1;; ++i) {
    std::string numbered = name + "." + std::to_string(i);
    if (names_.insert(numbered).second) return numbered;
  }
}

void Graph::AddUsers(Node* node) {
  for (Value operand : node->operands_) operand.node->users_.push_back(node);
}

void Graph::RemoveUser(Value value, Node* user) {
  std::vector<Node*>& users = value.node->users_;
  const auto it = std::find(users.begin(), users.end(), user);
  LOCKSTEP_CHECK(it != users.end()) << "%" << value.name();
  users.erase(it);
}

}  // namespace lockstep
