// Reference meanings, gradients and decompositions against an independent oracle: PyTorch's f64 numbers.
// pytorch_expected.inc has them, made by make_pytorch_expected.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

#include "core/builder.h"
#include "core/interpreter.h"
#include "core/printer.h"
#include "passes/training/autodiff.h"

namespace lockstep {
namespace {

using Numbers = std::vector<double>;

// Numbers are texts, because tables of so many take minutes to compile.
struct PyTorchCase {
  const char* name;
  const char* graph;
  std::vector<std::string> wrt;       // adds the gradients of `loss` with respect to these
  std::vector<const char*> inputs;    // in order of the graph's inputs
  std::vector<const char*> expected;  // the graph's results, then the gradients
};

const std::vector<PyTorchCase>& Cases() {
  static const std::vector<PyTorchCase> cases = {
#include "test/op_cases/pytorch_expected.inc"
  };
  return cases;
}

// Reads also nan, inf and -0.
Numbers NumbersOf(const char* text) {
  Numbers numbers;
  char* end = nullptr;
  for (double number = std::strtod(text, &end); end != text; number = std::strtod(text, &end)) {
    numbers.push_back(number);
    text = end;
  }
  EXPECT_STREQ(text, "") << "is not a number";
  return numbers;
}

Tensor TensorOf(const TensorType& type, const Numbers& numbers) {
  return Tensor::Of(type.shape, numbers).Converted(type.dtype);
}

absl::StatusOr<Graph> GraphOf(const PyTorchCase& row) {
  ASSIGN_OR_RETURN(Graph graph, ParseGraph(row.graph));
  if (row.wrt.empty()) return graph;
  RETURN_IF_ERROR(passes::Autodiff("loss", row.wrt).run(graph).status());
  return graph;
}

// Replaces each op that has a decomposition by simpler ops. Returns the names of the replaced ops.
absl::StatusOr<std::set<std::string>> DecomposeAll(Graph& graph) {
  std::set<std::string> decomposed;
  for (auto it = graph.nodes().begin(); it != graph.nodes().end();) {
    Node& node = *it++;
    if (!node.op().decompose()) continue;
    Builder builder(graph, &node);
    DecomposeContext context(node, builder);
    const std::vector<Value> values = node.op().decompose()(context);
    RETURN_IF_ERROR(builder.status());
    for (size_t i = 0; i < node.num_results(); ++i) graph.ReplaceUses(node.result(i), values[i]);
    decomposed.insert(node.op_name());
    graph.Erase(&node);
  }
  return decomposed;
}

// Two NaN are the same; infinities and zeros must have the same sign.
bool IsSame(double ours, double theirs, double tolerance) {
  if (std::isnan(ours) || std::isnan(theirs)) return std::isnan(ours) && std::isnan(theirs);
  if (ours == 0 && theirs == 0 && std::signbit(ours) != std::signbit(theirs)) return false;
  return ours == theirs || std::abs(ours - theirs) <= tolerance;
}

// The tolerance is relative to the largest number of each result.
void ExpectNumbers(const Graph& graph, const PyTorchCase& row, double tolerance = 1e-11) {
  ASSERT_EQ(graph.inputs().size(), row.inputs.size());
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    inputs.push_back(TensorOf(graph.inputs()[i].value.type(), NumbersOf(row.inputs[i])));
  }
  const absl::StatusOr<std::vector<Tensor>> results = InterpretOneRank(graph, inputs);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), row.expected.size());
  for (size_t i = 0; i < results->size(); ++i) {
    const Numbers expected = NumbersOf(row.expected[i]);
    ASSERT_EQ((*results)[i].num_elements(), static_cast<int64_t>(expected.size()));
    double largest = 0;
    for (double number : expected) largest = std::max(largest, std::isfinite(number) ? std::abs(number) : 0.0);
    const bool all_zero = std::all_of(expected.begin(), expected.end(), [](double number) { return number == 0; });
    EXPECT_FALSE(all_zero) << graph.results()[i].name << " is all zero and proves nothing";
    for (size_t j = 0; j < expected.size(); ++j) {
      EXPECT_TRUE(IsSame((*results)[i].At(static_cast<int64_t>(j)), expected[j], tolerance * largest))
          << "element " << j << " of " << graph.results()[i].name << " is "
          << DoubleToString((*results)[i].At(static_cast<int64_t>(j))) << ", PyTorch says "
          << DoubleToString(expected[j]) << "\n"
          << graph.ToString();
    }
  }
}

