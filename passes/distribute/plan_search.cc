#include "passes/distribute/plan_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/op_def.h"
#include "passes/distribute/distribute.h"
#include "passes/distribute/plan_program.h"
#include "passes/distribute/plan_walk.h"
#include "passes/optimize/dce.h"
#include "passes/pass.h"

namespace lockstep::passes {
namespace {

using Places = std::vector<ValuePlacements>;

// The number of quickest plans by the walk, besides the runners-up, whose programs are made to compare their costs.
constexpr size_t kEvaluatedPlans = 8;

// A path through the segments from one to the last and back, for given placements of the values at the cut.
struct Suffix {
  double seconds = 0;
  int64_t bytes = 0;
  int choices = -1;  // the choice of the first of these segments, as an index into `Search::choices_`
};

// The decision of a segment, and the index of the choice of the next segment.
struct Choice {
  size_t candidate = 0;
  int next = -1;
};

// A decision in a segment. It leads from placements of the values before the segment to placements behind it.
struct Edge {
  size_t from = 0, candidate = 0, to = 0;
  double seconds = 0;
  int64_t bytes = 0;
};

// The different placements of the given values that occur before a segment, and the edges from them.
struct Layer {
  std::vector<Places> given;
  std::vector<double> seconds;  // for each, the forward seconds of the quickest path to it
  std::vector<int64_t> bytes;   // for each, the bytes of the smallest path to it
  std::vector<Edge> edges;
};

// A plan along one axis: a candidate for each decision, with its estimated cost.
struct Found {
  std::vector<size_t> candidates;
  double seconds = 0;
  int64_t bytes = 0;
};

Places Take(const std::vector<int>& values, const Places& where) {
  Places taken;
  taken.reserve(values.size());
  for (const int value : values) taken.push_back(where[static_cast<size_t>(value)]);
  return taken;
}

void Put(const std::vector<int>& values, const Places& taken, Places& where) {
  for (size_t i = 0; i < values.size(); ++i) where[static_cast<size_t>(values[i])] = taken[i];
}

// The search along one axis.
class Search {
 public:
  // `is_limited`: true if there is a memory limit, so that bytes count too.
  Search(const PlanProgram& program, PlanWalk& walk, const std::string& axis, size_t width, size_t kept,
         bool is_limited)
      : program_(program), walk_(walk), axis_(axis), width_(width), kept_(kept), is_limited_(is_limited) {}

  // Returns the quickest plans, in order; with a memory limit, the quickest for each size.
  std::vector<Found> Run() {
    GoForward();
    return GoBack();
  }
  bool is_exact() const { return is_exact_; }

 private:
  void GoForward();
  std::vector<Found> GoBack();
  void Decide(size_t segment, size_t candidate, Places& where) const;
  int64_t BytesOf(size_t segment, const Places& where) const;
  void NarrowLayer(size_t segment);
  void Prune(std::vector<Suffix>& suffixes);

