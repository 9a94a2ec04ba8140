#include "verify/compare_programs.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/local_part.h"
#include "core/local_types.h"
#include "core/op_def.h"
#include "core/printer.h"
#include "passes/distribute/quantize_wire.h"
#include "verify/random_inputs.h"

namespace lockstep::verify {
namespace {

// --- Parts -----------------------------------------------------------------------------------------------------------

ExactTensor PartOf(const ExactTensor& whole, const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  if (std::none_of(placements.begin(), placements.end(), [](const auto& along) { return along.second.is_split(); }))
    return whole;
  Names names;
  const Tensor part = LocalPart(names.Of(whole), placements, mesh, rank);
  return names.Resolve(part, {whole.dtype(), part.shape()});
}

// A rank before `rank` with the same part of a value with these placements, if there is one.
std::optional<int64_t> RankWithSamePart(const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  for (int64_t other = 0; other < rank; ++other) {
    if (std::all_of(placements.begin(), placements.end(), [&](const auto& along) {
          return !mesh.has_axis(along.first) ||
                 mesh.Coordinate(rank, along.first) == mesh.Coordinate(other, along.first);
        }))
      return other;
  }
  return std::nullopt;
}

bool IsLocal(const PlacementMap& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const auto& along) { return along.second.is_local(); });
}

// The ranks' tensors with their terms combined along each axis along which the value is partial.
RankTensors Completed(RankTensors tensors, const PlacementMap& placements, const Mesh& mesh) {
  for (const auto& [axis, placement] : placements) {
    if (!placement.is_partial() || !mesh.has_axis(axis)) continue;
    RankTensors completed = tensors;
    for (const std::vector<int64_t>& group : mesh.Groups(axis)) {
      std::vector<const ExactTensor*> terms;
      for (int64_t rank : group) terms.push_back(&tensors[static_cast<size_t>(rank)]);
      const ExactTensor whole = WholeOf(placement.reduce(), terms);
      for (int64_t rank : group) completed[static_cast<size_t>(rank)] = whole;
    }
    tensors = std::move(completed);
  }
  return tensors;
}

bool IsAllNaN(const ExactTensor& tensor) {
  return !tensor.numbers().empty() && std::all_of(tensor.numbers().begin(), tensor.numbers().end(),
                                                  [](const Exact& number) { return number.is_nan(); });
}

// How a result of the program is to be placed: along each axis as the given program declares it; otherwise as `found`
// is, but whole.
PlacementMap PlacementsOfResult(const Result& declared, const Result& found) {
  PlacementMap placements = found.placements;
  std::erase_if(placements, [](const auto& along) { return along.second.is_partial() || along.second.is_local(); });
  if (declared.is_state) return placements;
  for (const auto& [axis, placement] : declared.placements) placements[axis] = placement;
  return placements;
}

// A rank's own term of an input that is partial or local: its part, times a number of its own.
ExactTensor TermOf(ExactTensor part, const PlacementMap& placements, const Mesh& mesh, int64_t rank) {
  for (const auto& [axis, placement] : placements) {
    if (!mesh.has_axis(axis) || !(placement.is_partial() || placement.is_local())) continue;
    for (Exact& number : part.numbers())
      number = number * Exact::Random(static_cast<uint64_t>(mesh.Coordinate(rank, axis)));
  }
  return part;
}

// A value of the reference: that of one rank, or those of all ranks.
struct Wanted {
  const RankTensors& tensors;
  const PlacementMap& placements;
};

// The ranks on which `tensors` are not those parts of the value of one rank that the placements give them, or not equal
// to the wanted ones of all ranks.
std::vector<int64_t> RanksThatDiffer(const RankTensors& tensors, const PlacementMap& placements, const Mesh& mesh,
                                     const Wanted& wanted) {
  std::vector<int64_t> ranks;
  if (IsLocal(placements)) return ranks;
  const RankTensors complete = Completed(tensors, placements, mesh);
  const bool is_whole = wanted.tensors.size() == 1;
  const RankTensors parts = is_whole ? wanted.tensors : Completed(wanted.tensors, wanted.placements, mesh);
  for (int64_t rank = 0; rank < static_cast<int64_t>(complete.size()); ++rank) {
    const bool is_elsewhere = std::any_of(placements.begin(), placements.end(), [&](const auto& along) {
      return along.second.is_at() && !along.second.is_at(mesh.Coordinate(rank, along.first));
    });
    if (is_elsewhere) continue;
    const ExactTensor part = is_whole ? PartOf(parts[0], placements, mesh, rank) : parts[static_cast<size_t>(rank)];
    const ExactTensor& found = complete[static_cast<size_t>(rank)];
    if (part.shape() != found.shape() || part.is_exact() != found.is_exact() || found.FirstDifference(part))
      ranks.push_back(rank);
  }
  return ranks;
}

