// Loops of a known length: recurrences.

#include "core/ops/scan.h"

#include <algorithm>
#include <cstring>
#include <variant>

#include "core/interpreter.h"
#include "core/ops/op_list.h"
#include "core/ops/rules.h"
#include "core/ops/scan_gradient.h"
#include "core/placement_rules.h"

namespace lockstep {

ScanForm::ScanForm(const AttributeMap& attributes)
    : body(&std::get<Region>(attributes.find("body")->second).graph()),
      carried(static_cast<size_t>(std::get<int64_t>(attributes.find("carried")->second))),
      scanned(static_cast<size_t>(std::get<int64_t>(attributes.find("scanned")->second))),
      summed(static_cast<size_t>(std::get<int64_t>(attributes.find("summed")->second))),
      length(std::get<int64_t>(attributes.find("length")->second)),
      reverse(std::get<bool>(attributes.find("reverse")->second)) {}

TensorType Stacked(const TensorType& type, int64_t length) {
  std::vector<int64_t> dims = type.shape.dims();
  dims.insert(dims.begin(), length);
  return {type.dtype, Shape(std::move(dims))};
}

namespace {

// --- Inference -------------------------------------------------------------------------------------------------------

absl::Status CheckCounts(const InferContext& c) {
  const Graph& body = c.attr<Region>("body").graph();
  const int64_t carried = c.attr<int64_t>("carried"), scanned = c.attr<int64_t>("scanned"),
                summed = c.attr<int64_t>("summed");
  const auto inputs = static_cast<int64_t>(body.inputs().size()), results = static_cast<int64_t>(body.results().size());
  if (static_cast<int64_t>(c.num_operands()) != inputs)
    return c.Error("C1") << c.num_operands() << " operands, the body has " << inputs << " inputs";
  if (carried < 0 || scanned < 0 || carried > inputs || scanned > inputs - carried) {
    return c.Error("C1") << "carried is " << carried << " and scanned is " << scanned << ", of " << inputs
                         << " operands";
  }
  if (results == 0 || summed < 0 || carried > results || summed > results - carried) {
    return c.Error("C2") << "the body has " << results << " results, for " << carried << " carried and " << summed
                         << " summed values";
  }
  return absl::OkStatus();
}

absl::Status CheckOperands(const InferContext& c, const ScanForm& form) {
  for (size_t i = 0; i < form.num_inputs(); ++i) {
    const Input& input = form.body->inputs()[i];
    const TensorType& inner = input.value.type();
    const TensorType expected = form.is_scanned(i) ? Stacked(inner, form.length) : inner;
    if (c.operand(i) == expected) continue;
    return c.Error("C4") << "operand " << i << " is " << c.operand(i) << ", expected " << expected << " for input %"
                         << input.name() << " of the body";
  }
  return absl::OkStatus();
}

absl::Status CheckBody(const InferContext& c, const ScanForm& form) {
  for (const Input& input : form.body->inputs()) {
    if (input.is_state) return c.Error("C6") << "input %" << input.name() << " of the body is a state";
  }
  for (const Node& node : form.body->nodes()) {
    if (node.op().ranks_eval() || node.op().has_trait(kCollective))
      return c.Error("C6") << "the body holds " << node.Describe() << ", which depends on ranks";
  }
  for (size_t i = 0; i < form.carried; ++i) {
    const Value input = form.body->inputs()[i].value, result = form.body->results()[i].value;
    if (input.type() == result.type()) continue;
    return c.Error("C5") << "%" << input.name() << " of the body is " << input.type() << ", but its next value %"
                         << result.name() << " is " << result.type();
  }
  for (size_t i = form.first_summed(); i < form.num_results(); ++i) {
    const Value result = form.body->results()[i].value;
    if (result.dtype() == DType::kBool) return c.Error("C7") << "%" << result.name() << " of the body is summed";
  }
  return absl::OkStatus();
}

absl::Status InferScan(InferContext& c) {
  RETURN_IF_ERROR(CheckCounts(c));
  const ScanForm form(c.attributes());
  constexpr int64_t kMostIterations = int64_t{1} << 31;
  if (form.length < 0 || form.length > kMostIterations)
    return c.Error("C3") << "length is " << form.length << ", expected 0 to " << kMostIterations;
  RETURN_IF_ERROR(CheckOperands(c, form));
  RETURN_IF_ERROR(CheckBody(c, form));
  std::vector<TensorType> types;
  for (size_t i = 0; i < form.num_results(); ++i) {
    const TensorType& type = form.body->results()[i].value.type();
    types.push_back(form.is_stacked(i) ? Stacked(type, form.length) : type);
    RETURN_IF_ERROR(ops::CheckExtents(c, "C3", types.back().shape.dims()));
  }
  return c.SetResults(std::move(types));
}

// --- Meaning ---------------------------------------------------------------------------------------------------------

// The part of a scanned operand at one position.
Tensor PartOf(const Tensor& all, const TensorType& type, int64_t position) {
  Tensor part(type);
  if (part.num_bytes() == 0) return part;
  std::memcpy(part.mutable_bytes(), all.bytes() + static_cast<size_t>(position) * part.num_bytes(), part.num_bytes());
  return part;
}

// A sum over iterations. Floats are summed in double, integers in 64 bits, and rounded once.
class Sum {
 public:
  explicit Sum(const TensorType& type) : type_(type) {}
  void Add(const Tensor& term) {
    DispatchDType(type_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      std::vector<Accumulator<T>>& sums = SumsOf<T>();
      const auto elements = term.data<T>();
      for (size_t i = 0; i < elements.size(); ++i) sums[i] += static_cast<Accumulator<T>>(elements[i]);
    });
  }
  void Store(Tensor& result) {
    DispatchDType(type_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const auto& sums = SumsOf<T>();
      const auto elements = result.mutable_data<T>();
      for (size_t i = 0; i < elements.size(); ++i) elements[i] = ConvertElement<T>(sums[i]);
    });
  }