  const PlanProgram& program_;
  PlanWalk& walk_;
  const std::string& axis_;
  const size_t width_, kept_;
  const bool is_limited_;
  bool is_exact_ = true;
  std::vector<Layer> layers_;  // one before each segment, and one behind the last
  std::vector<Choice> choices_;
};

void Search::Decide(size_t segment, size_t candidate, Places& where) const {
  const PlanDecision& decision = program_.decisions[segment];
  where[static_cast<size_t>(decision.value)] = {CodeOf(decision.candidates[candidate]), 0};
  for (const PlanDecision::Kept& kept : decision.kept)
    where[static_cast<size_t>(kept.value)] = {CodeOf(kept.placements[candidate]), 0};
}

// Returns the bytes of the segment's state, its gradient, its optimizer states, and the values that the forward half
// stores for the backward half.
int64_t Search::BytesOf(size_t segment, const Places& where) const {
  const auto bytes = [&](int value) { return walk_.BytesOf(value, where[static_cast<size_t>(value)].is); };
  const PlanDecision& decision = program_.decisions[segment];
  const std::vector<Node*>& users = program_.values[static_cast<size_t>(decision.value)].node->users();
  const bool is_trained =
      std::any_of(users.begin(), users.end(), [](const Node* user) { return user->op().has_trait(kOptimizer); });
  int64_t sum = bytes(decision.value) * (is_trained ? 2 : 1);
  for (const PlanDecision::Kept& kept : decision.kept) sum += bytes(kept.value);
  for (const int value : program_.segments[segment].stored) {
    if (value != decision.value) sum += bytes(value);
  }
  return sum;
}

void Search::GoForward() {
  Places where(program_.values.size());
  for (const int input : program_.inputs)
    where[static_cast<size_t>(input)].is = CodeOf(program_.values[static_cast<size_t>(input)].placement(axis_));
  layers_.resize(program_.segments.size() + 1);
  layers_[0] = {{Take(program_.segments[0].given, where)}, {0}, {0}, {}};
  const std::vector<int> nothing;
  for (size_t i = 0; i < program_.segments.size(); ++i) {
    const PlanSegment& segment = program_.segments[i];
    Layer &layer = layers_[i], &next = layers_[i + 1];
    const std::vector<int>& given = i + 1 < program_.segments.size() ? program_.segments[i + 1].given : nothing;
    std::map<Places, size_t> known;
    for (size_t from = 0; from < layer.given.size(); ++from) {
      for (size_t candidate = 0; candidate < program_.decisions[i].candidates.size(); ++candidate) {
        Put(segment.given, layer.given[from], where);
        Decide(i, candidate, where);
        const double seconds = walk_.Run(segment.forward, where);
        if (seconds == kImpossible) continue;
        const auto [it, is_new] = known.emplace(Take(given, where), next.given.size());
        if (is_new) {
          next.given.push_back(it->first);
          next.seconds.push_back(kImpossible);
          next.bytes.push_back(std::numeric_limits<int64_t>::max());
        }
        const Edge edge{from, candidate, it->second, seconds, BytesOf(i, where)};
        double& quickest = next.seconds[edge.to];
        quickest = std::min(quickest, layer.seconds[from] + edge.seconds);
        int64_t& smallest = next.bytes[edge.to];
        smallest = std::min(smallest, layer.bytes[from] + edge.bytes);
        layer.edges.push_back(edge);
      }
    }
    NarrowLayer(i + 1);
  }
}

// If a layer has more than `width_` entries, keeps the quickest; with a memory limit, keeps the quickest `width_ / 2`
// and the smallest of the others.
void Search::NarrowLayer(size_t segment) {
  Layer &layer = layers_[segment], &before = layers_[segment - 1];
  if (layer.given.size() <= width_) return;
  is_exact_ = false;
  std::vector<size_t> order(layer.given.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return layer.seconds[a] < layer.seconds[b]; });
  if (is_limited_) {
    const auto half = order.begin() + static_cast<std::ptrdiff_t>(width_ / 2);
    std::stable_sort(half, order.end(), [&](size_t a, size_t b) { return layer.bytes[a] < layer.bytes[b]; });
  }
  order.resize(width_);
  std::sort(order.begin(), order.end());
  std::map<size_t, size_t> places;
  Layer narrow;
  for (const size_t old : order) {
    places.emplace(old, narrow.given.size());
    narrow.given.push_back(std::move(layer.given[old]));
    narrow.seconds.push_back(layer.seconds[old]);
    narrow.bytes.push_back(layer.bytes[old]);
  }
  std::vector<Edge> edges;
  for (Edge edge : before.edges) {
    const auto place = places.find(edge.to);
    if (place == places.end()) continue;
    edge.to = place->second;
    edges.push_back(edge);
  }
  before.edges = std::move(edges);
  layer = std::move(narrow);
}

// Keeps the suffixes for which fewer than `kept_` others are both as quick and as small.
void Search::Prune(std::vector<Suffix>& suffixes) {
  std::stable_sort(suffixes.begin(), suffixes.end(), [](const Suffix& a, const Suffix& b) {
    return std::pair(a.seconds, a.bytes) < std::pair(b.seconds, b.bytes);
  });
  if (!is_limited_) {
    if (suffixes.size() > kept_) suffixes.resize(kept_);
    return;
  }
  std::vector<Suffix> left;
  for (const Suffix& suffix : suffixes) {
    const auto better =
        std::count_if(left.begin(), left.end(), [&](const Suffix& other) { return other.bytes <= suffix.bytes; });
    if (better < static_cast<std::ptrdiff_t>(kept_)) left.push_back(suffix);
  }
  if (left.size() > width_) {  // from the quickest to the smallest, evenly
    is_exact_ = false;
    std::vector<Suffix> few;
    for (size_t i = 0; i < width_; ++i) few.push_back(left[i * (left.size() - 1) / (width_ - 1)]);
    left = std::move(few);
  }
  suffixes = std::move(left);
}

std::vector<Found> Search::GoBack() {
  using Table = std::map<Places, std::vector<Suffix>>;  // by the placements of the returned values
  std::vector<Table> tables(layers_.back().given.size(), Table{{Places{}, {Suffix{}}}});
  const std::vector<int> nothing;
  for (size_t i = program_.segments.size(); i-- > 0;) {
    const PlanSegment& segment = program_.segments[i];
    const std::vector<int>& returned = i + 1 < program_.segments.size() ? program_.segments[i + 1].returned : nothing;
    std::vector<Table> before(layers_[i].given.size());
    Places there(program_.values.size());
    for (const Edge& edge : layers_[i].edges) {
      Put(segment.given, layers_[i].given[edge.from], there);
      Decide(i, edge.candidate, there);
      walk_.Run(segment.forward, there);
      for (const auto& [places, suffixes] : tables[edge.to]) {
        Places where = there;
        Put(returned, places, where);
        const double seconds = edge.seconds + walk_.Run(segment.backward, where);
        if (seconds == kImpossible) continue;
        std::vector<Suffix>& into = before[edge.from][Take(segment.returned, where)];
        for (const Suffix& suffix : suffixes) {
          into.push_back({suffix.seconds + seconds, suffix.bytes + edge.bytes, static_cast<int>(choices_.size())});
          choices_.push_back({edge.candidate, suffix.choices});
        }
      }
    }
    for (Table& table : before) {
      for (auto& [places, suffixes] : table) Prune(suffixes);
    }
    tables = std::move(before);
  }
  std::vector<Suffix> all;
  for (const auto& [places, suffixes] : tables[0]) all.insert(all.end(), suffixes.begin(), suffixes.end());
  Prune(all);
  std::vector<Found> found;
  for (const Suffix& suffix : all) {
    found.push_back({{}, suffix.seconds, suffix.bytes});
    for (int choice = suffix.choices; choice >= 0; choice = choices_[static_cast<size_t>(choice)].next)
      found.back().candidates.push_back(choices_[static_cast<size_t>(choice)].candidate);
  }
  return found;
}

// Returns the mesh without its axes of one rank, and with the axis `last` behind the others.
Mesh MeshEndingWith(const Mesh& mesh, const std::string& last) {
  std::vector<MeshAxis> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size > 1 && axis.name != last) axes.push_back(axis);
  }
  axes.push_back({last, mesh.axis_size(last).value()});
  return Mesh(std::move(axes));
}

