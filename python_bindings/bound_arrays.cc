#include "python_bindings/bound_arrays.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"

namespace lockstep::python {

using namespace nb::literals;

namespace {

using Arrays = std::map<std::string, ArrayInPlace>;

bool Overlap(const ConstTensorRef& a, const ConstTensorRef& b) {
  const auto* const begin_a = static_cast<const std::byte*>(a.data);
  const auto* const begin_b = static_cast<const std::byte*>(b.data);
  if (a.type.num_bytes() == 0 || b.type.num_bytes() == 0) return false;
  return begin_a < begin_b + b.type.num_bytes() && begin_b < begin_a + a.type.num_bytes();
}

ConstTensorRef RefOf(const ArrayInPlace& array) { return {array.ref.type, array.ref.data}; }

const ValueInfo& FindResult(const LoadedExecutable& self, const std::string& name) {
  const std::vector<ValueInfo>& results = self.executor->executable().results;
  const auto found =
      std::find_if(results.begin(), results.end(), [&](const ValueInfo& info) { return info.name == name; });
  if (found == results.end()) {
    ErrorStream error = NotFound() << "bind: there is no result " << name << "; results are ";
    for (size_t i = 0; i < results.size(); ++i) error << (i ? ", " : "") << results[i].name;
    ThrowIfError(error);
  }
  return *found;
}

Arrays ArraysOf(const char* kind, nb::handle given) {
  Arrays arrays;
  if (given.is_none()) return arrays;
  const nb::module_ builtins = nb::module_::import_("builtins");
  for (nb::handle item : builtins.attr("dict")(given).attr("items")()) {
    const std::string name = TextOf(item[0], std::string("bind: the name of a ") + kind);
    arrays.emplace(name, CastToArrayInPlace(item[1], "bind: " + (kind + (" " + name))));
  }
  return arrays;
}

void CheckResults(const LoadedExecutable& self, const Arrays& results) {
  for (const auto& [name, array] : results) {
    const ValueInfo& info = FindResult(self, name);
    if (!(array.ref.type == info.local_type)) {
      ThrowIfError(InvalidArgument() << "bind: result " << name << ": expected " << info.local_type << ", found "
                                     << array.ref.type);
    }
    if (!array.IsWritable()) {
      ThrowIfError(InvalidArgument() << "bind: result " << name << ": the array is read-only");
    }
  }
}

// Checks that no result overlaps a state or another result.
void CheckApart(const Arrays& states, const Arrays& results) {
  std::vector<std::pair<std::string, ConstTensorRef>> all;
  for (const auto& [name, array] : states) all.emplace_back("state " + name, RefOf(array));
  for (const auto& [name, array] : results) all.emplace_back("result " + name, RefOf(array));
  std::erase_if(all, [](const auto& each) { return each.second.type.num_bytes() == 0; });
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second.data < b.second.data; });
  for (size_t i = 1; i < all.size(); ++i) {
    if (!Overlap(all[i - 1].second, all[i].second)) continue;
    ThrowIfError(InvalidArgument() << "bind: the arrays of " << all[i - 1].first << " and of " << all[i].first
                                   << " overlap");
  }
}

// Returns the bindings after adding `arrays`.
Arrays With(Arrays bound, const Arrays& arrays) {
  for (const auto& [name, array] : arrays) bound.insert_or_assign(name, array);
  return bound;
}

void Bind(LoadedExecutable& self, nb::handle states, nb::handle results) {
  const Arrays new_states = ArraysOf("state", states), new_results = ArraysOf("result", results);
  CheckResults(self, new_results);
  CheckApart(With(self.bound_states, new_states), With(self.bound_results, new_results));
  for (const auto& [name, array] : new_states) {
    const bool is_writable = array.IsWritable();
    absl::Status status;
    {
      ReleasedGil released;  // BindState waits for runs in progress
      status = self.executor->BindState(name, array.ref, is_writable);
    }
    ThrowIfError(Annotate(status, "bind"));
    self.bound_states.insert_or_assign(name, array);
  }
  self.bound_results = With(std::move(self.bound_results), new_results);
}

// Checks that all states can be assigned from a file.
void CheckAssignable(const LoadedExecutable& self) {
  for (const auto& [name, array] : self.bound_states) {
    if (!array.IsWritable()) {
      ThrowIfError(FailedPrecondition() << "state " << name << " is bound to a read-only array");
    }
  }
}

constexpr char kBind[] =
    R"(Uses arrays of the caller as the memory of states and results from now on, so that nothing is copied. A
binding remains until the name is bound to another array.

A bound state is the array: calls update it there, and the next call reads what is written there. Writing is
an assignment, so with several ranks all of them write the same. Each call writes a bound result to its array,
and returns that same array. To keep its contents, copy them before the next call.

Args:
  states: NumPy arrays by name, in row-major order, with the state's type on this rank. Arrays of states that
    the program does not update may be read-only; then `state` cannot assign them either. Only on the CPU.
  results: NumPy arrays by name for results. A call raises an Error if such an array is read-only when the
    call begins.

Raises:
  Error: an array has another type, or overlaps another array; a state is on a GPU, or ranks share it.

Example:
  >>> weight, gradient = np.zeros((784, 10), np.float32), np.empty((784, 10), np.float32)
  >>> exe.bind(states={"weight": weight}, results={"grad/weight": gradient})
  >>> exe(x=x, y=y)["grad/weight"] is gradient
  True)";

}  // namespace

void CheckBoundResults(const LoadedExecutable& self, std::span<const NamedInput> inputs) {
  for (const auto& [name, array] : self.bound_results) {
    if (!array.IsWritable()) {
      ThrowIfError(
          FailedPrecondition() << "result " << name
                               << " is bound to an array that is read-only now; an array of a store's grad() is "
                                  "read-only from the push to the pull of its key");
    }
    for (const NamedInput& input : inputs) {
      if (!Overlap(input.tensor, RefOf(array))) continue;
      ThrowIfError(InvalidArgument() << "input " << input.name << " overlaps the array to which result " << name
                                     << " is bound");
    }
  }
}

void BindBinding(ExecutableClass& executable) {
  executable.def("_check_assignable", &CheckAssignable);
  executable.def(
      "bind", &Bind, nb::kw_only(), "states"_a = nb::none(), "results"_a = nb::none(), kBind,
      nb::sig("def bind(self, *, states: collections.abc.Mapping[str, numpy.ndarray] | None = None, results: "
              "collections.abc.Mapping[str, numpy.ndarray] | None = None) -> None"));
}

}  // namespace lockstep::python
