// The extension module lockstep._lockstep. Bindings convert, release the GIL, call, and convert; what they call is C++.

#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"
#include "python_bindings/released_gil.h"

namespace {

// Raises lockstep.Error, a class of Python, for an Error of ours; other exceptions go on to nanobind's translators.
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
  // At exit the interpreter keeps what a traceback or a module still refers to; that is no leak of ours.
  nanobind::set_leak_warnings(false);
  nanobind::register_exception_translator(RaiseError);
  module.doc() = "The compiled part of the package lockstep.";
  EndWhileOthersWork();
  BindCommunicator(module);
  BindCollectives(module);
  BindChoices(module);
  BindGraph(module);
  BindGraphParts(module);
  BindExecutable(module);
  BindCompile(module);
  BindStore(module);
  BindServers(module);
  BindPlan(module);
  BindMachine(module);
}
