"""Graphs in Python: a model, or any program, as typed values that operators and ops make of each other.

    g = lockstep.graph.Builder("mlp")
    x = g.input("x", "f32", (128, 784), split=0)
    w1 = g.state("fc1.weight", (256, 784), init=lockstep.graph.init.kaiming_uniform())
    w2 = g.state("fc2.weight", (10, 256), init=lockstep.graph.init.kaiming_uniform())
    g.result("logits", lockstep.graph.relu(x @ w1.T) @ w2.T)
    model = g.finish()                                            # a lockstep.Graph, as load_onnx returns

There is a function for each op of docs/ops.md, which takes values and returns values; a value knows its graph. `nn` has
layers like PyTorch's, and `init` the initial values. `lockstep.gradients(loss, [w1, w2])` returns gradients as values.
An error is raised by the line that is wrong. Each node has that line as its source, which later messages name.
docs/graphs_in_python.md describes the rules.
"""

from typing import TYPE_CHECKING

from .._base import copies, names
from . import _ops, init, nn
from ._builder import Builder, Node
from ._pass import Pass
from ._values import Value

if TYPE_CHECKING:
    from ._ops import *

__all__ = ["Builder", "Node", "Pass", "Value", "init", "nn"]
__all__ += _ops.__all__

copies.refuse(Builder, "lockstep.graph.Builder", "finish() returns a lockstep.Graph, which can be copied and saved")
copies.refuse(Node, "lockstep.graph.Node", "it belongs to one graph")
copies.refuse(Pass, "lockstep.graph.Pass", "import it from the module of its function")
copies.refuse(Value, "lockstep.graph.Value", "it belongs to one graph")
names.guard(globals(), {"where": "select", "maximum": "max", "minimum": "min", "logicalnot": "not_"}, later=_ops)
