#include "backends/roofline.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/check.h"

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
  sum.measured += floor.measured;
  sum.lost += floor.lost;
  if (floor.by_operations > floor.by_bytes) sum.by_operations += floor.seconds();
}

std::vector<FloorSum> Sorted(std::map<std::string, FloorSum> sums, bool is_measured) {
  std::vector<FloorSum> sorted;
  for (auto& [name, sum] : sums) {
    sum.name = name;
    sorted.push_back(std::move(sum));
  }
  const auto key = [&](const FloorSum& sum) { return is_measured ? sum.lost : sum.seconds; };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const FloorSum& a, const FloorSum& b) { return key(a) > key(b); });
  return sorted;
}

std::string Fixed(double number) { return absl::StrFormat("%.3f", number); }
std::string Percent(double part, double whole) {
  return absl::StrFormat("%.0f %%", whole > 0 ? 100 * part / whole : 0);
}
std::string PerSecond(double count, double seconds) { return seconds > 0 ? Fixed(count * 1e-9 / seconds) : "-"; }

// A column of the tables of sums.
struct Column {
  const char* title;
  int width;
  std::function<std::string(const FloorSum&)> cell;
};

std::vector<Column> ColumnsOfSums(bool is_measured) {
  std::vector<Column> columns = {
      {"least ms", 12, [](const FloorSum& sum) { return Fixed(sum.seconds * 1e3); }},
      {"steps", 8, [](const FloorSum& sum) { return absl::StrFormat("%d", sum.steps); }},
      {"10^9 op.", 12, [](const FloorSum& sum) { return Fixed(sum.operations * 1e-9); }},
      {"MB", 12, [](const FloorSum& sum) { return Fixed(sum.bytes * 1e-6); }},
      {"by op.", 10, [](const FloorSum& sum) { return Percent(sum.by_operations, sum.seconds); }},
  };
  if (!is_measured) return columns;
  columns[2] = {"10^9 op./s", 12, [](const FloorSum& sum) { return PerSecond(sum.operations, sum.measured); }};
  columns[3] = {"GB/s", 12, [](const FloorSum& sum) { return PerSecond(sum.bytes, sum.measured); }};
  columns.insert(columns.begin(), {{"lost ms", 12, [](const FloorSum& sum) { return Fixed(sum.lost * 1e3); }},
                                   {"measured", 12, [](const FloorSum& sum) { return Fixed(sum.measured * 1e3); }}});
  return columns;
}

std::string Line(const std::vector<Column>& columns, const FloorSum& sum) {
  std::string line;
  for (const Column& column : columns) line += absl::StrFormat("%*s ", column.width, column.cell(sum));
  return line + " " + sum.name + "\n";
}

std::string Titles(const std::vector<Column>& columns, std::string_view what) {
  std::string line;
  for (const Column& column : columns) line += absl::StrFormat("%*s ", column.width, column.title);
  return absl::StrFormat("%s %s\n", line, what);
}

// Returns the sums by kind and by layer, and of all.
std::string Sums(const Roofline& roofline) {
  const std::vector<Column> columns = ColumnsOfSums(roofline.is_measured);
  std::string text;
  for (const auto& [what, sums] : {std::pair("kind", &roofline.kinds), std::pair("layer", &roofline.layers)}) {
    text += Titles(columns, what);
    for (const FloorSum& sum : *sums) text += Line(columns, sum);
  }
  return text + Line(columns, roofline.all);
}

// Returns a line about the steps that are faster than their least times, as caches held what they read.
std::string FastSteps(const std::vector<StepFloor>& steps) {
  int64_t count = 0;
  double seconds = 0;
  for (const StepFloor& floor : steps) {
    if (floor.lost >= 0) continue;
    ++count;
    seconds -= floor.lost;
  }
  return absl::StrFormat("faster than their least time: %d of %d steps, by %.3f ms in all\n", count, steps.size(),
                         seconds * 1e3);
}

// Returns a rate beside its ceiling, in 10^9 a second.
std::string Beside(double count, double seconds, double ceiling) {
  return PerSecond(count, seconds) + absl::StrFormat(" of %.4g", ceiling * 1e-9);
}

constexpr char kMeasuredStep[] = "%12s %12s %10s %22s %22s  %s\n";

