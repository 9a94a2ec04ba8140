#include "backends/planning/program_builder.h"

#include <algorithm>
#include <map>

#include "backends/planning/collective_labels.h"
#include "backends/planning/served_states.h"
#include "core/local_types.h"
#include "core/op_def.h"

namespace lockstep {
namespace {

ValueInfo Describe(const std::string& name, Value value, const PlacementMap& placements, const Mesh& mesh) {
  ValueInfo info;
  info.name = name;
  info.local_type = value.type();
  info.global_type = GlobalType(value.type(), placements, mesh);
  info.placements = placements;
  return info;
}

// Returns true for what one pass over the elements can compute, together with others of its kind.
bool IsLoop(const Node& node) {
  if (node.Is("fusion")) {
    const auto& nodes = node.attr<Region>("body").graph().nodes();
    return std::all_of(nodes.begin(), nodes.end(), IsLoop);
  }
  const OpDef& op = node.op();
  return op.has_trait(kElementwise) || op.has_trait(kMovement) || op.has_trait(kReduction) || op.has_trait(kGenerator);
}

Storage StorageFor(Value value) {
  Storage storage;
  storage.name = value.name();
  storage.dtype = value.dtype();
  storage.shape = value.shape();
  storage.bytes = value.type().num_bytes();
  return storage;
}

// A collective that scatters and gathers has an attribute for each.
int64_t ScatteredDim(const Node& node) {
  return node.attr<int64_t>(TraitsOf(*node.op().collective()).gathers ? "split_dim" : "dim");
}
int64_t GatheredDim(const Node& node) {
  return node.attr<int64_t>(TraitsOf(*node.op().collective()).scatters ? "concat_dim" : "dim");
}

TensorType SliceOf(const TensorType& whole, int64_t dim, int64_t ranks) {
  return {whole.dtype, whole.shape.WithDim(dim, whole.shape[dim] / ranks)};
}

}  // namespace

ProgramBuilder::ProgramBuilder(const Graph& graph, std::optional<PlaceOfPart> place)
    : graph_(graph), part_(graph, place) {
  program_.name = graph.name();
  program_.mesh = graph.mesh();
  kept_ = StatesOfServers(graph);
  if (place) program_.parts_along = place->axis;
  program_.lanes = part_.lanes();
  for (const Input& input : graph.inputs()) {
    if (input.is_state && kept_.contains(input.name())) continue;
    Storage storage = StorageFor(input.value);
    if (input.setting) {
      storage.kind = Storage::Kind::kSetting;
      storage.index = static_cast<int>(program_.settings.size());
      program_.settings.push_back({input.name(), *input.setting});
      storages_[input.value].push_back(program_.AddStorage(std::move(storage)));
      continue;
    }
    if (input.is_state && !part_.Has(input.value)) {
      program_.states_elsewhere.push_back(Describe(input.name(), input.value, input.placements(), graph.mesh()));
      continue;
    }
    std::vector<ValueInfo>& infos = input.is_state ? program_.states : program_.inputs;
    storage.kind = input.is_state ? Storage::Kind::kState : Storage::Kind::kInput;
    storage.index = static_cast<int>(infos.size());
    infos.push_back(Describe(input.name(), input.value, input.placements(), graph.mesh()));
    storages_[input.value].push_back(program_.AddStorage(std::move(storage)));
  }
}

const std::vector<int>& ProgramBuilder::StoragesOf(Value value) const {
  const auto it = storages_.find(value);
  LOCKSTEP_CHECK(it != storages_.end()) << "%" << value.name() << " is read before it is defined";
  return it->second;
}

int ProgramBuilder::Find(Value value, const std::string& layout) const {
  for (int id : StoragesOf(value)) {
    if (program_.storage(id).layout == layout) return id;
  }
  return -1;
}

int ProgramBuilder::Define(Value value, std::string layout, uint64_t bytes) {
  Storage storage = StorageFor(value);
  storage.layout = std::move(layout);
  storage.bytes = bytes;
  const int id = program_.AddStorage(std::move(storage));
  storages_[value].push_back(id);
  return id;
}

int ProgramBuilder::DefineTemporary(std::string name, DType dtype, std::string layout, uint64_t bytes) {
  Storage storage;
  storage.name = std::move(name);
  storage.layout = std::move(layout);
  storage.dtype = dtype;
  storage.bytes = bytes;
  return program_.AddStorage(std::move(storage));
}

void ProgramBuilder::DefineAlias(Value value, int storage, std::string layout) {
  Storage alias = StorageFor(value);
  alias.layout = std::move(layout);
  alias.bytes = program_.storage(storage).bytes;
  alias.alias_of = storage;
  storages_[value].push_back(program_.AddStorage(std::move(alias)));
}

uint64_t ProgramBuilder::BytesRead(const Node& node, int storage) const {
  const uint64_t bytes = program_.storage(storage).bytes;
  uint64_t read = 0;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const auto ids = storages_.find(node.operand(i));  // none for a node in a body
    if (ids == storages_.end() || std::count(ids->second.begin(), ids->second.end(), storage) == 0) continue;
    const int64_t elements = ElementsRead(node, i);
    if (elements == node.operand(i).type().num_elements()) return bytes;  // with padding
    read += static_cast<uint64_t>(elements) * SizeOf(node.operand(i).dtype());
  }
  return read > 0 ? std::min(bytes, read) : bytes;  // 0: not an operand, but another form of one
}

