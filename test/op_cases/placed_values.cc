#include "test/op_cases/placed_values.h"

#include <cmath>
#include <limits>

#include "core/builder.h"
#include "core/check.h"
#include "core/interpreter.h"
#include "core/local_types.h"
#include "core/verifier.h"

namespace lockstep {
namespace {

// A term of a reduction of floats to `value`. `mine` is true for one rank; `others` is the number of the other ranks.
double FloatShare(ReduceKind kind, double value, bool mine, double others) {
  switch (kind) {
    case ReduceKind::kSum: return mine ? value - others : 1.0;
    case ReduceKind::kMean: return mine ? value - others : value + 1.0;
    case ReduceKind::kProd: return mine ? value : 1.0;
    case ReduceKind::kMax: return mine ? value : value - 0.5;
    case ReduceKind::kMin: return mine ? value : value + 0.5;
  }
  return 0;
}

// The same for integers. Sums and products wrap around. The sum under a mean has a remainder, which truncation drops.
template <typename T>
T IntegerShare(ReduceKind kind, T value, bool mine, int64_t others) {
  using Limits = std::numeric_limits<T>;
  const bool is_small = value < Limits::max() / 2 && value > Limits::lowest() / 2;
  const auto moved = [value](int64_t by) {
    return static_cast<T>(static_cast<uint64_t>(value) + static_cast<uint64_t>(by));
  };
  switch (kind) {
    case ReduceKind::kSum: return mine ? moved(-others) : T(1);
    case ReduceKind::kMean: return mine && is_small ? moved(value < 0 ? -others : others) : value;
    case ReduceKind::kProd: return mine ? value : T(1);
    case ReduceKind::kMax: return mine || value == Limits::lowest() ? value : moved(-1);
    case ReduceKind::kMin: return mine || value == Limits::max() ? value : moved(1);
  }
  return value;
}

bool AllBelow(const Tensor& tensor, double limit) {
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (!(std::fabs(tensor.At(i)) < limit)) return false;
  }
  return true;
}

bool CanBePartial(const CaseOperand& operand, ReduceKind kind) {
  if (operand.type.dtype == DType::kBool) return false;
  if (!operand.value) return true;
  if (IsFloat(operand.type.dtype)) return AllBelow(*operand.value, std::numeric_limits<double>::infinity());
  // The sum under a mean of 64-bit integers must fit in 64 bits.
  return kind != ReduceKind::kMean || AllBelow(*operand.value, 0x1p60);
}

}  // namespace

Tensor SliceOf(const Tensor& whole, int64_t dim, int64_t rank, int64_t ranks) {
  Graph graph;
  Builder b(graph);
  const Value x = graph.AddInput("x", whole.type()).value();
  Ints start(static_cast<size_t>(whole.shape().rank()), 0), limit = whole.shape().dims();
  const int64_t length = whole.shape()[dim] / ranks;
  start[static_cast<size_t>(dim)] = rank * length;
  limit[static_cast<size_t>(dim)] = (rank + 1) * length;
  LOCKSTEP_CHECK(graph.AddResult("y", b.Slice(x, start, limit)).ok()) << b.status();
  return InterpretOneRank(graph, {whole}).value()[0];
}

Tensor OnRank(const Tensor& whole, const Placement& placement, int64_t rank, int64_t ranks) {
  if (placement.is_split()) return SliceOf(whole, placement.dim(), rank, ranks);
  if (!placement.is_partial() || whole.num_elements() == 0) return whole;
  Tensor share = whole;
  DispatchDType(whole.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    int64_t at = 0;
    for (T& element : share.mutable_data<T>()) {
      const bool mine = at++ % ranks == rank;  // for one rank of each element
      if constexpr (std::is_same_v<T, bool>) continue;
      else if constexpr (std::is_integral_v<T>) element = IntegerShare(placement.reduce(), element, mine, ranks - 1);
      else
        element = ConvertElement<T>(
            FloatShare(placement.reduce(), static_cast<double>(element), mine, static_cast<double>(ranks - 1)));
    }
  });
  return share;
}

std::vector<Placement> PlacementsOf(const CaseOperand& operand, int64_t ranks) {
  const TensorType& type = operand.type;
  std::vector<Placement> placements = {Placement::Replicated()};
  for (int64_t dim = 0; dim < type.shape.rank(); ++dim) {
    if (type.shape[dim] % ranks == 0) placements.push_back(Placement::Split(dim));
  }
  for (ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMean, ReduceKind::kMax, ReduceKind::kMin, ReduceKind::kProd}) {
    if (CanBePartial(operand, kind)) placements.push_back(Placement::Partial(kind));
  }
  return placements;
}

absl::StatusOr<Graph> VerifiedLocal(const Graph& placed) {
  RETURN_IF_ERROR(Verify(placed));
  ASSIGN_OR_RETURN(Graph local, ToLocalTypes(placed));
  RETURN_IF_ERROR(Verify(local));
  ASSIGN_OR_RETURN(const Graph back, ToGlobalTypes(local));
  if (back.ToString() != placed.ToString()) return Internal() << "global types come back as\n" << back.ToString();
  return local;
}

}  // namespace lockstep
