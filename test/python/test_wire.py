"""compile(wire="bf16") and "int8": gradients travel in fewer bytes, and nearly the same is learnt.

test_int8_wire.py tests what int8 keeps for the next step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, Case, train
from ranks import run_in_threads

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

STEPS = 60
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
wires = pytest.mark.parametrize("wire", ["bf16", "int8"])


def trained(case: Case, n: int, wire: str | None) -> tuple[list[float], dict[str, np.ndarray]]:
    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        losses, exe = train(case, world, STEPS, wire=wire)
        exe.check_replicas()
        return losses, dict(exe.state)

    first, *others = run_in_threads(n, body)
    assert not isinstance(first, Exception), first
    for other in others:
        assert other[0] == first[0]
    return first


@wires
@cases
def test_the_loss_falls_as_it_does_with_all_bits(case: Case, wire: str) -> None:
    losses, _ = trained(case, 2, None)
    rounded, _ = trained(case, 2, wire)
    assert rounded != losses, "nothing was rounded"
    assert rounded[0] == losses[0], "the first loss is not rounded"
    # Adam divides by previous gradients, so small ones count more; int8 sends those as zero or as a whole code.
    of_first = 0.05 if wire == "int8" and case.name == "mlp" else 0.02
    np.testing.assert_allclose(rounded, losses, rtol=0.02, atol=of_first * losses[0])


@wires
def test_one_rank_rounds_nothing(wire: str) -> None:
    losses, states = trained(CASES[0], 1, None)
    of_wire, states_of_wire = trained(CASES[0], 1, wire)
    assert of_wire == losses
    assert states_of_wire.keys() == states.keys()
    for name, state in states.items():
        np.testing.assert_array_equal(states_of_wire[name], state)


@wires
@pytest.mark.parametrize("optimize", [True, False])
def test_gradients_alone_travel_so(optimize: bool, wire: str) -> None:
    model = ls.load_onnx(CASES[0].model, dims={"batch": 8})
    loss, clip = ls.loss.softmax_cross_entropy("logits", "label"), ls.clip.global_norm(1.0)
    step = ls.train_step(model, loss, ls.optim.SGD(0.1), clip=clip)

    def body(world: ls.Communicator) -> list[str]:
        return ls.compile(step, world=world, threads=1, wire=wire, optimize=optimize).collectives

    for lines in run_in_threads(2, body):
        of_gradients = [line for line in lines if "grad/" in line]
        assert of_gradients and all(wire in line for line in of_gradients), lines
        assert len(of_gradients) < len(lines) and not any(wire in line for line in lines if "grad/" not in line), lines


@pytest.mark.skipif(bool(hosts.why_not()), reason=f"no hosts on this machine: {hosts.why_not()}")
@pytest.mark.parametrize("ranks", [pytest.param([1, 1], marks=pytest.mark.everything), [2, 1]], ids=str)
def test_fewer_bytes_are_on_the_wire_between_hosts(ranks: list[int], tmp_path: Path) -> None:
    sent = {}
    for wire in ("f32", "bf16", "int8"):
        with hosts.Hosts(2, "1gbit") as two:
            command = (sys.executable, HERE / "mpi_training.py", tmp_path, wire)
            done = two.mpirun(ranks, *command, timeout=120, capture_output=True)
            assert done.returncode == 0, done.stderr
            sent[wire] = two.sent_bytes(0)
        reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(sum(ranks))]
        assert len({report["digest"] for report in reports}) == 1
        assert {report["size"] for report in reports} == {sum(ranks)}
    print({wire: round(bytes / sent["f32"], 3) for wire, bytes in sent.items()})
    assert sent["bf16"] < 0.6 * sent["f32"]
    # In f32, a host of several ranks sends the sum of its ranks; in int8 it sends each rank's gradient.
    assert sent["int8"] < (0.35 if ranks == [1, 1] else 0.45) * sent["f32"]