Work ProgramBuilder::WorkOf(const Node& node, const Instruction& instruction) const {
  const Kernel& kernel = instruction.kernel;
  Work work;
  if (!kernel.is_reorder) work.operations = FlopsOf(node);
  std::map<int, uint64_t> read;  // by storage: an operand that is given twice is read once
  for (size_t i = 0; i < instruction.reads.size(); ++i) read[instruction.reads[i]] = instruction.read[i];
  for (const auto& [storage, bytes] : read) work.bytes += bytes;
  for (int id : instruction.writes) work.bytes += program_.storage(id).bytes;
  const DType dtype = node.operands().empty() ? node.type().dtype : node.operand(0).dtype();
  const bool multiplies = node.op().precision() == PrecisionRule::kLow;
  if (kernel.arithmetic) work.arithmetic = *kernel.arithmetic;
  else if (dtype == DType::kF64) work.arithmetic = Arithmetic::kF64;
  else if (multiplies && SizeOf(dtype) == 2) work.arithmetic = Arithmetic::k16Bits;
  return work;
}

Instruction& ProgramBuilder::Add(const Node& node, Kernel kernel, std::vector<int> reads, std::vector<int> writes) {
  Instruction instruction;
  instruction.source = node.source();
  instruction.is_loop = IsLoop(node);
  instruction.kernel = std::move(kernel);
  instruction.reads = std::move(reads);
  instruction.writes = std::move(writes);
  for (int id : instruction.reads) instruction.read.push_back(BytesRead(node, id));
  instruction.work = WorkOf(node, instruction);
  program_.instructions.push_back(std::move(instruction));
  return program_.instructions.back();
}

bool ProgramBuilder::TakesRowMajor(const Node& node) const {
  const bool moves = node.op().has_trait(kCollective) && node.op().collective() != CollectiveOp::kAllReduce;
  if (!moves && !node.op().has_trait(kKeepsOrder) && !node.Is("push")) return false;
  return !part_.HasEndOf(node) || part_.Has(node.operand(0));
}

absl::StatusOr<bool> ProgramBuilder::LowerCommon(const Node& node) {
  if (node.is_constant()) {
    RETURN_IF_ERROR(LowerConstant(node));
  } else if (node.Is("push")) {
    RETURN_IF_ERROR(LowerPush(node));
  } else if (node.Is("pull")) {
    RETURN_IF_ERROR(LowerPull(node));
  } else if (IsAlongOneRank(node)) {
    for (size_t i = 0; i < node.operands().size(); ++i) {
      const int read = StoragesOf(node.operand(i)).front();
      const std::string layout = program_.storage(read).layout;
      DefineAlias(const_cast<Node&>(node).result(i), read, layout);
    }
  } else if (node.op().has_trait(kKeepsOrder) && Find(node.operand(0), "") >= 0) {
    DefineAlias(const_cast<Node&>(node).result(), Find(node.operand(0), ""), "");
  } else if (part_.HasEndOf(node)) {
    RETURN_IF_ERROR(LowerPartialCollective(node));
  } else if (node.op().collective() && IsContiguous(node)) {
    RETURN_IF_ERROR(LowerCollective(node));
  } else {
    return false;
  }
  return true;
}

