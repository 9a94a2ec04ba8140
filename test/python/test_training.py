"""n ranks compute what one rank computes, and what PyTorch computes on the whole batch."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, HAS_AVX512, STEPS, Case, train
from ranks import mpirun, run_in_threads

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

EXPECTED = json.loads((HERE / "pytorch_losses.json").read_text())
TOLERANCE = 1e-4  # relative
# For gradients computed from their factors, which rounds differently. Two threads of one rank differ as much from one
# thread: at the tenth step two numbers are nearly equal.
TOLERANCE_BETWEEN_HOSTS = 3e-4
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_losses_agree(found: list[float], expected: list[float], tolerance: float = TOLERANCE) -> None:
    assert len(found) == len(expected)
    assert np.all(np.isfinite(found))
    np.testing.assert_allclose(found, expected, rtol=tolerance)


@cases
def test_pytorch_numbers_are_of_a_run_that_learns(case: Case) -> None:
    losses = EXPECTED[case.name]
    assert len(losses) == STEPS
    assert np.mean(losses[-5:]) < 0.95 * losses[0]


@cases
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_losses_agree_with_pytorch_on_the_whole_batch(case: Case, n: int) -> None:
    results = run_in_threads(n, lambda world: (world.size, *train(case, world)))
    failures = [result for result in results if isinstance(result, Exception)]
    assert not failures, failures
    assert [size for size, _, _ in results] == [n] * n
    for _, losses, _ in results:
        assert losses == results[0][1], "the loss differs between ranks"
        assert_losses_agree(losses, EXPECTED[case.name])
    states = [{name: exe.state[name] for name in exe.state} for _, _, exe in results]
    assert len(states[0]) > 4
    for rank in range(1, n):
        for name, value in states[0].items():
            assert value.tobytes() == states[rank][name].tobytes(), f"{name} differs between ranks 0 and {rank}"


@cases
def test_a_repeated_run_is_bitwise_equal(case: Case) -> None:
    def run(world: ls.Communicator) -> tuple[list[float], dict[str, bytes]]:
        losses, exe = train(case, world, steps=8)
        return losses, {name: exe.state[name].tobytes() for name in exe.state}

    first, second = run_in_threads(2, run), run_in_threads(2, run)
    assert len(first[0][0]) == 8
    assert first == second


def assert_ranks_agree(n: int, folder: Path, tolerance: float = TOLERANCE) -> None:
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n)]
    for rank in ranks:
        assert rank["size"] == n
        assert rank["digest"] == ranks[0]["digest"], "states differ between ranks"
        assert_losses_agree(rank["losses"], EXPECTED["lenet"], tolerance)


@pytest.mark.parametrize("n", [2, 3])
def test_losses_agree_over_mpi(n: int, tmp_path: Path) -> None:
    done = mpirun(n, HERE / "mpi_training.py", tmp_path)
    assert done.returncode == 0, done.stderr
    assert_ranks_agree(n, tmp_path)


@pytest.mark.skipif(bool(hosts.why_not()), reason=f"no hosts on this machine: {hosts.why_not()}")
@pytest.mark.parametrize("ranks", [pytest.param([1, 1], marks=pytest.mark.everything), [2, 1]])
def test_losses_agree_on_two_hosts(ranks: list[int], tmp_path: Path) -> None:
    with hosts.Hosts(2, "1gbit") as two:
        done = two.mpirun(ranks, sys.executable, HERE / "mpi_training.py", tmp_path, timeout=120, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert_ranks_agree(sum(ranks), tmp_path, TOLERANCE_BETWEEN_HOSTS)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@cases
def test_live_pytorch_agrees_with_its_stored_numbers(case: Case) -> None:
    import pytorch_oracle

    # PyTorch's own kernels round differently on processors without AVX-512: LeNet's loss is then off by 1.2e-4 in one
    # of 50 steps.
    tolerance = TOLERANCE if HAS_AVX512 else 3 * TOLERANCE
    np.testing.assert_allclose(pytorch_oracle.losses(case), EXPECTED[case.name], rtol=tolerance)
