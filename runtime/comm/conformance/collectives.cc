// Tests the results of collectives against a plain loop, with every dtype and kind, many in flight, in any memory.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "bazel/num_cases.h"
#include "core/collective_op.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/comm/conformance/support.h"

namespace lockstep {
namespace {

constexpr ReduceKind kKinds[] = {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax, ReduceKind::kProd,
                                 ReduceKind::kMean};

// Returns element i of rank r's input. The values reveal a wrong order of additions, overflow, and exchanged ranks or
// elements.
template <typename T>
T Input(int r, int64_t i) {
  const uint64_t hash = (i * 7 + r * 1000003 + 12345) * 0x9e3779b97f4a7c15u;
  if constexpr (std::is_same_v<T, bool>) return (hash >> 60) > 2;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(hash >> (64 - 8 * sizeof(T)));  // all bits
  else return static_cast<T>((static_cast<float>(hash >> 40) / (1 << 23) - 0.7f) * ((hash >> 8) % 5 == 0 ? 3.f : 1.f));
}

// Computes the reduction as the header of Communicator defines it, one element at a time.
template <typename T>
T Expected(ReduceKind kind, int size, int64_t i) {
  if constexpr (std::is_same_v<T, bool>) {
    bool any = false, all = true;
    for (int r = 0; r < size; ++r) any |= Input<T>(r, i), all &= Input<T>(r, i);
    return kind == ReduceKind::kSum || kind == ReduceKind::kMax ? any : all;
  } else {
    using Wide = std::conditional_t<std::is_integral_v<T>, Accumulator<T>,
                                    std::conditional_t<std::is_same_v<T, double>, double, float>>;
    auto add = [](Wide a, Wide b) {
      if constexpr (std::is_integral_v<T>)
        return static_cast<Wide>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
      else return a + b;
    };
    auto multiply = [](Wide a, Wide b) {
      if constexpr (std::is_integral_v<T>)
        return static_cast<Wide>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      else return a * b;
    };
    Wide sum = static_cast<Wide>(Input<T>(0, i));
    for (int r = 1; r < size; ++r) {
      const Wide x = static_cast<Wide>(Input<T>(r, i));
      switch (kind) {
        case ReduceKind::kSum:
        case ReduceKind::kMean: sum = add(sum, x); break;
        case ReduceKind::kMin: sum = std::min(sum, x); break;
        case ReduceKind::kMax: sum = std::max(sum, x); break;
        case ReduceKind::kProd: sum = multiply(sum, x); break;
      }
    }
    if (kind == ReduceKind::kMean) sum = sum / static_cast<Wide>(size);
    return static_cast<T>(sum);
  }
}

// Compares bits; or, for floats from a communicator with its own order of additions, allows the error of reordering.
template <typename T>
bool AsExpected(const Communicator& c, const T& found, const T& expected) {
  if constexpr (!std::is_integral_v<T>) {
    if (!c.reduces_in_rank_order()) {
      const double epsilon = std::ldexp(1, std::is_same_v<T, double>    ? -52
                                           : std::is_same_v<T, float>   ? -23
                                           : std::is_same_v<T, Float16> ? -10
                                                                        : -7);
      const double x = static_cast<double>(found), y = static_cast<double>(expected);
      return std::abs(x - y) <= 16 * epsilon * std::max(1.0, std::abs(y));
    }
  }
  return std::memcmp(&found, &expected, sizeof(T)) == 0;
}

// Returns true for the combinations that NCCL, and so its communicator, does not support.
bool IsMissing(const Communicator& c, DType dtype, ReduceKind kind) {
  if (c.transport() != "nccl" || !IsInteger(dtype)) return false;
  return SizeOf(dtype) == 2 || (kind == ReduceKind::kMean && SizeOf(dtype) < 8);
}

template <typename T>
absl::Status ExpectEqual(const Communicator& c, const T* found, const T* expected, int64_t count,
                         const std::string& what) {
  if (count == 0 || std::memcmp(found, expected, count * sizeof(T)) == 0) return absl::OkStatus();
  for (int64_t i = 0; i < count; ++i) {
    if (AsExpected(c, found[i], expected[i])) continue;
    return Wrong(c, what) << "element " << i << " is " << DoubleToString(static_cast<double>(found[i])) << ", expected "
                          << DoubleToString(static_cast<double>(expected[i]));
  }
  return absl::OkStatus();
}

absl::Status ExpectSameOnAllRanks(Communicator& c, const void* data, size_t bytes, const std::string& what) {
  const size_t hash = std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
  ASSIGN_OR_RETURN(const std::vector<std::string> hashes, c.AllGatherBytes(std::to_string(hash), "hash of the result"));
  for (int r = 0; r < c.size(); ++r) {
    if (hashes[r] != hashes[0]) return Wrong(c, what) << "ranks 0 and " << r << " have different results";
  }
  return absl::OkStatus();
}

using Op = CollectiveOp;

std::string Title(Op op, DType dtype, ReduceKind kind, int64_t count, bool registered, bool in_place) {
  std::ostringstream text;
  text << CollectiveOpName(op);
  if (TraitsOf(op).reduces) text << " " << ReduceKindName(kind);
  text << " " << dtype << " x " << count << (registered ? ", registered" : ", not registered")
       << (in_place ? ", in place" : ", not in place");
  return text.str();
}

// Returns pairs that depend on the count: none, neighbours in a ring, some of the ranks, or each rank with itself.
std::vector<RankPair> PairsOf(int ranks, int64_t count) {
  std::vector<RankPair> pairs;
  for (int source = 0; source < ranks; ++source) {
    switch (count % 4) {
      case 0: pairs.push_back({source, (source + 1) % ranks}); break;
      case 1: break;
      case 2:
        if (source % 2 == 0) pairs.push_back({source, ranks - 1 - source / 2});
        break;
      case 3: pairs.push_back({source, source}); break;
    }
  }
  return pairs;
}

// Runs one collective with operands of at most `memory` bytes and compares the result with this rank's own computation.
template <typename T>
absl::Status RunAndCheck(Communicator& c, Op op, ReduceKind kind, int64_t count, bool in_place, Operand& a, Operand& b,
                         const std::string& title) {
  const int n = c.size();
  const int root = static_cast<int>(count % n);
  const CollectiveTraits traits = TraitsOf(op);
  const int64_t in_count = traits.scatters ? n * count : count;
  const int64_t out_count = traits.gathers ? n * count : count;
  const std::vector<RankPair> pairs = PairsOf(n, count);
  T* const first = reinterpret_cast<T*>(a.data());
  T* input = first;
  T* output = reinterpret_cast<T*>(b.data());
  if (in_place) output = op == Op::kReduceScatter ? first + c.rank() * count : first;
  if (in_place && op == Op::kAllGather) input = first + c.rank() * count;
  for (int64_t i = 0; i < in_count; ++i) input[i] = Input<T>(c.rank(), i);
  const DType dtype = DTypeOf<T>();
  const Communicator::Call call{.label = title};
  // For a long all_reduce, each rank checks its own part, and all ranks check that their results are equal.
  const bool divided = op == Op::kAllReduce && count > 1000;
  const int64_t check_begin = divided ? out_count * c.rank() / n : 0;
  const int64_t check_end = divided ? out_count * (c.rank() + 1) / n : out_count;
  const std::unique_ptr<T[]> expected(new T[out_count]());  // zeros, the result of a rank that receives nothing
  // Fills the output, so that a result that is not written is detected.
  if (!in_place) std::fill_n(reinterpret_cast<unsigned char*>(output), out_count * sizeof(T), 1);
  if ((op == Op::kAllReduce || op == Op::kReduceScatter) && IsMissing(c, dtype, kind)) {
    const absl::Status status = op == Op::kAllReduce
                                    ? c.Run(Collective::AllReduce(count, dtype, kind), input, output, call)
                                    : c.Run(Collective::ReduceScatter(count, dtype, kind), input, output, call);
    return absl::IsUnimplemented(status) ? absl::OkStatus() : Wrong(c, title) << status.ToString();
  }
  switch (op) {
    case Op::kAllReduce:
      RETURN_IF_ERROR(c.Run(Collective::AllReduce(count, dtype, kind), input, output, call));
      for (int64_t i = check_begin; i < check_end; ++i) expected[i] = Expected<T>(kind, n, i);
      break;
    case Op::kBroadcast:
      RETURN_IF_ERROR(c.Run(Collective::Broadcast(count, dtype, root), c.rank() == root || in_place ? input : nullptr,
                            output, call));
      for (int64_t i = 0; i < count; ++i) expected[i] = Input<T>(root, i);
      break;
    case Op::kAllGather:
      RETURN_IF_ERROR(c.Run(Collective::AllGather(count, dtype), input, output, call));
      for (int64_t i = 0; i < out_count; ++i) expected[i] = Input<T>(static_cast<int>(i / count), i % count);
      break;
    case Op::kReduceScatter:
      RETURN_IF_ERROR(c.Run(Collective::ReduceScatter(count, dtype, kind), input, output, call));
      for (int64_t i = 0; i < count; ++i) expected[i] = Expected<T>(kind, n, c.rank() * count + i);
      break;
    case Op::kAllToAll:
      RETURN_IF_ERROR(c.Run(Collective::AllToAll(count, dtype), input, output, call));
      for (int64_t i = 0; i < out_count; ++i)
        expected[i] = Input<T>(static_cast<int>(i / count), c.rank() * count + i % count);
      break;
    case Op::kPermute:
      RETURN_IF_ERROR(c.Run(Collective::Permute(count, dtype, pairs), input, output, call));
      for (const RankPair& pair : pairs) {
        for (int64_t i = 0; pair.target == c.rank() && i < count; ++i) expected[i] = Input<T>(pair.source, i);
      }
      break;
    case Op::kGather:
      RETURN_IF_ERROR(c.Run(Collective::Gather(count, dtype, root), input, output, call));
      for (int64_t i = 0; c.rank() == root && i < out_count; ++i)
        expected[i] = Input<T>(static_cast<int>(i / count), i % count);
      break;
    case Op::kScatter:
      RETURN_IF_ERROR(c.Run(Collective::Scatter(count, dtype, root), c.rank() == root ? input : nullptr, output, call));
      for (int64_t i = 0; i < count; ++i) expected[i] = Input<T>(root, c.rank() * count + i);
      break;
    case Op::kBarrier:
    case Op::kAllocate: break;  // they move nothing
  }
  RETURN_IF_ERROR(ExpectEqual(c, output + check_begin, expected.get() + check_begin, check_end - check_begin, title));
  if (divided) RETURN_IF_ERROR(ExpectSameOnAllRanks(c, output, count * sizeof(T), title));
  if (!in_place) {
    for (int64_t i = 0; i < in_count; ++i) {
      const T original = Input<T>(c.rank(), i);
      if (std::memcmp(&input[i], &original, sizeof(T)) != 0) return Wrong(c, title) << "the input has changed at " << i;
    }
  }
  return absl::OkStatus();
}

// Tests every dtype and kind, in place or not, registered or not, with up to 1000 elements; with more elements, only
// every n-th variant. Without `make test-everything`, only every n-th variant of all counts. The number of ranks
// determines the variants.
absl::Status Sweep(Communicator& c, Op op) {
  const bool reduces = TraitsOf(op).reduces, shares = TraitsOf(op).counts_slices();
  // The strides do not divide the numbers of dtypes, kinds and places, so that all combinations occur. Large counts
  // take nearly all of the time under sanitizers.
  const int stride = reduces ? 11 : 3, large_stride = !kIsSanitized ? stride : reduces ? 37 : 7;
  const int small_stride = TestsEverything() ? 1 : stride;
  int variant = c.size();
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{10}, int64_t{11}, int64_t{1000}, Most()}) {
    const bool is_large = count > 1000;
    if (is_large && shares) count /= c.size();  // the total number of elements
    for (bool registered : {false, true}) {
      const size_t bytes = count * sizeof(double) * (shares ? c.size() : 1);
      ASSIGN_OR_RETURN(Operand a, Operand::Make(c, registered, bytes));
      ASSIGN_OR_RETURN(Operand b, Operand::Make(c, registered, bytes));
      for (DType dtype : kAllDTypes) {
        for (ReduceKind kind : kKinds) {
          if (!reduces && kind != ReduceKind::kSum) continue;
          for (bool in_place : {false, true}) {
            if (in_place && TraitsOf(op).is_direct()) continue;
            if (variant++ % (is_large ? large_stride : small_stride) != 0) continue;
            const std::string title = Title(op, dtype, kind, count, registered, in_place);
            RETURN_IF_ERROR(DispatchDType(dtype, [&](auto tag) {
              return RunAndCheck<typename decltype(tag)::type>(c, op, kind, count, in_place, a, b, title);
            }));
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

// Tests buckets: each rank's share of each piece has the position that the header of Communicator defines.
absl::Status Pieces(Communicator& c) {
  const auto align = [](size_t bytes) { return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment; };
  const int n = c.size();
  for (const std::vector<int64_t>& counts :
       {std::vector<int64_t>{5}, {1, 0, 17, 3}, {30000, 1, 2, 16}, {0, 0}, {Most() / (4 * n), 7, Most() / (8 * n)}}) {
    const auto num_pieces = static_cast<int>(counts.size());
    std::vector<size_t> small = {0}, large = {0};  // the beginnings of pieces, and the end
    for (const int64_t count : counts) {
      small.push_back(align(small.back() + count * sizeof(float)));
      large.push_back(align(large.back() + n * count * sizeof(float)));
    }
    for (bool registered : {false, true}) {
      ASSIGN_OR_RETURN(Operand a, Operand::Make(c, registered, small.back()));
      ASSIGN_OR_RETURN(Operand b, Operand::Make(c, registered, large.back()));
      const auto own = [&](int p) { return reinterpret_cast<float*>(a.data() + small[p]); };
      const auto whole = [&](int p) { return reinterpret_cast<float*>(b.data() + large[p]); };
      for (int p = 0; p < num_pieces; ++p) {
        for (int64_t i = 0; i < counts[p]; ++i) own(p)[i] = Input<float>(c.rank(), 100 * p + i);
      }
      RETURN_IF_ERROR(
          c.Run(Collective::AllGather(counts, DType::kF32), a.data(), b.data(), {.label = "gathered pieces"}));
      for (int p = 0; p < num_pieces; ++p) {
        for (int64_t i = 0; i < n * counts[p]; ++i) {
          const float expected = Input<float>(static_cast<int>(i / counts[p]), 100 * p + i % counts[p]);
          if (whole(p)[i] != expected) return Wrong(c, "gathered pieces") << "piece " << p << ", element " << i;
          whole(p)[i] = Input<float>(c.rank(), 100 * p + i);
        }
      }
      RETURN_IF_ERROR(c.Run(Collective::ReduceScatter(counts, DType::kF32, ReduceKind::kSum), b.data(), a.data(),
                            {.label = "scattered pieces"}));
      for (int p = 0; p < num_pieces; ++p) {
        for (int64_t i = 0; i < counts[p]; ++i) {
          if (!AsExpected(c, own(p)[i], Expected<float>(ReduceKind::kSum, n, 100 * p + c.rank() * counts[p] + i)))
            return Wrong(c, "scattered pieces") << "piece " << p << ", element " << i;
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Roster(Communicator& c) {
  EXPECT_THAT_OR_RETURN(c.rank() >= 0 && c.rank() < c.size(), "roster");
  EXPECT_THAT_OR_RETURN(!c.transport().empty() && !c.host(c.rank()).empty(), "roster");
  const std::string& host = c.host(c.rank());
  const auto here = [&](int end) { return std::count(c.hosts().begin(), c.hosts().begin() + end, host); };
  EXPECT_THAT_OR_RETURN(c.ranks_on_this_host() == here(c.size()), "roster");
  EXPECT_THAT_OR_RETURN(c.rank_on_this_host() == here(c.rank()), "roster");
  for (int length : {0, 1, 7, 100000}) {
    // Lengths differ: rank r sends r times `length` letters.
    ASSIGN_OR_RETURN(std::vector<std::string> all,
                     c.AllGatherBytes(std::string(c.rank() * length, 'a' + c.rank()), "roster"));
    EXPECT_THAT_OR_RETURN(static_cast<int>(all.size()) == c.size(), "roster");
    for (int r = 0; r < c.size(); ++r) EXPECT_THAT_OR_RETURN(all[r] == std::string(r * length, 'a' + r), "roster");
  }
  return absl::OkStatus();
}

absl::Status BarrierWaits(Communicator& c) {
  for (int late = 0; late < c.size(); ++late) {
    if (c.rank() == late) absl::SleepFor(absl::Milliseconds(20));
    int64_t entered = absl::ToUnixNanos(absl::Now());
    RETURN_IF_ERROR(c.Barrier("barrier"));
    const int64_t left = absl::ToUnixNanos(absl::Now());
    RETURN_IF_ERROR(
        c.Run(Collective::AllReduce(1, DType::kI64, ReduceKind::kMax), &entered, &entered, {.label = "last to enter"}));
    EXPECT_THAT_OR_RETURN(left >= entered, "barrier");
  }
  return absl::OkStatus();
}

// Several buckets in flight, waited for in another order; more than the communicator can hold; some registered on some
// ranks only.
absl::Status ManyInFlight(Communicator& c) {
  for (int buckets : {3, 10, 200}) {
    std::vector<Operand> operands;
    std::vector<int64_t> counts;
    for (int b = 0; b < buckets; ++b) {
      counts.push_back((b * 977) % 5000);
      const bool collective = b % 3 == 0;
      ASSIGN_OR_RETURN(Operand operand, Operand::Make(c, collective, counts[b] * sizeof(float)));
      operands.push_back(std::move(operand));
    }
    for (int round = 0; round < (buckets > 100 ? 2 : 10); ++round) {
      std::vector<Communicator::Ticket> tickets;
      for (int b = 0; b < buckets; ++b) {
        float* x = reinterpret_cast<float*>(operands[b].data());
        for (int64_t i = 0; i < counts[b]; ++i) x[i] = Input<float>(c.rank(), i + b);
        ASSIGN_OR_RETURN(auto ticket, c.Start(Collective::AllReduce(counts[b], DType::kF32, ReduceKind::kSum), x, x,
                                              {.label = "bucket " + std::to_string(b)}));
        tickets.push_back(ticket);
      }
      for (int k = 0; k < buckets; ++k) {
        const int b = round % 2 == 0 ? buckets - 1 - k : k;
        RETURN_IF_ERROR(c.Wait(tickets[b]));
        const float* x = reinterpret_cast<float*>(operands[b].data());
        for (int64_t i = 0; i < counts[b]; ++i) {
          if (!AsExpected(c, x[i], Expected<float>(ReduceKind::kSum, c.size(), i + b)))
            return Wrong(c, "in flight") << "bucket " << b << ", " << i;
        }
      }
    }
  }
  return absl::OkStatus();
}

// One rank may use registered memory while another does not, and an operand may lie anywhere in it.
absl::Status MixedMemory(Communicator& c) {
  constexpr int64_t kCount = 70000;
  ASSIGN_OR_RETURN(Operand shared, Operand::Make(c, true, (kCount + 100) * sizeof(double)));
  std::vector<double> own(kCount);
  for (int turn = 0; turn < c.size(); ++turn) {
    double* x = turn == c.rank() ? own.data() : reinterpret_cast<double*>(shared.data()) + turn * 3 + 1;
    for (int64_t i = 0; i < kCount; ++i) x[i] = Input<double>(c.rank(), i);
    RETURN_IF_ERROR(c.Run(Collective::AllReduce(kCount, DType::kF64, ReduceKind::kSum), x, x, {.label = "mixed"}));
    for (int64_t i = 0; i < kCount; ++i) {
      if (!AsExpected(c, x[i], Expected<double>(ReduceKind::kSum, c.size(), i)))
        return Wrong(c, "mixed") << "element " << i;
    }
  }
  return absl::OkStatus();
}

// AllocateShared returns one piece of memory for all ranks, which lives until the last rank frees it; or the same error
// on all ranks, which has no other effect.
absl::Status SharedMemoryIsOnePiece(Communicator& c) {
  const auto bytes = static_cast<size_t>(c.size());
  auto memory = c.AllocateShared(bytes, "shared");
  const bool is_shared = memory.ok();
  EXPECT_THAT_OR_RETURN(is_shared || memory.status().code() == absl::StatusCode::kFailedPrecondition, "AllocateShared");
  ASSIGN_OR_RETURN(const std::vector<std::string> all, c.AllGatherBytes(is_shared ? "shared" : "", "is it"));
  for (const std::string& each : all) EXPECT_THAT_OR_RETURN(each == all[0], "on some ranks");
  if (!is_shared) return absl::OkStatus();
  std::byte* const data = (*memory)->data();
  EXPECT_THAT_OR_RETURN((*memory)->bytes() >= bytes, "bytes()");
  EXPECT_THAT_OR_RETURN(reinterpret_cast<uintptr_t>(data) % 64 == 0, "alignment");
  EXPECT_THAT_OR_RETURN(data[c.rank()] == std::byte{0}, "zero at first");
  data[c.rank()] = static_cast<std::byte>(c.rank() + 1);
  RETURN_IF_ERROR(c.Barrier("written"));
  if (c.rank() == 0) memory->reset();
  RETURN_IF_ERROR(c.Barrier("the first has let it go"));
  for (int rank = 0; rank < c.size() && c.rank() > 0; ++rank)
    EXPECT_THAT_OR_RETURN(data[rank] == static_cast<std::byte>(rank + 1), "what each wrote");
  return absl::OkStatus();
}

absl::Status MemoryComesAndGoes(Communicator& c) {
  for (int round = 0; round < 20; ++round) {
    const size_t count = (round * 37 + c.rank() * 11) % 100;  // each rank has its own size
    ASSIGN_OR_RETURN(Operand memory, Operand::Make(c, true, count * sizeof(int32_t)));
    int32_t* x = reinterpret_cast<int32_t*>(memory.data());
    for (size_t i = 0; i < count; ++i) EXPECT_THAT_OR_RETURN(x[i] == 0, "fresh memory");
    const int64_t common = (round * 37) % 100 == 0 || c.size() > 1 ? 0 : static_cast<int64_t>(count);
    RETURN_IF_ERROR(c.Run(Collective::AllReduce(common, DType::kI32, ReduceKind::kSum), x, x, {.label = "short"}));
    for (size_t i = 0; i < count; ++i) x[i] = 7;
  }
  return absl::OkStatus();
}

absl::Status BadArguments(Communicator& c) {
  std::vector<float> x(100), y(100);
  auto refused = [](const absl::Status& status) { return status.code() == absl::StatusCode::kInvalidArgument; };
  const Communicator::Call call{.label = "bad"};
  EXPECT_THAT_OR_RETURN(
      refused(c.Run(Collective::AllReduce(1, DType::kF32, ReduceKind::kSum), nullptr, x.data(), call)), "null");
  EXPECT_THAT_OR_RETURN(
      refused(c.Run(Collective::AllReduce(-1, DType::kF32, ReduceKind::kSum), x.data(), x.data(), call)), "negative");
  EXPECT_THAT_OR_RETURN(
      refused(c.Run(Collective::AllReduce(10, DType::kF32, ReduceKind::kSum), x.data(), x.data() + 5, call)),
      "overlap");
  EXPECT_THAT_OR_RETURN(refused(c.Run(Collective::Broadcast(10, DType::kF32, c.size()), x.data(), x.data(), call)),
                        "root");
  EXPECT_THAT_OR_RETURN(refused(c.Run(Collective::Broadcast(10, DType::kF32, -1), x.data(), x.data(), call)), "root");
  EXPECT_THAT_OR_RETURN(refused(c.Run(Collective::Gather(1, DType::kF32, c.size()), x.data(), y.data(), call)), "root");
  EXPECT_THAT_OR_RETURN(refused(c.Run(Collective::Scatter(1, DType::kF32, -1), x.data(), y.data(), call)), "root");
  const RankPair itself[] = {{c.rank(), c.rank()}};
  for (const Collective& never :
       {Collective::AllToAll(1, DType::kF32), Collective::Permute(1, DType::kF32, itself),
        Collective::Gather(1, DType::kF32, c.rank()), Collective::Scatter(1, DType::kF32, c.rank())})
    EXPECT_THAT_OR_RETURN(refused(c.Run(never, x.data(), x.data(), call)), "in place");
  const auto permute = [&](const std::vector<RankPair>& pairs) {
    return c.Run(Collective::Permute(1, DType::kF32, pairs), x.data(), y.data(), call);
  };
  EXPECT_THAT_OR_RETURN(refused(permute({{0, c.size()}})), "no such target");
  EXPECT_THAT_OR_RETURN(refused(permute({{-1, 0}})), "no such source");
  EXPECT_THAT_OR_RETURN(refused(permute({{0, 0}, {0, c.size() - 1}})), "a source twice");
  EXPECT_THAT_OR_RETURN(refused(permute({{0, 0}, {c.size() - 1, 0}})), "a target twice");
  const std::vector<int64_t> none, negative = {3, -1};
  EXPECT_THAT_OR_RETURN(refused(c.Run(Collective::AllGather(none, DType::kF32), x.data(), y.data(), call)),
                        "no pieces");
  EXPECT_THAT_OR_RETURN(refused(c.Run(Collective::AllGather(negative, DType::kF32), x.data(), y.data(), call)),
                        "negative piece");
  EXPECT_THAT_OR_RETURN(!c.Wait({12345678}).ok(), "unknown ticket");
  // None of these calls started anything.
  x.assign(100, 1.f);
  RETURN_IF_ERROR(c.Run(Collective::AllReduce(100, DType::kF32, ReduceKind::kSum), x.data(), y.data(), call));
  EXPECT_THAT_OR_RETURN(y[99] == static_cast<float>(c.size()), "after bad arguments");
  return absl::OkStatus();
}

// No data is moved, and operands may be null.
absl::Status ComparedOnly(Communicator& c) {
  const auto compare = [&](int64_t count) {
    return c.Run(Collective::AllReduce(count, DType::kF32, ReduceKind::kSum), nullptr, nullptr,
                 {.label = "compared", .compared_only = true});
  };
  RETURN_IF_ERROR(compare(1000));
  std::vector<float> x(1000, 1.f);
  RETURN_IF_ERROR(c.Run(Collective::AllReduce(1000, DType::kF32, ReduceKind::kSum), x.data(), x.data(),
                        {.label = "its operands", .compared_only = true}));
  EXPECT_THAT_OR_RETURN(x == std::vector<float>(1000, 1.f), "a call that is compared alone");
  return absl::OkStatus();
}

}  // namespace

std::vector<ConformanceCase> CollectiveCases() {
  std::vector<ConformanceCase> cases = {
      {"Roster", 1, kNormal, Roster},
      {"Pieces", 1, kNormal, Pieces},
      {"BarrierWaits", 1, kNormal, BarrierWaits, /*waits=*/true},
      {"ManyInFlight", 1, kNormal, ManyInFlight},
      {"MixedMemory", 1, kNormal, MixedMemory},
      {"MemoryComesAndGoes", 1, kNormal, MemoryComesAndGoes},
      {"SharedMemoryIsOnePiece", 1, kNormal, SharedMemoryIsOnePiece},
      {"BadArguments", 1, kNormal, BadArguments},
      {"ComparedOnly", 1, kNormal, ComparedOnly},
  };
  for (const Op op : CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.moves_data; })) {
    cases.push_back({std::string(CollectiveOpName(op)), 1, kNormal, [op](Communicator& c) { return Sweep(c, op); }});
  }
  return cases;
}

}  // namespace lockstep
