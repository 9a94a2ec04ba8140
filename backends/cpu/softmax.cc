// Softmax cross-entropy: the loss of each sample and its gradient, computed for a few samples at a time while they are
// in the cache.

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/emitters.h"
#include "backends/cpu/softmax_rows.h"
#include "core/ops/indexing.h"

namespace lockstep::cpu {
namespace {

// Logits seen as `blocks` x `classes` x `inner`; a sample is a block and an inner position.
struct CrossEntropy {
  int64_t blocks = 1, classes = 1, inner = 1;
  double scale = 1;
  Shape labels_shape;
  int threads = 1;

  // A unit of work: samples of one block whose logits are adjacent in memory, class by class.
  static constexpr int64_t kUnit = 16;
  int64_t units_of_block() const { return (inner + kUnit - 1) / kUnit; }
  int64_t samples() const { return blocks * inner; }

  uint64_t losses_bytes() const { return AlignUp(static_cast<uint64_t>(samples()) * sizeof(double)); }
  uint64_t rows_bytes() const { return AlignUp(static_cast<uint64_t>(kUnit * classes) * sizeof(float)); }
  uint64_t scratch_bytes() const {
    return losses_bytes() + (inner == 1 ? 0 : rows_bytes() * static_cast<uint64_t>(threads));
  }

  // Replaces the logits of one sample by the gradient and returns the loss.
  double Sample(float* row, int64_t label) const {
    float max = -std::numeric_limits<float>::infinity(), sum = 0, factor = 0;
    const float logit = row[label];
    SoftmaxStep(row, 1, classes, classes, &max, &sum, &factor);
    // The row contains NaN or infinity, or only -inf.
    if (!(sum > 0 && std::isfinite(sum) && std::isfinite(max))) {
      std::fill_n(row, classes, std::numeric_limits<float>::quiet_NaN());
      return std::numeric_limits<double>::quiet_NaN();
    }
    const auto by = static_cast<float>(scale / static_cast<double>(sum));
    ScaleRows(row, 1, classes, &by);
    row[label] -= static_cast<float>(scale);
    return static_cast<double>(max) - static_cast<double>(logit) + std::log(static_cast<double>(sum));
  }

  // `rows` belongs to the calling thread. Transposes the samples into it and back, unless each sample is already a row.
  template <typename Label>
  void Unit(const float* x, const Label* labels, float* dx, double* losses, float* rows, int64_t unit) const {
    const int64_t block = unit / units_of_block(), begin = unit % units_of_block() * kUnit;
    const int64_t count = std::min(kUnit, inner - begin), first = block * inner + begin;
    const int64_t offset = block * classes * inner + begin;
    if (inner == 1) {
      rows = dx + offset;
      std::copy_n(x + offset, classes, rows);
    } else {
      for (int64_t c = 0; c < classes; ++c) {
        for (int64_t i = 0; i < count; ++i) rows[i * classes + c] = x[offset + c * inner + i];
      }
    }
    for (int64_t i = 0; i < count; ++i)
      losses[first + i] = Sample(rows + i * classes, static_cast<int64_t>(labels[first + i]));
    if (inner == 1) return;
    for (int64_t c = 0; c < classes; ++c) {
      for (int64_t i = 0; i < count; ++i) dx[offset + c * inner + i] = rows[i * classes + c];
    }
  }

  template <typename Label>
  absl::Status Run(const float* x, const Label* labels, float* loss, float* dx, std::byte* scratch) const {
    for (int64_t i = 0; i < samples(); ++i) {
      if (labels[i] < 0 || labels[i] >= classes) {
        return ops::LabelError("softmax_cross_entropy (C5)", static_cast<int64_t>(labels[i]), i, labels_shape, classes);
      }
    }
    auto* const losses = reinterpret_cast<double*>(scratch);
    const int64_t units = blocks * units_of_block();
#pragma omp parallel for num_threads(threads) if (threads > 1 && samples() * classes > 16384)
    for (int64_t unit = 0; unit < units; ++unit) {
      std::byte* const rows = scratch + losses_bytes() + rows_bytes() * static_cast<uint64_t>(omp_get_thread_num());
      Unit(x, labels, dx, losses, reinterpret_cast<float*>(rows), unit);
    }
    double sum = 0;  // in the order of samples, for all numbers of threads
    for (int64_t i = 0; i < samples(); ++i) sum += losses[i];
    *loss = static_cast<float>(scale * sum);
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status EmitSoftmaxCrossEntropy(const Node& node, EmitContext& c) {
  const TensorType& logits = node.operand(0).type();
  if (logits.dtype != DType::kF32 || logits.num_elements() == 0) {
    return Unimplemented() << "softmax_cross_entropy of " << logits << ", expected f32 and not empty";
  }
  CrossEntropy loss;
  loss.blocks = logits.shape[0];
  loss.classes = logits.shape[1];
  for (int64_t i = 2; i < logits.shape.rank(); ++i) loss.inner *= logits.shape[i];
  loss.scale = node.attr<double>("scale");
  loss.labels_shape = node.operand(1).shape();
  loss.threads = c.threads();
  const bool wide_labels = node.operand(1).dtype() == DType::kI64;

  Kernel kernel;
  kernel.name = "softmax_cross_entropy";
  kernel.scratch_bytes = loss.scratch_bytes();
  kernel.run = [loss, wide_labels](const KernelArgs& args) {
    const auto run = [&](const auto* labels) {
      return loss.Run(args.read<float>(0), labels, args.write<float>(0), args.write<float>(1), args.scratch);
    };
    return wide_labels ? run(args.read<int64_t>(1)) : run(args.read<int32_t>(1));
  };
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const int loss_storage = c.Write(node, 0), gradient_storage = c.Write(node, 1);
  c.Add(node, std::move(kernel), std::move(reads), {loss_storage, gradient_storage});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
