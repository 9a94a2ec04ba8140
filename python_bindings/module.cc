// The extension module lockstep._lockstep. Bindings convert arguments, release the GIL, call C++, and convert results.

#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"

namespace {

// Raises Python's lockstep.Error for an Error of ours. Other exceptions are left to nanobind's translators.
void RaiseError(const std::exception_ptr& exception, void*) {
  try {
    std::rethrow_exception(exception);
  } catch (const lockstep::python::Error& error) {
    const nanobind::object type = nanobind::module_::import_("lockstep._base.errors").attr("Error");
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace

NB_MODULE(_lockstep, module) {
  using namespace lockstep::python;
  // At exit the interpreter keeps objects that a traceback or a module still refers to. They are not leaks.
  nanobind::set_leak_warnings(false);
  nanobind::register_exception_translator(RaiseError);
  module.doc() = "The compiled part of the package lockstep.";
  EndWhileOthersWork();
  BindCommunicator(module);
  BindCollectives(module);
  BindMessages(module);
  BindChoices(module);
  BindGraph(module);
  BindGraphParts(module);
  BindBuilder(module);
  BindExecutable(module);
  BindCompile(module);
  BindStore(module);
  BindServers(module);
  BindPlan(module);
  BindMachine(module);
  BindExact(module);
}
