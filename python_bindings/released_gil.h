// Without the GIL while C++ works, which may take long and wait for other ranks.

#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace lockstep::python {

// Releases the GIL, and takes it again at the end of its scope. Unlike nanobind::gil_scoped_release it lets a process
// end in which another thread is in such a scope, as a daemon thread may be: CPython ends a thread that wants the GIL
// of an interpreter that is finalized, by unwinding its stack (before 3.14), and C++ answers std::terminate to that, as
// neither a destructor nor nanobind's catch clauses can be unwound so. That thread waits here for the end of the
// process.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

}  // namespace lockstep::python