absl::Status ProgramBuilder::LowerConstant(const Node& node) {
  const Value result = const_cast<Node&>(node).result();
  Storage storage = StorageFor(result);
  storage.kind = Storage::Kind::kConstant;
  storage.index = static_cast<int>(program_.constants.size());
  program_.constants.push_back(node.attr<Tensor>("value"));
  storages_[result].push_back(program_.AddStorage(std::move(storage)));
  return absl::OkStatus();
}

int ProgramBuilder::MeshAxisOf(const Node& node) const {
  const std::vector<MeshAxis>& axes = program_.mesh.axes();
  const auto& name = node.attr<std::string>("axis");
  const auto it = std::find_if(axes.begin(), axes.end(), [&](const MeshAxis& axis) { return axis.name == name; });
  LOCKSTEP_CHECK(it != axes.end()) << node.Describe();
  return static_cast<int>(it - axes.begin());
}

int64_t ProgramBuilder::RanksAlong(const Node& node) const {
  return program_.mesh.axes()[static_cast<size_t>(MeshAxisOf(node))].size;
}

bool ProgramBuilder::IsAlongOneRank(const Node& node) const {
  return node.op().has_trait(kOneRankIdentity) && RanksAlong(node) == 1;
}

CollectiveInfo ProgramBuilder::InfoOf(const Node& node, DType dtype) const {
  CollectiveInfo info;
  info.op = *node.op().collective();
  info.axis = node.attr<std::string>("axis");
  info.mesh_axis = MeshAxisOf(node);
  const CollectiveTraits traits = TraitsOf(info.op);
  if (traits.reduces) info.kind = *ReduceKindFromName(node.attr<std::string>("kind"));
  if (traits.has_root()) info.root = static_cast<int>(node.attr<int64_t>("root"));
  if (traits.permutes) {
    const auto &sources = node.attr<std::vector<int64_t>>("sources"),
               &targets = node.attr<std::vector<int64_t>>("targets");
    for (size_t i = 0; i < sources.size(); ++i)
      info.pairs.push_back({static_cast<int>(sources[i]), static_cast<int>(targets[i])});
  }
  info.dtype = dtype;
  return info;
}

bool ProgramBuilder::TakesContiguous(const Node& node, size_t i) {
  return !TraitsOf(*node.op().collective()).scatters || node.operand(i).shape().IsOutermost(ScatteredDim(node));
}

bool ProgramBuilder::GivesContiguous(const Node& node, size_t i) {
  return !TraitsOf(*node.op().collective()).gathers || node.type(i).shape.IsOutermost(GatheredDim(node));
}

std::pair<TensorType, int64_t> ProgramBuilder::SliceTaken(const Node& node, size_t i) const {
  const int64_t dim = ScatteredDim(node);
  return {SliceOf(node.operand(i).type(), dim, RanksAlong(node)), dim};
}

std::pair<TensorType, int64_t> ProgramBuilder::SliceGiven(const Node& node, size_t i) const {
  const int64_t dim = GatheredDim(node);
  return {SliceOf(node.type(i), dim, RanksAlong(node)), dim};
}

bool ProgramBuilder::IsContiguous(const Node& node) {
  for (size_t i = 0; i < node.operands().size(); ++i) {
    if (!TakesContiguous(node, i) || !GivesContiguous(node, i)) return false;
  }
  return true;
}

void ProgramBuilder::AddCollective(const Node& node, CollectiveInfo info, std::vector<int> reads,
                                   std::vector<int> writes) {
  Instruction instruction;
  instruction.kind = Instruction::Kind::kCollective;
  instruction.source = node.source();
  instruction.collective = std::move(info);
  instruction.reads = std::move(reads);
  instruction.writes = std::move(writes);
  program_.instructions.push_back(std::move(instruction));
}

absl::StatusOr<int> ProgramBuilder::PositionOfSetting(const Node& node, const std::string& name) const {
  if (name.empty()) return -1;
  for (size_t i = 0; i < program_.settings.size(); ++i) {
    if (program_.settings[i].name == name) return static_cast<int>(i);
  }
  return InvalidArgument() << node.Describe() << ": when is '" << name << "', which is no setting of the program";
}

