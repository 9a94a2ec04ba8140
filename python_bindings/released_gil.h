// Without the GIL while C++ works, which may take long and wait for other ranks.

#pragma once

#include <nanobind/nanobind.h>

namespace lockstep::python {

// Releases the GIL, and takes it again at the end of its scope. Unlike nanobind::gil_scoped_release it lets a process
// end in which another thread is in such a scope, as a daemon thread may be: CPython ends a thread that wants the GIL
// of an interpreter that is finalized, by unwinding its stack (before 3.14), and C++ answers std::terminate to that, as
// neither a destructor nor nanobind's catch clauses can be unwound so. That thread waits here for the end of the
// process.
class ReleasedGil {
 public:
  ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil();

 private:
  PyThreadState* state_;
};

// Once in a process: lets it end while another thread is in the scope of a ReleasedGil. exit() would destroy under its
// feet what libraries have made, such as oneDNN's code; then _exit() ends the process, with the same exit code, after
// what AtProcessEnd was told and what stdio holds. Other libraries' exit handlers do not run then.
void EndWhileOthersWork();

}  // namespace lockstep::python
