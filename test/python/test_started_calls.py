"""Started calls, whose results are read later. On a CPU they have ended when `start` returns;
backends/started_runs_test.cc tests GPUs.
"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import LABELS, X, raises, training

BAD = np.array([0, 1, 2, 3, 4, 9])


def exe(**options: object) -> ls.Executable:
    return ls.compile(training(keep_results=True), threads=1, **options)


def test_started_calls_give_what_calls_give() -> None:
    called, started = exe(), exe()
    pending = []
    for run in range(6):
        x = X * run
        expected = called(x=x, label=LABELS)
        call = started.start(x=x, label=LABELS)
        x[:] = np.nan  # its values have been taken
        pending.append((expected, call))
    for expected, call in pending:
        assert set(call) == set(expected) == {"loss", "logits"} and len(call) == 2
        assert "loss" in call and "other" not in call
        for name, value in expected.items():
            np.testing.assert_array_equal(call[name], value)
        assert call.wait().keys() == expected.keys()
        assert call["loss"] is call.wait()["loss"]
        call.wait().clear()  # the returned dictionary belongs to the caller
        assert set(call.wait()) == set(call)
    assert started.counters["runs"] == 6
    for name, value in called.state.items():
        np.testing.assert_array_equal(started.state[name], value)
    assert repr(call) in ("<lockstep.StartedCall with loss, logits>", "<lockstep.StartedCall with logits, loss>")


def test_a_result_that_is_not_there() -> None:
    call = exe().start(x=X, label=LABELS)
    with pytest.raises(KeyError, match="other"):
        call["other"]


def test_its_arrays_outlive_the_executable() -> None:
    executable = exe()
    expected = exe()(x=X, label=LABELS)["loss"]
    call = executable.start(x=X, label=LABELS)
    executable.start(x=X, label=LABELS)  # its results are never read
    del executable
    gc.collect()
    loss = call["loss"]
    del call
    gc.collect()
    assert loss == expected


def test_wrong_inputs_are_told_at_once() -> None:
    executable = exe()
    call = executable.start(x=X, label=LABELS)
    with raises("input label is missing"):
        executable.start(x=X)
    with raises("is called with inputs by name"):
        executable.start(X, LABELS)
    with raises("input x: expected f32[6,12]"):
        executable.start(x=X[:2], label=LABELS)
    assert np.isfinite(call["loss"])
    assert executable.counters["runs"] == 1


def test_an_error_is_of_the_object_each_time() -> None:
    executable = exe()
    call = executable.start(x=X, label=BAD)
    for _ in range(2):
        with raises("label 9 at position [5]"):
            call["loss"]
    with raises("label 9 at position [5]"):
        call.wait()
    assert list(call) == list(executable.start(x=X, label=LABELS))  # the error comes once; the states are unchanged
    assert executable.counters["runs"] == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e(x=X, label=LABELS),
        lambda e: e.start(x=X, label=LABELS),
        lambda e: e.state["fc1.weight"],
        lambda e: ls.save_onnx(e, "never.onnx"),
        lambda e: ls.save_weights(e, "never.safetensors"),
        lambda e: e.state.__setitem__("fc1.weight", e.state["fc1.weight"]),
    ],
)
def test_an_error_that_nobody_looked_at_is_of_the_next_use(use: object) -> None:
    executable = exe()
    good = executable.start(x=X, label=LABELS)
    bad = executable.start(x=X, label=BAD)
    with raises("call 2, which was started before: ", "label 9 at position [5]"):
        use(executable)
    assert np.isfinite(good["loss"])
    with raises("label 9 at position [5]"):
        bad["loss"]
    assert np.isfinite(executable(x=X, label=LABELS)["loss"])


def test_ranks_start_together() -> None:
    def train(world: ls.Communicator) -> list[float]:
        executable = ls.compile(training(), world=world, threads=1)
        share = slice(3 * world.rank, 3 * world.rank + 3)
        calls = [executable.start(x=X[share], label=LABELS[share]) for _ in range(4)]
        return [float(call["loss"]) for call in calls]

    losses = run_in_threads(2, train)
    assert losses[0] == losses[1]
    assert losses[0][3] < losses[0][0]


def test_another_thread_waits_when_it_is_its_turn() -> None:
    call = exe().start(x=X, label=LABELS)
    found = []
    thread = threading.Thread(target=lambda: found.append(call["loss"]))
    thread.start()
    thread.join()
    assert np.isfinite(found[0])


def test_profile_is_equal_on_all_ranks() -> None:
    def load(world: ls.Communicator) -> str:
        with pytest.raises(ls.Error) as error:
            ls.compile(training(), world=world, threads=1, profile=world.rank == 1)
        return str(error.value)

    for message in run_in_threads(2, load):
        assert "on rank 0: check_every=512 profile=False\n  on rank 1: check_every=512 profile=True" in message
    profiled = exe(profile=True)
    profiled(x=X, label=LABELS)
    assert all(seconds > 0 for _, seconds in profiled.profile)
