#include "python_bindings/padded_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>

#include "core/finite.h"
#include "core/placement.h"
#include "core/status.h"
#include "passes/training/uneven.h"

namespace lockstep::python {
namespace {

// True if `given` equals the wanted type or has fewer rows.
bool HasRowsOf(const TensorType& given, const TensorType& wanted) {
  return given.dtype == wanted.dtype && given.shape.rank() == wanted.shape.rank() &&
         given.shape[0] <= wanted.shape[0] && given.shape.Without({0}) == wanted.shape.Without({0});
}

NamedInput* Find(std::vector<NamedInput>& inputs, std::string_view name) {
  const auto found = std::find_if(inputs.begin(), inputs.end(), [&](const NamedInput& in) { return in.name == name; });
  return found == inputs.end() ? nullptr : &*found;
}

absl::Status NotTheSame(const std::string& first, double of_first, const std::string& name, double rows) {
  ErrorStream error = InvalidArgument() << "input " << name << " has " << rows << " rows";
  if (!first.empty()) error << ", and " << first << " has " << of_first;
  return error << ", expected a whole number, the same for all inputs";
}

// Keeps the first row of a batch, which is `of_a_row` entries of dimension 0, unless there is one already or it has
// NaN.
void Keep(const ConstTensorRef& batch, int64_t of_a_row, Tensor& row) {
  std::vector<int64_t> extents = batch.type.shape.dims();
  extents[0] = of_a_row;
  const TensorType type{batch.type.dtype, Shape(std::move(extents))};
  const size_t size = type.num_bytes();
  if (row.type() == type || CountElements(type.dtype, static_cast<const std::byte*>(batch.data), size).nans > 0) return;
  row = Tensor(type);
  if (size > 0) std::memcpy(row.mutable_bytes(), batch.data, size);
}

// Fills the batch with copies of the row from the byte `begin` on.
void Fill(Tensor& batch, size_t begin, const Tensor& row) {
  const size_t size = row.num_bytes();
  for (size_t at = begin; size > 0 && at + size <= batch.num_bytes(); at += size)
    std::memcpy(batch.mutable_bytes() + at, row.bytes(), size);
}

}  // namespace

std::set<std::string> BatchesOf(const Graph& graph) {
  std::set<std::string> names;
  for (const Input& input : graph.inputs()) {
    if (input.is_data() && input.value.placement(kDataAxis).is_split(0)) names.insert(input.name());
  }
  return names;
}

absl::Status PadRows(const Executable& program, const std::set<std::string>& batches, FirstRows& first_rows,
                     std::vector<NamedInput>& inputs, std::vector<Tensor>& padded) {
  const auto rows_info = std::find_if(program.inputs.begin(), program.inputs.end(),
                                      [](const ValueInfo& info) { return info.name == passes::kRows; });
  if (rows_info == program.inputs.end() || Find(inputs, passes::kRows) != nullptr) return absl::OkStatus();
  std::vector<const ValueInfo*> infos;
  for (const ValueInfo& info : program.inputs) {
    if (batches.contains(info.name) && info.name != passes::kRows) infos.push_back(&info);
  }
  if (infos.empty()) {
    return InvalidArgument() << "input " << passes::kRows << " is missing, and no input of @" << program.name
                             << " is known to be a batch, for example because distribute() had one rank along axis "
                             << kDataAxis << ": compile the graph before distribute(), or pass 1 for each existing row "
                             << "and 0 for padding";
  }
  const int64_t most = rows_info->local_type.shape[0];
  std::string first;
  std::optional<double> number;
  for (const ValueInfo* info : infos) {
    const NamedInput* const given = Find(inputs, info->name);
    if (given == nullptr || !HasRowsOf(given->tensor.type, info->local_type)) continue;
    // An input may have several entries for each row, such as labels of the words of a sentence.
    const double of_a_row = static_cast<double>(info->local_type.shape[0]) / static_cast<double>(most);
    const double own = static_cast<double>(given->tensor.type.shape[0]) / of_a_row;
    if ((number && own != *number) || own != std::floor(own))
      return NotTheSame(first, number.value_or(own), info->name, own);
    number = own;
    first = info->name;
    if (own >= 1) Keep(given->tensor, static_cast<int64_t>(of_a_row), first_rows[info->name]);
  }
  const bool is_none = std::none_of(infos.begin(), infos.end(),
                                    [&](const ValueInfo* info) { return Find(inputs, info->name) != nullptr; });
  padded.reserve(infos.size() + 1);
  for (const ValueInfo* info : infos) {
    NamedInput* const given = Find(inputs, info->name);
    const bool is_short = given != nullptr && HasRowsOf(given->tensor.type, info->local_type) &&
                          given->tensor.type.shape[0] < info->local_type.shape[0];
    if (!is_none && !is_short) continue;
    Tensor& whole = padded.emplace_back(info->local_type);
    const size_t own_bytes = given == nullptr ? 0 : given->tensor.type.num_bytes();
    if (own_bytes > 0) std::memcpy(whole.mutable_bytes(), given->tensor.data, own_bytes);
    if (const auto row = first_rows.find(info->name); row != first_rows.end()) Fill(whole, own_bytes, row->second);
    const ConstTensorRef all{whole.type(), whole.bytes()};
    if (given == nullptr) inputs.push_back({info->name, all});
    else given->tensor = all;
  }
  Tensor& rows = padded.emplace_back(rows_info->local_type);
  const auto ones = rows.mutable_data<float>();
  const double there = is_none ? 0.0 : number.value_or(static_cast<double>(most));
  std::fill_n(ones.begin(), static_cast<int64_t>(there), 1.0f);
  inputs.push_back({rows_info->name, {rows.type(), rows.bytes()}});
  return absl::OkStatus();
}

}  // namespace lockstep::python