TEST(PyTorchTest, ReferenceMeaningsAndGradients) {
  for (const PyTorchCase& row : Cases()) {
    SCOPED_TRACE(row.name);
    const absl::StatusOr<Graph> graph = GraphOf(row);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ExpectNumbers(*graph, row);
  }
}

TEST(PyTorchTest, Decompositions) {
  std::set<std::string> all;
  for (const PyTorchCase& row : Cases()) {
    SCOPED_TRACE(row.name);
    absl::StatusOr<Graph> graph = GraphOf(row);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const absl::StatusOr<std::set<std::string>> decomposed = DecomposeAll(*graph);
    ASSERT_TRUE(decomposed.ok()) << decomposed.status();
    if (!decomposed->empty()) ExpectNumbers(*graph, row);
    all.insert(decomposed->begin(), decomposed->end());
  }
  for (const char* op : {"batch_norm_grad", "batch_norm_inference", "batch_norm_training", "log_softmax", "softmax"})
    EXPECT_TRUE(all.contains(op)) << op;
  for (const OpDef* op : AllOps()) {
    if (!op->has_trait(kOptimizer)) continue;
    EXPECT_TRUE(all.contains(op->name())) << op->name();
  }
}

// The graph with f32 tensors; scalars, such as a learning rate, stay f64.
std::string InF32(std::string text) {
  for (size_t at = text.find("f64["); at != std::string::npos; at = text.find("f64[", at + 1)) {
    if (text[at + 4] != ']') text.replace(at, 3, "f32");
  }
  return text;
}

// The rounding of many steps adds up, here in the decompositions, which is what backends compute.
TEST(PyTorchTest, ManyStepsOfOptimizersInF32) {
  std::set<std::string> all;
  for (const PyTorchCase& row : Cases()) {
    if (!std::string(row.name).starts_with("20 steps")) continue;
    SCOPED_TRACE(row.name);
    absl::StatusOr<Graph> graph = ParseGraph(InF32(row.graph));
    ASSERT_TRUE(graph.ok()) << graph.status();
    ExpectNumbers(*graph, row, 1e-5);
    const absl::StatusOr<std::set<std::string>> decomposed = DecomposeAll(*graph);
    ASSERT_TRUE(decomposed.ok()) << decomposed.status();
    ExpectNumbers(*graph, row, 1e-5);
    all.insert(decomposed->begin(), decomposed->end());
  }
  EXPECT_GE(all.size(), 8u);
}

// The least root is torch.finfo(dtype).eps of the variable's dtype, neither of the dtype of computation nor of f64, in
// which ops are evaluated. A gradient of a quarter of it is divided by it, not by the root of its own squares.
TEST(PyTorchTest, TheLeastRootOfAdafactorIsTheEpsilonOfTheDtype) {
  const std::map<std::string, int> exponents = {{"f64", -52}, {"f32", -23}, {"f16", -10}, {"bf16", -7}};
  for (const auto& [dtype, exponent] : exponents) {
    for (bool decomposed : {false, true}) {
      absl::StatusOr<Graph> graph =
          ParseGraph("graph @f(%w: " + dtype + "[2], %s: " + dtype + "[2], %t: i64[], %g: " + dtype +
                     "[2]) -> (y: " + dtype + "[2]) {\n  %y, %n = adafactor_vector " +
                     "%w, %s, %t, %g {learning_rate=0.5} : " + dtype + "[2], " + dtype + "[2]\n  return %y\n}");
      ASSERT_TRUE(graph.ok()) << graph.status();
      if (decomposed) {
        ASSERT_TRUE(DecomposeAll(*graph).ok());
      }
      const double least = std::ldexp(1.0, exponent);
      std::vector<Tensor> inputs;
      for (const Numbers& numbers : {Numbers{1, 1}, {0, 0}, {1}, {least / 4, least / 4}})
        inputs.push_back(TensorOf(graph->inputs()[inputs.size()].value.type(), numbers));
      const absl::StatusOr<std::vector<Tensor>> results = InterpretOneRank(*graph, inputs);
      ASSERT_TRUE(results.ok()) << results.status();
      EXPECT_EQ((*results)[0].At(0), 1 - 0.5 * 0.25) << dtype << (decomposed ? ", decomposed" : "");
    }
  }
}

// A case in which a least value, a zero or a condition of the formula decides; numbers of usual size never reach it.
struct Edge {
  const char* what;
  std::string op, attributes;
  std::vector<std::string> types;  // types of w, the states, the step, g
  Numbers operands;                // one number for all elements of each operand
  double expected;                 // each element of the new w
};

