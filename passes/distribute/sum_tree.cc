#include "passes/distribute/sum_tree.h"

#include <algorithm>
#include <numeric>
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

// Entry [i, j] of x, of three dimensions, as [1, 1, extent].
Value Entry(LocalEmitter& emit, Value x, int64_t i, int64_t j, Placement placement) {
  const Ints start = {i, j, 0}, limit = {i + 1, j + 1, x.shape()[2]}, stride = {1, 1, 1};
  return emit.Op("slice", {x}, {{"start", start}, {"limit", limit}, {"stride", stride}}, placement);
}

// A subtree over the virtual ranks from `first` on, whose number `size` is a power of two that divides `first`.
struct Block {
  int64_t first, size;
};

// The fewest subtrees that cover the virtual ranks from `begin` to `end`.
std::vector<Block> BlocksOf(int64_t begin, int64_t end) {
  std::vector<Block> blocks;
  while (begin < end) {
    int64_t size = 1;
    while (begin % (2 * size) == 0 && begin + 2 * size <= end) size *= 2;
    blocks.push_back({begin, size});
    begin += size;
  }
  return blocks;
}

std::vector<Block> BlocksOfRank(const VirtualRanks& options, int64_t rank) {
  return BlocksOf(FirstOf(options, rank), FirstOf(options, rank + 1));
}

// The blocks of the rank that has most.
int64_t MostBlocks(const VirtualRanks& options) {
  size_t most = 0;
  for (int64_t rank = 0; rank < options.ranks; ++rank) most = std::max(most, BlocksOfRank(options, rank).size());
  return static_cast<int64_t>(most);
}

// The terms of all blocks in their order. x has the blocks of each rank, [ranks, most blocks, extent].
Values EntriesOfBlocks(const VirtualRanks& options, LocalEmitter& emit, Value x, Placement placement) {
  Values entries;
  for (int64_t rank = 0; rank < options.ranks; ++rank) {
    const auto count = static_cast<int64_t>(BlocksOfRank(options, rank).size());
    for (int64_t j = 0; j < count; ++j) entries.push_back(Entry(emit, x, rank, j, placement));
  }
  return entries;
}

template <typename Combine>
Value OfEqualTerms(Values terms, const Combine& combine) {
  for (size_t count = terms.size(); count > 1; count /= 2) {
    for (size_t i = 0; i < count / 2; ++i) terms[i] = combine(terms[2 * i], terms[2 * i + 1]);
  }
  return terms[0];
}

// Combines neighbours that are the two halves of a subtree, until one is left.
template <typename Combine>
Value OfBlocks(const VirtualRanks& options, const Values& terms, const Combine& combine) {
  std::vector<std::pair<Block, Value>> open;
  size_t next = 0;
  for (int64_t rank = 0; rank < options.ranks; ++rank) {
    for (Block block : BlocksOfRank(options, rank)) {
      Value value = terms[next++];
      while (!open.empty() && open.back().first.size == block.size && block.first % (2 * block.size) != 0) {
        value = combine(open.back().second, value);
        block = {open.back().first.first, 2 * block.size};
        open.pop_back();
      }
      open.emplace_back(block, value);
    }
  }
  return open[0].second;
}

Value Columns(LocalEmitter& emit, Value x, int64_t begin, int64_t end) {
  if (!x || (begin == 0 && end == x.shape()[1])) return x;
  const Ints start = {0, begin}, limit = {1, end}, stride = {1, 1};
  return emit.Op("slice", {x}, {{"start", start}, {"limit", limit}, {"stride", stride}}, Placement::Replicated());
}

}  // namespace

int64_t FirstOf(const VirtualRanks& options, int64_t rank) {
  if (options.counts.empty()) return 0;
  return std::accumulate(options.counts.begin(), options.counts.begin() + rank, int64_t{0});
}

// What the steps of one reduction have in common.
struct SumTree::Level {
  ReduceKind kind;
  DType dtype;       // of the operands and results
  DType wide;        // in which terms are combined
  int64_t leaves;    // the number of virtual ranks
  bool has_counts;   // ranks have several blocks, and rows [1, blocks, count]
  std::string name;  // of what ranks exchange
};

