#include "python_bindings/padded_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "core/placement.h"
#include "core/status.h"
#include "passes/training/uneven.h"

namespace lockstep::python {
namespace {

bool IsBatch(const ValueInfo& info) {
  const auto placement = info.placements.find(std::string(kDataAxis));
  return placement != info.placements.end() && placement->second.is_split(0);
}

// Whether it is what the program takes, or that with fewer rows.
bool HasRowsOf(const TensorType& given, const TensorType& wanted) {
  return given.dtype == wanted.dtype && given.shape.rank() == wanted.shape.rank() &&
         given.shape[0] <= wanted.shape[0] && given.shape.Without({0}) == wanted.shape.Without({0});
}

NamedInput* Find(std::vector<NamedInput>& inputs, std::string_view name) {
  const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const NamedInput& in) { return in.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

void KeepFirstRow(const NamedInput& given, FirstRows& first_rows) {
  const TensorType& type = given.tensor.type;
  if (type.num_bytes() == 0 || first_rows.contains(given.name)) return;
  const auto* const begin = static_cast<const std::byte*>(given.tensor.data);
  first_rows.emplace(std::string(given.name), std::vector<std::byte>(begin, begin + type.num_bytes() / type.shape[0]));
}

// From the byte `begin` on.
void FillWithRow(Tensor& whole, size_t begin, const std::vector<std::byte>& row) {
  for (; begin < whole.type().num_bytes(); begin += row.size())
    std::memcpy(whole.mutable_bytes() + begin, row.data(), row.size());
}

absl::Status NotTheSame(const std::string& first, double of_first, const std::string& name, double rows) {
  ErrorStream error = InvalidArgument() << "input " << name << " has " << rows << " rows";
  if (!first.empty()) error << ", and " << first << " has " << of_first;
  return error << ", expected a whole number, the same of all inputs";
}

}  // namespace

absl::Status PadRows(const Executable& program, std::vector<NamedInput>& inputs, FirstRows& first_rows,
                     std::vector<Tensor>& padded) {
  const auto rows_info = std::find_if(program.inputs.begin(), program.inputs.end(),
                                      [](const ValueInfo& info) { return info.name == passes::kRows; });
  if (rows_info == program.inputs.end() || Find(inputs, passes::kRows) != nullptr) return absl::OkStatus();
  std::vector<const ValueInfo*> batches;
  for (const ValueInfo& info : program.inputs) {
    if (IsBatch(info) && info.name != passes::kRows) batches.push_back(&info);
  }
  const int64_t most = rows_info->local_type.shape[0];
  std::string first;
  std::optional<double> number;
  for (const ValueInfo* info : batches) {
    const NamedInput* const given = Find(inputs, info->name);
    if (given == nullptr || !HasRowsOf(given->tensor.type, info->local_type)) continue;
    // Labels of the words of a sentence may be several for each row.
    const double of_a_row = static_cast<double>(info->local_type.shape[0]) / static_cast<double>(most);
    const double own = static_cast<double>(given->tensor.type.shape[0]) / of_a_row;
    if ((number && own != *number) || own != std::floor(own))
      return NotTheSame(first, number.value_or(own), info->name, own);
    number = own;
    first = info->name;
    KeepFirstRow(*given, first_rows);
  }
  const bool is_none = std::none_of(batches.begin(), batches.end(),
                                    [&](const ValueInfo* info) { return Find(inputs, info->name) != nullptr; });
  padded.reserve(batches.size() + 1);
  for (const ValueInfo* info : batches) {
    NamedInput* const given = Find(inputs, info->name);
    const bool is_short = given != nullptr && HasRowsOf(given->tensor.type, info->local_type) &&
                          given->tensor.type.shape[0] < info->local_type.shape[0];
    if (!is_none && !is_short) continue;
    Tensor& whole = padded.emplace_back(info->local_type);
    const size_t there = given == nullptr ? 0 : given->tensor.type.num_bytes();
    if (there > 0) std::memcpy(whole.mutable_bytes(), given->tensor.data, there);
    if (const auto row = first_rows.find(info->name); row != first_rows.end()) FillWithRow(whole, there, row->second);
    const ConstTensorRef all{whole.type(), whole.bytes()};
    if (given != nullptr) given->tensor = all;
    else inputs.push_back({info->name, all});
  }
  Tensor& rows = padded.emplace_back(rows_info->local_type);
  const auto ones = rows.mutable_data<float>();
  const double there = is_none ? 0.0 : number.value_or(static_cast<double>(most));
  std::fill_n(ones.begin(), static_cast<int64_t>(there), 1.0f);
  inputs.push_back({rows_info->name, {rows.type(), rows.bytes()}});
  return absl::OkStatus();
}

}  // namespace lockstep::python
