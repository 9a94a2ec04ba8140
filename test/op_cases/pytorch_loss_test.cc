// Losses and their gradients against an independent oracle: PyTorch's f64 numbers for the whole batch. Each row runs on
// one rank, on two and three, which divide the batch, and in micro-batches, one after the other; all must compute what
// one rank does with the whole. pytorch_losses.inc has the rows, made by make_pytorch_losses.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "bazel/num_cases.h"
#include "core/interpreter.h"
#include "core/local_part.h"
#include "core/printer.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/localize.h"
#include "passes/training/accumulate.h"
#include "passes/training/autodiff.h"
#include "passes/training/loss.h"

namespace lockstep {
namespace {

using Names = std::vector<std::string>;
using LossNumbers = std::vector<double>;

// All members are texts, because tables of so many numbers take minutes to compile.
struct LossCase {
  const char* name;
  const char* graph;
  const char* loss;
  const char* wrt;          // the inputs that have gradients
  const char* predictions;  // as in LossSpec
  const char* inputs;
  const char* options;   // "name=value, name=value"; a list has | between its numbers
  const char* given;     // a line of numbers for each input of the graph, then of the loss
  const char* expected;  // a line for the loss, then for the gradients
};

constexpr LossCase kCases[] = {
#include "test/op_cases/pytorch_losses.inc"
};

size_t Stride() { return std::size(kCases) / NumCases(std::size(kCases)); }

Names Parts(std::string_view text, std::string_view separator) {
  Names parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + separator.size(), text.size()));
  }
  return parts;
}

LossNumbers LossNumbersOf(const std::string& text, std::string_view separator) {
  LossNumbers numbers;
  for (const std::string& part : Parts(text, separator)) numbers.push_back(std::strtod(part.c_str(), nullptr));
  return numbers;
}

std::vector<LossNumbers> Lines(std::string_view text) {
  std::vector<LossNumbers> lines;
  for (const std::string& line : Parts(text, "\n")) lines.push_back(LossNumbersOf(line, " "));
  return lines;
}

// Parses the value of an option, of the type that the loss declares.
Attribute ValueOf(const passes::Loss& loss, const std::string& option, const std::string& text) {
  for (const passes::OptionDef& def : loss.options) {
    if (def.name != option) continue;
    if (std::holds_alternative<bool>(def.example)) return text == "true";
    if (std::holds_alternative<int64_t>(def.example)) return int64_t{std::stoll(text)};
    if (std::holds_alternative<std::string>(def.example)) return text;
    const LossNumbers numbers = LossNumbersOf(text, "|");
    if (def.is_list()) return Tensor::Of(Shape({static_cast<int64_t>(numbers.size())}), numbers);
    return numbers[0];
  }
  return text;  // the loss then refuses it
}

passes::LossSpec SpecOf(const LossCase& row) {
  passes::LossSpec spec{row.loss, Parts(row.predictions, ", "), Parts(row.inputs, ", "), {}};
  for (const std::string& option : Parts(row.options, ", ")) {
    const size_t equals = option.find('=');
    const std::string name = option.substr(0, equals);
    spec.options.emplace(name, ValueOf(**passes::FindLoss(row.loss), name, option.substr(equals + 1)));
  }
  return spec;
}

// The graph with the results `loss` and its gradients.
absl::StatusOr<Graph> LossGraph(const LossCase& row) {
  ASSIGN_OR_RETURN(Graph graph, ParseGraph(row.graph));
  ASSIGN_OR_RETURN(const Value loss, passes::AddLoss(graph, SpecOf(row)));
  while (!graph.results().empty()) graph.RemoveResult(0);
  RETURN_IF_ERROR(graph.AddResult("loss", loss));
  RETURN_IF_ERROR(passes::Autodiff("loss", Parts(row.wrt, ", ")).run(graph).status());
  return graph;
}

Tensor LossTensor(const TensorType& type, const LossNumbers& numbers) {
  return Tensor::Of(type.shape, numbers).Converted(type.dtype);
}

// The results on each rank.
absl::StatusOr<std::vector<std::vector<Tensor>>> RunOnRanks(const Graph& graph, const std::vector<Tensor>& inputs,
                                                            int64_t ranks) {
  ASSIGN_OR_RETURN(Graph placed, passes::DistributeGraph(graph, Mesh({{"data", ranks}})));
  RETURN_IF_ERROR(passes::RunPasses({passes::Localize()}, placed));
  std::vector<std::vector<Tensor>> of_ranks(static_cast<size_t>(ranks));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlacementMap& placements = graph.inputs()[i].value.placements();
    for (int64_t rank = 0; rank < ranks; ++rank)
      of_ranks[static_cast<size_t>(rank)].push_back(LocalPart(inputs[i], placements, Mesh({{"data", ranks}}), rank));
  }
  return Interpret(placed, of_ranks);
}

void ExpectLoss(const Tensor& found, const double* expected, double largest, const std::string& what) {
  for (int64_t i = 0; i < found.num_elements(); ++i) {
    const double ours = found.At(i), theirs = expected[i];
    const bool is_same =
        std::isnan(theirs) ? std::isnan(ours) : ours == theirs || std::abs(ours - theirs) <= 1e-11 * largest;
    EXPECT_TRUE(is_same) << "element " << i << " of " << what << " is " << DoubleToString(ours) << ", PyTorch says "
                         << DoubleToString(theirs);
  }
}

