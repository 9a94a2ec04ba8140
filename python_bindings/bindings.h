// The parts of the extension module lockstep._lockstep. module.cc calls each once.

#pragma once

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/status.h"
#include "core/tensor.h"
#include "frontends/onnx_importer.h"

namespace lockstep::python {

// The object behind lockstep.Graph: the graph, the initial values of its states (zero for states without one), and its
// origin.
struct Model {
  Graph graph;
  std::map<std::string, Tensor> values;
  // Immutable. Shared by the model, the steps made from it, and their executables. Null if the graph was not imported.
  std::shared_ptr<const OnnxOrigin> origin;
  std::vector<std::string> notes;
  std::vector<std::string> constants;  // as in ImportedModel; a training step may make states of them
  std::vector<std::string> fixed_inputs = {}, unmarked_parameters = {};  // as in ImportedModel
  std::map<std::string, std::string> metadata = {};                      // as in ImportedModel

  bool is_imported = false;  // the importer made the graph from `origin`

  // Returns this model with another graph.
  Model With(Graph other) const {
    return {std::move(other), values, origin, notes, constants, fixed_inputs, unmarked_parameters, metadata};
  }
};

// Returns the mesh with these axes and sizes. Returns an error if a name is not a word of the text form, or if there
// are too many ranks.
absl::StatusOr<Mesh> MeshOf(const std::vector<std::pair<std::string, int64_t>>& axes);

// Returns a value's name, dtype, shape and placements as a lockstep.ValueInfo.
nanobind::object DescribeValue(const std::string& name, const TensorType& type, const PlacementMap& placements);

// Returns the text that repr() shows for a program, with the first few names: "@mlp(x: f32[6,12]) -> (logits)".
std::string Signature(const std::string& name, std::span<const std::string> inputs,
                      std::span<const std::string> results);

// Returns a text about the inputs, states, settings and results of a graph. Python adds the table of layers.
std::string Summary(const Model& model);

// Returns the nodes of a graph in order, as dicts, for the table of layers and the drawing (lockstep/_graph/layers.py).
nanobind::list DescribeNodes(const Model& model);

void BindGraph(nanobind::module_& module);  // Graph, parse, gradients, distribute, interpret, load_onnx, train_step
void BindGraphParts(nanobind::module_& module);    // a Graph as facts and tensors, for files
void BindBuilder(nanobind::module_& module);       // the definitions of ops; a graph under construction
void BindChoices(nanobind::module_& module);       // the definitions of optimizers and losses
void BindCommunicator(nanobind::module_& module);  // Communicator
void BindCollectives(nanobind::module_& module);   // its collectives over arrays, for the Python part of the package
void BindMessages(nanobind::module_& module);      // worlds that Python introduces; messages between two ranks
void BindExecutable(nanobind::module_& module);    // Executable, save_onnx
void BindCompile(nanobind::module_& module);       // compile
void BindStore(nanobind::module_& module);         // the update of a value of lockstep.kv
void BindServers(nanobind::module_& module);       // parameter servers, and a worker's client of them
void BindPlan(nanobind::module_& module);          // the search of lockstep.plan
void BindMachine(nanobind::module_& module);       // the machine's properties; the folders of NVIDIA's libraries
void BindExact(nanobind::module_& module);         // exact numbers in arrays

}  // namespace lockstep::python
