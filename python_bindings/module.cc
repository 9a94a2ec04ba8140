// The extension module lockstep._lockstep. Bindings convert, release the GIL, call, and convert; what they call is C++.

#include "python_bindings/bindings.h"
#include "python_bindings/errors.h"

NB_MODULE(_lockstep, module) {
  using namespace lockstep::python;
  // At exit the interpreter keeps what a traceback or a module still refers to; that is no leak of ours.
  nanobind::set_leak_warnings(false);
  module.doc() = "The compiled part of the package lockstep.";
  nanobind::exception<Error>(module, "Error");
  BindCommunicator(module);
  BindGraph(module);
  BindExecutable(module);
}