// Returns a copy of the graph without placements along axes of one rank.
Graph WithoutAxesOfOne(const Graph& graph, const Mesh& mesh) {
  Graph result = graph.Clone();
  for (size_t i = 0; i < result.inputs().size(); ++i) {
    PlacementMap placements = result.inputs()[i].placements();
    std::erase_if(placements, [&](const auto& each) { return mesh.axis_size(each.first).value_or(2) == 1; });
    result.set_input_placements(i, std::move(placements));
  }
  for (size_t i = 0; i < result.results().size(); ++i) {
    PlacementMap placements = result.results()[i].placements;
    std::erase_if(placements, [&](const auto& each) { return mesh.axis_size(each.first).value_or(2) == 1; });
    result.set_result_placements(i, std::move(placements));
  }
  return result;
}

// Returns the costs of the program that distribute makes of the step with these splits.
absl::StatusOr<PlacementPlan> EvaluatePlan(const Graph& step, const Mesh& mesh, const PlanMachine& machine,
                                           InputSplits splits) {
  Graph graph = step.Clone();
  RETURN_IF_ERROR(SplitInputs(graph, splits, mesh));
  ASSIGN_OR_RETURN(Graph placed, DistributeGraph(graph, mesh));
  RETURN_IF_ERROR(RunPasses({Dce()}, placed));  // removes whole values of which only slices are used
  return PlacementPlan{std::move(splits), CostsOf(placed, machine)};
}

