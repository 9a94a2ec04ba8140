// What a parameter server does with a gradient. A server runs what workers describe by a text: the text of a graph,
// which `lockstep serve` compiles (backends/server_update.h), or the word `add`. Used by the server's thread alone.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace lockstep {

// Of one array, of which a server has one piece or all. It keeps what an optimizer keeps.
class Update {
 public:
  virtual ~Update() = default;
  Update(const Update&) = delete;
  Update& operator=(const Update&) = delete;

  // next = the value after the update by `gradient`. All are of the array's type, and do not overlap.
  virtual absl::Status Run(const std::byte* value, const std::byte* gradient, std::byte* next) = 0;
  // What it keeps between updates.
  virtual std::vector<std::pair<std::string, TensorType>> states() const = 0;
  virtual absl::Status ReadState(std::string_view name, std::byte* data) = 0;
  virtual absl::Status WriteState(std::string_view name, const std::byte* data) = 0;
  // Whether it has such a setting; an error if that cannot have the value.
  virtual absl::StatusOr<bool> Set(std::string_view setting, double value) = 0;

 protected:
  Update() = default;
};

// Makes an update of an array of this type from its text.
using MakeUpdate =
    std::function<absl::StatusOr<std::unique_ptr<Update>>(const std::string& text, const TensorType& type)>;

// next = value + gradient, as reductions add (runtime/communicator.h).
std::unique_ptr<Update> MakeAddUpdate(const TensorType& type);
inline constexpr char kAddUpdate[] = "add";

}  // namespace lockstep
