"""Popular architectures, as PyTorch exports them, train as in PyTorch, on one rank and on two.

The numbers are in test/models/architectures, made by architectures.py.
"""

from __future__ import annotations

import re
import statistics

import numpy as np
import onnx
import pytest

import architectures
import lockstep as ls
from ranks import run_in_threads

# TIMES is the allowed error, relative to that of PyTorch's f32. ROUNDING is the error of rounding a result to f32.
TIMES = 4
ROUNDING = float(np.finfo(np.float32).eps)

# If a model merges another dimension with the batch, each rank computes its share of the merged rows. The only tensors
# that are gathered are the bool masks of these files, which the model reads at computed positions.
READ_THEIR_MASK = {"bert.export", "bert.optimized", "distilbert.export", "distilbert.optimized"}


def train(world: ls.Communicator, file: str) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses of two steps, and the parameters after the first."""
    name = file.split(".")[0]
    about, inputs, label, _ = architectures.read(name)
    model = ls.load_onnx(architectures.model_bytes(file), {"batch": len(label)})
    if tables := tables_of(model, name):
        model = ls.load_onnx(architectures.model_bytes(file), {"batch": len(label)}, constants=tables)
    if about["loss"] == "cross_entropy":
        loss = ls.loss.softmax_cross_entropy("output", "label")
    else:
        loss = ls.loss.mean_squared_error("output", "label")
    exe = ls.compile(ls.train_step(model, loss, ls.optim.SGD(architectures.RATE)), world=world, threads=1)
    assert "reference." not in str(exe.steps)
    gathers = [line for line in exe.collectives if not re.search(r"all_reduce|reduce_scatter", line)]
    assert len(gathers) == (world.size > 1 and file in READ_THEIR_MASK), gathers
    rows = len(label) // world.size
    mine = slice(world.rank * rows, (world.rank + 1) * rows)
    batch = {key: value if key in about["fixed"] else value[mine] for key, value in inputs.items()}
    losses = [float(exe(**batch, label=label[mine])["loss"])]
    after = {key: np.array(exe.state[key], np.float64) for key in exe.state}
    losses.append(float(exe(**batch, label=label[mine])["loss"]))
    return losses, after


def tables_of(model: ls.Graph, name: str) -> list[str]:
    """States that PyTorch's exporter computed and that are not parameters: their numbers are not in the unoptimized
    file.
    """
    plain = f"{name}.export"
    if plain not in architectures.files():
        return []
    original = ls.load_onnx(architectures.model_bytes(plain), {"batch": len(architectures.read(name)[2])})
    known = np.concatenate([original.initial_value(info.name).ravel() for info in original.states])
    return [info.name for info in model.states if not np.isin(model.initial_value(info.name), known).all()]


def off(what: str, found: np.ndarray, expected: np.ndarray, times: float, error: float, typical: float = 0) -> str:
    """Returns a message if a result is too far from PyTorch's, whose own f32 is off by `error` here and typically by
    `typical`.
    """
    by = float(np.abs(found - expected).max(initial=0))
    allowed = times * max(error, typical, ROUNDING * float(np.abs(expected).max(initial=0)))
    return "" if by <= allowed else f"{what} is off by {by:.2g}, allowed {allowed:.2g}"


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("file", architectures.files())
def test_two_steps_are_those_of_pytorch(file: str, ranks: int) -> None:
    numbers = architectures.read(file.split(".")[0])[-1]
    times = TIMES
    # A few elements may be exact in PyTorch's f32 by chance, so at least the median error of all parameters is allowed.
    typical = statistics.median(numbers.parameter_errors.values())
    for result in run_in_threads(ranks, lambda world: train(world, file)):
        if isinstance(result, Exception):
            raise result
        losses, after = result
        messages = [
            off(f"loss {i}", *map(np.asarray, of[:2]), times, of[2])
            for i, of in enumerate(zip(losses, numbers.losses, numbers.loss_errors, strict=True))
        ]
        messages += [
            off(name, after[name], expected, times, numbers.parameter_errors[name], typical)
            for name, expected in numbers.parameters.items()
            if name in after
        ]
        wrong = list(filter(None, messages))
        assert not wrong, f"{len(wrong)} of {len(messages)}: {'; '.join(wrong)}"


@pytest.mark.parametrize("name", ["encoder_batch_first", "encoder_length_first"])
def test_layers_of_pytorch_that_merge_length_and_batch_are_cut_into_stages(name: str) -> None:
    """The samples of a micro-batch are not a range of the merged rows; the model must still be traversed only once."""
    _, inputs, label, numbers = architectures.read(name)
    model = ls.load_onnx(architectures.model_bytes(f"{name}.export"), {"batch": len(label)})
    loss = ls.loss.softmax_cross_entropy("output", "label")
    step = ls.train_step(model, loss, ls.optim.SGD(architectures.RATE), accumulate=2)

    def body(world: ls.Communicator) -> tuple[float, dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, mesh={"stage": 2}, threads=1)
        found = float(exe(**inputs, label=label)["loss"])
        return found, {key: np.array(exe.state[key], np.float64) for key in exe.state}

    ranks = run_in_threads(2, body)
    after: dict[str, np.ndarray] = {}
    for rank in ranks:
        assert not isinstance(rank, Exception), rank
        assert rank[0] == pytest.approx(numbers.losses[0], rel=1e-5)
        after |= rank[1]
    assert set(after) == {state.name for state in model.states}
    compared = set(after) & set(numbers.parameters)
    assert len(compared) > 10
    for key in compared:
        np.testing.assert_allclose(after[key], numbers.parameters[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", ["autoencoder", "lstm", "mixer"])
def test_the_numbers_are_those_of_pytorch_at_hand(name: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    made = architectures.examples().make(name)
    stored, found = architectures.read(name)[-1], architectures.pytorch(made)
    assert found.losses == pytest.approx(stored.losses, rel=1e-9)
    assert found.parameters.keys() == stored.parameters.keys()
    for parameter, value in stored.parameters.items():
        np.testing.assert_allclose(found.parameters[parameter], value, rtol=1e-9, atol=1e-12, err_msg=parameter)
    kinds = [
        [node.op_type for node in model.graph.node]
        for model in (
            architectures.exported(made, "export"),
            onnx.load_from_string(architectures.model_bytes(f"{name}.export")),
        )
    ]
    assert kinds[0] == kinds[1]
