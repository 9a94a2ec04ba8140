#include "verify/tangent.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numbers>
#include <optional>
#include <unordered_set>
#include <utility>

#include "core/builder.h"
#include "core/op_def.h"
#include "core/ops/scan.h"
#include "passes/training/train_step.h"
#include "verify/axioms.h"
#include "verify/meaning.h"
#include "verify/random_inputs.h"

namespace lockstep::verify {
namespace {

using Ints = std::vector<int64_t>;
using ValueSet = std::unordered_set<Value, ValueHash>;

// A node on its one rank: its operands x and results y, the tangents dx of operands, null if zero, and those of
// results, which a rule writes.
struct Forward {
  const Node& node;
  std::vector<const ExactTensor*> x, y, dx;
  std::vector<bool> is_wanted;  // which results
  Assumptions& assumptions;
  std::vector<std::optional<ExactTensor>> dy = std::vector<std::optional<ExactTensor>>(node.num_results());

  template <typename T>
  const T& attr(std::string_view name) const {
    return node.attr<T>(name);
  }
  const std::vector<Exact>& tangents(size_t i) const { return dx[i]->numbers(); }
  // The tangent of result i, zeros at first.
  std::vector<Exact>& out(size_t i = 0) {
    if (!dy[i]) dy[i].emplace(node.type(i));
    return dy[i]->numbers();
  }
  // The tangent of element `at` of operand i.
  Exact TangentAt(size_t i, size_t at) const { return dx[i] ? dx[i]->numbers()[at] : Exact(); }
};

using Rule = absl::Status (*)(Forward&);

void AddTo(std::vector<Exact>& sum, const std::vector<Exact>& terms) {
  std::transform(sum.begin(), sum.end(), terms.begin(), sum.begin(), std::plus<>());
}

// --- Linear ops ------------------------------------------------------------------------------------------------------

absl::Status SetToResults(Forward& f, const Node& node, const std::vector<const ExactTensor*>& operands) {
  ASSIGN_OR_RETURN(std::vector<ExactTensor> results, EvaluateExactly(node, operands, f.assumptions));
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i].is_exact()) AddTo(f.out(i), results[i].numbers());
  }
  return absl::OkStatus();
}

// The operands, with tangents in the place of numbers.
std::vector<const ExactTensor*> TangentsOfAll(const Forward& f, std::vector<ExactTensor>& zeros) {
  std::vector<const ExactTensor*> operands = f.x;
  zeros.reserve(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (f.dx[i]) operands[i] = f.dx[i];
    else if (f.x[i]->is_exact()) operands[i] = &zeros.emplace_back(f.x[i]->type());
  }
  return operands;
}

// Linear in all operands together.
absl::Status Linear(Forward& f) {
  std::vector<ExactTensor> zeros;
  return SetToResults(f, f.node, TangentsOfAll(f, zeros));
}

// Linear in each operand.
absl::Status LinearInEach(Forward& f) {
  for (size_t i = 0; i < f.x.size(); ++i) {
    if (!f.dx[i]) continue;
    std::vector<const ExactTensor*> operands = f.x;
    operands[i] = f.dx[i];
    RETURN_IF_ERROR(SetToResults(f, f.node, operands));
  }
  return absl::OkStatus();
}

// Linear but for the padding, which does not move.
absl::Status PadWithZeros(Forward& f) {
  Graph graph;
  ASSIGN_OR_RETURN(const Value x, graph.AddInput("x", f.x[0]->type()));
  AttributeMap attributes = f.node.attributes();
  attributes["value"] = 0.0;
  ASSIGN_OR_RETURN(const Node* const node, graph.Insert({&f.node.op(), {x}, std::move(attributes), "", {}}));
  return SetToResults(f, *node, {f.dx[0]});
}

// --- Slopes of elementwise functions ---------------------------------------------------------------------------------

// The operands of an elementwise op of one or two floats, x and z, and its result y, with which a slope is computed.
struct At {
  Builder& b;
  Value x, z, y;

