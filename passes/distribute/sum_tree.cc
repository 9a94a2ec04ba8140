#include "passes/distribute/sum_tree.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/op_def.h"

namespace lockstep::passes {
namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<Value>;

constexpr size_t kMaxTerms = 16;  // of one loop; a power of two

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

std::string_view OpOf(ReduceKind kind, DType dtype) {
  if (kind == ReduceKind::kMax) return dtype == DType::kBool ? "or" : "max";
  if (kind == ReduceKind::kMin) return dtype == DType::kBool ? "and" : "min";
  return kind == ReduceKind::kProd ? "mul" : "add";
}

// Returns row i of x, of two dimensions, as one row.
Value Row(LocalEmitter& emit, Value x, int64_t i, Placement placement) {
  const Ints start = {i, 0}, limit = {i + 1, x.shape()[1]}, stride = {1, 1};
  return emit.Op("slice", {x}, {{"start", start}, {"limit", limit}, {"stride", stride}}, placement);
}

Value Columns(LocalEmitter& emit, Value x, int64_t begin, int64_t end) {
  if (!x || (begin == 0 && end == x.shape()[1])) return x;
  const Ints start = {0, begin}, limit = {1, end}, stride = {1, 1};
  return emit.Op("slice", {x}, {{"start", start}, {"limit", limit}, {"stride", stride}}, Placement::Replicated());
}

}  // namespace

// What the steps of one reduction have in common.
struct SumTree::Level {
  ReduceKind kind;
  DType dtype;     // of the operands and results
  DType wide;      // in which terms are combined
  int64_t leaves;  // the number of virtual ranks
};

absl::StatusOr<Values> SumTree::Reduce(ReduceKind kind, const std::vector<Values>& terms) {
  const DType dtype = terms[0][0].dtype();
  if (kind == ReduceKind::kMean && !IsFloat(dtype))
    return InvalidArgument() << "the mean of " << dtype << " over virtual ranks";
  const Level level{kind, dtype, IsHalf(dtype) ? DType::kF32 : dtype,
                    static_cast<int64_t>(terms[0].size()) * emit_.ranks()};
  Values sums(terms.size()), rows;
  for (const Values& each : terms) {
    if (each[0].type().num_elements() > 0) rows.push_back(OfThisRank(level, each));
  }
  RETURN_IF_ERROR(emit_.status());
  Value row = rows.empty() || emit_.ranks() == 1 ? Value() : AcrossRanks(level, rows);
  RETURN_IF_ERROR(emit_.status());
  int64_t begin = 0;
  for (size_t i = 0, k = 0; i < terms.size(); ++i) {
    const Shape& shape = terms[i][0].shape();
    const int64_t count = shape.num_elements();
    if (count == 0) {
      sums[i] = emit_.Splat(0, terms[i][0].type(), Placement::Replicated());
      continue;
    }
    const Value sum = row ? Columns(emit_, row, begin, begin + count) : rows[k];
    sums[i] = emit_.Reshape(sum, shape, Placement::Replicated());
    begin += count;
    ++k;
  }
  RETURN_IF_ERROR(emit_.status());
  return sums;
}

// Combines the terms of this rank: [1, count], as one of the ranks' rows.
Value SumTree::OfThisRank(const Level& level, Values terms) {
  // Gradients of filters are added in the layout of their kernel, and only their sum is reordered. Other terms become
  // row-major first: a loop may choose its layout by its readers, and the order of its sums by its layout.
  const bool keeps_layout = level.kind == ReduceKind::kSum && terms[0].node->Is("convolution_grad_filter");
  const Placement placement = keeps_layout ? terms[0].placement(kDataAxis) : Placement::Split(0);
  if (!keeps_layout) {
    for (Value& term : terms) term = AsRow(level, term);
  }
  while (terms.size() > 1) {
    Values combined;
    const size_t at_once = std::min(terms.size(), kMaxTerms);
    const bool is_last = emit_.ranks() == 1 && at_once == terms.size();
    for (size_t i = 0; i < terms.size(); i += at_once) {
      const auto first = terms.begin() + static_cast<std::ptrdiff_t>(i);
      combined.push_back(
          Combined(level, Values(first, first + static_cast<std::ptrdiff_t>(at_once)), placement, is_last));
    }
    terms = std::move(combined);
  }
  return keeps_layout ? AsRow(level, terms[0]) : terms[0];
}

