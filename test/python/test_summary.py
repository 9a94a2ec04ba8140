"""Graph.summary() and save_svg(): layers, parameters and operations, compared with numbers counted by hand."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lockstep as ls
from lockstep._graph import layers
from test_errors import raises

ROOT = Path(__file__).parents[2]
BATCH = 128


def lenet() -> ls.Graph:
    return ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": BATCH})


def step_of(model: ls.Graph) -> ls.Graph:
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(model, loss=loss, optimizer=ls.optim.SGD(0.05))


def rows(text: str) -> dict[str, tuple[str, int, int, int, int]]:
    """By layer: type, parameters, operations, operations of gradients, bytes."""
    table = text[text.index("\nlayers (") :].splitlines()[3:]
    cells = [re.split(r"\s{2,}", line.strip()) for line in table]
    return {
        row[0]: (row[1] if len(row) == 6 else "", *(int(cell.replace(",", "")) for cell in row[-4:])) for row in cells
    }


# Operations for one image: two for each product and its addition, and one for the bias.
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
    # Two products of the forward product's size, and the sum over the batch for the bias.
    assert found["fc1"][3] == 2 * BATCH * 500 * 2 * 800 + BATCH * 500
    assert found["fc1"][1:3] == (500 * 800 + 500, BATCH * FC1)
    assert found["conv2"][3] == 2 * BATCH * 50 * 8 * 8 * 2 * 20 * 25 + BATCH * 50 * 8 * 8
    assert found["optimizer"][3] == 431080
    assert found["total"][1] == 431080


def resnet50(batch: int) -> onnx.ModelProto:
    """He et al., 2015, with the stride in the 3 x 3 convolutions, as in torchvision."""
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
    """The compiled graph has the products of the original program."""
    graph = step_of(lenet())
    products = [
        sum(node["flops"] for node in each._nodes() if node["op"].startswith(("convolution", "matmul")))
        for each in (graph, ls.compile(graph).graph)
    ]
    first = BATCH * 20 * 24 * 24 * 2 * 25  # the gradient of the image, which is not used
    assert products[1] == products[0] - first


def test_a_drawing(tmp_path: Path) -> None:
    path = tmp_path / "lenet.svg"
    step_of(lenet()).save_svg(path)
    texts = ["".join(each.itertext()).strip() for each in ElementTree.parse(path).iter() if each.tag.endswith("}text")]
    assert {"conv1", "fc2", "Tanh", "loss", "520 parameters"} <= set(texts)
    assert f"{BATCH * CONV1:,} operations" in texts and "f32[128,800]" in texts
    with raises("save_svg: dot cannot write /nowhere/lenet.svg"):
        lenet().save_svg("/nowhere/lenet.svg")


def edges(graph: ls.Graph, path: Path, depth: int | None = None) -> tuple[set[str], dict[str, bool]]:
    """The boxes of a drawing, and its lines, with True for dashed ones."""
    graph.save_svg(path, depth)
    boxes, lines = set(), {}
    for group in ElementTree.parse(path).iter():
        if group.get("class") == "node":
            boxes.add(group[0].text)
        elif group.get("class") == "edge":
            lines[group[0].text] = any(each.get("stroke-dasharray") for each in group.iter())
    return boxes, lines


LAYERS = ("conv1", "conv2", "fc1", "fc2")  # with parameters


def test_a_drawing_of_a_step_has_the_optimizer(tmp_path: Path) -> None:
    boxes, lines = edges(step_of(lenet()), tmp_path / "step.svg")
    assert {line for line, is_dashed in lines.items() if is_dashed} == {f"{name}->optimizer" for name in LAYERS}
    assert lines["conv1->Tanh"] is False and lines["fc2->loss"] is False and "optimizer" in boxes
    assert "optimizer" not in edges(lenet(), tmp_path / "model.svg")[0]


def test_a_drawing_of_a_distributed_step_has_the_collectives(tmp_path: Path) -> None:
    step = ls.distribute(step_of(lenet()), {"data": 2})
    boxes, lines = edges(step, tmp_path / "step.svg")
    ends = [f"all_reduce along data, gradient of {name}" for name in LAYERS]
    assert {*ends, "all_reduce along data, loss", "optimizer"} <= boxes
    dashed = {line for line, is_dashed in lines.items() if is_dashed}
    assert dashed == {f"{end}->optimizer" for end in ends} | {
        f"{name}->{end}" for name, end in zip(LAYERS, ends, strict=True)
    }
    assert lines["loss->all_reduce along data, loss"] is False
    texts = ["".join(each.itertext()) for each in ElementTree.parse(tmp_path / "step.svg").iter()]
    assert f"{4 * (500 * 800 + 500):,} bytes" in texts and texts.count("all_reduce along data") == 5
    assert rows(step.summary())["conv1"][:3] == rows(step_of(lenet()).summary())["conv1"][:3]  # an unchanged table


def test_a_drawing_of_micro_batches_has_one_collective(tmp_path: Path) -> None:
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    step = ls.train_step(lenet(), loss=loss, optimizer=ls.optim.SGD(0.05), accumulate=2)
    _, lines = edges(ls.distribute(step, {"data": 2}), tmp_path / "step.svg")
    end = "all_reduce along data, micro-batches"
    dashed = {line for line, is_dashed in lines.items() if is_dashed}
    assert dashed == {f"{end}->optimizer"} | {f"{name}->{end}" for name in LAYERS}
    assert lines[f"loss->{end}"] is False


def test_a_drawing_of_split_layers_has_their_collectives(tmp_path: Path) -> None:
    """One sum in the forward pass, in the layer whose weights are split along the summed dimension, and one of the
    gradient before the first layer.
    """
    split = {"fc1.weight": {"model": 0}, "fc2.weight": {"model": 1}}
    _, lines = edges(ls.distribute(step_of(lenet()), {"data": 1, "model": 2}, split), tmp_path / "step.svg")
    end = "all_reduce along model, fc2"
    assert lines[f"fc2->{end}"] is False and lines[f"{end}->fc2"] is False
    back = [line for line in lines if line.startswith("all_reduce along model, gradient of ")]
    assert len(back) == 1 and lines[back[0]] is True, lines


def test_a_drawing_of_a_step_with_servers_has_what_they_are_told(tmp_path: Path) -> None:
    text = (
        "graph @g(%x: f32[4,3] split(0), state %w: f32[3], setting %rate: f64[] in [0.0, inf) = 0.5) -> (sum: f32[], %w: f32[3]) {\n"
        '  %sum = reduce_sum %x {dims=[0, 1]} : f32[] @"onnx:/sum"\n'
        '  %g = reduce_sum %x {dims=[0]} : f32[3] @"gradient of onnx:/sum"\n'
        '  %g.pushed = push %g {axis=data, key=w} : f32[3] @"optimizer of w"\n'
        "  %w.next = pull %g.pushed, %w, %rate {key=w, update=graph @u(%gradient: f32[3], state %value: f32[3], "
        "setting %rate: f64[] in [0.0, inf) = 0.5) -> (%value: f32[3]) {\n"
        "    %v = sgd %value, %gradient {learning_rate=%rate} : f32[3]\n    return %v\n"
        '  }} : f32[3] @"optimizer of w"\n  return %sum, %w.next\n}\n'
    )
    boxes, lines = edges(ls.parse(text), tmp_path / "step.svg")
    push, pull = "push to servers, optimizer", "pull from servers, optimizer"
    assert boxes == {"input x", "sum", push, pull}
    assert lines == {"input x->sum": False, f"sum->{push}": True, f"{push}->{pull}": True}


def test_what_is_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("summary: depth is 0, expected at least 1"):
        lenet().summary(depth=0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("save_svg: the program dot, which draws it, is missing: apt install graphviz"):
        lenet().save_svg(tmp_path / "lenet.svg")


def test_a_loop_counts_its_iterations() -> None:
    """A recurrence of 5 steps. Each has the products of 3 x 4 carried values with a 4 x 4 matrix, an addition and tanh."""
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
    """2 heads of 3 queries and 3 keys of size 4, values of size 5: 9 pairs, of which causal attention uses 6."""
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

    assert layers.executable_summary(Compiled(), 1).startswith("2 steps: 1 all_reduce, 1 reference\n")


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