  Value Number(double number) const { return b.SplatLike(number, x); }
  Value OneOverRoot(Value of) const { return b.Div(Number(1), b.Sqrt(of)); }
  Value Is(const char* direction, Value left, Value right, double yes, Value no) const {
    return b.Select(b.Compare(left, right, direction), Number(yes), no);
  }
  // 1 where `direction` holds between `left` and `right`, 1/2 where they are equal.
  Value Chosen(const char* direction, Value left, Value right) const {
    return Is(direction, left, right, 1, Is("eq", left, right, 0.5, Number(0)));
  }
  Value Square(Value of) const { return b.Mul(of, of); }
};

struct Slope {
  std::string_view op;
  size_t operand;
  Value (*slope)(const At& at);
};

// The partial derivatives of y by the operands.
constexpr Slope kSlopes[] = {
    {"abs", 0, [](const At& s) { return s.b.Unary("sign", s.x); }},
    {"relu", 0, [](const At& s) { return s.Is("gt", s.x, s.Number(0), 1, s.Number(0)); }},
    {"exp", 0, [](const At& s) { return s.y; }},
    {"log", 0, [](const At& s) { return s.b.Div(s.Number(1), s.x); }},
    {"log1p", 0, [](const At& s) { return s.b.Div(s.Number(1), s.b.Add(s.Number(1), s.x)); }},
    {"sqrt", 0, [](const At& s) { return s.b.Div(s.Number(0.5), s.y); }},
    {"rsqrt", 0, [](const At& s) { return s.b.Scale(s.b.Mul(s.y, s.Square(s.y)), -0.5); }},
    {"tanh", 0, [](const At& s) { return s.b.Sub(s.Number(1), s.Square(s.y)); }},
    {"sigmoid", 0, [](const At& s) { return s.b.Sub(s.y, s.Square(s.y)); }},
    {"softsign", 0,
     [](const At& s) { return s.b.Div(s.Number(1), s.Square(s.b.Add(s.Number(1), s.b.Unary("abs", s.x)))); }},
    {"erf", 0, [](const At& s) { return s.b.Scale(s.b.Exp(s.b.Neg(s.Square(s.x))), 2 * std::numbers::inv_sqrtpi); }},
    {"sin", 0, [](const At& s) { return s.b.Unary("cos", s.x); }},
    {"cos", 0, [](const At& s) { return s.b.Neg(s.b.Unary("sin", s.x)); }},
    {"tan", 0, [](const At& s) { return s.b.Add(s.Number(1), s.Square(s.y)); }},
    {"asin", 0, [](const At& s) { return s.OneOverRoot(s.b.Sub(s.Number(1), s.Square(s.x))); }},
    {"acos", 0, [](const At& s) { return s.b.Neg(s.OneOverRoot(s.b.Sub(s.Number(1), s.Square(s.x)))); }},
    {"atan", 0, [](const At& s) { return s.b.Div(s.Number(1), s.b.Add(s.Number(1), s.Square(s.x))); }},
    {"sinh", 0, [](const At& s) { return s.b.Unary("cosh", s.x); }},
    {"cosh", 0, [](const At& s) { return s.b.Unary("sinh", s.x); }},
    {"asinh", 0, [](const At& s) { return s.OneOverRoot(s.b.Add(s.Square(s.x), s.Number(1))); }},
    {"acosh", 0, [](const At& s) { return s.OneOverRoot(s.b.Sub(s.Square(s.x), s.Number(1))); }},
    {"atanh", 0, [](const At& s) { return s.b.Div(s.Number(1), s.b.Sub(s.Number(1), s.Square(s.x))); }},
    {"div", 0, [](const At& s) { return s.b.Div(s.Number(1), s.z); }},
    {"div", 1, [](const At& s) { return s.b.Neg(s.b.Div(s.x, s.Square(s.z))); }},
    {"max", 0, [](const At& s) { return s.Chosen("gt", s.x, s.z); }},
    {"max", 1, [](const At& s) { return s.Chosen("gt", s.z, s.x); }},
    {"min", 0, [](const At& s) { return s.Chosen("lt", s.x, s.z); }},
    {"min", 1, [](const At& s) { return s.Chosen("lt", s.z, s.x); }},
    // x^z has the slopes z x^(z - 1) and x^z log(x).
    {"pow", 0, [](const At& s) { return s.b.Mul(s.z, s.b.Op("pow", {s.x, s.b.Sub(s.z, s.Number(1))})); }},
    {"pow", 1, [](const At& s) { return s.b.Mul(s.y, s.b.Log(s.x)); }},
    // x - z q, where q, the rounded quotient, is (x - y) / z.
    {"fmod", 0, [](const At& s) { return s.Number(1); }},
    {"fmod", 1, [](const At& s) { return s.b.Neg(s.b.Unary("round", s.b.Div(s.b.Sub(s.x, s.y), s.z))); }},
    {"remainder", 0, [](const At& s) { return s.Number(1); }},
    {"remainder", 1, [](const At& s) { return s.b.Neg(s.b.Unary("round", s.b.Div(s.b.Sub(s.x, s.y), s.z))); }},
};

