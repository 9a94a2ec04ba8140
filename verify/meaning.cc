#include "verify/meaning.h"

#include <algorithm>
#include <iterator>

#include "core/builder.h"
#include "core/ops/scan.h"
#include "verify/axioms.h"
#include "verify/exact_interpreter.h"

namespace lockstep::verify {
namespace {

const std::map<std::string_view, MeaningFn>& Table() {
  static const auto table = [] {
    std::map<std::string_view, MeaningFn> rows;
    for (auto part : {ElementwiseMeanings(), ReductionMeanings(), ProductMeanings(), PoolMeanings(), OrderMeanings()})
      rows.merge(part);
    return rows;
  }();
  return table;
}

bool HasExactNumbers(const Meaning& m) {
  for (size_t i = 0; i < m.num_operands(); ++i) {
    if (m.operand(i).is_exact()) return true;
  }
  for (size_t i = 0; i < m.num_results(); ++i) {
    if (m.result(i).is_exact()) return true;
  }
  return false;
}

// The op's reference meaning, on names of elements.
absl::Status Move(Meaning& m) {
  Names names;
  std::vector<Tensor> operands, results;
  for (size_t i = 0; i < m.num_operands(); ++i) operands.push_back(names.Of(m.operand(i)));
  for (size_t i = 0; i < m.num_results(); ++i) results.push_back(Names::ForResult(m.result(i).type()));
  std::vector<const Tensor*> pointers;
  for (const Tensor& operand : operands) pointers.push_back(&operand);
  EvalContext context(m.op(), m.attributes(), pointers, results);
  RETURN_IF_ERROR(m.op().eval()(context));
  for (size_t i = 0; i < m.num_results(); ++i) m.result(i) = names.Resolve(results[i], m.result(i).type());
  return absl::OkStatus();
}

// The op's reference meaning, of which the results are numbers that the program writes out.
absl::Status Generate(Meaning& m) {
  std::vector<Tensor> operands, results;
  for (size_t i = 0; i < m.num_operands(); ++i) operands.push_back(m.operand(i).integers());
  for (size_t i = 0; i < m.num_results(); ++i) results.emplace_back(m.result(i).type());
  std::vector<const Tensor*> pointers;
  for (const Tensor& operand : operands) pointers.push_back(&operand);
  EvalContext context(m.op(), m.attributes(), pointers, results);
  RETURN_IF_ERROR(m.op().eval()(context));
  for (size_t i = 0; i < m.num_results(); ++i) m.result(i) = ExactTensor::Of(results[i]);
  return absl::OkStatus();
}

// A random function of the elements, and of the attributes.
absl::Status RandomElementwise(Meaning& m) {
  if (!m.result().is_exact()) return Unimplemented() << m.op().name() << " of " << m.operand(0).type();
  std::string name = m.op().name();
  for (const auto& [key, value] : m.attributes()) name += " " + key + "=" + AttributeToString(value);
  for (size_t i = 0; i < m.result().size(); ++i) {
    Exact argument;
    uint64_t key = 0;
    for (size_t k = 0; k < m.num_operands(); ++k) {
      if (!m.operand(k).is_exact()) return Unimplemented() << m.op().name() << " of floats and integers";
      key = MixedBits(key ^ m.x(k)[i].Hash());
      argument = m.x(k)[i].is_nan() ? m.x(k)[i] : argument;
    }
    m.y()[i] = RandomFunction(name, {argument}, key);
  }
  return absl::OkStatus();
}

// Runs the graph in the attribute `body` on the operands.
absl::Status RunRegion(Meaning& m, std::string_view body) {
  std::vector<ExactTensor> inputs;
  for (size_t i = 0; i < m.num_operands(); ++i) inputs.push_back(m.operand(i));
  ASSIGN_OR_RETURN(std::vector<ExactTensor> results,
                   RunExactlyOnOneRank(m.attr<Region>(body).graph(), inputs, m.assumptions()));
  for (size_t i = 0; i < results.size(); ++i) m.result(i) = std::move(results[i]);
  return absl::OkStatus();
}

std::string_view OpOf(ReduceKind kind, DType dtype) {
  switch (kind) {
    case ReduceKind::kSum:
    case ReduceKind::kMean: return "add";
    case ReduceKind::kProd: return "mul";
    case ReduceKind::kMax: return dtype == DType::kBool ? "or" : "max";
    case ReduceKind::kMin: return dtype == DType::kBool ? "and" : "min";
  }
  return "add";
}

// Combines integers, in place of the first ones.
absl::Status CombineIntegers(ReduceKind kind, const Tensor& terms, Tensor& combined) {
  const OpDef& op = GetOp(OpOf(kind, terms.dtype()));
  Tensor result(combined.type());
  const AttributeMap none;
  const std::vector<const Tensor*> operands = {&combined, &terms};
  EvalContext context(op, none, operands, std::span<Tensor>(&result, 1));
  RETURN_IF_ERROR(op.eval()(context));
  combined = std::move(result);
  return absl::OkStatus();
}

absl::Status RunScan(Meaning& m) {
  const ScanForm form(m.attributes());
  std::vector<ExactTensor> inputs;
  for (size_t i = 0; i < form.num_inputs(); ++i) inputs.push_back(m.operand(i));
  for (size_t k = 0; k < form.carried; ++k) inputs[k].ForgetConstant();  // a compiler does not run iterations
  for (int64_t i = 0; i < form.length; ++i) {
    const int64_t at = form.position(i);
    for (size_t k = form.carried; k < form.first_constant(); ++k)
      inputs[k] = m.operand(k).Part(form.body->inputs()[k].value.type(), at);
    ASSIGN_OR_RETURN(std::vector<ExactTensor> results, RunExactlyOnOneRank(*form.body, inputs, m.assumptions()));
    for (size_t k = form.carried; k < form.first_summed(); ++k) m.result(k).SetPart(at, results[k]);
    for (size_t k = form.first_summed(); k < form.num_results(); ++k) {
      for (size_t j = 0; j < results[k].numbers().size(); ++j) m.y(k)[j] += results[k].numbers()[j];
      if (!results[k].is_exact())
        RETURN_IF_ERROR(CombineIntegers(ReduceKind::kSum, results[k].integers(), m.result(k).integers()));
    }
    for (size_t k = 0; k < form.carried; ++k) {
      inputs[k] = std::move(results[k]);
      inputs[k].ForgetConstant();
    }
  }
  for (size_t k = 0; k < form.carried; ++k) m.result(k) = inputs[k];
  return absl::OkStatus();
}

absl::Status RunDecomposition(Meaning& m, const Node& node) {
  m.Assume(node.op_name() + " means its decomposition");
  ASSIGN_OR_RETURN(const Graph graph, DecompositionOf(node));
  std::vector<ExactTensor> inputs;
  for (size_t i = 0; i < m.num_operands(); ++i) inputs.push_back(m.operand(i));
  ASSIGN_OR_RETURN(std::vector<ExactTensor> results, RunExactlyOnOneRank(graph, inputs, m.assumptions()));
  for (size_t i = 0; i < results.size(); ++i) m.result(i) = std::move(results[i]);
  return absl::OkStatus();
}

absl::Status Evaluate(Meaning& m, const Node& node) {
  const OpDef& op = m.op();
  if (ApplyAxiom(node, m)) return absl::OkStatus();
  if (op.name() == "fusion") return RunRegion(m, "body");
  if (op.name() == "pull") return RunRegion(m, "update");
  if (op.name() == "scan") return RunScan(m);
  if (!HasExactNumbers(m)) return Generate(m);
  if (const auto row = Table().find(op.name()); row != Table().end()) return row->second(m);
  if (op.has_trait(kGenerator) || op.name() == "constant") return Generate(m);
  if (op.has_trait(kMovement)) return Move(m);
  if (op.decompose()) return RunDecomposition(m, node);
  if (op.has_trait(kElementwise)) return RandomElementwise(m);
  return Unimplemented() << op.name() << " has no meaning in exact arithmetic";
}

std::vector<const ExactTensor*> OperandOfRanks(const std::vector<std::vector<const ExactTensor*>>& operands, size_t i) {
  std::vector<const ExactTensor*> of_ranks;
  for (const std::vector<const ExactTensor*>& of_rank : operands) of_ranks.push_back(of_rank[i]);
  return of_ranks;
}

std::vector<ExactTensor> Zeros(const Node& node) {
  std::vector<ExactTensor> results;
  for (size_t i = 0; i < node.num_results(); ++i) results.emplace_back(node.type(i));
  return results;
}

}  // namespace

absl::StatusOr<Graph> DecompositionOf(const Node& node) {
  Graph graph(node.op_name());
  std::vector<Value> inputs;
  for (size_t i = 0; i < node.operands().size(); ++i) {
    ASSIGN_OR_RETURN(inputs.emplace_back(), graph.AddInput("x" + std::to_string(i), node.operand(i).type()));
  }
  ASSIGN_OR_RETURN(Node * copy, graph.Insert({&node.op(), inputs, node.attributes(), node.source(), {}}));
  Builder builder(graph, copy);
  DecomposeContext context(*copy, builder);
  const std::vector<Value> results = node.op().decompose()(context);
  RETURN_IF_ERROR(builder.status());
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i]) RETURN_IF_ERROR(graph.AddResult("y" + std::to_string(i), results[i]));
  }
  graph.Erase(copy);
  return graph;
}

