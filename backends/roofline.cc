#include "backends/roofline.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"

namespace lockstep {
namespace {

bool Skip(std::string_view prefix, std::string_view& text) {
  const bool found = text.starts_with(prefix);
  if (found) text.remove_prefix(prefix.size());
  return found;
}

// Returns the first `count` parts of the text.
std::string_view FirstParts(std::string_view text, char separator, int count) {
  size_t end = 0;
  while (count-- > 0 && end != std::string_view::npos) end = text.find(separator, end == 0 ? 0 : end + 1);
  return text.substr(0, end);
}

// Returns the layer of the model to which a step belongs, by its source: "blocks.3" of
// "gradient of torch:blocks.3.attention/node_MatMul_5", with a depth of 2.
std::string LayerOf(std::string_view source, int depth) {
  while (Skip("gradient of ", source)) {
  }
  if (source.empty()) return "other";
  if (source.starts_with('%')) return "gradients";  // of a node without a source
  if (source.starts_with("optimizer")) return "optimizer";
  const bool is_of_torch = Skip("torch:", source);
  if (!is_of_torch && !Skip("onnx:", source)) Skip("python:", source);
  Skip("/", source);
  if (const size_t of_operator = source.rfind('/'); of_operator != std::string_view::npos)
    source = source.substr(0, of_operator);
  return std::string(FirstParts(source, is_of_torch ? '.' : '/', depth));
}

void Add(const StepFloor& floor, FloorSum& sum) {
  const Work& work = floor.step->work;
  ++sum.steps;
  sum.operations += work.operations;
  sum.bytes += static_cast<double>(work.bytes);
  sum.seconds += floor.seconds();
  if (floor.by_operations > floor.by_bytes) sum.by_operations += floor.seconds();
}

std::vector<FloorSum> Sorted(std::map<std::string, FloorSum> sums) {
  std::vector<FloorSum> sorted;
  for (auto& [name, sum] : sums) {
    sum.name = name;
    sorted.push_back(std::move(sum));
  }
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const FloorSum& a, const FloorSum& b) { return a.seconds > b.seconds; });
  return sorted;
}

constexpr char kColumns[] = "%12s %8s %12s %12s %10s  %s\n";

std::string Line(const FloorSum& sum) {
  return absl::StrFormat(kColumns, absl::StrFormat("%.3f", sum.seconds * 1e3), absl::StrFormat("%d", sum.steps),
                         absl::StrFormat("%.3f", sum.operations * 1e-9), absl::StrFormat("%.3f", sum.bytes * 1e-6),
                         absl::StrFormat("%.0f %%", sum.seconds > 0 ? 100 * sum.by_operations / sum.seconds : 0),
                         sum.name);
}

}  // namespace

Roofline RooflineOf(const Executable& executable, const Ceilings& ceilings, int depth) {
  Roofline roofline;
  roofline.ceilings = ceilings;
  roofline.least_bytes = static_cast<double>(executable.least_bytes);
  std::map<std::string, FloorSum> kinds, layers;
  for (const auto& step : executable.steps) {
    const StepInfo& info = step->info();
    if (info.kind != StepKind::kKernel && info.kind != StepKind::kCopy) continue;
    const StepFloor floor{.step = &info,
                          .by_operations = info.work.operations / ceilings.rate(info.work.arithmetic),
                          .by_bytes = static_cast<double>(info.work.bytes) / ceilings.bytes_per_second};
    roofline.steps.push_back(floor);
    Add(floor, kinds[info.name]);
    Add(floor, layers[LayerOf(info.source, depth)]);
    Add(floor, roofline.all);
  }
  roofline.kinds = Sorted(std::move(kinds));
  roofline.layers = Sorted(std::move(layers));
  roofline.all.name = "all";
  return roofline;
}

std::string Roofline::ToString(bool with_steps) const {
  std::string text = absl::StrFormat(
      "at most %.3g GB/s, and operations in 10^9/s: %.4g in f32, %.4g in TF32, %.4g in 16 bits (%s)\n",
      ceilings.bytes_per_second * 1e-9, ceilings.rate(Arithmetic::kF32) * 1e-9, ceilings.rate(Arithmetic::kTF32) * 1e-9,
      ceilings.rate(Arithmetic::k16Bits) * 1e-9, ceilings.machine);
  const auto table = [&](std::string_view what, const std::vector<FloorSum>& sums) {
    text += absl::StrFormat(kColumns, "least ms", "steps", "10^9 op.", "MB", "by op.", what);
    for (const FloorSum& sum : sums) text += Line(sum);
  };
  table("kind", kinds);
  table("layer", layers);
  text += Line(all);
  text += absl::StrFormat("bytes: %.3f MB; loops joined as far as other kernels allow: %.3f MB, ratio %.3f\n",
                          all.bytes * 1e-6, least_bytes * 1e-6, least_bytes > 0 ? all.bytes / least_bytes : 1);
  if (!with_steps) return text;
  std::vector<StepFloor> sorted = steps;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const StepFloor& a, const StepFloor& b) { return a.seconds() > b.seconds(); });
  text += absl::StrFormat("%12s %12s %12s  %s\n", "least us", "of op.", "of bytes", "step");
  for (const StepFloor& floor : sorted) {
    text += absl::StrFormat("%12.1f %12.1f %12.1f  %s\n", floor.seconds() * 1e6, floor.by_operations * 1e6,
                            floor.by_bytes * 1e6, floor.step->ToString());
  }
  return text;
}

}  // namespace lockstep