absl::StatusOr<ExactTensor> EvaluateSlope(const Slope& slope, const Forward& f) {
  Graph graph;
  std::vector<Value> values;
  std::vector<ExactTensor> inputs;
  for (const ExactTensor* tensor : {f.x[0], f.x.back(), f.y[0]}) {
    inputs.push_back(*tensor);
    ASSIGN_OR_RETURN(values.emplace_back(), graph.AddInput("v" + std::to_string(values.size()), tensor->type()));
  }
  Builder b(graph);
  const Value result = slope.slope({b, values[0], values[1], values[2]});
  RETURN_IF_ERROR(b.status());
  RETURN_IF_ERROR(graph.AddResult("slope", result));
  ASSIGN_OR_RETURN(std::vector<ExactTensor> results, RunExactlyOnOneRank(graph, inputs, f.assumptions));
  return std::move(results[0]);
}

absl::Status Unruled(const Forward& f) { return Unimplemented() << f.node.op_name() << " has no exact derivative"; }

// An operand that does not move has no part, even where the slope is infinite.
absl::Status BySlopeOf(Forward& f, size_t operand) {
  const auto row = std::find_if(std::begin(kSlopes), std::end(kSlopes), [&](const Slope& slope) {
    return slope.op == f.node.op_name() && slope.operand == operand;
  });
  if (row == std::end(kSlopes)) return Unruled(f);
  ASSIGN_OR_RETURN(const ExactTensor slope, EvaluateSlope(*row, f));
  std::vector<Exact>& dy = f.out();
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!f.tangents(operand)[i].is_zero()) dy[i] += slope.numbers()[i] * f.tangents(operand)[i];
  }
  return absl::OkStatus();
}

absl::Status BySlopes(Forward& f) {
  for (size_t i = 0; i < f.x.size(); ++i) {
    if (f.dx[i]) RETURN_IF_ERROR(BySlopeOf(f, i));
  }
  return absl::OkStatus();
}

// --- Products --------------------------------------------------------------------------------------------------------

// A number and its tangent.
struct Dual {
  Exact value = Exact::Of(1), tangent;
  Dual operator*(const Dual& other) const {
    return {value * other.value, tangent * other.value + value * other.tangent};
  }
};

// For each element of the operand, the position of the result's element that it is reduced to.
absl::StatusOr<std::vector<size_t>> ReducedTo(const Forward& f) {
  const Ints& dims = f.attr<Ints>("dims");
  Ints kept;
  for (int64_t dim = 0; dim < f.x[0]->shape().rank(); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) kept.push_back(dim);
  }
  return PositionsReadBy("broadcast", {{"dims", kept}, {"shape", f.x[0]->shape().dims()}}, f.y[0]->shape(), {},
                         f.x[0]->shape());
}

