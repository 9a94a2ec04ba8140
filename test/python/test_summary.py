"""Graph.summary() and save_svg(): layers, parameters and operations, against numbers counted by hand."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lockstep as ls
from lockstep import _layers
from test_errors import raises

ROOT = Path(__file__).parents[2]
BATCH = 128


def lenet() -> ls.Graph:
    return ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": BATCH})


def step_of(model: ls.Graph) -> ls.Graph:
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(model, loss=loss, optimizer=ls.optim.SGD(0.05))


def rows(text: str) -> dict[str, tuple[str, int, int, int, int]]:
    """By layer: type, parameters, operations, those for gradients, bytes."""
    table = text[text.index("\nlayers (") :].splitlines()[3:]
    cells = [re.split(r"\s{2,}", line.strip()) for line in table]
    return {
        row[0]: (row[1] if len(row) == 6 else "", *(int(cell.replace(",", "")) for cell in row[-4:])) for row in cells
    }


# Of one image: the products of each layer and the sum, which are two operations, and the bias, which is one.
CONV1 = 20 * 24 * 24 * (2 * 25 + 1)
CONV2 = 50 * 8 * 8 * (2 * 20 * 25 + 1)
FC1, FC2 = 500 * (2 * 800 + 1), 10 * (2 * 500 + 1)
TANHS, POOLS = 20 * 24 * 24 + 50 * 8 * 8 + 500, 4 * (20 * 12 * 12 + 50 * 4 * 4)


def test_lenet_by_hand() -> None:
    found = rows(lenet().summary())
    assert found["conv1"][:4] == ("f32[128,20,24,24]", 20 * 25 + 20, BATCH * CONV1, 0)
    assert found["conv2"][:4] == ("f32[128,50,8,8]", 50 * 20 * 25 + 50, BATCH * CONV2, 0)
    assert found["fc1"][:4] == ("f32[128,500]", 500 * 800 + 500, BATCH * FC1, 0)
    assert found["fc2"] == ("f32[128,10]", 10 * 500 + 10, BATCH * FC2, 0, 3 * BATCH * 10 * 4)
    assert found["MaxPool"][1:4] == (0, BATCH * 4 * 20 * 12 * 12, 0)
    assert found["Flatten"][1:4] == (0, 0, 0)
    assert found["total"][1:4] == (431080, BATCH * (CONV1 + CONV2 + FC1 + FC2 + TANHS + POOLS), 0)


def test_gradients_are_of_the_layer() -> None:
    found = rows(step_of(lenet()).summary())
    # Two products of the size of the one forwards, and the sum over the batch for the bias.
    assert found["fc1"][3] == 2 * BATCH * 500 * 2 * 800 + BATCH * 500
    assert found["fc1"][1:3] == (500 * 800 + 500, BATCH * FC1)
    assert found["conv2"][3] == 2 * BATCH * 50 * 8 * 8 * 2 * 20 * 25 + BATCH * 50 * 8 * 8
    assert found["optimizer"][3] == 431080
    assert found["total"][1] == 431080


def resnet50(batch: int) -> onnx.ModelProto:
    """He et al., 2015, with the stride in the 3 x 3 convolutions, as torchvision has it."""
    nodes, weights = [], []

    def conv(name: str, x: str, inputs: int, outputs: int, size: int, stride: int = 1, relu: bool = True) -> str:
        weights.append(numpy_helper.from_array(np.zeros((outputs, inputs, size, size), np.float32), f"{name}.weight"))
        pads = [size // 2] * 4
        nodes.append(
            helper.make_node(
                "Conv", [x, f"{name}.weight"], [name], name=f"/{name}/Conv", strides=[stride] * 2, pads=pads
            )
        )
        if relu:
            nodes.append(helper.make_node("Relu", [name], [f"{name}/relu"], name=f"/{name}/Relu"))
        return f"{name}/relu" if relu else name

    x, channels = conv("conv1", "image", 3, 64, 7, 2), 64
    nodes.append(
        helper.make_node("MaxPool", [x], ["pool"], name="/pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    )
    x = "pool"
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
        for block in range(blocks):
            name, stride = f"layer{stage}/{block}", 2 if stage > 1 and block == 0 else 1
            y = conv(f"{name}/conv1", x, channels, width, 1)
            y = conv(f"{name}/conv2", y, width, width, 3, stride)
            y = conv(f"{name}/conv3", y, width, 4 * width, 1, relu=False)
            if block == 0:
                x = conv(f"{name}/downsample", x, channels, 4 * width, 1, stride, relu=False)
            nodes.append(helper.make_node("Add", [y, x], [f"{name}/sum"], name=f"/{name}/Add"))
            x, channels = f"{name}/sum", 4 * width
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["mean"], name="/GlobalAveragePool"))
    nodes.append(helper.make_node("Flatten", ["mean"], ["features"], name="/Flatten"))
    weights.append(numpy_helper.from_array(np.zeros((1000, 2048), np.float32), "fc.weight"))
    nodes.append(helper.make_node("Gemm", ["features", "fc.weight"], ["logits"], name="/fc/Gemm", transB=1))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 224, 224])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 1000])
    graph = helper.make_graph(nodes, "resnet50", [image], [logits], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_resnet50_has_4_09_billion_products() -> None:
    graph = ls.load_onnx(resnet50(2))
    products = sum(node["flops"] / 2 for node in graph._nodes() if node["op"] in ("convolution", "matmul"))
    assert products == 2 * 4_089_184_256
    assert len(rows(graph.summary())) > 53
    found = rows(graph.summary(depth=1))
    assert list(found)[:6] == ["conv1", "pool", "layer1", "layer2", "layer3", "layer4"]
    assert found["layer4"][0] == "f32[2,2048,7,7]"
    assert found["total"][1] == 25_557_032 - 2 * 26_560 - 1000  # without normalisation and bias


def test_an_executable_counts_its_steps() -> None:
    executable = ls.compile(step_of(lenet()))
    first, steps = executable.summary().splitlines()[0], executable.steps
    total, kinds = first.split(" steps: ")
    counted = {kind: int(count) for count, kind in (each.split(" ", 1) for each in kinds.split(", "))}
    assert int(total) == sum(counted.values()) == steps.count("\n  [")
    assert counted == {
        "llvm": steps.count("] llvm."),
        "onednn": steps.count("] onednn."),
        "reference": 0,
        "softmax_cross_entropy": 1,
    }


def test_operations_survive_fusion() -> None:
    """What a call runs has the products of the program that was compiled."""
    graph = step_of(lenet())
    products = [
        sum(node["flops"] for node in each._nodes() if node["op"].startswith(("convolution", "matmul")))
        for each in (graph, ls.compile(graph).graph)
    ]
    first = BATCH * 20 * 24 * 24 * 2 * 25  # the gradient of the image, which nobody uses
    assert products[1] == products[0] - first


def test_a_drawing(tmp_path: Path) -> None:
    path = tmp_path / "lenet.svg"
    step_of(lenet()).save_svg(path)
    texts = ["".join(each.itertext()).strip() for each in ElementTree.parse(path).iter() if each.tag.endswith("}text")]
    assert {"conv1", "fc2", "Tanh", "loss", "520 parameters"} <= set(texts)
    assert f"{BATCH * CONV1:,} operations" in texts and "f32[128,800]" in texts
    with raises("save_svg: dot cannot write /nowhere/lenet.svg"):
        lenet().save_svg("/nowhere/lenet.svg")


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("summary: depth is 0, expected at least 1"):
        lenet().summary(depth=0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("save_svg: there is no program dot, which draws it: apt install graphviz"):
        lenet().save_svg(tmp_path / "lenet.svg")


def test_a_loop_counts_its_iterations() -> None:
    """A recurrence of 5 steps: in each the products of 3 x 4 carried values with a 4 x 4 matrix, an addition and tanh."""
    nodes = [helper.make_node("RNN", ["x", "w", "r"], ["", "h"], name="/rnn/RNN", hidden_size=4)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 3, 4])]
    outputs = [helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 3, 4])]
    weights = [numpy_helper.from_array(np.ones((1, 4, 4), np.float32), name) for name in ("w", "r")]
    graph = helper.make_graph(nodes, "recurrence", inputs, outputs, weights)
    model = ls.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    [scan] = [node for node in model._nodes() if node["op"] == "scan"]
    step = 3 * 4 * 2 * 4
    assert 5 * step <= scan["flops"] <= 5 * (2 * step + 8 * 12)
    assert scan["flops"] % 5 == 0


def test_attention_counts_what_is_seen() -> None:
    """2 heads of 3 queries and 3 keys of 4, values of 5: 9 pairs, of which a causal one sees 6."""
    text = """graph @g(%q: f32[2,3,4], %k: f32[2,3,4], %v: f32[2,3,5]) -> (y: f32[2,3,5]) {{
  %y, %l = attention %q, %k, %v {{causal={}, scale=0.5}} : f32[2,3,5], f32[2,3]
  return %y
}}
"""
    for causal, pairs in (("false", 9), ("true", 6)):
        [node] = ls.parse(text.format(causal))._nodes()
        assert node["flops"] == 2 * pairs * 2 * (4 + 5)


def test_reference_steps_are_counted() -> None:
    class Compiled:
        steps = "executable @g backend=cpu\n  [ 0] reference.top_k  reads %x\n  [ 1] all_reduce.start  bucket 0\n"
        graph = lenet()

    assert _layers.executable_summary(Compiled(), 1).startswith("2 steps: 1 all_reduce, 1 reference\n")


def test_groups_are_shown_and_what_they_leave_out_is_said(caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "graph @attention(%x: f32[4], state %in_proj_bias: f32[4], state %out.bias: f32[4], state %out.weight: f32[4]) -> (y: f32[]) {\n"
        "  %a = mul %x, %out.weight : f32[4]\n  %b = add %a, %in_proj_bias : f32[4]\n  %c = add %b, %out.bias : f32[4]\n"
        "  %y = reduce_sum %c {dims=[0]} : f32[]\n  return %y\n}\n"
    )
    options = {"optimizer": ls.optim.SGD(0.1), "groups": {"*.bias": ls.optim.SGD(0.2)}}
    for _ in range(2):
        step = ls.train_step(ls.parse(text), ls.loss.result("y"), **options)
    assert [record.getMessage() for record in caplog.records] == [
        'attention: "*.bias" of groups matches no in_proj_bias; "*_bias" would'
    ]
    summary = step.summary()
    assert "\n  out.bias: f32[4], group *.bias\n" in summary
    assert "\n  in_proj_bias: f32[4]\n" in summary and "\n  out.weight: f32[4]\n" in summary
    caplog.clear()
    ls.train_step(ls.parse(text), ls.loss.result("y"), ls.optim.SGD(0.1), groups={"*bias": ls.optim.SGD(0.2)})
    ls.train_step(ls.parse(text), ls.loss.result("y"), ls.optim.SGD(0.1), frozen=["*.bias"])
    assert [record.getMessage() for record in caplog.records] == [
        'attention: "*.bias" of frozen matches no in_proj_bias; "*_bias" would'
    ]