bool IsBetter(const PlacementPlan& a, const PlacementPlan& b) {
  return std::pair(a.costs.seconds(), a.costs.bytes()) < std::pair(b.costs.seconds(), b.costs.bytes());
}

// Plans along one axis, each with the splits along other axes; quickest first. If no state can be shared along the
// axis, the only plan is the given splits.
struct AlongAxis {
  std::vector<InputSplits> splits;
  bool is_exact = true, has_choice = true;
};

absl::StatusOr<AlongAxis> SearchAlong(const Graph& step, const Mesh& mesh, const std::string& axis,
                                      const InputSplits& so_far, const PlanOptions& options, bool is_limited) {
  Graph graph = step.Clone();
  RETURN_IF_ERROR(SplitInputs(graph, so_far, mesh));
  const Mesh axes = MeshEndingWith(mesh, axis);
  const Mesh others(std::vector<MeshAxis>(axes.axes().begin(), axes.axes().end() - 1));
  OptimizerStates kept;
  for (const Input& input : graph.inputs()) {
    if (input.is_state) kept.emplace(input.name(), StatesOfOptimizerFor(graph, input));
  }
  ASSIGN_OR_RETURN(Graph placed, DistributeGraph(graph, others));
  RETURN_IF_ERROR(RunPasses({Dce()}, placed));  // removes whole values of which only slices are used
  const PlanProgram program = MakePlanProgram(placed, axes, axis, kept);
  if (program.decisions.empty()) return AlongAxis{{so_far}, true, false};
  PlanWalk walk(placed, program, axes, options.machine);
  Search search(program, walk, axis, options.width, is_limited ? 1 : options.runners_up + kEvaluatedPlans, is_limited);
  AlongAxis result;
  for (const Found& found : search.Run()) {
    InputSplits splits = so_far;
    for (size_t i = 0; i < found.candidates.size(); ++i) {
      const PlanDecision& decision = program.decisions[i];
      const Placement& placement = decision.candidates[found.candidates[i]];
      if (placement.is_split())
        splits[program.values[static_cast<size_t>(decision.value)].name()][axis] = placement.dim();
    }
    result.splits.push_back(std::move(splits));
  }
  if (result.splits.empty())
    return Internal() << "plan: no placement of the states of @" << step.name() << " along axis " << axis << " works";
  result.is_exact = search.is_exact();
  return result;
}

// Returns the axes of several ranks along which no data input is split, except the data axis.
std::vector<std::string> AxesToSearch(const Graph& step, const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    const bool is_data = axis.name == kDataAxis;
    const bool is_shared = std::any_of(step.inputs().begin(), step.inputs().end(), [&](const Input& input) {
      return input.is_data() && !input.value.placement(axis.name).is_replicated();
    });
    if (axis.size > 1 && !is_data && !is_shared) axes.push_back(axis.name);
  }
  return axes;
}

