// Operators whose result shapes depend on data: NonZero, Unique, NonMaxSuppression. A graph's shapes are static, so
// their inputs must be known at import; their results are constants.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/builder.h"
#include "frontends/onnx/op_table.h"

namespace lockstep {
namespace {

using Ints = std::vector<int64_t>;

Tensor IntsTensor(const Ints& list) { return Tensor::Of<int64_t>({static_cast<int64_t>(list.size())}, list); }

// The indices of the elements that are not 0: a row for each dimension.
absl::Status NonZero(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Tensor x, n.ConstantOrInitialInput(0));
  Ints found;
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    if (x.At(i) != 0) found.push_back(i);
  }
  const Ints strides = x.shape().Strides();
  const auto count = static_cast<int64_t>(found.size());
  Tensor indices(TensorType{DType::kI64, {x.shape().rank(), count}});
  const auto out = indices.mutable_data<int64_t>();
  for (int64_t d = 0; d < x.shape().rank(); ++d) {
    for (int64_t i = 0; i < count; ++i) out[At(d * count + i)] = found[At(i)] / strides[At(d)] % x.shape()[d];
  }
  n.SetOutput(0, n.b().Constant(std::move(indices)));
  return absl::OkStatus();
}

// --- Unique ----------------------------------------------------------------------------------------------------------

// x as [outer, extent, inner]. Its items are the slices along `extent`.
template <typename T>
struct Items {
  std::span<const T> x;
  int64_t outer, extent, inner;

  T Element(int64_t item, int64_t i) const { return x[At((i / inner * extent + item) * inner + i % inner)]; }

  // Compares items element by element; NaN is the largest.
  bool IsLess(int64_t a, int64_t b) const {
    for (int64_t i = 0; i < outer * inner; ++i) {
      const auto left = static_cast<Accumulator<T>>(Element(a, i)), right = static_cast<Accumulator<T>>(Element(b, i));
      const bool left_is_nan = left != left, right_is_nan = right != right;
      if (left_is_nan != right_is_nan) return right_is_nan;
      if (!left_is_nan && left != right) return left < right;
    }
    return false;
  }
};

struct Groups {
  Ints first, inverse, counts;  // first item of each group; group of each item; size of each group
};

template <typename T>
Groups GroupsOf(const Items<T>& items, bool sorted) {
  Ints order(At(items.extent));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return items.IsLess(a, b); });
  std::vector<Ints> members;
  for (int64_t item : order) {
    if (members.empty() || items.IsLess(members.back().front(), item)) members.emplace_back();
    members.back().push_back(item);
  }
  if (!sorted) std::sort(members.begin(), members.end());  // by their first items
  Groups groups;
  groups.inverse.resize(order.size());
  for (const Ints& group : members) {
    for (int64_t item : group) groups.inverse[At(item)] = static_cast<int64_t>(groups.first.size());
    groups.first.push_back(group.front());
    groups.counts.push_back(static_cast<int64_t>(group.size()));
  }
  return groups;
}

absl::Status Unique(OnnxNode& n) {
  ASSIGN_OR_RETURN(const Tensor x, n.ConstantOrInitialInput(0));
  const bool sorted = n.Flag("sorted", true);
  const int64_t elements = x.num_elements();
  int64_t outer = 1, extent = elements, inner = 1;
  Shape shape({elements});
  int64_t axis = 0;
  if (n.has_attr("axis")) {
    ASSIGN_OR_RETURN(axis, n.Axis(n.Int("axis", 0), x.shape().rank()));
    shape = x.shape();
    extent = shape[axis];
    for (int64_t d = 0; d < axis; ++d) outer *= shape[d];
    for (int64_t d = axis + 1; d < shape.rank(); ++d) inner *= shape[d];
  }
  Groups groups;
  Tensor y;
  DispatchDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Items<T> items{x.data<T>(), outer, extent, inner};
    groups = GroupsOf(items, sorted);
    const auto count = static_cast<int64_t>(groups.first.size());
    y = Tensor(TensorType{x.dtype(), shape.WithDim(axis, count)});
    const auto out = y.mutable_data<T>();
    for (int64_t i = 0; i < outer * count * inner; ++i) {
      const int64_t item = groups.first[At(i / inner % count)];
      out[At(i)] = items.Element(item, i / inner / count * inner + i % inner);
    }
  });
  Builder& b = n.b();
  n.SetOutput(0, b.Constant(std::move(y)));
  n.SetOutput(1, b.Constant(IntsTensor(groups.first)));
  n.SetOutput(2, b.Constant(IntsTensor(groups.inverse)));
  n.SetOutput(3, b.Constant(IntsTensor(groups.counts)));
  return absl::OkStatus();
}

