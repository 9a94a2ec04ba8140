#include "runtime/comm/conformance_cases.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"

namespace lockstep {
namespace {

#ifdef __SANITIZE_THREAD__
constexpr int64_t kMost = 100000;  // every access costs a hundred times as much, and there are many chunks in this, too
constexpr absl::Duration kHurry = absl::Seconds(2);
constexpr absl::Duration kSoon = absl::Seconds(20);
#else
constexpr int64_t kMost = 1000000;
constexpr absl::Duration kHurry = absl::Milliseconds(300);  // a timeout
constexpr absl::Duration kSoon = absl::Seconds(5);          // in which failures are noticed
#endif
absl::Duration Late() { return kHurry * 3 + absl::Seconds(1); }  // when a late rank comes
constexpr int64_t kCounts[] = {0, 1, 10, 1000, kMost};
constexpr ReduceKind kKinds[] = {ReduceKind::kSum, ReduceKind::kMin, ReduceKind::kMax, ReduceKind::kProd,
                                 ReduceKind::kMean};

// Element i of rank r's input: values that show a wrong order of additions, overflow, and mixed up ranks or elements.
template <typename T>
T Input(int r, int64_t i) {
  const uint64_t hash = (i * 7 + r * 1000003 + 12345) * 0x9e3779b97f4a7c15u;
  if constexpr (std::is_same_v<T, bool>) return (hash >> 60) > 2;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(hash >> 13);
  else return static_cast<T>((static_cast<float>(hash >> 40) / (1 << 23) - 0.7f) * ((hash >> 8) % 5 == 0 ? 3.f : 1.f));
}

// The reduction as the header of Communicator defines it, one element at a time.
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

ErrorStream Wrong(const Communicator& c, const std::string& what) {
  return Internal() << "rank " << c.rank() << ": " << what << ": ";
}

#define EXPECT_THAT_OR_RETURN(condition, what) \
  if (!(condition)) return Wrong(c, what) << "not so: " #condition

template <typename T>
absl::Status ExpectEqual(const Communicator& c, const T* found, const T* expected, int64_t count,
                         const std::string& what) {
  if (count == 0 || std::memcmp(found, expected, count * sizeof(T)) == 0) return absl::OkStatus();
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(found + i, expected + i, sizeof(T)) == 0) continue;
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

// Memory for an operand, registered or not.
class Operand {
 public:
  static absl::StatusOr<Operand> Make(Communicator& c, bool registered, size_t bytes) {
    Operand operand;
    if (registered) {
      ASSIGN_OR_RETURN(operand.registered_, c.Allocate(bytes, "operand"));
      EXPECT_THAT_OR_RETURN(operand.registered_->bytes() >= bytes, "Allocate");
      EXPECT_THAT_OR_RETURN(reinterpret_cast<uintptr_t>(operand.registered_->data()) % 64 == 0, "Allocate");
    } else {
      operand.plain_.resize(bytes + 64);
    }
    return operand;
  }
  std::byte* data() { return registered_ != nullptr ? registered_->data() : plain_.data(); }

