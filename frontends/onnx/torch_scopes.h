// The source of a node according to PyTorch's exporter: the metadata pkg.torch.onnx.name_scopes is a list of the
// modules around the node, from the outermost to the innermost, and of the call that became the node. Internal to the
// frontend.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// "torch:encoder.0.linear1/node" for `scopes` "['', 'encoder', 'encoder.0', 'encoder.0.linear1', 'linear']" and the
// node's name "node". For a call in the model's outermost module, "['', 'tanh_1']", it is "torch:tanh_1()/node". Empty
// if `scopes` is not such a list.
std::string TorchSource(std::string_view scopes, const std::string& name);

}  // namespace lockstep
