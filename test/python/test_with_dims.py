"""Graph.with_dims: the same model for another batch, from files and from modules, without the original file or module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from ranks import run_in_threads

LENET, MLP, CONVNET = CASES
LOSS = ls.loss.softmax_cross_entropy("logits", "label")


def results_of(model: ls.Graph, **inputs: Any) -> dict[str, np.ndarray]:
    return ls.compile(model, threads=1)(**inputs)


@pytest.mark.parametrize("case", [MLP, CONVNET], ids=lambda case: case.name)
def test_a_model_of_a_file_that_has_gone(case: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(case.model.read_bytes())
    x = case.data()[0][:12]
    model = ls.load_onnx(path, dims={"batch": 12})
    expected = ls.load_onnx(path, dims={"batch": 3})
    path.unlink()
    for other in (model.with_dims(batch=3), model.with_dims({"batch": 3}), model.with_dims(batch=5).with_dims(batch=3)):
        assert str(other) == str(expected) and other.notes == model.notes
    assert [each.shape for each in model.inputs] == [x.shape]
    whole = results_of(model, **{case.input: x})["logits"]
    one = model.with_dims(batch=1)
    for i in range(3):
        np.testing.assert_allclose(
            results_of(one, **{case.input: x[i : i + 1]})["logits"], whole[i : i + 1], rtol=1e-4, atol=1e-5
        )


def test_values_are_those_of_the_graph_and_not_of_the_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    model = ls.load_onnx(MLP.model, dims={"batch": 4})
    random = np.random.default_rng(0)
    values = {each.name: random.standard_normal(each.shape).astype(np.float32) for each in model.states}
    safetensors.save_file(values, tmp_path / "weights.safetensors")
    other = ls.load_weights(model, tmp_path / "weights.safetensors").with_dims(batch=2)
    assert [each.name for each in other.states] == [each.name for each in model.states] and len(values) > 3
    for name, value in values.items():
        np.testing.assert_array_equal(other.initial_value(name), value)
        assert not np.array_equal(model.initial_value(name), value)


def test_a_training_step_of_another_batch_trains_the_same_and_is_written_as_the_model() -> None:
    x, labels = (array[:24] for array in CONVNET.data())
    model = ls.load_onnx(CONVNET.model, dims={"batch": 96}).with_dims(batch=24)
    expected = ls.load_onnx(CONVNET.model, dims={"batch": 24})

    def body(world: ls.Communicator) -> list[list[float]]:
        losses = []
        for each in (model, expected):
            exe = ls.compile(ls.train_step(each, LOSS, ls.optim.SGD(0.1)), world=world, threads=1)
            batches = [batch for _ in range(3) for batch in ls.data.batches(x, labels, size=24, world=world)]
            losses.append([float(exe(image=image, label=label)["loss"]) for image, label in batches])
        return losses

    for found, wanted in run_in_threads(2, body):
        assert found == wanted and found[2] < found[0]


def test_what_was_given_at_import_holds(tmp_path: Path) -> None:
    """Placements, shared inputs, constants and values stay, and so does dropout in training."""
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    m (float[2,4] x, int64[1] k) => (float[2,n] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4] table = {1,2,3,4}, float ratio = {0.5}, bool on = {1}> {
      a = MatMul(x, w)
      b = Add(a, table)
      c, _ = Dropout(b, ratio, on)
      y, _i = TopK(c, k)
    }"""
    model = onnx.parser.parse_model(text)
    given = ls.load_onnx(
        model, dims={"x:0": 6}, values={"k": np.array([2], np.int64)}, constants=["table"], split={"x": 0}
    )
    other = given.with_dims({"x:0": 3})
    expected = ls.load_onnx(
        model, dims={"x:0": 3}, values={"k": np.array([2], np.int64)}, constants=["table"], split={"x": 0}
    )
    assert str(other) == str(expected) and "dropout" in str(other)
    assert other.fixed_inputs == ["k"] and other.constants == expected.constants and "table" in other.constants
    assert [(each.shape, each.placements) for each in other.inputs] == [((3, 4), {"data": "split(0)"})]
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = results_of(other, x=x)["y"]
    w = np.arange(1, 17, dtype=np.float32).reshape(4, 4)
    np.testing.assert_allclose(result, -np.sort(-(x @ w + np.float32([1, 2, 3, 4])), axis=1)[:, :2])
    exe = ls.compile(other, threads=1)
    ls.save_onnx(exe, tmp_path / "written.onnx")  # a model for inference, without dropout
    (dropout,) = [node for node in onnx.load(tmp_path / "written.onnx").graph.node if node.op_type == "Dropout"]
    assert len(dropout.input) == 2


def test_an_extent_may_be_given_by_name_after_it_was_by_place_and_the_reverse() -> None:
    for first, second in (({"x:0": 6}, {"batch": 3}), ({"batch": 6}, {"x:0": 3}), ({"x:0": 6}, {"x:0": 3})):
        (x,) = ls.load_onnx(MLP.model, dims=first).with_dims(second).inputs
        assert (x.shape, x.placements) == ((3, 12), {"data": "split(0)"}), (first, second)


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "onnx")), reason="torch is not installed"
)
def test_a_module_is_exported_once() -> None:
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
            return self.last(self.drop(torch.relu(self.norm(self.first(x))))) * scale

    torch.manual_seed(0)
    module = Network()
    x = torch.randn(9, 5)
    model = ls.from_torch(module, (x, 2.0), dims={"rows": 9}, output_names=["logits"])
    before = {name: value.detach().clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        expected = module.eval()(x, 2.0).numpy()
        for value in module.parameters():
            value.fill_(7)  # later changes of the module have no effect
    del module
    other = model.with_dims(rows=1)
    assert [each.shape for each in other.inputs] == [(1, 5)]
    assert [each.name for each in other.states] == [each.name for each in model.states]
    assert {"first.weight", "norm.running_mean", "last.bias"} <= {each.name for each in other.states}
    for each in other.states:
        np.testing.assert_array_equal(other.initial_value(each.name), before[each.name].numpy())
    for i in range(9):
        found = results_of(other, x=x[i : i + 1].numpy())["logits"]
        np.testing.assert_allclose(found, expected[i : i + 1], rtol=1e-4, atol=1e-5)
    assert "random_bits" in str(ls.train_step(other.with_dims(rows=4), LOSS, ls.optim.SGD(0.1))), (
        "dropout is active in training"
    )


def test_what_has_no_other_dimensions() -> None:
    model = ls.load_onnx(MLP.model, dims={"batch": 4})
    step = ls.train_step(model, LOSS, ls.optim.SGD(0.1))
    for call, words in (
        (lambda: model.with_dims(bach=2), "mlp.onnx: dims: there is no symbolic dimension 'bach'; .* have 'batch'"),
        (lambda: model.with_dims(batch=0), "dims: 'batch' is 0, expected at least 1"),
        (lambda: model.with_dims(batch=2.5), "with_dims is .*, expected names with whole numbers"),
        (
            lambda: model.with_dims({"batch": 2}, batch=2),
            "with_dims: give dimensions either as one dict or by keywords",
        ),
        (lambda: step.with_dims(batch=2), "with_dims: @.* was made from one: make it again from model.with_dims"),
        (lambda: ls.parse(str(model)).with_dims(batch=2), "is not a model from load_onnx or from_torch$"),
        (lambda: ls.compile(model, threads=1).graph.with_dims(batch=2), "was made from one"),
    ):
        with pytest.raises(ls.Error, match=words):
            call()
