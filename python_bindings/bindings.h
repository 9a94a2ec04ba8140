// The parts of the extension module lockstep._lockstep; module.cc calls each once.

#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/tensor.h"
#include "frontends/onnx_importer.h"

namespace lockstep::python {

// What Python calls a Graph: the graph, the initial values of its states (those without one start at zero), and where it is from.
struct Model {
  Graph graph;
  std::map<std::string, Tensor> values;
  // Immutable, and shared by the model, the steps made of it and the executables compiled from those. Null if it was not imported.
  std::shared_ptr<const OnnxOrigin> origin;
  std::vector<std::string> notes;
};

void BindGraph(nanobind::module_& module);  // Graph, parse, gradients, distribute, interpret, load_onnx, train_step
void BindCommunicator(nanobind::module_& module);  // Communicator
void BindExecutable(nanobind::module_& module);    // Executable, compile, save_onnx

}  // namespace lockstep::python