std::vector<Edge> Edges() {
  return {
      {"the mean of rows is at least epsilon1, not its square; of PyTorch",
       "adafactor",
       "{learning_rate=0.0625, epsilon1=5.9604644775390625e-08, d=100.0}",  // 2^-24
       {"f32[2,2]", "f32[2,1]", "f32[1,2]", "i64[]", "f32[2,2]"},
       {1, 0, 0, 1, 0x1p-15},
       0.5},
      {"weights decay by the rate itself; of PyTorch",
       "adafactor_vector",
       "{learning_rate=1.0, weight_decay=0.25}",
       {"f32[2]", "f32[2]", "i64[]", "f32[2]"},
       {1, 0, 16, 0},
       0.75},
      {"no step is longer than 1 / sqrt(step) of the variable; of PyTorch",
       "adafactor_vector",
       "{learning_rate=1.0}",
       {"f32[2]", "f32[2]", "i64[]", "f32[2]"},
       {1, 0, 16, 1},
       0.75},
      {"the first correction by beta2, in f32 a difference of close numbers",
       "adam",
       "{learning_rate=1.0}",
       {"f32[2]", "f32[2]", "f32[2]", "i64[]", "f32[2]"},
       {0, 0, 0, 1, 1},
       -1},
      {"an update of nothing has no ratio",
       "lamb",
       "{learning_rate=0.5, weight_decay=0.0}",
       {"f32[2]", "f32[2]", "f32[2]", "i64[]", "f32[2]"},
       {1, 0, 0, 1, 0},
       1},
      {"a variance that rounding made negative is 0",
       "rmsprop_centered",
       "{learning_rate=0.25, alpha=0.5, epsilon=0.5}",
       {"f32[2]", "f32[2]", "f32[2]", "f32[2]"},
       {1, 0.75, 1, 1},
       0.5},
      {"gradients agree in sign though their product is 0, and the rate is that of the first step alone",
       "rprop",
       "{learning_rate=0.125, growth=2.0}",
       {"f32[2]", "f32[2]", "f32[2]", "i64[]", "f32[2]"},
       {2, 1e-30, 0.5, 2, 1e-30},
       1},
  };
}

std::string TextOf(const Edge& edge) {
  std::string inputs, operands, results, types;
  const size_t num_results = GetOp(edge.op).result_names().size();
  for (size_t i = 0; i < edge.types.size(); ++i) {
    const std::string number = std::to_string(i), comma = i > 0 ? ", " : "";
    inputs += comma + "%x" + number + ": " + edge.types[i];
    operands += comma + "%x" + number;
    if (i >= num_results) continue;
    results += comma + "%y" + number;
    types += comma + edge.types[i];
  }
  return "graph @f(" + inputs + ") -> (y: " + edge.types[0] + ") {\n  " + results + " = " + edge.op + " " + operands +
         " " + edge.attributes + " : " + types + "\n  return %y0\n}";
}

TEST(PyTorchTest, OptimizersAtTheirEdges) {
  for (const Edge& edge : Edges()) {
    for (bool decomposed : {false, true}) {
      SCOPED_TRACE(std::string(edge.what) + (decomposed ? ", decomposed" : ""));
      absl::StatusOr<Graph> graph = ParseGraph(TextOf(edge));
      ASSERT_TRUE(graph.ok()) << graph.status();
      if (decomposed) {
        ASSERT_TRUE(DecomposeAll(*graph).ok());
      }
      std::vector<Tensor> inputs;
      for (double operand : edge.operands)
        inputs.push_back(Tensor::Full(graph->inputs()[inputs.size()].value.type(), operand));
      const absl::StatusOr<std::vector<Tensor>> found = InterpretOneRank(*graph, inputs);
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_NEAR((*found)[0].At(0), edge.expected, 1e-6);
    }
  }
}

// Entries that the table must not lose when it is generated again. Optimizers have no other oracle, so every listed
// optimizer must be in the table.
TEST(PyTorchTest, TableCoversTheOps) {
  std::set<std::string> ops = {"convolution",
                               "max_pool",
                               "avg_pool",
                               "batch_norm_training",
                               "batch_norm_inference",
                               "softmax",
                               "log_softmax",
                               "softmax_cross_entropy",
                               "attention"};
  for (const OpDef* op : AllOps()) {
    if (op->has_trait(kOptimizer)) ops.insert(op->name());
  }
  EXPECT_GE(ops.size(), 11u);
  for (const std::string& op : ops) {
    const auto uses = [&](const PyTorchCase& row) {
      return std::string(row.graph).find(" = " + op + " %") != std::string::npos;
    };
    EXPECT_TRUE(std::any_of(Cases().begin(), Cases().end(), uses)) << op;
  }
}

}  // namespace
}  // namespace lockstep
