#include "backends/numerics_check.h"

#include <algorithm>
#include <string_view>

#include "backends/find_non_finite.h"
#include "core/finite.h"
#include "passes/training/loss_scaling.h"
#include "passes/training/uneven.h"

namespace lockstep {
namespace {

// Returns whether an uneven step had no rows.
bool HasNoRows(std::span<const NamedResult> results) {
  return std::any_of(results.begin(), results.end(), [](const NamedResult& result) {
    return result.name == passes::kRows && *static_cast<const float*>(result.tensor.data) == 0;
  });
}

// Adds a name, which may have any characters, to a rank's names.
void AddName(std::string& names, std::string_view name) {
  names += std::to_string(name.size()) + " ";
  names += name;
}

std::set<std::string> NamesOfAll(const std::vector<std::string>& all) {
  std::set<std::string> names;
  for (std::string_view of_rank : all) {
    while (!of_rank.empty()) {
      const size_t size = std::stoul(std::string(of_rank)), begin = of_rank.find(' ') + 1;
      names.emplace(of_rank.substr(begin, size));
      of_rank.remove_prefix(begin + size);
    }
  }
  return names;
}

}  // namespace

void NumericsCheck::Look(const std::string& name, const TensorType& type, const void* data, const Tensor* before,
                         bool is_skipped, std::string& wrong) const {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (!IsFloat(type.dtype) || AllFinite(type.dtype, bytes, type.num_bytes())) return;
  const bool was_finite = before == nullptr || AllFinite(before->dtype(), before->bytes(), before->num_bytes());
  const bool may_be_infinite = is_skipped || !was_finite || intended_.contains(name);
  if (may_be_infinite && CountElements(type.dtype, bytes, type.num_bytes()).nans == 0) return;
  AddName(wrong, name);
}

absl::StatusOr<std::string> NumericsCheck::WrongValues(std::span<const NamedResult> results) {
  std::string wrong;
  if (passes::IsUneven(loaded_.graph) && HasNoRows(results)) return wrong;
  ASSIGN_OR_RETURN(const bool is_skipped, IsSkipped());
  for (const NamedResult& result : results) {
    if (is_skipped && result.name != "loss") continue;
    Look("result " + std::string(result.name), result.tensor.type, result.tensor.data, nullptr, is_skipped, wrong);
  }
  for (const auto& [name, before] : before_) {
    if (!IsFloat(before.dtype())) continue;
    if (after_.size() < before.num_bytes()) after_.resize(before.num_bytes());  // new memory would cost more
    RETURN_IF_ERROR(loaded_.executor->ReadState(name, {before.type(), after_.data()}));
    Look("state " + name, before.type(), after_.data(), &before, /*is_skipped=*/false, wrong);
  }
  return wrong;
}

// A step whose gradients overflow reduces the scale and updates no weights. It may have results that are not finite,
// but no states: running statistics are updated by it. Nor may its loss be NaN: that is computed without the scale, so
// no scale would make it finite.
absl::StatusOr<bool> NumericsCheck::IsSkipped() {
  const auto scale =
      std::find_if(before_.begin(), before_.end(), [](const auto& each) { return each.first == passes::kLossScale; });
  if (scale == before_.end() || !passes::IsLossScaled(loaded_.graph)) return false;
  Tensor after(scale->second.type());
  RETURN_IF_ERROR(loaded_.executor->ReadState(scale->first, {after.type(), after.mutable_bytes()}));
  const double before = scale->second.At(0);
  return after.At(0) < (before > 0 ? before : passes::kInitialLossScale);
}

absl::Status NumericsCheck::Run(int64_t step, std::span<const NamedInput> inputs, std::span<const NamedResult> results,
                                const std::function<absl::Status()>& run) {
  RETURN_IF_ERROR(ReadStates(*loaded_.executor, loaded_.executor->updated_states(), before_));
  RETURN_IF_ERROR(run());
  ASSIGN_OR_RETURN(const std::string wrong, WrongValues(results));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, communicator_.AllGatherBytes(wrong, "check_numerics"));
  const std::set<std::string> names = NamesOfAll(all);
  if (names.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(WriteStates(*loaded_.executor, before_));
  ASSIGN_OR_RETURN(const std::optional<NonFinite> found, FindNonFinite(loaded_, inputs, communicator_, &names));
  ErrorStream error = FailedPrecondition() << "check_numerics: ";
  if (found) return error << found->ToString(step) << "\nThe states are those before this step.";
  const std::set<std::string> known = intended_;
  intended_.insert(names.begin(), names.end());
  if (intended_ == known) {
    return error << "step " << step << ": " << *names.begin()
                 << " is NaN, but not when the step is computed again. The states are those before this step.";
  }
  return Run(step, inputs, results, run);  // a NaN is still an error then
}

}  // namespace lockstep
