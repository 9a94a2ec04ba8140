// The parts of the extension module lockstep._lockstep; module.cc calls each once.

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

// What Python calls a Graph: the graph, the initial values of its states (those without one start at zero), and where
// it is from.
struct Model {
  Graph graph;
  std::map<std::string, Tensor> values;
  // Immutable, and shared by the model, the steps made of it and the executables compiled from those. Null if it was
  // not imported.
  std::shared_ptr<const OnnxOrigin> origin;
  std::vector<std::string> notes;
  std::vector<std::string> constants;  // as in ImportedModel: what a training step may make states of
  std::vector<std::string> fixed_inputs = {}, unmarked_parameters = {};  // as in ImportedModel
  std::map<std::string, std::string> metadata = {};                      // as in ImportedModel

  bool is_imported = false;  // the graph is what the importer made of `origin`

  // Another graph of the same model.
  Model With(Graph other) const {
    return {std::move(other), values, origin, notes, constants, fixed_inputs, unmarked_parameters, metadata};
  }
};

// The mesh with these axes and sizes; an error if a name is no word of the text form, or there are too many ranks.
absl::StatusOr<Mesh> MeshOf(const std::vector<std::pair<std::string, int64_t>>& axes);

// A value's name, dtype, shape and placements, as lockstep.ValueInfo.
nanobind::object DescribeValue(const std::string& name, const TensorType& type, const PlacementMap& placements);

// "@mlp(x: f32[6,12]) -> (logits)", of the first few of each: what repr() says of a program.
std::string Signature(const std::string& name, std::span<const std::string> inputs,
                      std::span<const std::string> results);

// What a graph takes, holds, trains and gives, for people; Python adds the table of layers.
std::string Summary(const Model& model);

// The nodes of a graph in order, a dict each, for the table of layers and the drawing (lockstep/_graph/layers.py).
nanobind::list DescribeNodes(const Model& model);

void BindGraph(nanobind::module_& module);  // Graph, parse, gradients, distribute, interpret, load_onnx, train_step
void BindGraphParts(nanobind::module_& module);    // a Graph as facts and tensors, for files
void BindChoices(nanobind::module_& module);       // the optimizers and losses that there are, and what they accept
void BindCommunicator(nanobind::module_& module);  // Communicator
void BindCollectives(nanobind::module_& module);   // its collectives over arrays, for the package's own Python
void BindExecutable(nanobind::module_& module);    // Executable, save_onnx
void BindCompile(nanobind::module_& module);       // compile
void BindStore(nanobind::module_& module);         // the update of a value of lockstep.kv
void BindServers(nanobind::module_& module);       // parameter servers, and a worker's end of them
void BindPlan(nanobind::module_& module);          // what lockstep.plan searches
void BindMachine(nanobind::module_& module);       // what `lockstep doctor` asks; where Python has NVIDIA's libraries

}  // namespace lockstep::python