 private:
  template <typename T>
  std::vector<Accumulator<T>>& SumsOf() {
    using Sums = std::vector<Accumulator<T>>;
    if (!std::holds_alternative<Sums>(sums_)) sums_ = Sums(static_cast<size_t>(type_.num_elements()));
    return std::get<Sums>(sums_);
  }
  const TensorType type_;
  std::variant<std::monostate, std::vector<double>, std::vector<int64_t>, std::vector<uint64_t>> sums_;
};

absl::Status EvalScan(EvalContext& c) {
  const ScanForm form(c.attributes());
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < form.num_inputs(); ++i)
    inputs.push_back(form.is_scanned(i) ? Tensor(form.body->inputs()[i].value.type()) : c.operand(i));
  std::vector<Sum> sums;
  for (size_t i = form.first_summed(); i < form.num_results(); ++i)
    sums.emplace_back(form.body->results()[i].value.type());
  for (int64_t i = 0; i < form.length; ++i) {
    const int64_t at = form.position(i);
    for (size_t k = form.carried; k < form.first_constant(); ++k)
      inputs[k] = PartOf(c.operand(k), form.body->inputs()[k].value.type(), at);
    ASSIGN_OR_RETURN(std::vector<Tensor> results, InterpretOneRank(*form.body, inputs));
    for (size_t k = form.carried; k < form.first_summed(); ++k) {
      const size_t bytes = results[k].num_bytes();
      if (bytes > 0)
        std::memcpy(c.result(k).mutable_bytes() + static_cast<size_t>(at) * bytes, results[k].bytes(), bytes);
    }
    for (size_t k = 0; k < form.summed; ++k) sums[k].Add(results[form.first_summed() + k]);
    for (size_t k = 0; k < form.carried; ++k) inputs[k] = std::move(results[k]);
  }
  for (size_t k = 0; k < form.carried; ++k) c.result(k) = std::move(inputs[k]);
  for (size_t k = 0; k < form.summed; ++k) sums[k].Store(c.result(form.first_summed() + k));
  return absl::OkStatus();
}

// --- Placement -------------------------------------------------------------------------------------------------------

// The placement of a stack of values with the placement `of_part`.
Placement OfStack(const Placement& of_part) {
  return of_part.is_split() ? Placement::Split(of_part.dim() + 1) : of_part;
}

// Returns the reason why the body's values cannot be placed so, or "". It names the value that would have to move
// between iterations.
std::string WhyNotPlaced(const ScanForm& form, const std::string& axis) {
  for (size_t i = 0; i < form.num_results(); ++i) {
    const Value result = form.body->results()[i].value;
    const Placement is = result.placement(axis);
    if (i < form.carried) {
      const Value input = form.body->inputs()[i].value;
      const Placement was = input.placement(axis);
      if (is == was && !is.is_partial()) continue;
      return "%" + input.name() + " of its body is " + was.ToString() + ", and its next value %" + result.name() +
             " is " + is.ToString();
    }
    if (i >= form.first_summed() && is.is_partial() && !ops::IsLinearPartial(is, result.dtype()))
      return "%" + result.name() + " of its body is summed, and is " + is.ToString();
  }
  return "";
}