std::string RankList(const std::vector<int64_t>& ranks, int64_t all) {
  if (all == 1) return "";
  if (static_cast<int64_t>(ranks.size()) == all) return " on all " + std::to_string(all) + " ranks";
  std::string text = ranks.size() == 1 ? " on rank " : " on ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

// --- Residuals -------------------------------------------------------------------------------------------------------

// The values with which the terms of a sum travel on the int8 wire (passes/distribute/quantize_wire.h).
struct Residual {
  std::string state;  // whose gradient it is
  Value old, next;    // what a rank has kept of it, before and after the step; null: it keeps nothing
  Value received;     // the sum on all ranks, named like the terms with a suffix
};

Residual ResidualOf(const Node& parts, const Graph& program) {
  if (!parts.Is("parts")) return {};
  const std::string& name = parts.operand(0).name();
  const Input* const state = passes::StateOfGradient(program, name);
  if (state == nullptr) return {};
  const std::string residual = state->name() + "/residual/" + parts.attr<std::string>("axis");
  const Input* const old = program.FindInput(residual);
  const bool is_added =
      old != nullptr && std::any_of(parts.users().begin(), parts.users().end(), [&](const Node* user) {
        return user->Is("add") && user->operand(1) == old->value;
      });
  if (!is_added) return {};
  for (const Node& node : program.nodes()) {
    if (node.type().shape == parts.operand(0).shape() && node.result_name().starts_with(name + "."))
      return {state->name(), old->value, program.FindResult(residual, /*is_state=*/true)->value,
              const_cast<Node&>(node).result()};
  }
  return {};
}

// What messages call the reference.
std::string NameOf(const Graph& reference) {
  return reference.mesh().empty() ? "one rank" : "@" + reference.name() + " as it was given";
}

// --- The first difference --------------------------------------------------------------------------------------------

using Values = std::unordered_set<Value, ValueHash>;

// The nodes from which `value` follows, in order, back to values in `known`: at most the last kLongest.
std::string NodesBefore(Value value, const Graph& graph, const Values& known) {
  constexpr size_t kLongest = 12;
  std::unordered_set<const Node*> needed = {value.node};
  std::vector<const Node*> nodes;
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend() && nodes.size() < kLongest; ++node) {
    if (!needed.contains(&*node)) continue;
    nodes.push_back(&*node);
    for (Value operand : node->operands()) {
      if (!known.contains(operand)) needed.insert(operand.node);
    }
  }
  std::string text;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) text += "\n    " + PrintNode(**node, {.brief = true});
  return text;
}

// The counterparts in one program of the values of another: those of the same names, which passes keep. A collective
// moves its operand, so it has its operand's counterpart.
ValueMap Counterparts(const Graph& of, const Graph& in) {
  std::unordered_map<std::string, Value> by_name;
  for (const Node& node : in.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) by_name[node.result_name(i)] = const_cast<Node&>(node).result(i);
  }
  for (const Input& input : in.inputs()) by_name[input.name()] = input.value;
  ValueMap counterparts;
  const auto add = [&](Value value, Value operand) {
    const auto named = by_name.find(value.name());
    const auto moved = counterparts.find(operand);
    if (named == by_name.end() && moved == counterparts.end()) return;
    const Value found = named != by_name.end() ? named->second : moved->second;
    // A pass may give a name again, to another value.
    if (IsExact(found.dtype()) != IsExact(value.dtype())) return;
    const Shape whole = GlobalType(value.type(), value.placements(), of.type_mesh()).shape;
    const Shape part = in.num_ranks() == 1 ? whole : value.type().shape;
    if (part == found.shape() && whole == GlobalType(found.type(), found.placements(), in.type_mesh()).shape)
      counterparts[value] = found;
  };
  for (const Input& input : of.inputs()) add(input.value, {});
  for (const Node& node : of.nodes()) {
    const bool moves = node.op().has_trait(kOneRankIdentity);
    for (size_t i = 0; i < node.num_results(); ++i)
      add(const_cast<Node&>(node).result(i), moves ? node.operand(i) : Value());
  }
  return counterparts;
}

}  // namespace

