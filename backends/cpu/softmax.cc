// Softmax cross-entropy: oneDNN's softmax, then the loss and its gradient in one pass over the rows.

#include <algorithm>
#include <cmath>
#include <limits>

#include "backends/cpu/emitters.h"

namespace lockstep::cpu {
namespace {

// Logits as `blocks` x `classes` x `inner`; a sample is a block and an inner position.
struct CrossEntropy {
  int64_t blocks = 1, classes = 1, inner = 1;
  double scale = 1;
  Shape labels_shape;

  int64_t samples() const { return blocks * inner; }

  absl::Status LabelError(int64_t sample, int64_t label) const {
    std::vector<int64_t> index(static_cast<size_t>(labels_shape.rank()));
    for (size_t i = index.size(); i-- > 0;) {
      index[i] = sample % labels_shape.dims()[i];
      sample /= labels_shape.dims()[i];
    }
    return InvalidArgument() << "softmax_cross_entropy (C5): label " << label << " at position " << ListToString(index)
                             << " is outside [0, " << classes << ")";
  }

  // `p` holds the softmax of `x` and becomes the gradient. The loss needs no exponential: with m the maximum of x, the
  // probability there is exp(m - m) / sum, so log(sum) = -log(max p), and -log p[label] = m - x[label] - log(max p).
  template <typename T, typename Label>
  absl::Status Run(const T* x, const Label* labels, T* p, T* loss, double* losses, int threads) const {
    for (int64_t i = 0; i < samples(); ++i) {
      if (labels[i] < 0 || labels[i] >= classes) return LabelError(i, static_cast<int64_t>(labels[i]));
    }
    const T factor = static_cast<T>(scale);
#pragma omp parallel for num_threads(threads) if (threads > 1 && samples() * classes > 16384)
    for (int64_t i = 0; i < samples(); ++i) {
      const int64_t first = i / inner * classes * inner + i % inner;
      const T* row = x + first;
      T* probabilities = p + first;
      T max = row[0], max_probability = probabilities[0];
      bool is_number = true;
      for (int64_t j = 0; j < classes; ++j) {
        max = std::max(max, row[j * inner]);
        is_number &= row[j * inner] == row[j * inner];
        max_probability = std::max(max_probability, probabilities[j * inner]);
      }
      // Over a row with NaN, with inf or of -inf alone the softmax is NaN; oneDNN makes zeros of it.
      if (!is_number || !std::isfinite(max)) {
        for (int64_t j = 0; j < classes; ++j) probabilities[j * inner] = std::numeric_limits<T>::quiet_NaN();
        losses[i] = std::numeric_limits<double>::quiet_NaN();
        continue;
      }
      const int64_t label = static_cast<int64_t>(labels[i]) * inner;
      losses[i] =
          static_cast<double>(max) - static_cast<double>(row[label]) - std::log(static_cast<double>(max_probability));
      for (int64_t j = 0; j < classes; ++j) probabilities[j * inner] *= factor;
      probabilities[label] -= factor;
    }
    double sum = 0;  // in the order of samples, whatever the threads
    for (int64_t i = 0; i < samples(); ++i) sum += losses[i];
    *loss = static_cast<T>(scale * sum);
    return absl::OkStatus();
  }
};

// Calls f with the labels as what they are.
template <typename F>
absl::Status WithLabels(const KernelArgs& args, bool wide, F f) {
  return wide ? f(args.read<int64_t>(1)) : f(args.read<int32_t>(1));
}

auto RunWithOneDnn(CrossEntropy loss, bool wide_labels, int threads, Kernel softmax) {
  return [loss, wide_labels, threads, softmax = std::move(softmax)](const KernelArgs& args) mutable -> absl::Status {
    std::byte* const writes[] = {args.writes[1]};
    KernelArgs inner = args;
    inner.writes = writes;
    inner.scratch = args.scratch + AlignUp(static_cast<uint64_t>(loss.samples()) * sizeof(double));
    RETURN_IF_ERROR(softmax.run(inner));
    return WithLabels(args, wide_labels, [&](const auto* labels) {
      return loss.Run(args.read<float>(0), labels, args.write<float>(1), args.write<float>(0),
                      reinterpret_cast<double*>(args.scratch), threads);
    });
  };
}

absl::StatusOr<Kernel> OneDnnSoftmax(const TensorType& type, const dnnl::engine& engine) {
  return CallOneDnn("softmax", [&] {
    const dnnl::memory::desc desc = RowMajor(type);
    const dnnl::softmax_forward::primitive_desc pd(engine, dnnl::prop_kind::forward_training,
                                                   dnnl::algorithm::softmax_accurate, desc, desc, 1,
                                                   DefaultAttributes());
    return PrimitiveKernel("onednn.softmax", dnnl::softmax_forward(pd), pd.scratchpad_desc(), engine,
                           {{DNNL_ARG_SRC, false, 0, desc}, {DNNL_ARG_DST, true, 0, desc}});
  });
}

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
  const bool wide_labels = node.operand(1).dtype() == DType::kI64;

  ASSIGN_OR_RETURN(Kernel softmax, OneDnnSoftmax(logits, c.engine()));
  Kernel kernel;
  kernel.name = "onednn.softmax_cross_entropy";
  kernel.scratch_bytes = AlignUp(static_cast<uint64_t>(loss.samples()) * sizeof(double)) + softmax.scratch_bytes;
  kernel.run = RunWithOneDnn(loss, wide_labels, c.threads(), std::move(softmax));
  ASSIGN_OR_RETURN(std::vector<int> reads, c.ReadAll(node));
  const int loss_storage = c.Write(node, 0), gradient_storage = c.Write(node, 1);
  c.Add(node, std::move(kernel), std::move(reads), {loss_storage, gradient_storage});
  return absl::OkStatus();
}

}  // namespace lockstep::cpu