absl::StatusOr<Values> SumTree::Reduce(ReduceKind kind, const std::vector<Values>& terms, const std::string& name) {
  const DType dtype = terms[0][0].dtype();
  if (kind == ReduceKind::kMean && !IsFloat(dtype))
    return InvalidArgument() << "the mean of " << dtype << " over virtual ranks";
  const bool has_counts = !options_.counts.empty() && emit_.ranks() > 1;
  const int64_t leaves =
      has_counts ? FirstOf(options_, options_.ranks) : static_cast<int64_t>(terms[0].size()) * emit_.ranks();
  const Level level{kind, dtype, IsHalf(dtype) ? DType::kF32 : dtype, leaves, has_counts, name};
  Values sums(terms.size()), rows;
  for (const Values& each : terms) {
    if (each[0].type().num_elements() > 0)
      rows.push_back(has_counts ? BlocksOfThisRank(level, each) : OfThisRank(level, each));
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

// Combines the terms of each block of this rank: [1, blocks, count], as one of the ranks' rows, with zeros in the place
// of blocks that only other ranks have.
Value SumTree::BlocksOfThisRank(const Level& level, const Values& terms) {
  const int64_t count = terms[0].type().num_elements(), most = MostBlocks(options_);
  Values blocks;
  auto begin = terms.begin();
  for (const Block& block : BlocksOfRank(options_, options_.rank)) {
    Value sum = OfThisRank(level, Values(begin, begin + block.size));
    if (sum && sum.dtype() != level.wide)
      sum = emit_.Op("convert", {sum}, {{"dtype", level.wide}}, Placement::Split(0));
    blocks.push_back(emit_.Reshape(sum, Shape({1, 1, count}), Placement::Split(0)));
    begin += block.size;
  }
  while (static_cast<int64_t>(blocks.size()) < most)
    blocks.push_back(emit_.Splat(0, {level.wide, Shape({1, 1, count})}, Placement::Split(0)));
  return blocks.size() == 1 ? blocks[0] : emit_.Op("concat", blocks, {{"dim", int64_t{1}}}, Placement::Split(0));
}

// Combines the terms of this rank, whose number is a power of two: [1, count], as one of the ranks' rows.
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
  if (!emit_.status().ok()) return Value();
  const int64_t last = level.has_counts ? 2 : 1;
  int64_t total = 0;
  for (Value row : rows) total += row.shape()[last];
  const DType dtype = rows[0].dtype();
  const bool in_slices = total * static_cast<int64_t>(SizeOf(dtype)) >= options_.min_bytes_of_slices;
  Values parts = rows;
  const int64_t rest = in_slices ? (emit_.ranks() - total % emit_.ranks()) % emit_.ranks() : 0;
  if (rest > 0) parts.push_back(emit_.Splat(0, {dtype, rows[0].shape().WithDim(last, rest)}, Placement::Split(0)));
  // With counts also one part is copied: its memory has the name of a copy's value, which is not on all ranks.
  const bool is_row = parts.size() == 1 && !level.has_counts;
  Value row = is_row ? parts[0] : emit_.Op("concat", parts, {{"dim", last}}, Placement::Split(0));
  if (level.has_counts) row = Named(level, row, "terms");
  if (!in_slices) {
    const Value all = Named(level, emit_.Gather({row}, 0)[0], "all_terms");
    return AsColumns(level, Combined(level, {all}, Placement::Replicated(), /*is_last=*/true), Placement::Replicated());
  }
  const AttributeMap exchange = {{"axis", LocalEmitter::Axis()}, {"split_dim", last}, {"concat_dim", int64_t{0}}};
  const Value slices = Named(level, emit_.Op("all_to_all", {row}, exchange, Placement::Split(last)), "slices");
  const Value sum = Named(level, Combined(level, {slices}, Placement::Split(last), /*is_last=*/true), "slice");
  const Value own = Named(level, AsColumns(level, sum, Placement::Split(1)), "slice_of_sum");
  return Named(level, emit_.Gather({own}, 1)[0], "sums");
}

// With counts, programs of ranks have other numbers of nodes, and ranks compare the names of what they exchange.
Value SumTree::Named(const Level& level, Value value, std::string_view part) {
  return level.has_counts ? emit_.Named(value, level.name + "/" + std::string(part)) : value;
}

// Returns a sum of rows, [1, 1, count] if ranks have several blocks, as [1, count].
Value SumTree::AsColumns(const Level& level, Value sum, Placement placement) {
  if (!level.has_counts || !sum) return sum;
  return emit_.Reshape(sum, Shape({1, sum.shape()[2]}), placement);
}

// One loop that combines several inputs, or the rows of one, all placed as `placement`. If `is_last`, it divides a
// mean, and rounds to the dtype of the operands.
Value SumTree::Combined(const Level& level, const Values& inputs, Placement placement, bool is_last) {
  if (!emit_.status().ok()) return Value();
  Graph body("sum");
  LocalEmitter inside(body, emit_.ranks());
  Values terms;
  // Rows of three dimensions are only made across ranks; terms of one rank have any shape.
  const bool of_blocks = level.has_counts && is_last;
  for (Value input : inputs) {
    const Value x = body.AddInput(input.name(), input.type(), false, emit_.Along(placement)).value();
    const int64_t rows = inputs.size() > 1 ? 1 : input.shape()[0];
    if (of_blocks) terms = EntriesOfBlocks(options_, inside, x, placement);
    for (int64_t i = 0; i < rows && !of_blocks; ++i) terms.push_back(rows == 1 ? x : Row(inside, x, i, placement));
  }
  for (Value& term : terms) {
    if (term && term.dtype() != level.wide) term = inside.Op("convert", {term}, {{"dtype", level.wide}}, placement);
  }
  const auto combine = [&](Value one, Value other) {
    return inside.Op(OpOf(level.kind, level.wide), {one, other}, {}, placement);
  };
  Value sum = of_blocks ? OfBlocks(options_, terms, combine) : OfEqualTerms(terms, combine);
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
