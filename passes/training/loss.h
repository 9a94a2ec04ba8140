// Losses that a training step minimises. Each is reduced over the global batch, so it does not depend on the number of
// ranks. A loss is one block in passes/losses/ and a line in the list there (loss_list.h). Reductions, weights
// of samples and sums of losses are shared (loss_reduction.h, AddLosses). Text options, the functions of lockstep.loss
// and their documentation are derived from the blocks. Constant data; any thread.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/builder.h"
#include "core/graph.h"
#include "core/status.h"
#include "passes/losses/loss_block.h"

namespace lockstep::passes {

// Returns all losses, in the order of the list in loss.cc.
const std::vector<Loss>& AllLosses();
// Returns the metrics that an evaluation can compute besides losses. They are described like losses, without gradients.
const std::vector<Loss>& AllMetrics();
// Returns the loss of this name; an error that lists the existing ones if there is none.
absl::StatusOr<const Loss*> FindLoss(std::string_view name);

// A loss as chosen by a user.
struct LossSpec {
  std::string name = "softmax_cross_entropy";
  std::vector<std::string> predictions = {"logits"};  // results of the model
  std::vector<std::string> inputs = {"target"};       // data inputs that are added (or used, if the model has them)
  AttributeMap options = {};
  double factor = 1;  // the loss is multiplied by it; finite
};

// Returns the complete options. An error names the loss and the option.
absl::StatusOr<AttributeMap> ResolveLoss(const LossSpec& spec);

// Adds the loss, times its factor, and its inputs. Returns the scalar; adds no result. `rows` (uneven.h) tells which
// rows of the batch count; it may be null. An error names the loss, the option, the result or the input.
absl::StatusOr<Value> AddLoss(Graph& graph, const LossSpec& spec, Value rows = {});

// A loss in a form that can be added up over batches: `sum` / `count`, or `sum` if `count` is null. Scalars.
struct LossSum {
  Value sum, count;
};

// Adds a loss or a metric like AddLoss, and returns it in that form; in f32 if the prediction has 16 bits.
absl::StatusOr<LossSum> AddLossSum(Graph& graph, const LossSpec& spec, Value rows = {});

// Adds losses like AddLoss and returns their sum. Requires at least one loss. Losses may share results and inputs. A
// loss with another dtype than the first is an error.
absl::StatusOr<Value> AddLosses(Graph& graph, const std::vector<LossSpec>& specs, Value rows = {});

}  // namespace lockstep::passes