// Returns plans along all axes, quickest first by the costs of their programs. They differ only along the last axis.
absl::StatusOr<std::vector<PlacementPlan>> SearchAll(const Graph& step, const Mesh& mesh, const PlanOptions& options,
                                                     const std::vector<std::string>& axes, bool is_limited,
                                                     bool& is_exact) {
  std::vector<PlacementPlan> plans = {PlacementPlan{}};
  bool has_choice = false;
  for (const std::string& axis : axes) {
    ASSIGN_OR_RETURN(const AlongAxis along, SearchAlong(step, mesh, axis, plans[0].splits, options, is_limited));
    is_exact = is_exact && along.is_exact;
    has_choice = has_choice || along.has_choice;
    plans.clear();
    for (const InputSplits& splits : along.splits) {
      ASSIGN_OR_RETURN(PlacementPlan plan, EvaluatePlan(step, mesh, options.machine, splits));
      plans.push_back(std::move(plan));
    }
    std::stable_sort(plans.begin(), plans.end(), IsBetter);
    if (is_limited && axis != axes.back()) {  // the smallest plan leaves the most memory for the next axes
      std::iter_swap(plans.begin(), std::min_element(plans.begin(), plans.end(), [](const auto& a, const auto& b) {
                       return a.costs.bytes() < b.costs.bytes();
                     }));
    }
  }
  if (!has_choice) {
    return InvalidArgument() << "plan: graph @" << step.name() << " has no state that the "
                             << mesh.axis_size(axes[0]).value() << " ranks along axis " << axes[0]
                             << " can share evenly";
  }
  return plans;
}

// Removes the splits without which the program is quicker. They are of states of one dimension, such as biases: the
// walk underestimates the time of their slices.
absl::Status RemoveSlowSplits(const Graph& step, const Mesh& mesh, const PlanOptions& options, PlacementPlan& plan) {
  const InputSplits first = plan.splits;
  for (const auto& [name, dims] : first) {
    if (step.FindInput(name)->value.shape().rank() > 1) continue;
    InputSplits without = plan.splits;
    without.erase(name);
    ASSIGN_OR_RETURN(PlacementPlan other, EvaluatePlan(step, mesh, options.machine, std::move(without)));
    const bool fits = !options.memory_limit || other.costs.bytes() <= *options.memory_limit;
    if (fits && IsBetter(other, plan)) plan = std::move(other);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanSearch> SearchPlan(const Graph& original, const Mesh& mesh, const PlanOptions& options) {
  if (!original.mesh().empty()) {
    return InvalidArgument() << "plan: graph @" << original.name() << " is distributed already, over "
                             << original.mesh().ToString();
  }
  const Graph step = WithoutAxesOfOne(original, mesh);
  const std::vector<std::string> axes = AxesToSearch(step, mesh);
  if (axes.empty()) {
    return InvalidArgument() << "plan: the mesh " << mesh.ToString() << " has no axis of several ranks, other than "
                             << kDataAxis << ", along which no input is split; the search needs such an axis";
  }
  PlanSearch result;
  ASSIGN_OR_RETURN(result.replicated, EvaluatePlan(step, mesh, options.machine, {}));
  const auto fits = [&](const PlacementPlan& plan) {
    return !options.memory_limit || plan.costs.bytes() <= *options.memory_limit;
  };
  ASSIGN_OR_RETURN(std::vector<PlacementPlan> plans, SearchAll(step, mesh, options, axes, false, result.is_exact));
  if (!fits(plans[0])) {
    ASSIGN_OR_RETURN(plans, SearchAll(step, mesh, options, axes, true, result.is_exact));
  }
  const int64_t smallest = std::min_element(plans.begin(), plans.end(), [](const auto& a, const auto& b) {
                             return a.costs.bytes() < b.costs.bytes();
                           })->costs.bytes();
  std::erase_if(plans, [&](const PlacementPlan& plan) { return !fits(plan); });
  if (plans.empty()) {
    return InvalidArgument() << "plan: a rank of the mesh " << mesh.ToString() << " needs " << smallest
                             << " bytes with the smallest plan that was found for @" << step.name()
                             << ", and memory_limit is " << *options.memory_limit;
  }
  result.best = plans[0];
  RETURN_IF_ERROR(RemoveSlowSplits(step, mesh, options, result.best));
  for (PlacementPlan& plan : plans) {
    if (result.runners_up.size() == options.runners_up) break;
    if (plan.splits != result.best.splits) result.runners_up.push_back(std::move(plan));
  }
  return result;
}

}  // namespace lockstep::passes
