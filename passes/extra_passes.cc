#include "passes/extra_passes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "core/check.h"

namespace lockstep::passes {
namespace {

constexpr std::string_view kLastPlace = "localize";  // passes run at most directly before it

int64_t CountOf(std::string_view name, const std::vector<Pass>& passes) {
  return std::count_if(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.name == name; });
}

size_t IndexOf(std::string_view name, const std::vector<Pass>& passes) {
  const auto found = std::find_if(passes.begin(), passes.end(), [&](const Pass& pass) { return pass.name == name; });
  return static_cast<size_t>(found - passes.begin());
}

// Returns an error if the pass has no place, with the places that there are.
absl::Status CheckPlace(const ExtraPass& extra, const std::vector<Pass>& full) {
  const std::vector<std::string> places = Places(full);
  ErrorStream error = InvalidArgument() << (extra.before ? "before" : "after") << "=\"" << extra.place << "\"";
  if (extra.place == kLastPlace && !extra.before)
    return error << ": after it graphs are local, and passes cannot insert nodes; before=\"" << kLastPlace
                 << "\" is the last place";
  if (std::find(places.begin(), places.end(), extra.place) != places.end()) return absl::OkStatus();
  const int64_t count = CountOf(extra.place, full);
  return error << (count == 0   ? " is no pass of the pipeline"
                   : count == 1 ? " runs on local graphs, in which passes cannot insert nodes"
                                : " is in the pipeline several times")
               << "; the places are " << absl::StrJoin(places, ", ");
}

// Returns the index in `pipeline` before which the pass runs.
size_t IndexOfPlace(const ExtraPass& extra, const std::vector<Pass>& pipeline, const std::vector<Pass>& full) {
  const size_t place = IndexOf(extra.place, pipeline);
  if (place < pipeline.size()) return place + (extra.before ? 0 : 1);
  for (size_t i = IndexOf(extra.place, full); i < full.size(); ++i) {
    if (CountOf(full[i].name, full) == 1 && CountOf(full[i].name, pipeline) == 1)
      return IndexOf(full[i].name, pipeline);
  }
  LOCKSTEP_CHECK(false) << "no pass follows " << extra.place;
  return 0;
}

std::string Describe(const Input& input) {
  return (input.is_state ? "the state " : input.setting ? "the setting " : "the input ") + input.name();
}

std::string Describe(const Result& result) {
  return (result.is_state ? "the next value of state " : "the result ") + result.name;
}

// Returns an error if `after`, which may be null, does not stand for `before` any more.
template <typename T>
absl::Status CheckKept(const T& before, const T* after) {
  if (after == nullptr || Describe(*after) != Describe(before))
    return InvalidArgument() << "it removes " << Describe(before);
  if (after->value.type() == before.value.type()) return absl::OkStatus();
  return InvalidArgument() << "it changes the type of " << Describe(before) << " from " << before.value.type() << " to "
                           << after->value.type();
}

absl::Status CheckInterface(const Graph& before, const Graph& after) {
  for (const Input& input : before.inputs()) RETURN_IF_ERROR(CheckKept(input, after.FindInput(input.name())));
  for (const Result& result : before.results())
    RETURN_IF_ERROR(CheckKept(result, after.FindResult(result.name, result.is_state)));
  return absl::OkStatus();
}

Pass WithCheckedInterface(const Pass& pass) {
  Pass checked = pass;
  checked.run = [run = pass.run](Graph& graph) -> absl::StatusOr<bool> {
    const Graph before = graph.Clone();
    ASSIGN_OR_RETURN(const bool changed, run(graph));
    RETURN_IF_ERROR(CheckInterface(before, graph));
    return changed;
  };
  return checked;
}

}  // namespace

std::string ExtraPass::ToString() const {
  const std::string text = pass.name + (before ? " before " : " after ") + place;
  return version.empty() ? text : text + ": " + version;
}

std::string Describe(const std::vector<ExtraPass>& extra) {
  std::string text;
  for (const ExtraPass& each : extra) text += "pass " + each.ToString() + "\n";
  return text;
}

std::vector<std::string> Places(const std::vector<Pass>& full) {
  std::vector<std::string> places;
  for (const Pass& pass : full) {
    if (CountOf(pass.name, full) == 1) places.push_back(pass.name);
    if (pass.name == kLastPlace) break;
  }
  return places;
}

absl::Status CheckPlaces(const std::vector<ExtraPass>& extra, const std::vector<Pass>& full) {
  std::set<std::string> names;
  for (const Pass& pass : full) names.insert(pass.name);
  for (const ExtraPass& each : extra) {
    absl::Status status = CheckPlace(each, full);
    if (status.ok() && !names.insert(each.pass.name).second) status = InvalidArgument() << "another pass has this name";
    RETURN_IF_ERROR(Annotate(status, "pass " + each.pass.name));
  }
  return absl::OkStatus();
}

std::vector<Pass> WithExtraPasses(const std::vector<Pass>& pipeline, const std::vector<ExtraPass>& extra,
                                  const std::vector<Pass>& full) {
  std::vector<Pass> all;
  for (size_t i = 0; i <= pipeline.size(); ++i) {
    for (const ExtraPass& each : extra) {
      if (IndexOfPlace(each, pipeline, full) == i) all.push_back(WithCheckedInterface(each.pass));
    }
    if (i < pipeline.size()) all.push_back(pipeline[i]);
  }
  return all;
}

}  // namespace lockstep::passes
