#include "python_bindings/released_gil.h"

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "runtime/process/process_end.h"

namespace lockstep::python {
namespace {

std::atomic<int> working{0};  // threads without the GIL, including those that never get it again

void EndAtOnce(int exit_code, void*) {
  RunProcessEndActions();
  std::fflush(nullptr);
  _exit(exit_code);
}

// Runs when the interpreter is finalized, before exit(). exit() calls the handler that was registered last first.
void AfterInterpreter() {
  if (working > 0) on_exit(EndAtOnce, nullptr);
}

}  // namespace

ReleasedGil::ReleasedGil() {
  ++working;
  state_ = PyEval_SaveThread();
}

ReleasedGil::~ReleasedGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
  --working;
}

HeldGil::HeldGil() {
  try {
    state_ = PyGILState_Ensure();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

void EndWhileOthersWork() {
  if (Py_AtExit(AfterInterpreter) != 0) throw std::runtime_error("Python cannot register another exit function");
}

}  // namespace lockstep::python