// The body has the placements of its values, which distribute determines (passes/distribute/place_bodies.h). Each rank
// runs all iterations in order, so scanned and stacked values are never split along the dimension of iterations. Ranks
// communicate after the loop, never within it.
void PlaceScan(PlacementContext& c) {
  if (ops::PlaceLocal(c)) return;
  const ScanForm form(c.attributes());
  const std::string& axis = c.mesh_axis().name;
  for (size_t i = 0; i < form.num_inputs(); ++i) {
    const Placement inner = form.body->inputs()[i].value.placement(axis);
    c.Require(i, form.is_scanned(i) ? OfStack(inner) : inner);
  }
  const std::string why = WhyNotPlaced(form, axis);
  if (!why.empty()) return c.Fail(why);
  Graph one_axis = form.body->Clone();
  one_axis.set_mesh(Mesh({c.mesh_axis()}));
  for (const Node& node : one_axis.nodes()) {
    const absl::Status status = CheckPlacements(one_axis, node);
    if (!status.ok()) return c.Fail(std::string(status.message()) + ", in its body");
  }
  for (size_t i = 0; i < form.num_results(); ++i) {
    const Placement inner = form.body->results()[i].value.placement(axis);
    c.Result(i, form.is_stacked(i) ? OfStack(inner) : inner);
  }
}

// The operations of one iteration, times the number of iterations.
double ScanFlops(const Node& node) {
  double each = 0;
  for (const Node& inner : node.attr<Region>("body").graph().nodes()) each += FlopsOf(inner);
  return each * static_cast<double>(node.attr<int64_t>("length"));
}

}  // namespace

//===-- scan ------------------------------------------------------------------------------------------------------===//
const OpDef& ScanOp() {
  static const OpDef def =
      OpDef("scan")
          .Doc(
              "Runs the graph `body` `length` times, one iteration after the other. The operands, and the body's "
              "inputs, are in this order: the initial values that are carried from iteration to iteration; scanned "
              "values, of which iteration i gets element i along dimension 0, or the i-th from the end if reverse; "
              "and constants, which each iteration gets whole. The results, and the body's, are in this order: the "
              "final carried values; stacked values, along a new dimension 0, at the positions of the scanned ones; "
              "and sums over all iterations. Sums of floats are computed in f64 and rounded once, but a backend may "
              "differ. With length 0 the carried values are the operands, and the sums are zero.")
          .VariadicOrNone("inputs")
          .Attr<Region>("body", "one iteration: a graph without state and collectives")
          .Attr<int64_t>("length", "the number of iterations")
          .OptionalAttr<int64_t>("carried", 0, "the number of carried operands, and of carried results")
          .OptionalAttr<int64_t>("scanned", 0, "the number of scanned operands")
          .OptionalAttr<int64_t>("summed", 0, "the number of results that are sums")
          .OptionalAttr<bool>("reverse", false, "scan and stack from the end")
          .OptionalAttr<bool>("one_at_a_time", false,
                              "values of an iteration that are not results are in memory only during that iteration; "
                              "otherwise a backend may compute them for all iterations at once")
          .Constraint("C1",
                      "there is an operand for each input of the body; carried and scanned are at least 0, and "
                      "together at most the number of operands")
          .Constraint("C2",
                      "the body has a result; summed is at least 0; the body has a result for each carried and "
                      "each summed value")
          .Constraint("C3", "length is 0 to 2^31, and stacked values are small enough to be addressed")
          .Constraint("C4",
                      "the operands have the types of the body's inputs; scanned ones have an additional dimension 0 "
                      "of extent length")
          .Constraint("C5", "a carried value keeps its type")
          .Constraint("C6",
                      "no input of the body is a state, and the body holds no collective and no op that depends on "
                      "the rank")
          .Constraint("C7", "no bool is summed")
          .Trait(kOpaque)
          .Trait(kLoop)
          .Infer(InferScan)
          .Eval(EvalScan)
          .Flops(ScanFlops)
          .Vjp(ScanVjp)
          .Place(PlaceScan);
  return def;
}

}  // namespace lockstep