absl::StatusOr<Reference> Reference::Of(const Graph& program, uint64_t seed) {
  ASSIGN_OR_RETURN(const Graph global, ToGlobalTypes(program));
  ASSIGN_OR_RETURN(Graph local, ToLocalTypes(program));
  Reference reference(std::move(local));
  reference.inputs_ = RandomInputs(global, seed);
  const auto none = [](const Input&, int64_t) { return ExactTensor(); };  // the reference has all of its inputs
  const std::vector<RankTensors> inputs = reference.InputsOf(*reference.program_, none);
  ASSIGN_OR_RETURN(reference.values_, RunExactly(*reference.program_, inputs, reference.assumptions_));
  return reference;
}

std::vector<RankTensors> Reference::InputsOf(
    const Graph& program, const std::function<ExactTensor(const Input&, int64_t rank)>& unknown) const {
  std::vector<RankTensors> inputs;
  for (const Input& input : program.inputs()) {
    RankTensors& tensors = inputs.emplace_back();
    const Input* original = program_->FindInput(input.name());
    for (int64_t rank = 0; rank < program.num_ranks(); ++rank) {
      if (original == nullptr) {
        tensors.push_back(unknown(input, rank));
        continue;
      }
      if (const auto other = RankWithSamePart(input.placements(), program.type_mesh(), rank)) {
        tensors.push_back(tensors[static_cast<size_t>(*other)]);
        continue;
      }
      const ExactTensor& whole = inputs_[static_cast<size_t>(original - program_->inputs().data())];
      const Mesh& mesh = program.type_mesh();
      tensors.push_back(TermOf(PartOf(whole, input.placements(), mesh, rank), input.placements(), mesh, rank));
    }
  }
  return inputs;
}

absl::Status Reference::Check(const Graph& given) {
  ASSIGN_OR_RETURN(const Graph program, ToLocalTypes(given));
  const Mesh& mesh = program.type_mesh();
  const auto zeros = [](const Input& input, int64_t) { return ExactTensor(input.value.type()); };
  ASSIGN_OR_RETURN(const ExactValues values, RunExactly(program, InputsOf(program, zeros), assumptions_));
  for (const Result& original : program_->results()) {
    const std::string name = (original.is_state ? "state " : "result ") + original.name;
    const Result* result = program.FindResult(original.name, original.is_state);
    if (result == nullptr) return FailedPrecondition() << name << " is missing";
    const PlacementMap placements = PlacementsOfResult(original, *result);
    const Wanted wanted = {values_.at(original.value), original.placements};
    if (IsAllNaN(wanted.tensors[0])) assumptions_.insert(name + " is NaN for random inputs, so nothing is known of it");
    const std::vector<int64_t> ranks = RanksThatDiffer(values.at(result->value), placements, mesh, wanted);
    if (ranks.empty()) continue;
    return FailedPrecondition() << name << RankList(ranks, program.num_ranks()) << " differs from that of "
                                << NameOf(*program_) << FirstDifference(program, values);
  }
  return absl::OkStatus();
}

absl::Status Reference::CheckResiduals(const Graph& given) {
  ASSIGN_OR_RETURN(const Graph program, ToLocalTypes(given));
  const auto random = [](const Input& input, int64_t rank) {
    return RandomTensor(input.value.type(), 0, Exact::Of(rank).Hash() ^ std::hash<std::string>()(input.name()));
  };
  Assumptions assumptions;
  assumptions.wire_rounds = true;
  ASSIGN_OR_RETURN(const ExactValues values, RunExactly(program, InputsOf(program, random), assumptions));
  for (const Node& node : program.nodes()) {
    const Residual residual = ResidualOf(node, program);
    if (!residual.old) continue;
    const PlacementMap terms = {{node.attr<std::string>("axis"), Placement::Partial(ReduceKind::kSum)}};
    const auto sum = [&](Value value) { return Completed(values.at(value), terms, program.type_mesh()); };
    const RankTensors sent = sum(node.operand(0)), old = sum(residual.old), kept = sum(residual.next);
    const RankTensors& received = values.at(residual.received);
    for (size_t rank = 0; rank < sent.size(); ++rank) {
      for (size_t i = 0; i < sent[rank].size(); ++i) {
        const Exact before = sent[rank].numbers()[i] + old[rank].numbers()[i];
        if (before == received[rank].numbers()[i] + kept[rank].numbers()[i]) continue;
        return FailedPrecondition() << "the int8 wire loses a part of the gradient of " << residual.state << " on rank "
                                    << rank << ": what is received and kept is not what was sent";
      }
    }
  }
  return absl::OkStatus();
}

