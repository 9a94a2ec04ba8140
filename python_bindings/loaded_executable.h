// LoadedExecutable: the object behind lockstep.Executable. It is bound in parts: calls (executable_bindings.cc), states
// and settings (state_bindings.cc), and views (view_bindings.cc).

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

#include "backends/compile_and_load.h"
#include "backends/hardware_check.h"
#include "backends/numerics_check.h"
#include "frontends/onnx_exporter.h"
#include "python_bindings/arrays.h"
#include "python_bindings/padded_rows.h"
#include "python_bindings/released_gil.h"
#include "runtime/communicator.h"

namespace lockstep::python {

using Outputs = std::vector<OutputArray>;  // by result

// A loaded program with its communicator. Python owns the communicator, which `world` keeps alive.
struct LoadedExecutable : LoadedProgram {
  // The memory of calls in progress, by call number. It is written until the call has ended. Shared with the Python
  // object of the call, which may be dropped earlier. Destroyed after the executor, which waits for the calls.
  std::deque<std::pair<int64_t, std::shared_ptr<Outputs>>> under_way;
  nb::object world;
  Communicator* communicator;
  std::shared_ptr<const OnnxOrigin> origin;
  std::map<std::string, ArrayInPlace> bound_states,
      bound_results;                        // by name; kept alive while they are bound
  int64_t step = 0;                         // the number of the next call
  bool warned_of_loss = false;              // that it is not finite
  bool is_uneven = false;                   // its batches need not be full
  std::set<std::string> batches;            // the inputs that may have fewer rows than the rank's share
  FirstRows first_rows;                     // what pads batches that are not full
  std::unique_ptr<NumericsCheck> numerics;  // null without check_numerics
  std::unique_ptr<HardwareCheck> hardware;  // null without verify_hardware
  nb::dict schedules;                       // by setting: functions of it
  nb::dict wrong_labels;                    // by input: a shape behind dimension 0 that is a known mistake, and advice
  nb::object measured = nb::none();         // the speeds of ranks, of lockstep/_compile/shares.py; None: not measured
  nb::dict exchanged;                       // by the beginning of the names of an exchange's states: initial values
  nb::object saving = nb::none();           // the save that is under way, of lockstep/_checkpoint/checkpoint.py

  // Python calls the destructor, with the GIL. The executor and the device wait for runs in progress, in which other
  // ranks, as threads of this process, may have to act first. Users of the device are destroyed before it.
  ~LoadedExecutable() {
    ReleasedGil released;
    hardware.reset();
    executor.reset();
    alone.reset();
    opened = {};
  }
};

using ExecutableClass = nb::class_<LoadedExecutable>;

void BindSettings(ExecutableClass& executable);                      // step, settings, set
void BindRecord(nb::module_& module, ExecutableClass& executable);   // report, and the record that other programs read
void BindExplain(nb::module_& module, ExecutableClass& executable);  // explain
void BindBinding(ExecutableClass& executable);                       // bind
void BindViews(ExecutableClass& executable);                         // graph, steps, memory, profile, roofline, …
void BindShares(ExecutableClass& executable);                        // shares, balance
void BindStates(ExecutableClass& executable);  // state, check_replicas, save, load, and a part of save_onnx

}  // namespace lockstep::python
