// Where PyTorch's exporter says that a node is from: the metadata pkg.torch.onnx.name_scopes, a list of the modules
// around the node, from the outermost to the innermost, and of the call that became the node. Internal to the frontend.

#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// "torch:encoder.0.linear1/node" for `scopes` "['', 'encoder', 'encoder.0', 'encoder.0.linear1', 'linear']" and the
// node's name "node". Of a call in no module but the model itself, "['', 'tanh_1']", it is "torch:tanh_1()/node". Empty
// if `scopes` is no such list.
std::string TorchSource(std::string_view scopes, const std::string& name);

}  // namespace lockstep