std::string Reference::FirstDifference(const Graph& program, const ExactValues& values) const {
  const ValueMap counterparts = Counterparts(program, *program_);
  Values equal, equal_of_one;
  for (const Input& input : program.inputs()) {
    if (!counterparts.contains(input.value)) continue;
    equal.insert(input.value);
    equal_of_one.insert(counterparts.at(input.value));
  }
  for (const Node& node : program.nodes()) {
    for (size_t i = 0; i < node.num_results(); ++i) {
      const Value value = const_cast<Node&>(node).result(i);
      if (!counterparts.contains(value)) continue;
      const Value one = counterparts.at(value);
      const std::vector<int64_t> ranks = RanksThatDiffer(values.at(value), node.placements(i), program.type_mesh(),
                                                         {values_.at(one), one.placements()});
      if (!ranks.empty()) {
        equal_of_one.erase(one);  // a collective and its operand share it
        return "; the first value that does is the result of " + node.Describe() +
               RankList(ranks, program.num_ranks()) + "\n  each rank computes" + NodesBefore(value, program, equal) +
               "\n  " + NameOf(*program_) + " computes" + NodesBefore(one, *program_, equal_of_one);
      }
      equal.insert(value);
      equal_of_one.insert(one);
    }
  }
  return "";
}

namespace {

// RunPassesChecked of passes that keep the meaning.
absl::Status RunPart(const std::vector<passes::Pass>& passes, Graph& graph, passes::PassDebug debug, uint64_t seed,
                     Assumptions* assumptions) {
  Graph copy = graph.Clone();
  ASSIGN_OR_RETURN(Reference reference, Reference::Of(graph, seed));
  absl::Status found;
  std::vector<passes::Pass> checked = passes;
  for (passes::Pass& pass : checked) {
    if (pass.name != passes::QuantizeWire().name) continue;
    pass.run = [&, run = pass.run, name = pass.name](Graph& program) {
      const absl::StatusOr<bool> changed = run(program);
      if (changed.ok() && *changed) found = Annotate(reference.CheckResiduals(program), "pass " + name);
      return changed;
    };
  }
  absl::Status at_the_end = passes::RunPasses(checked, graph, debug);
  if (at_the_end.ok()) {
    RETURN_IF_ERROR(found);
    at_the_end = reference.Check(graph);
    if (assumptions != nullptr) assumptions->insert(reference.assumptions().begin(), reference.assumptions().end());
    if (at_the_end.ok()) return absl::OkStatus();
  }
  found = absl::OkStatus();
  debug = {};
  debug.on_change = [&](const passes::Pass& pass, const std::string&, const Graph& after) {
    if (found.ok()) found = Annotate(reference.Check(after), "pass " + pass.name);
  };
  passes::RunPasses(passes, copy, debug).IgnoreError();  // the same error, if there is one
  return found.ok() || absl::IsUnimplemented(found) ? at_the_end : found;
}

}  // namespace

absl::Status RunPassesChecked(const std::vector<passes::Pass>& passes, Graph& graph, const passes::PassDebug& debug,
                              uint64_t seed, Assumptions* assumptions) {
  auto begin = passes.begin();
  while (true) {
    const auto end = std::find_if(begin, passes.end(), [](const passes::Pass& pass) { return pass.changes_meaning; });
    RETURN_IF_ERROR(RunPart({begin, end}, graph, debug, seed, assumptions));
    if (end == passes.end()) return absl::OkStatus();
    RETURN_IF_ERROR(passes::RunPasses({*end}, graph, debug));
    begin = end + 1;
  }
}

}  // namespace lockstep::verify
