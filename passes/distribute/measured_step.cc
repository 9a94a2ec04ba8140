// MeasuredStep as text.

#include <utility>
#include <vector>

#include "core/option_text.h"
#include "passes/distribute/merge_collectives.h"

namespace lockstep::passes {
namespace {

using Gradient = MeasuredStep::Gradient;

// As it is written: costs are numbers of bytes with nanoseconds.
struct Written {
  Named<std::string> gradients;
  Named<Named<int64_t>> costs;
};

std::vector<OptionOf<Gradient>> OptionsOfGradient() {
  return {Bind("ready", &Gradient::ready), Bind("needed", &Gradient::needed), Bind("update", &Gradient::update)};
}

std::vector<OptionOf<Written>> OptionsOfStep() {
  return {Bind("gradients", &Written::gradients), Bind("costs", &Written::costs)};
}

absl::Status SetInBraces(std::string_view text, const auto& options, auto& value) {
  ASSIGN_OR_RETURN(const std::vector<NamedText> texts, NamedTextsInBraces(text));
  const absl::Status status = SetOptions(options, texts, value);
  if (!status.ok()) return InvalidArgument() << ": " << status.message();
  return absl::OkStatus();
}

absl::StatusOr<CostTable> CostsFrom(const Named<int64_t>& written) {
  std::vector<CostTable::Point> points;
  for (const auto& [bytes, nanoseconds] : written) {
    CostTable::Point point{0, nanoseconds};
    const absl::Status status = FromText(bytes, point.bytes);
    if (!status.ok()) return InvalidArgument() << ": a number of bytes" << status.message();
    if (!points.empty() && point.bytes <= points.back().bytes)
      return InvalidArgument() << " has " << point.bytes << " bytes after " << points.back().bytes;
    points.push_back(point);
  }
  if (points.empty()) return InvalidArgument() << " has no bytes with nanoseconds";
  return CostTable(std::move(points));
}

}  // namespace

std::string MeasuredStep::ToString() const {
  Written written;
  std::vector<NamedText> gradient_texts;
  for (const auto& [name, gradient] : gradients)
    gradient_texts.emplace_back(name, "{" + OptionsToText(OptionsOfGradient(), gradient) + "}");
  for (const auto& [axis, table] : costs) {
    Named<int64_t>& points = written.costs.emplace_back(axis, Named<int64_t>()).second;
    for (const CostTable::Point& point : table.points())
      points.emplace_back(std::to_string(point.bytes), point.nanoseconds);
  }
  return "{gradients={" + PrintNamedTexts(gradient_texts) + "},costs=" + ToText(written.costs) + "}";
}

absl::StatusOr<MeasuredStep> MeasuredStep::Parse(std::string_view text) {
  Written written;
  RETURN_IF_ERROR(SetInBraces(text, OptionsOfStep(), written));
  MeasuredStep step;
  for (const auto& [name, of_gradient] : written.gradients) {
    const absl::Status status = SetInBraces(of_gradient, OptionsOfGradient(), step.gradients[name]);
    if (!status.ok()) return InvalidArgument() << ": " << name << status.message();
  }
  for (const auto& [axis, of_axis] : written.costs) {
    absl::StatusOr<CostTable> table = CostsFrom(of_axis);
    if (!table.ok()) return InvalidArgument() << ": costs of " << axis << table.status().message();
    step.costs.emplace(axis, *std::move(table));
  }
  return step;
}

}  // namespace lockstep::passes