// A result as large as the expected one is whole on each rank; others are the rank's slice of the batch.
void ExpectResults(const LossCase& row, const std::vector<std::vector<Tensor>>& results) {
  const std::vector<LossNumbers> all_expected = Lines(row.expected);
  const Names wrt = Parts(row.wrt, ", ");
  for (size_t i = 0; i < all_expected.size(); ++i) {
    const LossNumbers& expected = all_expected[i];
    double largest = 0;
    for (double number : expected) largest = std::max(largest, std::isfinite(number) ? std::abs(number) : 0.0);
    const bool nothing_counts = std::string(row.name).ends_with("nothing counts");
    EXPECT_TRUE(largest > 0 || nothing_counts) << "result " << i << " proves nothing";
    for (size_t rank = 0; rank < results.size(); ++rank) {
      const Tensor& found = results[rank][i];
      const auto size = static_cast<size_t>(found.num_elements());
      const bool is_whole = size == expected.size();
      ASSERT_TRUE(is_whole || size * results.size() == expected.size()) << found.type();
      ExpectLoss(found, expected.data() + (is_whole ? 0 : rank * size), largest,
                 (i == 0 ? "loss" : "grad/" + wrt[i - 1]) + " on rank " + std::to_string(rank));
    }
  }
}

std::vector<Tensor> InputsOf(const LossCase& row, const Graph& graph) {
  const std::vector<LossNumbers> given = Lines(row.given);
  LOCKSTEP_CHECK(graph.inputs().size() == given.size()) << row.name;
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < given.size(); ++i) {
    const Value input = graph.inputs()[i].value;
    EXPECT_TRUE(input.placement(kDataAxis).is_split(0)) << row.name << ": " << input.name();
    inputs.push_back(LossTensor(input.type(), given[i]));
  }
  return inputs;
}

void ExpectAsOfPyTorch(const LossCase& row, const Graph& graph, int64_t ranks) {
  const absl::StatusOr<std::vector<std::vector<Tensor>>> results = RunOnRanks(graph, InputsOf(row, graph), ranks);
  ASSERT_TRUE(results.ok()) << results.status();
  ASSERT_EQ(results->size(), static_cast<size_t>(ranks));
  ExpectResults(row, *results);
}

TEST(PyTorchLossTest, LossesAndGradientsOnOneTwoAndThreeRanks) {
  ASSERT_GE(std::size(kCases), 100u);
  for (size_t i = 0; i < std::size(kCases); i += Stride()) {
    const LossCase& row = kCases[i];
    const absl::StatusOr<Graph> graph = LossGraph(row);
    ASSERT_TRUE(graph.ok()) << row.name << ": " << graph.status();
    ASSERT_EQ(graph->results().size(), Lines(row.expected).size()) << row.name;
    for (int64_t ranks : {1, 2, 3}) {
      SCOPED_TRACE(std::string(row.name) + " on " + std::to_string(ranks) + " ranks");
      ExpectAsOfPyTorch(row, *graph, ranks);
    }
  }
}

// The divisor of a loss is that of the whole batch.
TEST(PyTorchLossTest, LossesAndGradientsOfMicroBatches) {
  for (size_t i = 0; i < std::size(kCases); i += Stride()) {
    const LossCase& row = kCases[i];
    for (int64_t micro_batches : {2, 3}) {
      absl::StatusOr<Graph> graph = LossGraph(row);
      ASSERT_TRUE(graph.ok()) << row.name << ": " << graph.status();
      const absl::Status cut = passes::AccumulateGradients(*graph, micro_batches);
      ASSERT_TRUE(cut.ok()) << row.name << ": " << cut;
      for (int64_t ranks : {int64_t{1}, 6 / micro_batches}) {
        SCOPED_TRACE(std::string(row.name) + ", " + std::to_string(micro_batches) + " micro-batches on " +
                     std::to_string(ranks) + " ranks");
        ExpectAsOfPyTorch(row, *graph, ranks);
      }
    }
  }
}

// Losses have no other oracle: whatever is in the list, and each of its options, must be in the table.
TEST(PyTorchLossTest, TableCoversTheLossesAndTheirOptions) {
  for (const passes::Loss& loss : passes::AllLosses()) {
    if (!loss.elements) continue;  // no formula
    const auto has = [&](const auto& wanted) {
      return std::any_of(std::begin(kCases), std::end(kCases),
                         [&](const LossCase& row) { return row.loss == loss.name && wanted(SpecOf(row).options); });
    };
    EXPECT_TRUE(has([](const AttributeMap& options) { return options.empty(); })) << loss.name;
    for (const passes::OptionDef& option : loss.options) {
      if (option.choices.empty()) {
        EXPECT_TRUE(has([&](const AttributeMap& given) { return given.contains(option.name); })) << option.name;
      }
      for (size_t i = 1; i < option.choices.size(); ++i) {
        const Attribute choice = option.choices[i];
        EXPECT_TRUE(has([&](const AttributeMap& given) {
          return given.contains(option.name) && given.find(option.name)->second == choice;
        })) << loss.name
            << ": " << option.choices[i];
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