std::string MeasuredLine(const StepFloor& floor, const Ceilings& ceilings) {
  const Work& work = floor.step->work;
  return absl::StrFormat(
      kMeasuredStep, absl::StrFormat("%.1f", floor.lost * 1e6), absl::StrFormat("%.1f", floor.measured * 1e6),
      Percent(floor.seconds(), floor.measured), Beside(work.operations, floor.measured, ceilings.rate(work.arithmetic)),
      Beside(static_cast<double>(work.bytes), floor.measured, ceilings.bytes_per_second), floor.step->ToString());
}

std::string LeastLine(const StepFloor& floor) {
  return absl::StrFormat("%12.1f %12.1f %12.1f  %s\n", floor.seconds() * 1e6, floor.by_operations * 1e6,
                         floor.by_bytes * 1e6, floor.step->ToString());
}

// Returns at most so many steps: if they are measured, with their rates beside the ceilings, and the least time as a
// share of the measured one.
std::string Steps(const Roofline& roofline, size_t most) {
  std::vector<StepFloor> sorted = roofline.steps;
  const auto key = [&](const StepFloor& step) { return roofline.is_measured ? step.lost : step.seconds(); };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const StepFloor& a, const StepFloor& b) { return key(a) > key(b); });
  if (sorted.size() > most) sorted.resize(most);
  std::string text = roofline.is_measured
                         ? absl::StrFormat(kMeasuredStep, "lost us", "measured", "least", "10^9 op./s", "GB/s", "step")
                         : absl::StrFormat("%12s %12s %12s  %s\n", "least us", "of op.", "of bytes", "step");
  for (const StepFloor& floor : sorted)
    text += roofline.is_measured ? MeasuredLine(floor, roofline.ceilings) : LeastLine(floor);
  return text;
}

}  // namespace

Roofline RooflineOf(const Executable& executable, const Ceilings& ceilings, int depth,
                    std::span<const double> measured) {
  LOCKSTEP_CHECK(measured.empty() || measured.size() == executable.steps.size()) << "not a time for each step";
  Roofline roofline;
  roofline.ceilings = ceilings;
  roofline.is_measured = std::any_of(measured.begin(), measured.end(), [](double seconds) { return seconds > 0; });
  roofline.least_bytes = static_cast<double>(executable.least_bytes);
  std::map<std::string, FloorSum> kinds, layers;
  for (size_t i = 0; i < executable.steps.size(); ++i) {
    const StepInfo& info = executable.steps[i]->info();
    if (info.kind != StepKind::kKernel && info.kind != StepKind::kCopy) continue;
    StepFloor floor{.step = &info,
                    .layer = LayerOf(info.source, depth),
                    .by_operations = info.work.operations / ceilings.rate(info.work.arithmetic),
                    .by_bytes = static_cast<double>(info.work.bytes) / ceilings.bytes_per_second};
    if (roofline.is_measured) {
      floor.measured = measured[i];
      floor.lost = floor.measured - floor.seconds();
    }
    roofline.steps.push_back(floor);
    Add(floor, kinds[info.name]);
    Add(floor, layers[floor.layer]);
    Add(floor, roofline.all);
  }
  roofline.kinds = Sorted(std::move(kinds), roofline.is_measured);
  roofline.layers = Sorted(std::move(layers), roofline.is_measured);
  roofline.all.name = "all";
  return roofline;
}

std::string Roofline::ToString(size_t most_steps) const {
  std::string text = absl::StrFormat(
      "at most %.3g GB/s, and operations in 10^9/s: %.4g in f32, %.4g in TF32, %.4g in 16 bits (%s)\n",
      ceilings.bytes_per_second * 1e-9, ceilings.rate(Arithmetic::kF32) * 1e-9, ceilings.rate(Arithmetic::kTF32) * 1e-9,
      ceilings.rate(Arithmetic::k16Bits) * 1e-9, ceilings.machine);
  text += Sums(*this);
  if (is_measured) text += FastSteps(steps);
  text += absl::StrFormat("bytes: %.3f MB; loops joined as far as other kernels allow: %.3f MB, ratio %.3f\n",
                          all.bytes * 1e-6, least_bytes * 1e-6, least_bytes > 0 ? all.bytes / least_bytes : 1);
  return most_steps > 0 ? text + Steps(*this, most_steps) : text;
}

}  // namespace lockstep