absl::Status Product(Forward& f) {
  ASSIGN_OR_RETURN(const std::vector<size_t> to, ReducedTo(f));
  std::vector<Dual> products(f.y[0]->size());
  for (size_t i = 0; i < to.size(); ++i)
    products[to[i]] = products[to[i]] * Dual{f.x[0]->numbers()[i], f.tangents(0)[i]};
  for (size_t i = 0; i < products.size(); ++i) f.out()[i] = products[i].tangent;
  return absl::OkStatus();
}

absl::Status CumulativeProduct(Forward& f) {
  const Shape& shape = f.x[0]->shape();
  std::vector<Exact>& dy = f.out();
  if (dy.empty()) return absl::OkStatus();
  const int64_t dim = f.attr<int64_t>("dim"), extent = shape[dim], inner = shape.Strides()[static_cast<size_t>(dim)];
  for (int64_t line = 0; line < shape.num_elements() / extent; ++line) {
    const int64_t first = line / inner * extent * inner + line % inner;
    Dual product;
    for (int64_t i = 0; i < extent; ++i) {
      const auto at = static_cast<size_t>(first + (f.attr<bool>("reverse") ? extent - 1 - i : i) * inner);
      const Exact before = product.tangent;
      product = product * Dual{f.x[0]->numbers()[at], f.tangents(0)[at]};
      dy[at] = f.attr<bool>("exclusive") ? before : product.tangent;
    }
  }
  return absl::OkStatus();
}

// --- Choices ---------------------------------------------------------------------------------------------------------

// The mean of tangents, of those elements that a result is equal to.
struct Mean {
  Exact sum;
  int64_t count = 0;
  void Add(const Exact& tangent) { sum += tangent, ++count; }
  Exact mean() const { return count == 0 ? Exact() : sum / Exact::Of(count); }
};