 private:
  std::unique_ptr<RegisteredMemory> registered_;
  std::vector<std::byte> plain_;
};

enum class Op { kAllReduce, kBroadcast, kAllGather, kReduceScatter };

std::string Title(Op op, DType dtype, ReduceKind kind, int64_t count, bool registered, bool in_place) {
  const char* const names[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter"};
  std::ostringstream text;
  text << names[static_cast<int>(op)] << " " << ReduceKindName(kind) << " " << dtype << " x " << count
       << (registered ? ", registered" : ", not registered") << (in_place ? ", in place" : ", not in place");
  return text.str();
}

// One collective with operands of at most `memory` bytes, checked against what this rank computes alone.
template <typename T>
absl::Status RunAndCheck(Communicator& c, Op op, ReduceKind kind, int64_t count, bool in_place, Operand& a, Operand& b,
                         const std::string& title) {
  const int n = c.size();
  const int root = static_cast<int>(count % n);
  const int64_t in_count = op == Op::kReduceScatter ? n * count : count;
  const int64_t out_count = op == Op::kAllGather ? n * count : count;
  T* const first = reinterpret_cast<T*>(a.data());
  T* input = first;
  T* output = reinterpret_cast<T*>(b.data());
  if (in_place) output = op == Op::kReduceScatter ? first + c.rank() * count : first;
  if (in_place && op == Op::kAllGather) input = first + c.rank() * count;
  for (int64_t i = 0; i < in_count; ++i) input[i] = Input<T>(c.rank(), i);
  const DType dtype = DTypeOf<T>();
  const Communicator::Call call{.label = title};
  // Of a long all_reduce each rank checks its own part, and that all ranks have the same everywhere.
  const bool divided = op == Op::kAllReduce && count > 1000;
  const int64_t check_begin = divided ? out_count * c.rank() / n : 0;
  const int64_t check_end = divided ? out_count * (c.rank() + 1) / n : out_count;
  const std::unique_ptr<T[]> expected(new T[out_count]);
  switch (op) {
    case Op::kAllReduce:
      RETURN_IF_ERROR(c.AllReduce(input, output, count, dtype, kind, call));
      for (int64_t i = check_begin; i < check_end; ++i) expected[i] = Expected<T>(kind, n, i);
      break;
    case Op::kBroadcast:
      RETURN_IF_ERROR(c.Broadcast(c.rank() == root || in_place ? input : nullptr, output, count, dtype, root, call));
      for (int64_t i = 0; i < count; ++i) expected[i] = Input<T>(root, i);
      break;
    case Op::kAllGather:
      RETURN_IF_ERROR(c.AllGather(input, output, count, dtype, call));
      for (int64_t i = 0; i < out_count; ++i) expected[i] = Input<T>(static_cast<int>(i / count), i % count);
      break;
    case Op::kReduceScatter:
      RETURN_IF_ERROR(c.ReduceScatter(input, output, count, dtype, kind, call));
      for (int64_t i = 0; i < count; ++i) expected[i] = Expected<T>(kind, n, c.rank() * count + i);
      break;
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

// Every dtype and kind, in place or not, registered or not, up to 1000 elements; of the million one variant per dtype.
absl::Status Sweep(Communicator& c, Op op) {
  const bool reduces = op == Op::kAllReduce || op == Op::kReduceScatter;
  const bool shares = op == Op::kAllGather || op == Op::kReduceScatter;
  int variant = 0;
  for (int64_t count : kCounts) {
    if (count > 1000 && shares) count /= c.size();  // a million in all
    for (bool registered : {false, true}) {
      const size_t bytes = count * sizeof(double) * (shares ? c.size() : 1);
      ASSIGN_OR_RETURN(Operand a, Operand::Make(c, registered, bytes));
      ASSIGN_OR_RETURN(Operand b, Operand::Make(c, registered, bytes));
      for (DType dtype : kAllDTypes) {
        for (ReduceKind kind : kKinds) {
          if (!reduces && kind != ReduceKind::kSum) continue;
          for (bool in_place : {false, true}) {
            if (count > 1000) {
              // A million elements: each dtype a few times, so that all combinations of the rest occur.
              if (variant++ % (reduces ? 13 : 3) != 0) continue;
            }
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

absl::Status Roster(Communicator& c) {
  EXPECT_THAT_OR_RETURN(c.rank() >= 0 && c.rank() < c.size(), "roster");
  EXPECT_THAT_OR_RETURN(!c.transport().empty() && !c.host(c.rank()).empty(), "roster");
  EXPECT_THAT_OR_RETURN(c.ranks_on_this_host() >= 1 && c.ranks_on_this_host() <= c.size(), "roster");
  for (int length : {0, 1, 7, 100000}) {
    // Of different lengths: rank r says r times `length` letters.
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
    RETURN_IF_ERROR(c.AllReduce(&entered, &entered, 1, DType::kI64, ReduceKind::kMax, {.label = "last to enter"}));
    EXPECT_THAT_OR_RETURN(left >= entered, "barrier");
  }
  return absl::OkStatus();
}

// Several buckets in flight, waited for in another order; more than the communicator has room for; some registered on
// some ranks.
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
        ASSIGN_OR_RETURN(auto ticket, c.StartAllReduce(x, x, counts[b], DType::kF32, ReduceKind::kSum,
                                                       {.label = "bucket " + std::to_string(b)}));
        tickets.push_back(ticket);
      }
      for (int k = 0; k < buckets; ++k) {
        const int b = round % 2 == 0 ? buckets - 1 - k : k;
        RETURN_IF_ERROR(c.Wait(tickets[b]));
        const float* x = reinterpret_cast<float*>(operands[b].data());
        for (int64_t i = 0; i < counts[b]; ++i) {
          if (x[i] != Expected<float>(ReduceKind::kSum, c.size(), i + b))
            return Wrong(c, "in flight") << "bucket " << b << ", " << i;
        }
      }
    }
  }
  return absl::OkStatus();
}

// A rank may use registered memory where another does not, and an operand may lie anywhere in it.
absl::Status MixedMemory(Communicator& c) {
  constexpr int64_t kCount = 70000;
  ASSIGN_OR_RETURN(Operand shared, Operand::Make(c, true, (kCount + 100) * sizeof(double)));
  std::vector<double> own(kCount);
  for (int turn = 0; turn < c.size(); ++turn) {
    double* x = turn == c.rank() ? own.data() : reinterpret_cast<double*>(shared.data()) + turn * 3 + 1;
    for (int64_t i = 0; i < kCount; ++i) x[i] = Input<double>(c.rank(), i);
    RETURN_IF_ERROR(c.AllReduce(x, x, kCount, DType::kF64, ReduceKind::kSum, {.label = "mixed"}));
    for (int64_t i = 0; i < kCount; ++i) {
      if (x[i] != Expected<double>(ReduceKind::kSum, c.size(), i)) return Wrong(c, "mixed") << "element " << i;
    }
  }
  return absl::OkStatus();
}

absl::Status MemoryComesAndGoes(Communicator& c) {
  for (int round = 0; round < 20; ++round) {
    const size_t count = (round * 37 + c.rank() * 11) % 100;  // every rank its own size
    ASSIGN_OR_RETURN(Operand memory, Operand::Make(c, true, count * sizeof(int32_t)));
    int32_t* x = reinterpret_cast<int32_t*>(memory.data());
    for (size_t i = 0; i < count; ++i) EXPECT_THAT_OR_RETURN(x[i] == 0, "fresh memory");
    const int64_t common = (round * 37) % 100 == 0 || c.size() > 1 ? 0 : static_cast<int64_t>(count);
    RETURN_IF_ERROR(c.AllReduce(x, x, common, DType::kI32, ReduceKind::kSum, {.label = "short"}));
    for (size_t i = 0; i < count; ++i) x[i] = 7;
  }
  return absl::OkStatus();
}

absl::Status BadArguments(Communicator& c) {
  std::vector<float> x(100), y(100);
  auto refused = [](const absl::Status& status) { return status.code() == absl::StatusCode::kInvalidArgument; };
  const Communicator::Call call{.label = "bad"};
  EXPECT_THAT_OR_RETURN(refused(c.AllReduce(nullptr, x.data(), 1, DType::kF32, ReduceKind::kSum, call)), "null");
  EXPECT_THAT_OR_RETURN(refused(c.AllReduce(x.data(), x.data(), -1, DType::kF32, ReduceKind::kSum, call)), "negative");
  EXPECT_THAT_OR_RETURN(refused(c.AllReduce(x.data(), x.data() + 5, 10, DType::kF32, ReduceKind::kSum, call)),
                        "overlap");
  EXPECT_THAT_OR_RETURN(refused(c.Broadcast(x.data(), x.data(), 10, DType::kF32, c.size(), call)), "root");
  EXPECT_THAT_OR_RETURN(refused(c.Broadcast(x.data(), x.data(), 10, DType::kF32, -1, call)), "root");
  EXPECT_THAT_OR_RETURN(!c.Wait({12345678}).ok(), "unknown ticket");
  // Nothing was started by any of these.
  x.assign(100, 1.f);
  RETURN_IF_ERROR(c.AllReduce(x.data(), y.data(), 100, DType::kF32, ReduceKind::kSum, call));
  EXPECT_THAT_OR_RETURN(y[99] == static_cast<float>(c.size()), "after bad arguments");
  return absl::OkStatus();
}

// The last rank does something else in its first collective; all ranks must be told of both sides, and stay told.
absl::Status Disagree(Communicator& c, const std::function<absl::Status(Communicator&, bool odd)>& call,
                      const std::vector<std::string>& words) {
  const absl::Time begin = absl::Now();
  const absl::Status status = call(c, c.rank() == c.size() - 1);
  EXPECT_THAT_OR_RETURN(!status.ok(), "disagreement");
  const std::string message(status.message());
  for (const std::string& word : words) {
    if (!absl::StrContains(message, word)) return Wrong(c, "disagreement") << "`" << word << "` is not in: " << message;
  }
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "disagreement");
  EXPECT_THAT_OR_RETURN(c.Barrier("after") == status, "the error stays");
  return absl::OkStatus();
}

absl::Status DifferentCounts(Communicator& c) {
  return Disagree(
      c,
      [](Communicator& world, bool odd) {
        std::vector<float> x(100);
        return world.AllReduce(x.data(), x.data(), odd ? 99 : 100, DType::kF32, ReduceKind::kSum,
                               {.label = "bucket 0 (%g1)"});
      },
      {"disagree", "f32[100]", "f32[99]", "bucket 0 (%g1)", "rank " + std::to_string(c.size() - 1) + " on host"});
}

absl::Status DifferentOps(Communicator& c) {
  return Disagree(c,
                  [](Communicator& world, bool odd) {
                    std::vector<float> x(100);
                    if (odd) return world.Broadcast(x.data(), x.data(), 100, DType::kF32, 0, {.label = "x"});
                    return world.AllReduce(x.data(), x.data(), 100, DType::kF32, ReduceKind::kSum, {.label = "x"});
                  },
                  {"disagree", "all_reduce sum", "broadcast from rank 0"});
}

absl::Status DifferentLabels(Communicator& c) {
  return Disagree(c, [](Communicator& world, bool odd) { return world.Barrier(odd ? "left" : "right"); },
                  {"disagree", "`left`", "`right`"});
}

// All ranks make the same calls, but the last rank's second has other evidence.
absl::Status DifferentEvidence(Communicator& c, uint64_t Communicator::Evidence::* field,
                               const std::vector<std::string>& words) {
  Communicator::Evidence evidence{.program = 0x12, .assignments = 3, .inputs = 0xfedcba9876543210, .states = 9};
  float x = 1;
  const absl::Time begin = absl::Now();
  absl::Status status = c.AllReduce(&x, &x, 1, DType::kF32, ReduceKind::kSum, {.label = "first", .evidence = evidence});
  const int last = c.size() - 1;
  if (c.rank() == last) evidence.*field = 0;
  // A slow rank may learn from the first what a quick one has met in the second: an error is everybody's.
  if (status.ok()) {
    EXPECT_THAT_OR_RETURN(x == static_cast<float>(c.size()), "equal evidence");
    status = c.AllReduce(&x, &x, 1, DType::kF32, ReduceKind::kSum, {.label = "bucket 0 (%g1)", .evidence = evidence});
  }
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "evidence");
  const std::string message(status.message());
  if (!absl::IsFailedPrecondition(status)) return Wrong(c, "evidence") << status.ToString();
  std::vector<std::string> expected = words;
  expected.push_back("rank " + std::to_string(last) + " on host " + c.host(last));
  expected.push_back("all_reduce sum f32[1] `bucket 0 (%g1)`");
  for (const std::string& word : expected) {
    if (!absl::StrContains(message, word)) return Wrong(c, "evidence") << "`" << word << "` is not in: " << message;
  }
  EXPECT_THAT_OR_RETURN(c.Barrier("after") == status, "the error stays");
  return absl::OkStatus();
}

absl::Status AbortReachesPeers(Communicator& c) {
  RETURN_IF_ERROR(c.Barrier("before"));
  const int culprit = c.size() - 1;
  std::vector<float> x(300000, 1.f);
  absl::Status status;
  const absl::Time begin = absl::Now();
  if (c.rank() == culprit) {
    absl::SleepFor(absl::Milliseconds(100));
    c.Abort(absl::InvalidArgumentError("label 11 is out of range"));
    status = c.Barrier("after");
  } else {
    status = c.AllReduce(x.data(), x.data(), 300000, DType::kF32, ReduceKind::kSum, {.label = "bucket 1"});
  }
  EXPECT_THAT_OR_RETURN(!status.ok() && absl::Now() - begin < kSoon, "abort");
  const std::string message(status.message());
  if (!absl::StrContains(message, "rank " + std::to_string(culprit) + " on host " + c.host(culprit)) ||
      !absl::StrContains(message, "label 11 is out of range")) {
    return Wrong(c, "abort") << message;
  }
  EXPECT_THAT_OR_RETURN(c.Barrier("later") == status, "abort stays");
  return absl::OkStatus();
}

// Rank `late` does not come in time: all are told so, and nobody else is blamed.
absl::Status LateRankIsNamed(Communicator& c, int late) {
  RETURN_IF_ERROR(c.Barrier("before"));
  const absl::Time begin = absl::Now();
  if (c.rank() == late) absl::SleepFor(Late());
  const absl::Status status = c.Barrier("bucket 2");
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "timeout");
  const std::string message(status.message());
  const size_t blame = message.find(" for rank " + std::to_string(late) + " on host " + c.host(late) + ": ");
  if (!absl::IsDeadlineExceeded(status) || blame == std::string::npos || absl::StrContains(message, ';') ||
      !absl::StrContains(message, "barrier `bucket 2`")) {
    return Wrong(c, "timeout") << status.ToString();
  }
  absl::SleepFor(begin + Late() - absl::Now());  // all end this together
  return absl::OkStatus();
}

// Whoever has an error, or has called Abort, may use and free its operands: nobody writes into them any more.
absl::Status OperandsAreFreeAfterAnAbort(Communicator& c) {
  constexpr int64_t kCount = 100000;
  std::vector<Operand> operands;
  for (int b = 0; b < 6; ++b) {
    ASSIGN_OR_RETURN(Operand operand, Operand::Make(c, b % 2 == 0, kCount * sizeof(float)));
    operands.push_back(std::move(operand));
  }
  absl::Status status = c.Barrier("before");  // a slow rank may learn here what a quick one does next
  std::vector<Communicator::Ticket> tickets;
  for (Operand& operand : operands) {
    if (!status.ok()) break;
    auto ticket =
        c.StartAllReduce(operand.data(), operand.data(), kCount, DType::kF32, ReduceKind::kSum, {.label = "bucket"});
    if (!ticket.ok()) break;
    tickets.push_back(*ticket);
  }
  if (c.rank() == 0) {
    absl::SleepFor(absl::Microseconds(absl::ToUnixMicros(absl::Now()) % 1000));
    c.Abort(absl::CancelledError("enough"));
  }
  for (size_t i = 0; c.rank() != 0 && i < tickets.size() && status.ok(); ++i) status = c.Wait(tickets[i]);
  if (status.ok()) status = c.Barrier("after");
  EXPECT_THAT_OR_RETURN(!status.ok() && absl::StrContains(status.message(), "enough"), "abort");
  for (Operand& operand : operands) std::memset(operand.data(), 0x77, kCount * sizeof(float));
  absl::SleepFor(absl::Milliseconds(20));
  for (Operand& operand : operands) {
    for (size_t i = 0; i < kCount * sizeof(float); ++i) {
      EXPECT_THAT_OR_RETURN(operand.data()[i] == std::byte{0x77}, "somebody wrote into an operand after the abort");
    }
  }
  return absl::OkStatus();
}

absl::Status RankThatLeavesIsNamed(Communicator& c) {
  const int gone = c.size() - 1;
  absl::Status status = c.Barrier("before");
  if (c.rank() == gone) return status;  // and the driver destroys its communicator
  const absl::Time begin = absl::Now();
  // A slow rank may learn from the first barrier what a quick one has met in the second: an error is everybody's.
  if (status.ok()) status = c.Barrier("bucket 3");
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "leave");
  if (status.ok() || !absl::StrContains(status.message(), "rank " + std::to_string(gone) + " on host") ||
      !absl::StrContains(status.message(), "has left")) {
    return Wrong(c, "leave") << status.ToString();
  }
  return absl::OkStatus();
}

// Not waiting for what one has started is an abort.
absl::Status LeavingInFlightIsAnAbort(Communicator& c) {
  thread_local std::vector<float> x;  // peers may use it until the driver destroys the communicator
  x.assign(10, 1.f);
  if (c.rank() == c.size() - 1) {
    return c.StartAllReduce(x.data(), x.data(), 10, DType::kF32, ReduceKind::kSum, {.label = "x"}).status();
  }
  // Which of these meets the abort is a matter of timing.
  absl::Status status = c.AllReduce(x.data(), x.data(), 10, DType::kF32, ReduceKind::kSum, {.label = "x"});
  if (status.ok()) status = c.Barrier("y");
  EXPECT_THAT_OR_RETURN(!status.ok() && absl::StrContains(status.message(), "in flight"), "in flight");
  return absl::OkStatus();
}

// All_reduces `value` of the ranks of `c`, in memory that is registered with it.
absl::Status ExpectSum(Communicator& c, int64_t value, int64_t expected, const std::string& label) {
  constexpr int64_t kCount = 3000;
  ASSIGN_OR_RETURN(Operand operand, Operand::Make(c, true, kCount * sizeof(int64_t)));
  int64_t* x = reinterpret_cast<int64_t*>(operand.data());
  for (int64_t i = 0; i < kCount; ++i) x[i] = value + i;
  RETURN_IF_ERROR(c.AllReduce(x, x, kCount, DType::kI64, ReduceKind::kSum, {.label = label}));
  for (int64_t i = 0; i < kCount; ++i) {
    if (x[i] != expected + i * c.size()) return Wrong(c, label) << "element " << i << " is " << x[i];
  }
  return absl::OkStatus();
}

// Splits by `color_of`, and checks who is in this rank's part and that it computes.
absl::StatusOr<std::unique_ptr<Communicator>> SplitAndCheck(Communicator& c, const std::function<int(int)>& color_of,
                                                            const std::string& label) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, c.Split(color_of(c.rank()), label));
  std::vector<int> members;
  for (int r = 0; r < c.size(); ++r) {
    if (color_of(r) == color_of(c.rank())) members.push_back(r);
  }
  EXPECT_THAT_OR_RETURN(part->size() == static_cast<int>(members.size()), label);
  EXPECT_THAT_OR_RETURN(members[part->rank()] == c.rank(), label);
  EXPECT_THAT_OR_RETURN(part->transport() == c.transport(), label);
  int64_t sum = 0;
  for (int i = 0; i < part->size(); ++i) {
    EXPECT_THAT_OR_RETURN(part->host(i) == c.host(members[i]), label);
    sum += members[i];
  }
  RETURN_IF_ERROR(ExpectSum(*part, c.rank(), sum, label));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, part->AllGatherBytes(std::to_string(c.rank()), label));
  for (int i = 0; i < part->size(); ++i) EXPECT_THAT_OR_RETURN(all[i] == std::to_string(members[i]), label);
  return part;
}

