// Release of the GIL while C++ code runs that may take long or wait for other ranks.

#pragma once

#include <nanobind/nanobind.h>

namespace lockstep::python {

// Releases the GIL, and takes it again at the end of its scope. Unlike with nanobind::gil_scoped_release, the process
// can end while another thread, such as a daemon thread, is in such a scope. CPython before 3.14 ends a thread that
// wants the GIL of a finalized interpreter by unwinding its stack. C++ answers with std::terminate, because neither
// a destructor nor nanobind's catch clauses can be unwound this way. Here that thread waits for the end of the process.
class ReleasedGil {
 public:
  ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil();

 private:
  PyThreadState* state_;
};

// Takes the GIL in a thread without it, such as in the scope of a ReleasedGil, to call Python.
class HeldGil {
 public:
  HeldGil();
  HeldGil(const HeldGil&) = delete;
  HeldGil& operator=(const HeldGil&) = delete;
  ~HeldGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// Lets the process end while another thread is in the scope of a ReleasedGil. Call once in a process. exit() would
// destroy objects of libraries, such as oneDNN's code, that the thread still uses. Instead, _exit() ends the process
// with the same exit code, after the functions of AtProcessEnd and a flush of stdio. Exit handlers of other libraries
// do not run then.
void EndWhileOthersWork();

}  // namespace lockstep::python
