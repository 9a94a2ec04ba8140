"""Layers of a file from PyTorch's exporter have the names of the modules, as in `named_modules()`."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lockstep as ls
from lockstep._graph import layers as _layers
from test_errors import raises
from test_summary import rows

torch = pytest.importorskip("torch")
nn = torch.nn

CONSTANT = "node_upsample_nearest1d"  # an initializer with the selected rows; constants are in no module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear1, self.act, self.norm = nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.act(self.linear1(x)) + x)


class Nested(nn.Module):
    """Modules in containers, one that is called twice, one with two names, functions outside of modules, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Block(), Block())
        self.heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.by_name = nn.ModuleDict({"it's": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        self.shared, self.first = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second = self.first
        self.up = nn.Upsample(scale_factor=1.7, mode="nearest")  # a Gather and a Resize

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared(torch.sigmoid(self.shared(self.encoder(x))))
        for part in (*self.heads, *self.by_name.values(), self.first, self.second):
            x = part(x)
        return self.up(nn.functional.linear(x, self.shared.weight)[:, None])


def nested() -> tuple[nn.Module, ls.Graph]:
    torch.manual_seed(0)
    module = Nested().eval()
    return module, ls.from_torch(module, torch.randn(2, 4), output_names=["y"])


def layers(graph: ls.Graph, depth: int | None = None) -> list[str]:
    return [layer.name for layer in _layers.layers_of(graph, depth)]


def test_layers_are_modules() -> None:
    module, graph = nested()
    found = layers(graph)
    blocks = [f"encoder.{i}{part}" for i in range(2) for part in (".linear1", ".act", "", ".norm")]
    assert found == [
        *blocks,
        *("shared", "sigmoid()", "heads.0", "heads.1", "by_name.it's", "by_name.b", "first", "second"),
        *("linear_10()", "unsqueeze()", CONSTANT, "up"),
    ]
    found.remove(CONSTANT)
    names = {name for name, _ in module.named_modules(remove_duplicate=False)}
    assert {name for name in found if not name.endswith("()")} < names
    table = rows(graph.summary())
    for name, part in module.named_modules():
        if name in found and name != "shared":  # modules that compute, not containers
            assert table[name][1] == sum(weights.numel() for weights in part.parameters(recurse=False)), name
    one = 2 * 4 * (2 * 4 + 1)  # operations of a linear layer
    assert table["shared"][1:3] == (4 * 4 + 4, 2 * one) and table["encoder.1.linear1"][1:3] == (4 * 4 + 4, one)
    assert table["linear_10()"][1:3] == (0, 2 * 4 * 2 * 4)


def test_depth_folds_modules() -> None:
    _, graph = nested()
    rest = ["first", "second", "linear_10()", "unsqueeze()", CONSTANT, "up"]
    assert layers(graph, 1) == ["encoder", "shared", "sigmoid()", "heads", "by_name", *rest]
    two = ["encoder.0", "encoder.1", "shared", "sigmoid()", "heads.0", "heads.1", "by_name.it's", "by_name.b", *rest]
    assert layers(graph, 2) == two
    assert layers(graph, 3) == layers(graph, 4) == layers(graph)
    assert rows(graph.summary(depth=1))["encoder"][1] == 2 * (4 * 4 + 4 + 4 + 4)


def test_gradients_steps_and_pictures_name_modules(tmp_path: Path) -> None:
    _, graph = nested()
    step = ls.train_step(graph, ls.loss.mean_squared_error("y", "target"), ls.optim.SGD(0.1))
    table = rows(step.summary())
    assert table["encoder.0.linear1"][3] > 0 and "gradients" not in table
    assert "onednn.matmul" in ls.compile(step).steps
    assert "gradient of torch:encoder.1.linear1/node_" in ls.compile(step).steps
    step.save_svg(tmp_path / "step.svg", depth=1)
    texts = {"".join(each.itertext()).strip() for each in ElementTree.parse(tmp_path / "step.svg").iter()}
    assert {"encoder", "heads", "by_name", "shared", "sigmoid()"} <= texts


def file_of(scopes: str | None, name: str, columns: int = 4) -> onnx.ModelProto:
    """A product of x: f32[2,4], with the metadata of PyTorch's exporter."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name=name)
    if scopes is not None:
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, columns]), ("w", [4, 3]))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])]
    graph = helper.make_graph([node], "file", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    ("scopes", "source", "layer", "outer"),
    [
        ("['', 'a', 'a.b', 'linear']", "torch:a.b/node", "a.b", "a"),
        ("['', 'linear_3']", "torch:linear_3()/node", "linear_3()", "linear_3()"),
        ("['linear_3']", "torch:linear_3()/node", "linear_3()", "linear_3()"),
        ("""['', "it's.a", 'linear']""", "torch:it's.a/node", "it's.a", "it's"),
        (r"""['', 'both\'".b\\', 'linear']""", """torch:both'".b\\/node""", """both'".b\\""", """both'\""""),
        # No metadata, and metadata that is not a list of strings.
        *(
            (other, "onnx:/a.b/node", "a.b", "a.b")
            for other in (
                None,
                "",
                "[]",
                "a.b",
                "['', 'a",
                "['', 'a'",
                "['' 'a']",
                "['', a]",
                r"['\n', 'a']",
                "['', 'a'] ",
            )
        ),
    ],
)
def test_the_metadata_is_a_list_of_strings(scopes: str | None, source: str, layer: str, outer: str) -> None:
    graph = ls.load_onnx(file_of(scopes, "/a.b/node" if source.startswith("onnx:") else "node"))
    assert [node["source"] for node in graph._nodes()] == [source]
    assert (layers(graph), layers(graph, 1)) == ([layer], [outer])
    assert [node["source"] for node in ls.parse(str(graph))._nodes()] == [source]


def test_a_branch_is_in_the_module_that_takes_it() -> None:
    """Within a branch, the exporter writes only the scopes inside it."""
    file = file_of("['', 'part', 'cond']", "node_cond")
    branch = helper.make_graph([*file.graph.node], "branch", [], [*file.graph.output])
    branch.node[0].metadata_props[0].value, branch.node[0].name = "['linear']", "node_MatMul_1"
    node, taken = file.graph.node[0], onnx.numpy_helper.from_array(np.array(True), "taken")
    node.op_type, node.input[:] = "If", ["taken"]
    node.attribute.extend(helper.make_attribute(name, branch) for name in ("then_branch", "else_branch"))
    file.graph.initializer.append(taken)
    graph = ls.load_onnx(file)
    assert [(node["source"], node["results"]) for node in graph._nodes()] == [
        ("torch:part/node_cond.then_branch/node_MatMul_1", ["part/node_cond.then_branch/y"])
    ]
    assert layers(graph, 1) == ["part"] and layers(graph, 2) == ["part/node_cond.then_branch"]


def test_an_error_names_the_module() -> None:
    with raises("<model>: MatMul: ", "at torch:encoder.0.linear1/node_MatMul_91"):
        ls.load_onnx(file_of("['', 'encoder.0', 'encoder.0.linear1', 'linear']", "node_MatMul_91", columns=5))