absl::Status Extremum(Forward& f) {
  ASSIGN_OR_RETURN(const std::vector<size_t> to, ReducedTo(f));
  std::vector<Mean> means(f.y[0]->size());
  for (size_t i = 0; i < to.size(); ++i) {
    if (f.x[0]->numbers()[i] == f.y[0]->numbers()[to[i]]) means[to[i]].Add(f.tangents(0)[i]);
  }
  for (size_t i = 0; i < means.size(); ++i) f.out()[i] = means[i].mean();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<size_t>> UpdatedBy(const Forward& f) {
  AttributeMap attributes = f.node.attributes();
  attributes.erase("kind");
  return PositionsReadBy("gather", attributes, f.x[0]->shape(), {&f.x[1]->integers()}, f.x[2]->shape());
}

absl::Status ScatterProduct(Forward& f, const std::vector<size_t>& to) {
  std::vector<Dual> products;
  for (size_t i = 0; i < f.y[0]->size(); ++i) products.push_back({f.x[0]->numbers()[i], f.TangentAt(0, i)});
  for (size_t i = 0; i < to.size(); ++i)
    products[to[i]] = products[to[i]] * Dual{f.x[2]->numbers()[i], f.TangentAt(2, i)};
  for (size_t i = 0; i < products.size(); ++i) f.out()[i] = products[i].tangent;
  return absl::OkStatus();
}

absl::Status ScatterExtremum(Forward& f, const std::vector<size_t>& to) {
  std::vector<Mean> means(f.y[0]->size());
  const std::vector<Exact>& y = f.y[0]->numbers();
  for (size_t i = 0; i < y.size(); ++i) {
    if (f.x[0]->numbers()[i] == y[i]) means[i].Add(f.TangentAt(0, i));
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (f.x[2]->numbers()[i] == y[to[i]]) means[to[i]].Add(f.TangentAt(2, i));
  }
  for (size_t i = 0; i < means.size(); ++i) f.out()[i] = means[i].mean();
  return absl::OkStatus();
}

absl::Status Scatter(Forward& f) {
  const std::string& kind = f.attr<std::string>("kind");
  if (kind == "replace") return Linear(f);
  ASSIGN_OR_RETURN(const std::vector<size_t> to, UpdatedBy(f));
  return kind == "prod" ? ScatterProduct(f, to) : ScatterExtremum(f, to);
}

absl::Status FirstMaximum(Forward& f) {
  const NodeContext context(f.node.op(), f.node.attributes());
  const auto maxima = PositionsOfMaxima(context, *f.x[0], f.y[0]->shape());
  for (size_t i = 0; i < maxima.size(); ++i) {
    if (maxima[i]) f.out()[i] = f.tangents(0)[*maxima[i]];
  }
  return absl::OkStatus();
}

// The elements at the positions that the second result says.
absl::Status TopK(Forward& f) {
  const Shape &from = f.x[0]->shape(), &to = f.y[0]->shape();
  const int64_t dim = f.attr<int64_t>("dim"), inner = from.Strides()[static_cast<size_t>(dim)];
  std::vector<Exact>& dy = f.out();
  for (size_t i = 0; i < dy.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const auto position = static_cast<int64_t>(f.y[1]->integers().At(at));
    dy[i] = f.tangents(0)[static_cast<size_t>((at / (inner * to[dim]) * from[dim] + position) * inner + at % inner)];
  }
  return absl::OkStatus();
}

// --- Graphs in nodes -------------------------------------------------------------------------------------------------

Tangents TangentsOfInputs(const Graph& graph, const std::vector<const ExactTensor*>& dx) {
  Tangents tangents;
  for (size_t i = 0; i < dx.size(); ++i) {
    if (dx[i]) tangents.emplace(graph.inputs()[i].value, *dx[i]);
  }
  return tangents;
}

absl::StatusOr<ExactValues> ValuesOf(const Graph& graph, const std::vector<const ExactTensor*>& x,
                                     Assumptions& assumptions) {
  std::vector<RankTensors> inputs;
  for (const ExactTensor* tensor : x) inputs.push_back({*tensor});
  return RunExactly(graph, inputs, assumptions);
}

absl::Status ThroughGraph(Forward& f, const Graph& graph) {
  ASSIGN_OR_RETURN(const ExactValues values, ValuesOf(graph, f.x, f.assumptions));
  std::vector<Value> wanted(f.is_wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Result* const result = graph.FindResult("y" + std::to_string(i));
    if (f.is_wanted[i] && result) wanted[i] = result->value;
  }
  ASSIGN_OR_RETURN(const Tangents tangents,
                   RunTangents(graph, values, TangentsOfInputs(graph, f.dx), wanted, f.assumptions));
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (const auto found = tangents.find(wanted[i]); wanted[i] && found != tangents.end()) f.dy[i] = found->second;
  }
  return absl::OkStatus();
}

absl::Status ThroughDecomposition(Forward& f) {
  f.assumptions.insert(f.node.op_name() + " means its decomposition");
  ASSIGN_OR_RETURN(const Graph graph, DecompositionOf(f.node));
  return ThroughGraph(f, graph);
}

// Its mean and variance are constants to gradients.
absl::Status ThroughFirstResult(Forward& f) {
  std::fill(f.is_wanted.begin() + 1, f.is_wanted.end(), false);
  return ThroughDecomposition(f);
}

absl::Status ThroughScan(Forward& f);

std::map<std::string_view, Rule> Rules() {
  return {
      {"neg", Linear},
      {"add", Linear},
      {"sub", Linear},
      {"convert", Linear},
      {"select", Linear},
      {"reduce_sum", Linear},
      {"cumulative_sum", Linear},
      {"scatter_sum", Linear},
      {"overlap_add", Linear},
      {"avg_pool", Linear},
      {"avg_pool_grad", Linear},
      {"pad", PadWithZeros},
      {"mul", LinearInEach},
      {"matmul", LinearInEach},
      {"convolution", LinearInEach},
      {"convolution_grad_input", LinearInEach},
      {"convolution_grad_filter", LinearInEach},
      {"reduce_prod", Product},
      {"cumulative_prod", CumulativeProduct},
      {"reduce_max", Extremum},
      {"reduce_min", Extremum},
      {"scatter", Scatter},
      {"max_pool", FirstMaximum},
      {"top_k", TopK},
      {"batch_norm_training", ThroughFirstResult},
      {"scan", ThroughScan},
  };
}

