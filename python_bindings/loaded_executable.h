// What Python calls an Executable, and the two halves of its binding: calls and views (executable_bindings.cc), and
// what lies in it between calls (state_bindings.cc).

#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "frontends/onnx_exporter.h"
#include "python_bindings/arrays.h"
#include "python_bindings/padded_rows.h"
#include "python_bindings/released_gil.h"
#include "runtime/communicator.h"
#include "runtime/execution/executor.h"

namespace lockstep::python {

using Outputs = std::vector<OutputArray>;  // by result

// A loaded executable with what it runs on. The communicator belongs to Python, which `world` keeps alive.
struct LoadedExecutable {
  // Of the calls that are under way, by number: their memory, which is written until then. Shared with the object that
  // Python has of the call, and may drop before; destroyed after the executor, which waits for them.
  std::deque<std::pair<int64_t, std::shared_ptr<Outputs>>> under_way;
  nb::object world;
  Communicator* communicator;
  RankDevice opened;
  std::unique_ptr<Communicator> alone;  // of this rank, whose program is its own; null: it is of all ranks
  std::unique_ptr<Executor> executor;
  std::shared_ptr<const OnnxOrigin> origin;
  std::map<std::string, ArrayInPlace> bound_states,
      bound_results;               // by name; the arrays live as long as they are bound
  int64_t step = 0;                // the number of the next call
  std::set<std::string> batches;   // the inputs that may have fewer rows than the rank's share
  FirstRows first_rows;            // what pads batches that are not full
  nb::dict schedules;              // by setting: functions of it
  nb::dict wrong_labels;           // by input: a shape behind dimension 0 that is a known mistake, and advice
  nb::object saving = nb::none();  // the save that is under way, of lockstep/_checkpoint/checkpoint.py

  // Python destroys it, with the GIL. The executor and the device wait for runs that are under way, in which other
  // ranks, threads of this process, may have to do their part first. What uses the device goes before it.
  ~LoadedExecutable() {
    ReleasedGil released;
    executor.reset();
    alone.reset();
    opened = {};
  }
};

using ExecutableClass = nb::class_<LoadedExecutable>;

void BindSettings(ExecutableClass& executable);                     // step, settings, set
void BindRecord(nb::module_& module, ExecutableClass& executable);  // report; what other programs see of it
void BindBinding(ExecutableClass& executable);                      // bind
void BindStates(ExecutableClass& executable);  // state, check_replicas, save, load, and what save_onnx calls

}  // namespace lockstep::python