// Rows and columns of a grid with two columns; collectives on both and on all ranks are in flight at once, and waited
// for in an order that differs from rank to rank.
absl::Status SplitIntoRowsAndColumns(Communicator& c) {
  ASSIGN_OR_RETURN(auto row, SplitAndCheck(c, [](int r) { return r / 2; }, "rows"));
  ASSIGN_OR_RETURN(auto column, SplitAndCheck(c, [](int r) { return r % 2; }, "columns"));
  Communicator* const worlds[] = {row.get(), column.get(), &c};
  for (int round = 0; round < 20; ++round) {
    std::vector<float> values[3];
    Communicator::Ticket tickets[3];
    for (int w = 0; w < 3; ++w) {
      values[w].assign(20000, static_cast<float>(w + round));
      ASSIGN_OR_RETURN(tickets[w], worlds[w]->StartAllReduce(values[w].data(), values[w].data(), 20000, DType::kF32,
                                                             ReduceKind::kSum, {.label = "at once"}));
    }
    for (int k = 0; k < 3; ++k) {
      const int w = (k + c.rank() + round) % 3;
      RETURN_IF_ERROR(worlds[w]->Wait(tickets[w]));
      for (float x : values[w]) {
        EXPECT_THAT_OR_RETURN(x == static_cast<float>((w + round) * worlds[w]->size()), "rows and columns");
      }
    }
  }
  // One of them goes, the other stays; and can be split again.
  column.reset();
  RETURN_IF_ERROR(row->Barrier("row"));
  ASSIGN_OR_RETURN(auto alone, row->Split(row->rank(), "alone"));
  EXPECT_THAT_OR_RETURN(alone->size() == 1 && alone->rank() == 0, "alone");
  RETURN_IF_ERROR(ExpectSum(*alone, 5, 5, "alone"));
  return c.Barrier("all");
}

