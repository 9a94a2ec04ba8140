#include <limits>

#include "test/op_cases/op_case.h"

namespace lockstep {
namespace {

AttributeMap ReshapeTo(Ints shape) { return {{"shape", std::move(shape)}}; }
AttributeMap Permute(Ints permutation) { return {{"permutation", std::move(permutation)}}; }
AttributeMap BroadcastTo(Ints shape, Ints dims) { return {{"shape", std::move(shape)}, {"dims", std::move(dims)}}; }
AttributeMap IotaOf(Ints shape, DType dtype, int64_t dim) {
  return {{"shape", std::move(shape)}, {"dtype", dtype}, {"dim", dim}};
}
AttributeMap Along(int64_t dim) { return {{"dim", dim}}; }
AttributeMap SliceOf(Ints start, Ints limit, Ints stride) {
  return {{"start", std::move(start)}, {"limit", std::move(limit)}, {"stride", std::move(stride)}};
}
AttributeMap PadBy(Ints low, Ints high, double value = 0.0) {
  return {{"low", std::move(low)}, {"high", std::move(high)}, {"value", value}};
}

AttributeMap Reversing(Ints dims) { return {{"dims", std::move(dims)}}; }

AttributeMap Windows(int64_t dim, Ints window, Ints stride, Ints dilation) {
  return {
      {"dim", dim}, {"window", std::move(window)}, {"stride", std::move(stride)}, {"dilation", std::move(dilation)}};
}
AttributeMap Overlapping(int64_t dim, Ints size, Ints stride, Ints dilation) {
  return {{"dim", dim}, {"size", std::move(size)}, {"stride", std::move(stride)}, {"dilation", std::move(dilation)}};
}

constexpr int64_t kHugeExtent = int64_t{1} << 40, kLong = int64_t{1} << 20;

}  // namespace

std::vector<OpCase> ShapeCases() {
  return {
      Case("stop_gradient", {F32({2, 3})}),
      Case("stop_gradient", {F64({})}),
      Case("stop_gradient", {BF16({6, 2})}),
      Case("stop_gradient", {F16({4})}),
      Case("stop_gradient", {F32({0, 3})}),
      Case("stop_gradient", {I64({2})}).Refused("C1"),
      Case("constant", {}, {{"value", Tensor::Of<float>({2, 3}, {1, -2, 0.1F, 1e-30F, 5, 6})}}),
      Case("constant", {}, {{"value", Tensor::Of<double>({3}, {0.1, std::numeric_limits<double>::infinity(), -0.0})}}),
      Case("constant", {}, {{"value", Tensor::Full({DType::kBF16, {4}}, 0.3)}}),
      Case("constant", {}, {{"value", Tensor::Of<bool>({}, {true})}}),
      Case("constant", {}, {{"value", Tensor::Of<int64_t>({2}, {INT64_MIN, INT64_MAX})}}),
      Case("constant", {}, {{"value", Tensor(TensorType{DType::kU8, {2, 0}})}}),

      Case("iota", {}, IotaOf({4}, DType::kI64, 0)),
      Case("iota", {}, IotaOf({2, 3, 4}, DType::kF32, 1)),
      Case("iota", {}, IotaOf({1, 300}, DType::kU8, 1)),
      Case("iota", {}, IotaOf({2, 0}, DType::kF32, 0)),
      Case("iota", {}, IotaOf({2, -1}, DType::kF32, 0)).Refused("C1"),
      Case("iota", {}, IotaOf({kHugeExtent, kHugeExtent}, DType::kF32, 0)).Refused("C1"),
      Case("iota", {}, IotaOf(Ints(64, 2), DType::kF32, 0)).Refused("C1"),  // 2^64
      Case("iota", {}, IotaOf({2}, DType::kF32, 1)).Refused("C2"),
      Case("iota", {}, IotaOf({}, DType::kF32, 0)).Refused("C2"),
      Case("iota", {}, IotaOf({2}, DType::kBool, 0)).Refused("C3"),

      Case("reshape", {F64({4, 6})}, ReshapeTo({24})),
      Case("reshape", {F32({12, 2})}, ReshapeTo({3, 4, 2})),
      Case("reshape", {F32({6, 2, 3})}, ReshapeTo({6, 6})),
      Case("reshape", {F32({6, 6})}, ReshapeTo({6, 2, 3})),
      Case("reshape", {BF16({6, 4})}, ReshapeTo({4, 6})),
      Case("reshape", {F32({4, 8, 3})}, ReshapeTo({32, 3})),
      Case("reshape", {F32({32, 3})}, ReshapeTo({8, 4, 3})),
      Case("reshape", {F32({24})}, ReshapeTo({3, 8})),
      Case("reshape", {F32({2, 12})}, ReshapeTo({2, 4, 3})),
      Case("reshape", {F32({1})}, ReshapeTo({})),
      Case("reshape", {F32({2, 3})}, ReshapeTo({1, 2, 1, 3})),
      Case("reshape", {F32({3, 2})}, ReshapeTo({3, 1, 2})),
      Case("reshape", {I32({0, 2})}, ReshapeTo({5, 0})),
      Case("reshape", {F32({2, 3})}, ReshapeTo({-1, 6})).Refused("C1"),
      Case("reshape", {F32({0})}, ReshapeTo({int64_t{1} << 32, int64_t{1} << 32})).Refused("C1"),  // 2^64
      Case("reshape", {F32({2, 3})}, ReshapeTo({5})).Refused("C2"),

      Case("transpose", {F64({2, 3})}, Permute({1, 0})),
      Case("transpose", {F32({2, 3, 6, 1})}, Permute({2, 0, 3, 1})),
      Case("transpose", {I32({4})}, Permute({0})),
      Case("transpose", {F32({0, 3})}, Permute({1, 0})).NoGradient("no elements"),
      Case("transpose", {BF16({})}, Permute({})),
      Case("transpose", {F32({2, 3})}, Permute({0, 0})).Refused("C1"),
      Case("transpose", {F32({2, 3})}, Permute({0})).Refused("C1"),
      Case("transpose", {F32({2, 3})}, Permute({0, 2})).Refused("C1"),

      Case("broadcast", {F64({3})}, BroadcastTo({2, 3, 4}, {1})),
      Case("broadcast", {F32({})}, BroadcastTo({6, 2}, {})),
      Case("broadcast", {F32({6, 2})}, BroadcastTo({6, 3, 2}, {0, 2})),
      Case("broadcast", {BF16({2, 6})}, BroadcastTo({2, 6}, {0, 1})),
      Case("broadcast", {I64({1})}, BroadcastTo({1, 4}, {0})),
      Case("broadcast", {F32({0})}, BroadcastTo({3, 0}, {1})).NoGradient("no elements"),
      Case("broadcast", {F32({2})}, BroadcastTo({2, 0}, {0})).NoGradient("no elements"),
      Case("broadcast", {F32({2})}, BroadcastTo({2, -3}, {0})).Refused("C1"),
      Case("broadcast", {F32({2})}, BroadcastTo({2, kHugeExtent, kHugeExtent}, {0})).Refused("C1"),
      Case("broadcast", {F32({2})}, BroadcastTo({2, 3}, {})).Refused("C2"),
      Case("broadcast", {F32({2, 3})}, BroadcastTo({3, 2}, {1, 0})).Refused("C2"),
      Case("broadcast", {F32({2})}, BroadcastTo({2}, {1})).Refused("C2"),
      Case("broadcast", {F32({1})}, BroadcastTo({4}, {0})).Refused("C3"),

      Case("reverse", {F64({6, 2, 6})}, Reversing({0})),
      Case("reverse", {F64({6, 2, 6})}, Reversing({2})),
      Case("reverse", {F32({6, 3, 6})}, Reversing({0, 1})),
      Case("reverse", {F32({2, 40})}, Reversing({0, 1})),
      Case("reverse", {F32({6})}, Reversing({})),
      Case("reverse", {F32({})}, Reversing({})),
      Case("reverse", {BF16({6, 4})}, Reversing({1})),
      Case("reverse", {I64({6, 1})}, Reversing({0, 1})),
      Case("reverse", {Bool({5})}, Reversing({0})),
      Case("reverse", {F32({6, 0})}, Reversing({0})).NoGradient("no elements"),
      Case("reverse", {F32({2, 3})}, Reversing({2})).Refused("C1"),
      Case("reverse", {F32({2, 3})}, Reversing({1, 0})).Refused("C1"),

      Case("windows", {F64({6, 6, 5, 7})}, Windows(2, {2, 3}, {1, 2}, {2, 1})),
      Case("windows", {F64({6, 7, 6})}, Windows(1, {3}, {1}, {1})),
      Case("windows", {F32({6, 9})}, Windows(1, {2}, {3}, {1})),  // some elements are in no window
      Case("windows", {F32({2, 3, 4, 5, 6})}, Windows(2, {2, 2, 2}, {2, 3, 2}, {1, 1, 1})),
      Case("windows", {F32({6, 2})}, Windows(1, {}, {}, {})),
      Case("windows", {BF16({4, 6})}, Windows(0, {2}, {1}, {2})),
      Case("windows", {I64({7})}, Windows(0, {3}, {2}, {1})),
      Case("windows", {Bool({5})}, Windows(0, {3}, {1}, {1})),
      Case("windows", {F32({0, 4})}, Windows(1, {2}, {1}, {1})).NoGradient("no elements"),
      Case("windows", {F32({2, 3})}, Windows(1, {1, 1}, {1, 1}, {1, 1})).Refused("C1"),
      Case("windows", {F32({2, 3})}, Windows(-1, {1}, {1}, {1})).Refused("C1"),
      Case("windows", {F32({2, 3})}, Windows(1, {1}, {1, 1}, {1})).Refused("C2"),
      Case("windows", {F32({2, 3})}, Windows(1, {1}, {1}, {})).Refused("C2"),
      Case("windows", {F32({2, 3})}, Windows(1, {0}, {1}, {1})).Refused("C3"),
      Case("windows", {F32({2, 3})}, Windows(1, {2}, {0}, {1})).Refused("C3"),
      Case("windows", {F32({2, 3})}, Windows(1, {2}, {1}, {kHugeExtent})).Refused("C3"),
      Case("windows", {F32({2, 3})}, Windows(1, {2}, {1}, {3})).Refused("C4"),
      Case("windows", {F32({kLong, kLong, 0})}, Windows(0, {kLong / 2, kLong / 2}, {1, 1}, {1, 1})).Refused("C5"),

      Case("overlap_add", {F64({6, 6, 2, 3, 3, 3})}, Overlapping(2, {5, 7}, {1, 2}, {2, 1})),
      Case("overlap_add", {F64({6, 3, 5, 6})}, Overlapping(1, {7}, {1}, {1})),
      Case("overlap_add", {F32({6, 2, 3})}, Overlapping(1, {9}, {3}, {1})),
      Case("overlap_add", {F32({2, 3, 2, 2, 2, 2, 2, 3})}, Overlapping(2, {4, 5, 6}, {2, 3, 2}, {1, 1, 1})),
      Case("overlap_add", {F32({6, 2})}, Overlapping(1, {}, {}, {})),
      Case("overlap_add", {BF16({2, 2, 6})}, Overlapping(0, {4}, {1}, {2})),
      Case("overlap_add", {F16({6, 3, 40})}, Overlapping(1, {42}, {1}, {1})),
      Case("overlap_add", {I64({3, 3})}, Overlapping(0, {7}, {2}, {1})),
      Case("overlap_add", {F32({0, 2, 3})}, Overlapping(1, {4}, {1}, {1})).NoGradient("no elements"),
      Case("overlap_add", {F32({2, 3})}, Overlapping(1, {3}, {1}, {1})).Refused("C1"),
      Case("overlap_add", {F32({2, 3})}, Overlapping(0, {4}, {1, 1}, {1})).Refused("C2"),
      Case("overlap_add", {F32({2, 3})}, Overlapping(0, {4}, {0}, {1})).Refused("C3"),
      Case("overlap_add", {F32({2, 3})}, Overlapping(0, {4}, {1}, {4})).Refused("C4"),
      Case("overlap_add", {F32({2, 3})}, Overlapping(0, {5}, {1}, {1})).Refused("C5"),
      Case("overlap_add", {F32({1, 1, 1, 1})}, Overlapping(0, Ints(2, kLong << 10), Ints(2, kLong << 10), {1, 1}))
          .Refused("C6"),
      Case("overlap_add", {Bool({2, 3})}, Overlapping(0, {4}, {1}, {1})).Refused("C7"),

      Case("concat", {F64({2, 3}), F64({4, 3})}, Along(0)),
      Case("concat", {F32({6, 1}), F32({6, 2}), F32({6, 3})}, Along(1)),
      Case("concat", {F32({2, 2})}, Along(1)),
      Case("concat", {I32({2}), I32({0})}, Along(0)),
      Case("concat", {F32({}), F32({})}, Along(0)).Refused("C1"),
      Case("concat", {F32({2}), F32({2})}, Along(-1)).Refused("C1"),
      Case("concat", {F32({2}), F64({2})}, Along(0)).Refused("C2"),
      Case("concat", {F32({2, 3}), F32({2, 4})}, Along(0)).Refused("C2"),
      Case("concat", {F32({2, 3}), F32({2})}, Along(0)).Refused("C2"),
      Case("concat", {F32({kHugeExtent, 1 << 16}), F32({kHugeExtent, 1 << 16})}, Along(1)).Refused("C3"),

      Case("slice", {F64({5, 4})}, SliceOf({1, 0}, {4, 4}, {1, 1})),
      Case("slice", {F64({9})}, SliceOf({1}, {8}, {3})),
      Case("slice", {F64({7, 8})}, SliceOf({0, 1}, {7, 8}, {2, 4})),
      Case("slice", {F32({6, 4})}, SliceOf({0, 3}, {6, 4}, {1, 2})),
      // On 3 ranks, every fifth element of 4 gives as many elements as every fifth of 12, but other ones.
      Case("slice", {F64({12})}, SliceOf({0}, {12}, {5})),
      Case("slice", {F64({6, 12})}, SliceOf({0, 0}, {6, 12}, {1, 5})),
      Case("slice", {F32({})}, SliceOf({}, {}, {})),
      Case("slice", {BF16({4})}, SliceOf({2}, {2}, {3})).NoGradient("no elements"),
      Case("slice", {I32({4})}, SliceOf({0}, {4}, {9})),
      Case("slice", {F32({4, 2})}, SliceOf({0}, {4}, {1})).Refused("C1"),
      Case("slice", {F32({4})}, SliceOf({0}, {5}, {1})).Refused("C2"),
      Case("slice", {F32({4})}, SliceOf({-1}, {3}, {1})).Refused("C2"),
      Case("slice", {F32({4})}, SliceOf({3}, {2}, {1})).Refused("C2"),
      Case("slice", {F32({4})}, SliceOf({0}, {2}, {0})).Refused("C3"),

      Case("pad", {F64({2, 3})}, PadBy({1, 0}, {0, 2})),
      Case("pad", {F32({6, 4})}, PadBy({0, 1}, {0, 1}, -1.5)),
      Case("pad", {F32({})}, PadBy({}, {})),
      Case("pad", {I32({2})}, PadBy({3}, {0}, 7.9)),
      Case("pad", {F32({0, 2})}, PadBy({1, 0}, {2, 1}, 1.5)).NoGradient("no elements"),
      Case("pad", {F32({2})}, PadBy({1, 1}, {1, 1})).Refused("C1"),
      Case("pad", {F32({2})}, PadBy({-1}, {1})).Refused("C2"),
      Case("pad", {F32({2})}, PadBy({INT64_MAX}, {INT64_MAX})).Refused("C3"),
  };
}

}  // namespace lockstep
