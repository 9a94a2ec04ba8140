// The update of an array by a gradient on a parameter server. Workers describe it by a text: the text of a graph, which
// `lockstep serve` compiles (backends/server_update.h), or the word `add`. Only the server's thread uses it.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

// The update of one array, of which a server has a piece or the whole. It keeps the states of the optimizer.
class Update {
 public:
  virtual ~Update() = default;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // next = the value after the update by `gradient`. All have the array's type and do not overlap.
  virtual absl::Status Run(const std::byte* value, const std::byte* gradient, std::byte* next) = 0;
  // The states between updates.
  virtual std::vector<std::pair<std::string, TensorType>> states() const = 0;
  virtual absl::Status ReadState(std::string_view name, std::byte* data) = 0;
  virtual absl::Status WriteState(std::string_view name, const std::byte* data) = 0;
  // Returns true if it has such a setting. Returns an error if the setting cannot have the value.
  virtual absl::StatusOr<bool> Set(std::string_view setting, double value) = 0;

 protected:
  Update() = default;
};

// Makes an update for an array of this type from its text.
using MakeUpdate =
    std::function<absl::StatusOr<std::unique_ptr<Update>>(const std::string& text, const TensorType& type)>;

// next = value + gradient, added as in reductions (runtime/communicator.h).
std::unique_ptr<Update> MakeAddUpdate(const TensorType& type);
inline constexpr char kAddUpdate[] = "add";

}  // namespace lockstep