// Into parts of different sizes that are no runs of ranks, and into one part with all ranks; many times.
absl::Status SplitUnevenly(Communicator& c) {
  auto uneven = [](int r) { return r == 0 || r == 5 ? -7 : r < 3 ? 1 : 1000000; };
  for (int round = 0; round < 5; ++round) {
    ASSIGN_OR_RETURN(auto part, SplitAndCheck(c, uneven, "uneven"));
    ASSIGN_OR_RETURN(auto same, SplitAndCheck(c, [](int) { return 3; }, "all"));
    ASSIGN_OR_RETURN(auto again, SplitAndCheck(*same, [](int r) { return r % 3; }, "again"));
    RETURN_IF_ERROR(part->Barrier("part"));
  }
  return c.Barrier("all");
}

// What happens to one communicator happens to all: the last rank does `fail` to all ranks' communicator or to its part;
// all others, in whatever they wait, are told, and told the rank's number in the world.
absl::Status FailureReachesAll(Communicator& c,
                               const std::function<void(Communicator& world, Communicator& part)>& fail,
                               const std::string& reason) {
  ASSIGN_OR_RETURN(auto part, c.Split(c.rank() % 2, "halves"));
  absl::Status status = c.Barrier("before");
  const int last = c.size() - 1;
  const absl::Time begin = absl::Now();
  if (status.ok() && c.rank() == last) {
    absl::SleepFor(absl::Milliseconds(50));
    fail(c, *part);
  }
  // Some wait in their part, some for all.
  Communicator& waits_in = c.rank() % 3 == 0 ? c : *part;
  while (status.ok() && absl::Now() - begin < 2 * kSoon) status = waits_in.Barrier("waiting");
  EXPECT_THAT_OR_RETURN(absl::Now() - begin < kSoon, "failure of a part");
  const std::string message(status.message());
  if (!absl::StrContains(message, "rank " + std::to_string(last) + " on host " + c.host(last)) ||
      !absl::StrContains(message, reason)) {
    return Wrong(c, "failure of a part") << status.ToString();
  }
  EXPECT_THAT_OR_RETURN(!c.Barrier("later").ok() && !part->Barrier("later").ok(), "failure of a part");
  return absl::OkStatus();
}

