#include "passes/distribute/fill_buckets.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "core/local_types.h"
#include "core/op_def.h"
#include "passes/distribute/wire.h"
#include "passes/places.h"

namespace lockstep::passes {
namespace {

// The properties that are equal within a bucket: op, attributes with the rank of Placement::At, dtype, depth. The depth
// is the number of collectives on the longest path before this one, so collectives of equal depth do not depend on each
// other. Collectives that no other collective depends on can be merged at any depth: they share the depth kFinal.
using BucketKey = std::tuple<std::string, std::string, DType, int64_t>;
constexpr int64_t kFinal = -1;

// A collective that can be put into a bucket.
struct BucketCandidate {
  Node* node;
  int64_t position;  // the position of its last operand; -1: all operands are inputs
  BucketKey key;
  int64_t bytes;
  MeasuredStep::Gradient times = {};

  bool is_final() const { return std::get<3>(key) == kFinal; }
};

TensorType OnRank(const Graph& graph, Value value) {
  return graph.is_local() ? value.type() : LocalType(value.type(), value.placements(), graph.mesh());
}

// Returns true if the ranks' slices of each operand are contiguous in memory, as a bucket requires.
bool IsContiguous(const Graph& graph, const Node& node) {
  const CollectiveTraits traits = TraitsOf(*node.op().collective());
  if (!traits.scatters && !traits.gathers) return true;
  return std::all_of(node.operands().begin(), node.operands().end(), [&](Value operand) {
    const TensorType type = OnRank(graph, operand);
    for (int64_t i = 0; i < node.attr<int64_t>("dim"); ++i) {
      if (type.shape[i] != 1) return false;
    }
    return true;
  });
}

std::unordered_map<const Node*, int64_t> Depths(const Graph& graph) {
  std::unordered_map<const Node*, int64_t> depth;  // the number of collectives on the longest path before a node
  for (const Node& node : graph.nodes()) {
    int64_t& own = depth[&node];
    for (Value operand : node.operands()) {
      const auto it = depth.find(operand.node);
      if (it != depth.end()) own = std::max(own, it->second + (IsInBucket(*operand.node) ? 1 : 0));
    }
  }
  return depth;
}

// Returns, for each node, true if a collective depends on it.
std::unordered_map<const Node*, bool> ReachesCollective(Graph& graph) {
  std::unordered_map<const Node*, bool> reaches;
  for (auto it = graph.nodes().rbegin(); it != graph.nodes().rend(); ++it) {
    bool& own = reaches[&*it];
    for (const Node* user : it->users()) own = own || IsInBucket(*user) || reaches[user];
  }
  return reaches;
}

int64_t WireBytes(const Graph& graph, Node& node) {
  int64_t operands = 0, results = 0;
  for (Value operand : node.operands()) operands += static_cast<int64_t>(OnRank(graph, operand).num_bytes());
  for (size_t i = 0; i < node.num_results(); ++i)
    results += static_cast<int64_t>(OnRank(graph, node.result(i)).num_bytes());
  return std::max(operands, results);
}

std::string AttributesOf(const Node& node) {
  std::string text;
  for (const auto& [name, value] : node.attributes()) {
    if (name != "bucket") text += name + "=" + AttributeToString(value) + " ";
  }
  return text + RanksOf(node.placements());
}

// Returns the candidates in the order of their positions.
std::vector<BucketCandidate> CandidatesIn(Graph& graph) {
  const auto depths = Depths(graph);
  auto reaches = ReachesCollective(graph);
  std::unordered_map<const Node*, int64_t> position;
  std::vector<BucketCandidate> candidates;
  for (Node& node : graph.nodes()) {
    position.emplace(&node, static_cast<int64_t>(position.size()));
    if (!IsInBucket(node) || node.attr<int64_t>("bucket") >= 0 || !IsContiguous(graph, node)) continue;
    int64_t ready = -1;
    for (Value operand : node.operands()) {
      const auto it = position.find(operand.node);  // an input has no position: it is ready at once
      if (it != position.end()) ready = std::max(ready, it->second);
    }
    const int64_t depth = reaches[&node] ? depths.at(&node) : kFinal;
    candidates.push_back(
        {&node, ready, {node.op_name(), AttributesOf(node), node.type().dtype, depth}, WireBytes(graph, node)});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const BucketCandidate& a, const BucketCandidate& b) { return a.position < b.position; });
  return candidates;
}

void PutIntoBucket(const BucketCandidate& candidate, Bucket& bucket) {
  bucket.position = bucket.nodes.empty() ? candidate.position : std::min(bucket.position, candidate.position);
  bucket.nodes.push_back(candidate.node);
  bucket.bytes += candidate.bytes;
}

// --- By size
// ----------------------------------------------------------------------------------------------------------

std::vector<Bucket> FillBySize(std::span<const BucketCandidate> candidates, const MergeOptions& options) {
  std::vector<Bucket> buckets;
  std::map<BucketKey, size_t> open;  // for each key, the bucket that is being filled
  std::optional<size_t> first_final;
  for (const BucketCandidate& candidate : candidates) {
    const auto it = open.find(candidate.key);
    const bool is_first = it != open.end() && first_final == it->second;
    if (it == open.end() ||
        buckets[it->second].bytes + candidate.bytes > (is_first ? options.first_bytes : options.max_bytes)) {
      if (candidate.is_final() && !first_final) first_final = buckets.size();
      open[candidate.key] = buckets.size();
      buckets.emplace_back();
    }
    PutIntoBucket(candidate, buckets[open[candidate.key]]);
  }
  return buckets;
}

// --- By measured times
// ------------------------------------------------------------------------------------------------

const MeasuredStep::Gradient* TimesOf(const Node& node, const MeasuredStep& measured) {
  const std::string name = node.operand(0).name();
  // A gradient that travels as another dtype is ready once it is converted (wire.h). The measured step may have had
  // another wire; the duration of the conversion is small.
  for (const char* const suffix : {"", "/bf16"}) {
    const auto it = measured.gradients.find(name + suffix);
    if (it != measured.gradients.end()) return &it->second;
  }
  return nullptr;
}

// Returns the bytes of the all_reduce that takes as long. A reduce_scatter takes half of an all_reduce, whose bytes
// travel twice: as terms and as sums.
int64_t TravellingBytes(const BucketCandidate& candidate) {
  const auto bytes = static_cast<int64_t>(static_cast<double>(candidate.bytes) * WireByteFraction(*candidate.node));
  return TraitsOf(*candidate.node->op().collective()).scatters ? bytes / 2 : bytes;
}

// Sets the times of the candidates and sorts them by the time at which they are ready. A candidate without measured
// times gets those of the one before it. Returns false if no candidate has measured times.
bool FindTimes(std::vector<BucketCandidate>& candidates, const MeasuredStep& measured) {
  const MeasuredStep::Gradient* last = nullptr;
  for (const BucketCandidate& candidate : candidates) {
    if (last == nullptr) last = TimesOf(*candidate.node, measured);
  }
  if (last == nullptr) return false;
  for (BucketCandidate& candidate : candidates) {
    const MeasuredStep::Gradient* const own = TimesOf(*candidate.node, measured);
    if (own != nullptr) last = own;
    candidate.times = {last->ready, last->needed, own == nullptr ? 0 : own->update};
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const BucketCandidate& a, const BucketCandidate& b) { return a.times.ready < b.times.ready; });
  return true;
}