// --- NonMaxSuppression -----------------------------------------------------------------------------------------------

struct Box {
  double low[2], high[2];

  double Area() const { return (high[0] - low[0]) * (high[1] - low[1]); }
};

Box BoxOf(const Tensor& boxes, int64_t at, bool center) {
  Box box;
  for (int64_t i = 0; i < 2; ++i) {
    const double a = boxes.At(at * 4 + i), b = boxes.At(at * 4 + 2 + i);
    box.low[i] = center ? a - b / 2 : std::min(a, b);
    box.high[i] = center ? a + b / 2 : std::max(a, b);
  }
  return box;
}

bool Overlap(const Box& a, const Box& b, double threshold) {
  double common = 1;
  for (int i = 0; i < 2; ++i) common *= std::max(std::min(a.high[i], b.high[i]) - std::max(a.low[i], b.low[i]), 0.0);
  if (!(common > 0) || !(a.Area() > 0) || !(b.Area() > 0)) return false;
  return common / (a.Area() + b.Area() - common) > threshold;
}

struct Suppression {
  Tensor boxes, scores;
  bool center, has_least;
  double most, overlap, least;

  // The boxes of one class that are kept, highest score first.
  Ints Kept(int64_t batch, int64_t of_class) const {
    const int64_t count = boxes.shape()[1], first = (batch * scores.shape()[1] + of_class) * count;
    Ints candidates, kept;
    for (int64_t i = 0; i < count; ++i) {
      const double score = scores.At(first + i);
      if (!std::isnan(score) && (!has_least || score > least)) candidates.push_back(i);
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](int64_t a, int64_t b) { return scores.At(first + a) > scores.At(first + b); });
    for (int64_t candidate : candidates) {
      if (static_cast<double>(kept.size()) >= most) break;
      const Box box = BoxOf(boxes, batch * count + candidate, center);
      const bool is_new = std::none_of(kept.begin(), kept.end(), [&](int64_t other) {
        return Overlap(box, BoxOf(boxes, batch * count + other, center), overlap);
      });
      if (is_new) kept.push_back(candidate);
    }
    return kept;
  }
};

absl::StatusOr<double> NumberInput(OnnxNode& n, int i) {
  if (!n.has_input(i)) return 0;
  return n.FloatInput(i);
}

absl::Status NonMaxSuppression(OnnxNode& n) {
  Suppression s{};
  ASSIGN_OR_RETURN(s.boxes, n.ConstantOrInitialInput(0));
  ASSIGN_OR_RETURN(s.scores, n.ConstantOrInitialInput(1));
  ASSIGN_OR_RETURN(s.most, NumberInput(n, 2));
  ASSIGN_OR_RETURN(s.overlap, NumberInput(n, 3));
  ASSIGN_OR_RETURN(s.least, NumberInput(n, 4));
  s.has_least = n.has_input(4);
  s.center = n.Flag("center_point_box", false);
  const Shape &boxes = s.boxes.shape(), &scores = s.scores.shape();
  if (boxes.rank() != 3 || boxes[2] != 4 || scores.rank() != 3 || scores[0] != boxes[0] || scores[2] != boxes[1]) {
    return n.Error() << "boxes are " << s.boxes.type() << " and scores " << s.scores.type()
                     << ", expected [batches, boxes, 4] and [batches, classes, boxes]";
  }
  const auto all = static_cast<double>(boxes[1]);
  const double kept = s.most >= 0 && s.most < all ? s.most : all;  // the number of boxes that each box is compared with
  RETURN_IF_ERROR(n.ReserveTable(static_cast<double>(scores.num_elements()) * (kept + 1)));
  Ints rows;
  for (int64_t batch = 0; batch < scores[0]; ++batch) {
    for (int64_t of_class = 0; of_class < scores[1]; ++of_class) {
      for (int64_t box : s.Kept(batch, of_class)) rows.insert(rows.end(), {batch, of_class, box});
    }
  }
  const auto count = static_cast<int64_t>(rows.size()) / 3;
  n.SetOutput(0, n.b().Constant(Tensor::Of<int64_t>({count, 3}, rows)));
  return absl::OkStatus();
}

}  // namespace

std::vector<OnnxOp> SelectionOps() {
  return {
      {"NonZero", 9, kNoEnd, 1, 1, NonZero},
      {"Unique", 11, kNoEnd, 1, 1, Unique},
      {"NonMaxSuppression", 10, kNoEnd, 2, 5, NonMaxSuppression},
  };
}

}  // namespace lockstep
