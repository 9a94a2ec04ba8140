#include "backends/numerics_check.h"

#include <algorithm>

#include "backends/find_non_finite.h"
#include "core/finite.h"
#include "passes/training/loss_scaling.h"

namespace lockstep {
namespace {

bool HasNoRows(std::span<const NamedResult> results) {
  return std::any_of(results.begin(), results.end(), [](const NamedResult& result) {
    if (result.name != "rows" || result.tensor.type.num_elements() != 1) return false;
    return DispatchDType(result.tensor.type.dtype, [&](auto tag) {
      return static_cast<double>(*static_cast<const typename decltype(tag)::type*>(result.tensor.data)) == 0;
    });
  });
}

// Adds the lines of all ranks to a set.
std::set<std::string> NamesOfAll(const std::vector<std::string>& all) {
  std::set<std::string> names;
  for (const std::string& lines : all) {
    for (size_t begin = 0; begin < lines.size(); begin = lines.find('\n', begin) + 1)
      names.insert(lines.substr(begin, lines.find('\n', begin) - begin));
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
  wrong += name + "\n";
}

absl::StatusOr<std::string> NumericsCheck::WrongValues(std::span<const NamedResult> results) {
  std::string wrong;
  if (HasNoRows(results)) return wrong;
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
  if (scale == before_.end()) return false;
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
