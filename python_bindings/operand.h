// The memory of an array of Python, for calls that use it while other Python code runs.

#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <utility>

#include "core/status.h"
#include "python_bindings/errors.h"

namespace lockstep::python {

// The memory of an array, which does not move while this exists. Construction and destruction need the GIL.
class Operand {
 public:
  Operand(nanobind::handle array, bool is_written, const std::string& what) {
    const int flags = PyBUF_C_CONTIGUOUS | (is_written ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array.ptr(), &view_, flags) == 0) return;
    PyErr_Clear();
    const nanobind::object found = nanobind::module_::import_("lockstep._base.arrays").attr("description")(array);
    ThrowIfError(InvalidArgument() << what << " is " << nanobind::cast<std::string>(found)
                                   << ", expected an array in row-major order in the CPU's memory"
                                   << (is_written ? " that may be written" : ""));
  }
  Operand(Operand&& other) noexcept : view_(std::exchange(other.view_, Py_buffer{})) {}
  Operand& operator=(Operand&&) = delete;
  ~Operand() { PyBuffer_Release(&view_); }  // does nothing for a moved-from object

  void* data() const { return view_.buf; }
  size_t size() const { return static_cast<size_t>(view_.len); }  // bytes

 private:
  Py_buffer view_ = {};
};

}  // namespace lockstep::python
