"""Popular architectures on three ranks, of which one has most rows and one has none: a step equals PyTorch's on all
rows.
"""

from __future__ import annotations

import statistics

import numpy as np
import pytest

import architectures
import lockstep as ls
import test_architectures as whole
from ranks import run_in_threads

SHARES = [3, 0, 1]
MOST = 3
# One file of each architecture.
FILES = {file.split(".")[0]: file for file in reversed(architectures.files())}


def step_of(name: str) -> ls.Graph:
    about, *_ = architectures.read(name)
    content, dims = architectures.model_bytes(FILES[name]), {"batch": MOST * len(SHARES)}
    model = ls.load_onnx(content, dims)
    if tables := whole.tables_of(model, name):
        model = ls.load_onnx(content, dims, constants=tables)
    loss = ls.loss.softmax_cross_entropy if about["loss"] == "cross_entropy" else ls.loss.mean_squared_error
    return ls.train_step(model, loss("output", "label"), ls.optim.SGD(architectures.RATE), uneven=True)


def train(world: ls.Communicator, name: str) -> tuple[float, dict[str, np.ndarray]]:
    about, inputs, label, _ = architectures.read(name)
    assert len(label) == sum(SHARES) and world.size == len(SHARES)
    exe = ls.compile(step_of(name), world=world, threads=1)
    begin = sum(SHARES[: world.rank])
    mine = slice(begin, begin + SHARES[world.rank])
    batch = {key: value if key in about["fixed"] else value[mine] for key, value in inputs.items()}
    results = exe(**batch, label=label[mine])
    assert results["rows"] == sum(SHARES)
    exe.check_replicas()
    return float(results["loss"]), {key: np.array(exe.state[key], np.float64) for key in exe.state}


# Their exported files pick the mask from that of all rows.
MIXING = {"bert", "distilbert"}


@pytest.mark.parametrize("name", FILES)
def test_a_step_is_that_of_pytorch(name: str) -> None:
    if name in MIXING:
        with pytest.raises(ls.Error, match="mixes the rows of a batch"):
            step_of(name)
        return
    numbers = architectures.read(name)[-1]
    typical = statistics.median(numbers.parameter_errors.values())
    for result in run_in_threads(len(SHARES), lambda world: train(world, name)):
        assert not isinstance(result, Exception), result
        loss, after = result
        messages = [
            whole.off("loss", np.asarray(loss), np.asarray(numbers.losses[0]), whole.TIMES, numbers.loss_errors[0])
        ]
        messages += [
            whole.off(state, after[state], expected, whole.TIMES, numbers.parameter_errors[state], typical)
            for state, expected in numbers.parameters.items()
            if state in after
        ]
        wrong = list(filter(None, messages))
        assert len(messages) > 1 and not wrong, f"{len(wrong)} of {len(messages)}: {'; '.join(wrong)}"
