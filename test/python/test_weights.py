"""Weights in safetensors files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from ranks import errors_of, run_in_threads
from test_errors import LABELS, X, raises, training
from test_mesh import MESH

safetensors = pytest.importorskip("safetensors.numpy")

TWO = np.ones(2, np.float32)


def graph() -> ls.Graph:
    return ls.parse(
        """graph @g(%x: f32[2], state %w: f32[2], state %b: f32[2]) -> (y: f32[2]) {
  %z = mul %x, %w : f32[2]
  %y = add %z, %b : f32[2]
  return %y
}"""
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "w.safetensors"


def saved(file: Path, **values: np.ndarray) -> Path:
    safetensors.save_file(values, file)
    return file


def test_weights_that_do_not_fit(file: Path) -> None:
    with raises(str(file), "extra is not a state of @g; its states are b, w"):
        ls.load_weights(graph(), saved(file, w=TWO, b=TWO, extra=TWO))
    with raises(str(file), "no value for the state b of @g"):
        ls.load_weights(graph(), saved(file, w=TWO))
    with raises(str(file), "the value of state w is f32[3], the state f32[2]"):
        ls.load_weights(graph(), saved(file, w=np.ones(3, np.float32), b=TWO))
    with raises(str(file), "the value of state w is f64[2], the state f32[2]"):
        ls.load_weights(graph(), saved(file, w=np.ones(2), b=TWO))
    file.write_bytes(b"damaged")
    with raises(str(file)):
        ls.load_weights(graph(), file)
    with raises("nowhere.safetensors"):
        ls.load_weights(graph(), file.parent / "nowhere.safetensors")
    exe = ls.compile(graph())
    with raises("No such file or directory"):
        ls.save_weights(exe, file.parent / "no" / "folder")


def test_names_in_the_file_may_be_others(file: Path) -> None:
    loaded = ls.load_weights(graph(), saved(file, v=TWO, c=2 * TWO), rename={"v": "w", "c": "b"})
    assert (loaded.initial_value("w").tolist(), loaded.initial_value("b").tolist()) == ([1, 1], [2, 2])
    loaded = ls.load_weights(graph(), saved(file, v=TWO), rename={"v": "w", "gone": "b"}, strict=False)
    assert (loaded.initial_value("w").tolist(), loaded.initial_value("b").tolist()) == ([1, 1], [0, 0])


def test_names_that_are_not_there_or_for_one_state(file: Path) -> None:
    with raises(str(file), "there is no tensor gone, which rename names; there are b, w"):
        ls.load_weights(graph(), saved(file, w=TWO, b=TWO), rename={"gone": "w"})
    for strict in (True, False):
        with raises(str(file), "are both for the state w"):
            ls.load_weights(graph(), saved(file, w=TWO, v=2 * TWO, b=TWO), rename={"v": "w"}, strict=strict)


def test_strict_is_a_flag(file: Path) -> None:
    with raises("load_weights: strict is 'no', expected True or False"):
        ls.load_weights(graph(), saved(file, w=TWO, b=TWO), strict="no")  # type: ignore[arg-type]
    ls.load_weights(graph(), saved(file, w=TWO), strict=np.bool_(False))


def test_a_training_step_goes_on_where_it_was_saved(file: Path) -> None:
    """The file has the optimizer's states; they are required unless strict=False."""
    step = training(optimizer=ls.optim.SGD(0.1, momentum=0.9))
    one, other = ls.compile(step, threads=1), ls.compile(step, threads=1)
    one(x=X, label=LABELS)
    ls.save_weights(one, file)
    one(x=X, label=LABELS)
    again = ls.compile(ls.load_weights(step, file), threads=1)
    again(x=X, label=LABELS)
    assert {name for name in again.state if name.endswith("/momentum")}
    for name in one.state:
        np.testing.assert_array_equal(again.state[name], one.state[name])
        assert not np.array_equal(other.state[name], one.state[name]), name
    safetensors.save_file({name: value for name, value in one.state.items() if "/" not in name}, file)
    with raises(str(file), "no value for the state", "/momentum"):
        ls.load_weights(step, file)
    plain = ls.load_weights(step, file, strict=False)
    np.testing.assert_array_equal(plain.initial_value("fc1.weight"), one.state["fc1.weight"])
    assert not plain.initial_value("fc1.weight/momentum").any()


def test_states_that_ranks_share_or_that_are_half_updated_are_not_written(file: Path) -> None:
    """Otherwise rank 0 would write its part as if it were the whole."""
    before = saved(file, w=TWO).read_bytes()

    def shared(world: ls.Communicator) -> None:
        exe = ls.compile(training(), world=world, mesh=MESH, split={"fc1.weight": {"model": 0}}, threads=1)
        ls.save_weights(exe, file)

    for message in errors_of(4, shared):
        assert "ranks have only parts of states, such as fc1.weight; exe.save(path) writes whole states" in message

    def failed(world: ls.Communicator) -> None:
        exe = ls.compile(training(), world=world, threads=1)
        exe._doubt_states("they are in doubt")
        ls.save_weights(exe, file)

    for message in errors_of(1, failed):
        assert "they are in doubt" in message
    assert file.read_bytes() == before


def test_one_rank_writes(file: Path) -> None:
    def body(world: ls.Communicator) -> None:
        exe = ls.compile(training(), world=world, threads=1)
        ls.save_weights(exe, file.with_name(f"{world.rank}"))

    assert run_in_threads(2, body) == [None, None]
    assert [each.name for each in file.parent.iterdir()] == ["0"]


def test_an_old_file_stays_when_the_disk_is_full(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved(file, w=TWO).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises(f"{file}: ", "No space left on device"):
        ls.save_weights(ls.compile(graph()), file)
    assert [each.read_bytes() for each in file.parent.iterdir()] == [before]


def test_schedules_stay_with_a_step_whose_weights_are_loaded(file: Path) -> None:
    rate = ls.schedule.constant(0.1).after_warmup(5)
    step = training(optimizer=ls.optim.SGD(rate))
    one = ls.compile(step, threads=1)
    ls.save_weights(one, file)
    again = ls.compile(ls.load_weights(step, file), threads=1)
    for k in range(3):
        again(x=X, label=LABELS)
        assert again.settings["optimizer/learning_rate"] == pytest.approx(rate(k))