ExactTensor WholeOf(ReduceKind kind, const std::vector<const ExactTensor*>& terms) {
  ExactTensor whole = *terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    for (size_t at = 0; at < whole.numbers().size(); ++at)
      whole.numbers()[at] = Combined(kind, whole.numbers()[at], terms[i]->numbers()[at]);
    if (whole.is_exact()) continue;
    const absl::Status combined = CombineIntegers(kind, terms[i]->integers(), whole.integers());
    LOCKSTEP_CHECK(combined.ok()) << combined;
  }
  if (kind != ReduceKind::kMean) return whole;
  for (Exact& number : whole.numbers()) number = number / Exact::Of(static_cast<int64_t>(terms.size()));
  return whole;
}

absl::StatusOr<std::vector<ExactTensor>> EvaluateExactly(const Node& node,
                                                         const std::vector<const ExactTensor*>& operands,
                                                         Assumptions& assumptions) {
  std::vector<ExactTensor> results = Zeros(node);
  Meaning meaning(node.op(), node.attributes(), operands, results, assumptions);
  RETURN_IF_ERROR(Evaluate(meaning, node));
  return results;
}

absl::StatusOr<std::vector<std::vector<ExactTensor>>> EvaluateExactlyAcrossRanks(
    const Node& node, const std::vector<std::vector<const ExactTensor*>>& given, Assumptions& assumptions) {
  if (node.Is("push") || node.Is("exchange")) {
    return std::vector<std::vector<ExactTensor>>(given.size(), {WholeOf(ReduceKind::kSum, OperandOfRanks(given, 0))});
  }
  // A reduction of floats first computes the reduced operands; the rest of it is a movement, of the first rank's.
  std::vector<std::vector<const ExactTensor*>> operands = given;
  std::vector<ExactTensor> reduced;
  AttributeMap attributes = node.attributes();
  const bool reduces = node.op().collective() && TraitsOf(*node.op().collective()).reduces;
  if (reduces) {
    const ReduceKind kind = *ReduceKindFromName(node.attr<std::string>("kind"));
    if (const auto wire = attributes.find("wire");
        wire != attributes.end() && std::get<std::string>(wire->second) != "") {
      assumptions.insert("gradients lose nothing on the wire");
      wire->second = std::string();
    }
    reduced.reserve(node.operands().size());
    for (size_t i = 0; i < node.operands().size(); ++i) {
      if (!given[0][i]->is_exact()) continue;
      reduced.push_back(WholeOf(kind, OperandOfRanks(given, i)));
      for (std::vector<const ExactTensor*>& of_rank : operands) of_rank[i] = &reduced.back();
    }
    if (!reduced.empty()) attributes["kind"] = std::string("max");  // of equal operands
  }
  Names names;
  std::vector<std::vector<Tensor>> tensors(operands.size()), moved(operands.size());
  std::vector<std::vector<const Tensor*>> pointers(operands.size());
  for (size_t rank = 0; rank < operands.size(); ++rank) {
    for (size_t i = 0; i < operands[rank].size(); ++i)
      tensors[rank].push_back(reduces && rank > 0 && operands[rank][i]->is_exact() ? tensors[0][i]
                                                                                   : names.Of(*operands[rank][i]));
    for (size_t i = 0; i < node.num_results(); ++i) moved[rank].push_back(Names::ForResult(node.type(i)));
  }
  for (size_t rank = 0; rank < operands.size(); ++rank) {
    for (const Tensor& tensor : tensors[rank]) pointers[rank].push_back(&tensor);
  }
  RanksEvalContext context(node.op(), attributes, pointers, moved);
  RETURN_IF_ERROR(node.op().ranks_eval()(context));
  std::vector<std::vector<ExactTensor>> results(operands.size());
  for (size_t rank = 0; rank < operands.size(); ++rank) {
    for (size_t i = 0; i < node.num_results(); ++i)
      results[rank].push_back(moved[rank][i] == moved[0][i] && rank > 0 ? results[0][i]
                                                                        : names.Resolve(moved[rank][i], node.type(i)));
  }
  return results;
}

}  // namespace lockstep::verify