Value SumTree::AsRow(const Level& level, Value term) {
  if (!term) return term;
  const int64_t count = term.type().num_elements();
  const Value flat = emit_.Reshape(term, Shape({count}));
  if (emit_.ranks() == 1) return emit_.Reshape(flat, Shape({1, count}));
  const AttributeMap attributes = {
      {"axis", LocalEmitter::Axis()}, {"shape", Ints{1, count}}, {"kind", std::string(ReduceKindName(level.kind))}};
  return emit_.Op("parts", {flat}, attributes, Placement::Split(0));
}

// Combines the ranks' rows, of all operands side by side: [1, total], or a little longer.
Value SumTree::AcrossRanks(const Level& level, const Values& rows) {
  int64_t total = 0;
  for (Value row : rows) total += row.shape()[1];
  const DType dtype = rows[0].dtype();
  const bool in_slices = total * static_cast<int64_t>(SizeOf(dtype)) >= options_.min_bytes_of_slices;
  Values parts = rows;
  const int64_t rest = in_slices ? (emit_.ranks() - total % emit_.ranks()) % emit_.ranks() : 0;
  if (rest > 0) parts.push_back(emit_.Splat(0, {dtype, Shape({1, rest})}, Placement::Split(0)));
  const Value row =
      parts.size() == 1 ? parts[0] : emit_.Op("concat", parts, {{"dim", int64_t{1}}}, Placement::Split(0));
  if (!in_slices) return Combined(level, emit_.Gather({row}, 0), Placement::Replicated(), /*is_last=*/true);
  const AttributeMap exchange = {{"axis", LocalEmitter::Axis()}, {"split_dim", int64_t{1}}, {"concat_dim", int64_t{0}}};
  const Value slices = emit_.Op("all_to_all", {row}, exchange, Placement::Split(1));
  return emit_.Gather({Combined(level, {slices}, Placement::Split(1), /*is_last=*/true)}, 1)[0];
}

// One loop that combines several inputs, or the rows of one, all placed as `placement`. If `is_last`, it divides a
// mean, and rounds to the dtype of the operands.
Value SumTree::Combined(const Level& level, const Values& inputs, Placement placement, bool is_last) {
  if (!emit_.status().ok()) return Value();
  Graph body("sum");
  LocalEmitter inside(body, emit_.ranks());
  Values terms;
  for (Value input : inputs) {
    const Value x = body.AddInput(input.name(), input.type(), false, emit_.Along(placement)).value();
    const int64_t rows = inputs.size() > 1 ? 1 : input.shape()[0];
    for (int64_t i = 0; i < rows; ++i) terms.push_back(rows == 1 ? x : Row(inside, x, i, placement));
  }
  for (Value& term : terms) {
    if (term && term.dtype() != level.wide) term = inside.Op("convert", {term}, {{"dtype", level.wide}}, placement);
  }
  for (size_t count = terms.size(); count > 1; count /= 2) {
    for (size_t i = 0; i < count / 2; ++i)
      terms[i] = inside.Op(OpOf(level.kind, level.wide), {terms[2 * i], terms[2 * i + 1]}, {}, placement);
  }
  Value sum = terms[0];
  if (is_last && level.kind == ReduceKind::kMean) {
    const Value share = inside.Splat(1.0 / static_cast<double>(level.leaves), sum.type(), placement);
    sum = inside.Op("mul", {sum, share}, {}, placement);
  }
  if (is_last && level.dtype != level.wide) sum = inside.Op("convert", {sum}, {{"dtype", level.dtype}}, placement);
  absl::Status added = inside.status().ok() ? body.AddResult("sum", sum, emit_.Along(placement)) : inside.status();
  LOCKSTEP_CHECK(added.ok()) << added;

  const Value fused = emit_.Op("fusion", inputs, {{"body", Region(body.Clone())}}, placement);
  if (!fused || !options_.supports || options_.supports(*fused.node)) return fused;
  emit_.graph().Erase(fused.node);
  ValueMap map;
  for (size_t i = 0; i < inputs.size(); ++i) map[body.inputs()[i].value] = inputs[i];
  for (const Node& node : body.nodes()) emit_.Keep(emit_.graph().InsertCopy(node, map).status());
  return emit_.status().ok() ? map.at(sum) : Value();
}

}  // namespace lockstep::passes