absl::Status ProgramBuilder::LowerCollective(const Node& node) {
  // A collective moves elements of one dtype. An all_reduce works in any layout and uses operands as they were
  // produced.
  const bool any_layout = TraitsOf(*node.op().collective()).is_in_place;
  std::map<DType, std::pair<std::vector<int>, std::vector<int>>> by_dtype;
  std::map<DType, std::vector<size_t>> positions;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    const int read = any_layout ? StoragesOf(node.operand(i)).front() : Find(node.operand(i), "");
    if (read < 0) return Internal() << node.Describe() << ": operand " << i << " is not row-major";
    const Value result = const_cast<Node&>(node).result(i);
    const Storage& storage = program_.storage(read);
    auto& [reads, writes] = by_dtype[node.operand(i).dtype()];
    positions[node.operand(i).dtype()].push_back(i);
    reads.push_back(read);
    writes.push_back(any_layout ? Define(result, storage.layout, storage.bytes) : Define(result));
  }
  for (auto& [dtype, operands] : by_dtype) {
    CollectiveInfo info = InfoOf(node, dtype);
    if (const auto when = node.attributes().find("when"); when != node.attributes().end()) {
      ASSIGN_OR_RETURN(info.when, PositionOfSetting(node, std::get<std::string>(when->second)));
    }
    if (!part_.is_whole() && any_layout) info.message_name = LabelOfReduction(node, positions.at(dtype));
    AddCollective(node, std::move(info), std::move(operands.first), std::move(operands.second));
  }
  return absl::OkStatus();
}

absl::Status ProgramBuilder::LowerPush(const Node& node) {
  const int gradient = Find(node.operand(0), "");
  if (gradient < 0) return Internal() << node.Describe() << ": the gradient is not row-major";
  Instruction instruction;
  instruction.kind = Instruction::Kind::kPush;
  instruction.source = node.source();
  instruction.served = static_cast<int>(program_.served.size());
  instruction.reads = {gradient};
  program_.served.push_back(node.attr<std::string>("key"));
  program_.instructions.push_back(std::move(instruction));
  return absl::OkStatus();
}

absl::Status ProgramBuilder::LowerPull(const Node& node) {
  const auto& key = node.attr<std::string>("key");
  const auto served = std::find(program_.served.begin(), program_.served.end(), key);
  if (served == program_.served.end()) return Internal() << node.Describe() << " comes before the push";
  Instruction instruction;
  instruction.kind = Instruction::Kind::kPull;
  instruction.source = node.source();
  instruction.served = static_cast<int>(served - program_.served.begin());
  instruction.reads = {StoragesOf(node.operand(1)).front()};  // the result may overwrite it
  instruction.writes = {Define(const_cast<Node&>(node).result())};
  program_.instructions.push_back(std::move(instruction));
  return absl::OkStatus();
}

absl::Status ProgramBuilder::LowerPartialCollective(const Node& node) {
  const Value operand = node.operand(0), result = const_cast<Node&>(node).result();
  CollectiveInfo info = InfoOf(node, operand.dtype());
  if (const int lane = part_.LaneOf(node); lane >= 0) {
    info.is_transfer = true;
    info.mesh_axis = static_cast<int>(program_.mesh.axes().size()) + lane;
  }
  info.counts = {operand.type().num_elements()};
  info.label = "%" + operand.name();
  info.message_name = LabelOfTransfer(node);
  std::vector<int> reads, writes;
  if (part_.Has(operand)) {
    reads.push_back(Find(operand, ""));
    if (reads[0] < 0) return Internal() << node.Describe() << ": its operand is not row-major";
  }
  if (part_.Has(result)) writes.push_back(Define(result));
  AddCollective(node, std::move(info), std::move(reads), std::move(writes));
  return absl::OkStatus();
}

absl::StatusOr<Program> ProgramBuilder::Finish(const std::function<absl::StatusOr<int>(Value)>& row_major) {
  for (const Result& result : graph_.results()) {
    if (result.is_state && kept_.contains(result.name)) continue;
    if (!part_.Has(result.value)) continue;  // only a state's result may be missing
    ProgramOutput output;
    output.name = result.name;
    if (result.is_state) {
      output.state = program_.storage(StoragesOf(graph_.FindInput(result.name)->value).front()).index;
    } else {
      output.info = static_cast<int>(program_.results.size());
      program_.results.push_back(Describe(result.name, result.value, result.placements, graph_.mesh()));
    }
    output.storage = Find(result.value, "");
    if (output.storage < 0) {
      ASSIGN_OR_RETURN(output.storage, row_major(result.value));
    }
    program_.outputs.push_back(std::move(output));
  }
  return std::move(program_);
}

}  // namespace lockstep
