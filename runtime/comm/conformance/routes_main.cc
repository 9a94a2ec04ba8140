// One rank of a job that takes all routes between hosts. It compares with TrafficOf the number of consecutive messages,
// the bytes that the ranks sent, and the bytes that each host's network card counts. routes_hosts_test.py starts it.
//   routes_main RANKS RANKS_A_HOST BYTES INTERFACE
// Rank 0 prints a line for each collective, and at the end "N collectives as expected"; or it prints the difference and
// exits with 1.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "runtime/comm/conformance/watched_links.h"
#include "runtime/comm/measure_network.h"
#include "runtime/comm/mpi/mpi.h"

namespace lockstep {
namespace {

struct Job {
  int ranks_a_host = 1;
  int64_t bytes = 0;
  std::string card;  // the file with the number of bytes sent
};

uint64_t SentByCard(const Job& job) {
  uint64_t sent = 0;
  std::ifstream(job.card) >> sent;
  return sent;
}

// Returns element i of rank r. Sums of such numbers are exact in f32, in any order.
float Input(int r, int64_t i) { return static_cast<float>((i * 31 + r * 7) % 1000); }

absl::Status ExpectSums(const std::vector<float>& found, int64_t count, int64_t first, int ranks) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < ranks; ++r) sum += Input(r, first + i);
    if (found[i] != sum) return Internal() << "element " << i << " is " << found[i] << ", expected " << sum;
  }
  return absl::OkStatus();
}

absl::Status ExpectCopies(const std::vector<float>& found, int64_t count, int64_t share) {
  for (int64_t i = 0; i < count; ++i) {
    if (found[i] != Input(static_cast<int>(i / share), i % share)) return Internal() << "element " << i << " is wrong";
  }
  return absl::OkStatus();
}

// Runs one collective and checks its result.
absl::Status Call(Communicator& c, CollectiveOp op, int64_t bytes) {
  const int64_t count = bytes / 4, share = count / c.size();
  std::vector<float> input(count), output(count);
  for (int64_t i = 0; i < count; ++i) input[i] = Input(c.rank(), i);
  switch (op) {
    case CollectiveOp::kAllReduce:
      RETURN_IF_ERROR(c.Run(Collective::AllReduce(count, DType::kF32, ReduceKind::kSum), input.data(), output.data(),
                            {.label = "x"}));
      return ExpectSums(output, count, 0, c.size());
    case CollectiveOp::kReduceScatter:
      RETURN_IF_ERROR(c.Run(Collective::ReduceScatter(share, DType::kF32, ReduceKind::kSum), input.data(),
                            output.data(), {.label = "x"}));
      return ExpectSums(output, share, c.rank() * share, c.size());
    case CollectiveOp::kAllGather:
      RETURN_IF_ERROR(c.Run(Collective::AllGather(share, DType::kF32), input.data(), output.data(), {.label = "x"}));
      return ExpectCopies(output, share * c.size(), share);
    case CollectiveOp::kBroadcast:
      RETURN_IF_ERROR(c.Run(Collective::Broadcast(count, DType::kF32, 0), input.data(), output.data(), {.label = "x"}));
      return ExpectCopies(output, count, count);
    default: return Internal() << "add the call for " << CollectiveOpName(op);
  }
}

// Returns OK on rank 0 if the traffic of the collective agrees with the table, otherwise the difference. OK on other
// ranks.
absl::Status GoesAsTheTableSays(RankCommunicator& c, const Job& job, Route route, CollectiveOp op, Watched& watched) {
  RETURN_IF_ERROR(c.Barrier("before"));
  watched.Reset();
  const uint64_t before = SentByCard(job);
  RETURN_IF_ERROR(c.Barrier("all have looked"));
  RETURN_IF_ERROR(Call(c, op, job.bytes));
  RETURN_IF_ERROR(c.Barrier("all are done"));
  const std::string mine = absl::StrFormat("%d %d %d", watched.messages.load(), watched.bytes.load(),
                                           c.rank_on_this_host() == 0 ? SentByCard(job) - before : 0);
  ASSIGN_OR_RETURN(const std::vector<std::string> all, c.AllGatherBytes(mine, "what was sent"));
  if (c.rank() != 0) return absl::OkStatus();
  uint64_t most = 0, wire = 0, messages = 0;
  for (int first = 0; first < c.size(); first += job.ranks_a_host) {
    uint64_t sent = 0;
    for (int r = first; r < first + job.ranks_a_host; ++r) {
      unsigned long long m = 0, b = 0, w = 0;
      if (std::sscanf(all[r].c_str(), "%llu %llu %llu", &m, &b, &w) != 3) return Internal() << all[r];
      messages = std::max<uint64_t>(messages, m);
      wire = std::max<uint64_t>(wire, w);
      sent += b;
    }
    most = std::max(most, sent);
  }
  const Traffic traffic = TrafficOf(route, op, static_cast<uint64_t>(job.bytes), c.groups(), job.ranks_a_host);
  const auto bytes = static_cast<double>(traffic.bytes);
  const std::string name = absl::StrFormat("%s by %s", TraitsOf(op).name, RouteName(route));
  std::printf("%-24s %3d messages, %9d bytes sent of %9d, %9d on the wire\n", name.c_str(), static_cast<int>(messages),
              static_cast<int>(most), static_cast<int>(traffic.bytes), static_cast<int>(wire));
  std::fflush(stdout);
  // The wire also carries packet headers and acknowledgements.
  const bool is_right = messages == static_cast<uint64_t>(traffic.messages) && most >= 0.98 * bytes &&
                        most <= 1.02 * bytes && wire >= most && wire <= 1.12 * bytes + 32768;
  if (!is_right) return Internal() << name << " differs: expected " << traffic.messages << " messages";
  return absl::OkStatus();
}

absl::Status Run(const Job& job, int ranks) {
  Watched watched;
  WorldOptions options;
  options.routes = WorldOptions::Routes::kDefault;
  options.communicator.timeout = absl::Seconds(60);
  options.around_links = [&](std::unique_ptr<Links> links) { return WatchLinks(std::move(links), &watched); };
  ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> world, CreateMpi(options));
  auto& c = static_cast<RankCommunicator&>(*world);
  if (c.size() != ranks || c.groups() != ranks / job.ranks_a_host)
    return Internal() << c.size() << " ranks in " << c.groups() << " groups";
  int collectives = 0;
  for (const Route route : kRoutes) {
    for (const CollectiveOp op :
         CollectiveOpsWith([](const CollectiveTraits& traits) { return traits.has_routes(); })) {
      if (!CanGo(route, TraitsOf(op))) continue;
      // Slices along the chain travel fewer times in each direction than the maximum in the table.
      if (route == Route::kChain && TraitsOf(op).counts_slices()) continue;
      c.SetRoutes({.preferred = route});
      const absl::Status status = GoesAsTheTableSays(c, job, route, op, watched);
      if (!status.ok()) c.Abort(status);
      RETURN_IF_ERROR(status);
      ++collectives;
    }
  }
  RETURN_IF_ERROR(c.Barrier("the end"));
  if (c.rank() == 0) std::printf("%d collectives as expected\n", collectives);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (argc != 5) return 2;
  const Job job{.ranks_a_host = std::atoi(argv[2]),
                .bytes = std::atoll(argv[3]),
                .card = "/sys/class/net/" + std::string(argv[4]) + "/statistics/tx_bytes"};
  const absl::Status status = Run(job, std::atoi(argv[1]));
  if (!status.ok()) std::printf("%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::Main(argc, argv); }