// Fills buckets with candidates of one key, given in the order in which they are ready.
std::vector<Bucket> FillByTimes(std::span<const BucketCandidate> candidates, const CostTable& costs) {
  std::vector<GradientTimes> gradients;
  int64_t kernels_end = candidates[0].times.needed;
  for (const BucketCandidate& candidate : candidates) {
    gradients.push_back({candidate.times.ready, TravellingBytes(candidate), candidate.times.update});
    kernels_end = std::min(kernels_end, candidate.times.needed);
  }
  const BucketPlan plan = PlanBuckets(gradients, kernels_end, [&](int64_t bytes) { return costs.At(bytes); });
  std::vector<Bucket> buckets;
  size_t i = 0;
  for (const size_t end : plan.ends) {
    for (buckets.emplace_back(); i < end; ++i) PutIntoBucket(candidates[i], buckets.back());
  }
  return buckets;
}

// Returns the costs of the axis of a reduction; null for other collectives and other axes.
const CostTable* CostsFor(const Node& node, const MeasuredStep& measured) {
  if (!TraitsOf(*node.op().collective()).reduces) return nullptr;
  const auto it = measured.costs.find(node.attr<std::string>("axis"));
  return it == measured.costs.end() ? nullptr : &it->second;
}

// Fills buckets with the candidates along axes with measured costs, and removes these candidates.
absl::StatusOr<std::vector<Bucket>> TakeMeasured(std::vector<BucketCandidate>& candidates,
                                                 const MeasuredStep& measured) {
  std::map<BucketKey, std::vector<BucketCandidate>> groups;
  std::vector<BucketCandidate> others;
  for (const BucketCandidate& candidate : candidates) {
    if (CostsFor(*candidate.node, measured) == nullptr) others.push_back(candidate);
    else groups[candidate.key].push_back(candidate);
  }
  std::vector<Bucket> buckets;
  for (auto& [key, group] : groups) {
    if (!FindTimes(group, measured)) {
      const Node& first = *group[0].node;
      if (WireByteFraction(first) < 1) {
        return InvalidArgument() << "the report has no times for any gradient of this program that travels as "
                                 << first.attr<std::string>("wire") << ", such as %" << first.operand(0).name()
                                 << ": it is of another program, or its gradients travelled as int8, for which there "
                                 << "are no times: measure with another wire";
      }
      others.insert(others.end(), group.begin(), group.end());
      continue;
    }
    const std::vector<Bucket> filled = FillByTimes(group, *CostsFor(*group[0].node, measured));
    buckets.insert(buckets.end(), filled.begin(), filled.end());
  }
  if (buckets.empty() && !groups.empty()) {
    const BucketCandidate& first = groups.begin()->second[0];
    return InvalidArgument() << "the report has no times for any gradient of this program, such as %"
                             << first.node->operand(0).name() << ": it is of another program";
  }
  std::stable_sort(others.begin(), others.end(),
                   [](const BucketCandidate& a, const BucketCandidate& b) { return a.position < b.position; });
  candidates = std::move(others);
  return buckets;
}

}  // namespace

bool IsInBucket(const Node& node) { return node.op().collective() && TraitsOf(*node.op().collective()).is_in_bucket; }

absl::StatusOr<std::vector<Bucket>> FillBuckets(Graph& graph, const MergeOptions& options) {
  std::vector<BucketCandidate> candidates = CandidatesIn(graph);
  std::vector<Bucket> buckets;
  if (options.measured) {
    ASSIGN_OR_RETURN(buckets, TakeMeasured(candidates, *options.measured));
  }
  const std::vector<Bucket> by_size = FillBySize(candidates, options);
  buckets.insert(buckets.end(), by_size.begin(), by_size.end());
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const Bucket& a, const Bucket& b) { return a.position < b.position; });
  return buckets;
}

}  // namespace lockstep::passes