absl::Status Derive(Forward& f) {
  static const std::map<std::string_view, Rule> rules = Rules();
  const OpDef& op = f.node.op();
  if (IsItsOperand(f.node)) {
    if (f.dx[0]) f.dy[0] = *f.dx[0];
    return absl::OkStatus();
  }
  if (op.has_trait(kSteps) || op.has_trait(kEndsGradients)) return absl::OkStatus();
  if (const auto rule = rules.find(op.name()); rule != rules.end()) return rule->second(f);
  if (op.has_trait(kMovement)) return Linear(f);
  if (op.decompose()) return ThroughDecomposition(f);
  return op.has_trait(kElementwise) ? BySlopes(f) : Unruled(f);
}

// --- Graphs ----------------------------------------------------------------------------------------------------------

// The values that `of` are computed from, and `of`.
ValueSet Ancestors(const Graph& graph, const std::vector<Value>& of) {
  ValueSet ancestors(of.begin(), of.end());
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    bool is_one = false;
    for (size_t i = 0; i < node->num_results(); ++i)
      is_one = is_one || ancestors.contains(const_cast<Node&>(*node).result(i));
    if (is_one) ancestors.insert(node->operands().begin(), node->operands().end());
  }
  return ancestors;
}

const ExactTensor* Find(const Tangents& tangents, Value value) {
  const auto found = tangents.find(value);
  return found == tangents.end() ? nullptr : &found->second;
}

absl::Status AddTangentsOf(const Node& const_node, const ExactValues& values, const ValueSet& ancestors,
                           Tangents& tangents, Assumptions& assumptions) {
  Node& node = const_cast<Node&>(const_node);
  Forward f{node, {}, {}, {}, {}, assumptions};
  bool moves = false, is_wanted = false;
  const Value origin = StandsFor(node);
  for (size_t i = 0; i < node.num_results(); ++i) {
    f.y.push_back(&values.at(node.result(i))[0]);
    f.is_wanted.push_back(IsFloat(node.type(i).dtype) && ancestors.contains(node.result(i)));
    is_wanted = is_wanted || f.is_wanted[i];
  }
  for (Value operand : node.operands()) {
    f.x.push_back(&values.at(operand)[0]);
    f.dx.push_back(Find(tangents, operand));
    moves = moves || f.dx.back();
  }
  if (origin && Find(tangents, origin)) f.dy[0] = *Find(tangents, origin);
  else if (is_wanted && moves) RETURN_IF_ERROR(Annotate(Derive(f), node.Describe()));
  for (size_t i = 0; i < f.dy.size(); ++i) {
    if (f.dy[i] && f.is_wanted[i]) tangents.emplace(node.result(i), std::move(*f.dy[i]));
  }
  return absl::OkStatus();
}

// --- Loops -----------------------------------------------------------------------------------------------------------

// One run of a loop with the tangents of what it carries.
class TangentOfScan {
 public:
  explicit TangentOfScan(Forward& f) : f_(f), form_(f.node), x_(f.x.size()), dx_(f.x.size()) {}

  absl::Status Run() {
    for (size_t k = 0; k < form_.num_inputs(); ++k) {
      x_[k] = *f_.x[k];
      if (f_.dx[k]) dx_[k] = *f_.dx[k];
    }
    for (size_t k = 0; k < form_.num_results(); ++k) {
      const Value value = form_.body->results()[k].value;
      wanted_.push_back(k < form_.carried || f_.is_wanted[k] ? value : Value());
    }
    for (int64_t i = 0; i < form_.length; ++i) RETURN_IF_ERROR(Iterate(form_.position(i)));
    for (size_t k = 0; k < form_.carried; ++k) f_.dy[k] = dx_[k];
    return absl::OkStatus();
  }

