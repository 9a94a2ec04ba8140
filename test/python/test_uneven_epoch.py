"""An epoch of `ls.data.batches` ends on all ranks at once, for any numbers of samples: each sample is used once.

The weights are those of one rank.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, ROOT
from ranks import mpirun
from test_errors import raises

BATCH = 8  # per rank
SEED = 3
SHARDS = {2: [29, 11], 3: [5, 35, 0]}  # numbers of samples of each rank
SAMPLES = 40


def samples() -> tuple[np.ndarray, np.ndarray]:
    x, label = CASES[1].data()
    return x[:SAMPLES], label[:SAMPLES]


def step_of(batch: int, uneven: bool = False) -> ls.Graph:
    model = ls.load_onnx(ROOT / "test/models/mlp.onnx", dims={"batch": batch})
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(model, loss, ls.optim.SGD(0.1, momentum=0.9), uneven=uneven)


def trained_alone(batches: list[list[int]]) -> dict[str, np.ndarray]:
    """The states after one rank's steps on these samples, with one program for each number of samples."""
    x, label = samples()
    programs: dict[int, ls.Executable] = {}
    states: dict[str, np.ndarray] = {}
    for rows in batches:
        exe = programs.setdefault(len(rows), ls.compile(step_of(len(rows)), threads=1))
        for name, value in states.items():
            exe.state[name] = value
        exe(x=x[rows], label=label[rows])
        states = dict(exe.state)
    return states


@pytest.mark.parametrize("whose", ["own", "shared"])
@pytest.mark.parametrize("ranks", SHARDS)
def test_an_epoch_ends_on_all_ranks_at_once(ranks: int, whose: str, tmp_path: Path) -> None:
    assert sum(SHARDS[ranks]) == SAMPLES
    done = mpirun(ranks, Path(__file__).parent / "mpi_uneven_epoch.py", tmp_path, whose)
    assert done.returncode == 0, done.stderr
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    most = max(SHARDS[ranks]) if whose == "own" else SAMPLES / ranks
    steps = int(np.ceil(most / BATCH))
    for report in reports:
        assert report["size"] == ranks
        assert report["step"] == len(report["counts"]) == steps, "the call that ends the epoch is not a step"
        assert report["counts"] == reports[0]["counts"]
    of_steps: list[list[int]] = [[] for _ in range(steps)]
    for report in reports:
        for step, rows in enumerate(report["used"]):
            of_steps[step] += rows
    assert [len(rows) for rows in of_steps] == reports[0]["counts"]
    assert sorted(number for rows in of_steps for number in rows) == list(range(SAMPLES)), "each sample once"
    assert len(set(reports[0]["counts"])) > 1, "there is a step that is not full"
    with np.load(tmp_path / "weights.npz") as stored:
        found = dict(stored)
    expected = trained_alone(of_steps)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5 * np.abs(value).max(), err_msg=name)


def test_a_step_of_full_batches_or_a_batch_without_names_is_an_error() -> None:
    with raises(
        "joined: this executable requires full batches; train_step(..., uneven=True) makes a step that does not"
    ):
        ls.compile(step_of(8), threads=1).joined([])
    joined = ls.compile(step_of(8, uneven=True), threads=1).joined([samples()])
    with raises('joined: a batch is a tuple, expected inputs by name, such as {"x": x, "label": label}'):
        next(joined)