absl::Status PartsDisagree(Communicator& c) {
  ASSIGN_OR_RETURN(auto part, c.Split(c.rank() == 0 ? 0 : 1, "all but the first"));
  absl::Status status = c.Barrier("before");
  const bool last = c.rank() == c.size() - 1;
  if (status.ok()) status = c.rank() == 0 ? c.Barrier("rank 0 waits") : part->Barrier(last ? "left" : "right");
  if (status.ok()) status = c.Barrier("after");
  const std::string message(status.message());
  if (!absl::StrContains(message, "disagree") || !absl::StrContains(message, "`left`") ||
      !absl::StrContains(message, "rank " + std::to_string(c.size() - 1) + " on host")) {
    return Wrong(c, "parts disagree") << status.ToString();
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ConformanceCase> ConformanceCases() {
  using Evidence = Communicator::Evidence;
  const Communicator::Options normal{.timeout = absl::Seconds(60)};
  const Communicator::Options hurried{.timeout = kHurry};
  return {
      {"Roster", 1, normal, Roster},
      {"AllReduce", 1, normal, [](Communicator& c) { return Sweep(c, Op::kAllReduce); }},
      {"Broadcast", 1, normal, [](Communicator& c) { return Sweep(c, Op::kBroadcast); }},
      {"AllGather", 1, normal, [](Communicator& c) { return Sweep(c, Op::kAllGather); }},
      {"ReduceScatter", 1, normal, [](Communicator& c) { return Sweep(c, Op::kReduceScatter); }},
      {"BarrierWaits", 1, normal, BarrierWaits},
      {"ManyInFlight", 1, normal, ManyInFlight},
      {"MixedMemory", 1, normal, MixedMemory},
      {"MemoryComesAndGoes", 1, normal, MemoryComesAndGoes},
      {"BadArguments", 1, normal, BadArguments},
      {"DifferentCounts", 2, normal, DifferentCounts},
      {"DifferentOps", 2, normal, DifferentOps},
      {"DifferentLabels", 2, normal, DifferentLabels},
      {"DifferentPrograms", 2, normal,
       [](Communicator& c) {
         return DifferentEvidence(c, &Evidence::program,
                                  {"they run different programs (0x0000000000000012 and 0x0000000000000000)"});
       }},
      {"DifferentAssignments", 2, normal,
       [](Communicator& c) {
         return DifferentEvidence(c, &Evidence::assignments,
                                  {"a state was assigned on one of them alone (3 assignments and 0)"});
       }},
      {"DifferentInputs", 2, normal,
       [](Communicator& c) {
         return DifferentEvidence(
             c, &Evidence::inputs,
             {"inputs that are replicated have different contents (0xfedcba9876543210 and 0x0000000000000000)"});
       }},
      {"DifferentStates", 2, normal,
       [](Communicator& c) {
         return DifferentEvidence(c, &Evidence::states,
                                  {"replicas of the states differ (0x0000000000000009 and 0x0000000000000000)"});
       }},
      {"AbortReachesPeers", 2, normal, AbortReachesPeers},
      {"SplitIntoRowsAndColumns", 1, normal, SplitIntoRowsAndColumns},
      {"SplitUnevenly", 1, normal, SplitUnevenly},
      {"AbortOfAPartReachesAll", 2, normal,
       [](Communicator& c) {
         return FailureReachesAll(
             c, [](Communicator&, Communicator& part) { part.Abort(absl::CancelledError("no more of this")); },
             "no more of this");
       }},
      {"AbortOfTheWorldReachesParts", 2, normal,
       [](Communicator& c) {
         return FailureReachesAll(
             c, [](Communicator& world, Communicator&) { world.Abort(absl::CancelledError("no more at all")); },
             "no more at all");
       }},
      {"PartsDisagree", 3, normal, PartsDisagree},
      {"OperandsAreFreeAfterAnAbort", 1, normal, OperandsAreFreeAfterAnAbort},
      {"LateFirstRankIsNamed", 2, hurried, [](Communicator& c) { return LateRankIsNamed(c, 0); }},
      {"LateMiddleRankIsNamed", 3, hurried, [](Communicator& c) { return LateRankIsNamed(c, c.size() / 2); }},
      {"LateLastRankIsNamed", 2, hurried, [](Communicator& c) { return LateRankIsNamed(c, c.size() - 1); }},
      {"RankThatLeavesIsNamed", 2, normal, RankThatLeavesIsNamed},
      {"LeavingInFlightIsAnAbort", 2, normal, LeavingInFlightIsAnAbort},
  };
}

}  // namespace lockstep