 private:
  absl::Status Iterate(int64_t at) {
    for (size_t k = form_.carried; k < form_.first_constant(); ++k) {
      const TensorType& type = form_.body->inputs()[k].value.type();
      x_[k] = f_.x[k]->Part(type, at);
      if (f_.dx[k]) dx_[k] = f_.dx[k]->Part(type, at);
    }
    std::vector<const ExactTensor*> x, dx;
    for (size_t k = 0; k < x_.size(); ++k) x.push_back(&x_[k]), dx.push_back(dx_[k] ? &*dx_[k] : nullptr);
    ASSIGN_OR_RETURN(const ExactValues values, ValuesOf(*form_.body, x, f_.assumptions));
    ASSIGN_OR_RETURN(const Tangents tangents,
                     RunTangents(*form_.body, values, TangentsOfInputs(*form_.body, dx), wanted_, f_.assumptions));
    for (size_t k = 0; k < form_.num_results(); ++k) {
      const ExactTensor* const tangent = wanted_[k] ? Find(tangents, wanted_[k]) : nullptr;
      if (k < form_.carried) {
        x_[k] = values.at(form_.body->results()[k].value)[0];
        dx_[k] = tangent ? std::optional(*tangent) : std::nullopt;
      } else if (tangent) {
        AddToResult(k, *tangent, at);
      }
    }
    return absl::OkStatus();
  }

  void AddToResult(size_t k, const ExactTensor& tangent, int64_t at) {
    std::vector<Exact>& dy = f_.out(k);
    if (form_.is_stacked(k)) f_.dy[k]->SetPart(at, tangent);
    else AddTo(dy, tangent.numbers());
  }

  Forward& f_;
  const ScanForm form_;
  std::vector<ExactTensor> x_;
  std::vector<std::optional<ExactTensor>> dx_;
  std::vector<Value> wanted_;  // the results of the body, null if not wanted
};

absl::Status ThroughScan(Forward& f) { return TangentOfScan(f).Run(); }

// --- Gradients -------------------------------------------------------------------------------------------------------

Exact Inner(const ExactTensor& x, const ExactTensor& y) {
  ExactProducts sum;
  for (size_t i = 0; i < x.size(); ++i) sum.Add(x.numbers()[i], y.numbers()[i]);
  return sum.total();
}

enum class Verdict { kRight, kWrong, kNotFinite };

class GradientCheck {
 public:
  GradientCheck(const Graph& graph, Value loss, const std::vector<GradientOf>& gradients, ExactValues values,
                Assumptions& assumptions)
      : graph_(graph), loss_(loss), gradients_(gradients), values_(std::move(values)), assumptions_(assumptions) {}

  absl::Status Run(uint64_t seed) {
    std::vector<ExactTensor> directions;
    for (const GradientOf& one : gradients_)
      directions.push_back(RandomTensor(one.value.type(), 0, seed = MixedBits(seed)));
    ASSIGN_OR_RETURN(const Verdict all, Judge(gradients_, directions));
    if (all == Verdict::kRight) return absl::OkStatus();
    std::string wrong;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      ASSIGN_OR_RETURN(const Verdict one, Judge({gradients_[i]}, {directions[i]}));
      const std::string& name = gradients_[i].value.name();
      if (one == Verdict::kWrong) wrong += (wrong.empty() ? "" : ", ") + name;
      if (one == Verdict::kNotFinite)
        assumptions_.insert("the gradient of " + loss_.name() + " by " + name +
                            " is not finite for random inputs, and is not checked");
    }
    if (wrong.empty()) return absl::OkStatus();
    return FailedPrecondition() << "the gradients of " << loss_.name() << " by " << wrong << " are not its derivatives";
  }

 private:
  absl::StatusOr<Verdict> Judge(const std::vector<GradientOf>& gradients, const std::vector<ExactTensor>& directions) {
    Tangents given;
    Exact expected;
    for (size_t i = 0; i < gradients.size(); ++i) {
      given.emplace(gradients[i].value, directions[i]);
      expected += Inner(values_.at(gradients[i].gradient)[0], directions[i]);
    }
    ASSIGN_OR_RETURN(const Tangents tangents, RunTangents(graph_, values_, given, {loss_}, assumptions_));
    const ExactTensor* const found = Find(tangents, loss_);
    const Exact tangent = found ? found->numbers()[0] : Exact();
    const bool is_finite = expected.is_finite() || values_.at(loss_)[0].numbers()[0].is_finite();
    if (!is_finite || !tangent.is_finite()) return Verdict::kNotFinite;
    return tangent == expected ? Verdict::kRight : Verdict::kWrong;
  }

  const Graph& graph_;
  const Value loss_;
  const std::vector<GradientOf>& gradients_;
  const ExactValues values_;
  Assumptions& assumptions_;
};

