#include "runtime/server/update.h"

#include "core/status.h"
#include "runtime/comm/collective/reduce.h"

namespace lockstep {
namespace {

class AddUpdate final : public Update {
 public:
  explicit AddUpdate(TensorType type) : type_(std::move(type)) {}

  absl::Status Run(const std::byte* value, const std::byte* gradient, std::byte* next) override {
    const std::byte* const inputs[] = {value, gradient};
    std::byte* const outputs[] = {next};
    Reduce({.dtype = type_.dtype, .count = type_.num_elements(), .inputs = inputs, .outputs = outputs});
    return absl::OkStatus();
  }
  std::vector<std::pair<std::string, TensorType>> states() const override { return {}; }
  absl::Status ReadState(std::string_view name, std::byte*) override { return HasNone(name); }
  absl::Status WriteState(std::string_view name, const std::byte*) override { return HasNone(name); }
  absl::StatusOr<bool> Set(std::string_view, double) override { return false; }

 private:
  static absl::Status HasNone(std::string_view name) {
    return NotFound() << "the update `" << kAddUpdate << "` has no state " << name;
  }
  const TensorType type_;
};

}  // namespace

std::unique_ptr<Update> MakeAddUpdate(const TensorType& type) { return std::make_unique<AddUpdate>(type); }

}  // namespace lockstep