// --- Steps -----------------------------------------------------------------------------------------------------------

constexpr std::string_view kGradientPrefix = "grad/";

// The gradient of each trained state of the step that has one: the value of that name, or the one that its optimizer
// gets if that is the gradient of another state, too.
std::map<std::string, Value> GradientsOfStates(const Graph& step) {
  std::map<std::string, Value> by_name, gradients;
  for (const Node& const_node : step.nodes()) {
    Node& node = const_cast<Node&>(const_node);
    for (size_t i = 0; i < node.num_results(); ++i) by_name[node.result_name(i)] = node.result(i);
  }
  for (const Input& input : step.inputs()) {
    const auto named = by_name.find(std::string(kGradientPrefix) + input.name());
    const bool is_its = named != by_name.end() && named->second.type() == input.value.type();
    if (input.is_state && is_its) gradients[input.name()] = named->second;
  }
  for (const Node& node : step.nodes()) {
    if (!node.op().has_trait(kOptimizer) || !node.operand(0).node->is_input()) continue;
    const Value gradient = node.operand(node.op().operand_names().size() - 1);
    if (gradient.name().starts_with(kGradientPrefix)) gradients.emplace(node.operand(0).name(), gradient);
  }
  return gradients;
}

}  // namespace

absl::StatusOr<Tangents> RunTangents(const Graph& graph, const ExactValues& values, const Tangents& directions,
                                     const std::vector<Value>& of, Assumptions& assumptions) {
  Tangents tangents = directions;
  const ValueSet ancestors = Ancestors(graph, of);
  for (const Node& node : graph.nodes()) RETURN_IF_ERROR(AddTangentsOf(node, values, ancestors, tangents, assumptions));
  return tangents;
}

absl::Status CheckGradients(const Graph& graph, Value loss, const std::vector<GradientOf>& gradients,
                            const std::vector<ExactTensor>& inputs, uint64_t seed, Assumptions& assumptions) {
  std::vector<const ExactTensor*> pointers;
  for (const ExactTensor& input : inputs) pointers.push_back(&input);
  ASSIGN_OR_RETURN(ExactValues values, ValuesOf(graph, pointers, assumptions));
  return GradientCheck(graph, loss, gradients, std::move(values), assumptions).Run(seed);
}

absl::Status CheckGradientsOfStep(const Graph& step, uint64_t seed, Assumptions& assumptions) {
  if (!step.mesh().empty()) return InvalidArgument() << "@" << step.name() << " is distributed already";
  const Result* const loss = step.FindResult("loss");
  if (loss == nullptr) return NotFound() << "@" << step.name() << " has no result loss";
  const std::map<std::string, Value> by_state = GradientsOfStates(step);
  if (by_state.empty()) return NotFound() << "@" << step.name() << " has no gradients";
  for (const std::string& state : passes::StatesTrainedBy(step)) {
    if (!by_state.contains(state)) assumptions.insert("the gradient of " + state + " has no name, and is not checked");
  }
  std::vector<GradientOf> gradients;
  for (const Input& input : step.inputs()) {
    if (const auto found = by_state.find(input.name()); found != by_state.end())
      gradients.push_back({input.value, found->second});
  }
  return CheckGradients(step, loss->value, gradients, RandomInputs(step, seed), MixedBits(~seed), assumptions);
}

}  // namespace lockstep::verify
