"""Models with layers on several ranks: stages of a pipeline compute what one rank does, and each has only its own
layers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from example_parts import part
from limited_pipeline import LAYERS, learn, step_of_layers
from ranks import mpirun, run_in_threads

HERE = Path(__file__).parent
BATCH, LENGTH, WIDTH, MICRO_BATCHES, STEPS = 8, 6, 16, 4, 4
MESHES = [{"stage": 2}, {"stage": 4}, {"data": 2, "stage": 2}]
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
RANDOM = np.random.Generator(np.random.PCG64(3))
TOKENS = RANDOM.integers(256, size=(STEPS, BATCH, LENGTH + 1))


def lstm() -> ls.Graph:
    network = part("pipeline/model").lstm(layers=4, width=WIDTH, length=LENGTH, dropout=0.2)
    return ls.load_onnx(network, dims={"batch": BATCH})


def step_of(model: ls.Graph) -> ls.Graph:
    """A step with computations over all stages: the norm of all gradients, draws from one seed, and the optimizer's
    step count.
    """
    optimizer, clip = ls.optim.AdamW(0.02, weight_decay=0.1), ls.clip.global_norm(0.5)
    return ls.train_step(model, LOSS, optimizer, clip=clip, accumulate=MICRO_BATCHES, seed=5)


def rows_of(world: ls.Communicator, mesh: dict[str, int]) -> slice:
    """The rows of a rank. Ranks of one pipeline, which are neighbours, have the same."""
    pipelines = mesh.get("data", 1)
    rows, pipeline = BATCH // pipelines, world.rank // mesh["stage"]
    return slice(rows * pipeline, rows * (pipeline + 1))


def losses_of(exe: ls.Executable, rows: slice, steps: range = range(STEPS)) -> list[float]:
    return [float(exe(tokens=TOKENS[i, rows, :-1], label=TOKENS[i, rows, 1:])["loss"]) for i in steps]


def weights_of(exe: ls.Executable) -> dict[str, np.ndarray]:
    return {name: exe.state[name] for name in exe.state if "/" not in name}


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], ls.Executable]:
    exe = ls.compile(step_of(lstm()), threads=1)
    return losses_of(exe, slice(None)), exe


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_stages_learn_what_one_rank_does(mesh: dict[str, int], alone: tuple[list[float], ls.Executable]) -> None:
    expected, whole = alone

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray], int]:
        exe = ls.compile(step_of(lstm()), world=world, mesh=mesh, threads=1)
        losses = losses_of(exe, rows_of(world, mesh))
        exe.check_replicas()
        return losses, weights_of(exe), exe.memory["states"]

    ranks = run_in_threads(4 if len(mesh) == 2 else mesh["stage"], body)
    assert not [rank for rank in ranks if isinstance(rank, Exception)], ranks
    stages, found = mesh["stage"], {}
    for number, (losses, weights, held) in enumerate(ranks):
        assert losses == ranks[0][0], "the loss is on all ranks"
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        assert weights and held < 0.7 * whole.memory["states"]  # the cut balances operations, not states
        for name, value in weights.items():
            assert found.setdefault(name, number % stages) == number % stages, f"{name} is on two stages"
            np.testing.assert_allclose(value, whole.state[name], rtol=1e-3, atol=1e-4, err_msg=name)
            assert number < stages or np.array_equal(value, ranks[number - stages][1][name]), "replicas are equal"
    assert found.keys() == weights_of(whole).keys()
    layers = [found[f"layers.{i}.weight_hh"] for i in range(4)]
    assert layers == sorted(layers) and set(layers) <= set(range(stages)) and len(set(layers)) >= 2


def test_stages_learn_what_pytorch_does() -> None:
    """Consecutive torch layers, and the whole batch at once in PyTorch."""
    torch = pytest.importorskip("torch")
    from torch.nn.functional import cross_entropy

    torch.manual_seed(4)
    layers = [torch.nn.Linear(12, 24), *[torch.nn.Linear(24, 24) for _ in range(5)], torch.nn.Linear(24, 6)]
    module = torch.nn.Sequential(*[each for layer in layers for each in (layer, torch.nn.Tanh())][:-1])
    model = ls.from_torch(module, torch.zeros(2, 12), dims={"batch": 16}, output_names=["logits"])
    (name,) = (each.name for each in model.inputs)
    step = ls.train_step(model, LOSS, ls.optim.SGD(0.2, momentum=0.9), accumulate=4)
    x, label = RANDOM.standard_normal((16, 12)).astype(np.float32), RANDOM.integers(6, size=16)

    def body(world: ls.Communicator) -> list[float]:
        exe = ls.compile(step, world=world, mesh={"stage": 3}, threads=1)
        return [float(exe(**{name: x}, label=label)["loss"]) for _ in range(6)]

    found = run_in_threads(3, body)
    optimizer, expected = torch.optim.SGD(module.parameters(), 0.2, 0.9), []
    for _ in range(6):
        optimizer.zero_grad()
        loss = cross_entropy(module(torch.tensor(x)), torch.tensor(label))
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert expected[-1] < 0.95 * expected[0]
    for losses in found:
        np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_states_are_assigned_where_they_are() -> None:
    """States are assigned by the ranks that have them, as here, or by all, as when a checkpoint is loaded. Replicas of
    a stage must assign the same value.
    """
    mesh = {"data": 2, "stage": 2}

    def body(world: ls.Communicator) -> str:
        step = step_of(lstm())
        first, second = (ls.compile(step, world=world, mesh=mesh, threads=1) for _ in range(2))
        rows = rows_of(world, mesh)
        losses_of(first, rows, range(1))
        second.state.update(first.state)
        assert losses_of(second, rows, range(1, 3)) == losses_of(first, rows, range(1, 3))
        for name in (state.name for state in step.states):  # also states of other stages
            second.state[name] = first.state[name] if name in first.state else step.initial_value(name)
        assert losses_of(second, rows, range(3, 4)) == losses_of(first, rows, range(3, 4))
        if world.rank == 0:
            second.state["layers.0.bias"] = first.state["layers.0.bias"]
        with pytest.raises(ls.Error) as error:
            losses_of(second, rows, range(1))
        return str(error.value)

    ranks = run_in_threads(4, body)
    assert not [rank for rank in ranks if isinstance(rank, Exception)], ranks
    assert any("layers.0.bias" in message and "none" in message for message in ranks), ranks


def test_a_run_goes_on_in_other_stages(tmp_path: Path, alone: tuple[list[float], ls.Executable]) -> None:
    """A checkpoint has the whole model: two stages save it, four stages and one rank continue."""
    path, expected = tmp_path / "half.safetensors", alone[0]

    def half(world: ls.Communicator) -> list[float]:
        exe = ls.compile(step_of(lstm()), world=world, mesh={"stage": 2}, threads=1)
        losses = losses_of(exe, slice(None), range(2))
        exe.save(path)
        return losses

    def rest(world: ls.Communicator) -> list[float]:
        exe = ls.compile(step_of(lstm()), world=world, mesh={"stage": world.size}, threads=1)
        exe.load(path)
        assert exe.step == 2
        return losses_of(exe, slice(None), range(2, STEPS))

    for losses in run_in_threads(2, half):
        np.testing.assert_allclose(losses, expected[:2], rtol=1e-5)
    for stages in (1, 4):
        for losses in run_in_threads(stages, rest):
            np.testing.assert_allclose(losses, expected[2:], rtol=1e-5)


def test_a_model_whose_states_exceed_a_ranks_limit(tmp_path: Path) -> None:
    """The operating system also limits each rank's memory. One rank cannot hold the states; four train what one rank
    without a limit would.
    """
    unlimited = learn(ls.Communicator.single(), step_of_layers())
    states, whole = unlimited.states, unlimited.values
    limit, more = states // 2, states  # bytes of values; bytes by which a process may grow once it compiles
    assert limit < states < whole
    refused = f"memory_limit is {limit} bytes, and graph @layers needs at least "
    for how, message in (("memory_limit", refused), ("process", "the host has no 4194304 bytes of memory for state w")):
        alone = [sys.executable, str(HERE / "limited_pipeline.py"), str(tmp_path), str(limit), str(more), how]
        done = subprocess.run(alone, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode != 0 and message in done.stderr, done.stderr
        assert not list(tmp_path.glob("*.json"))
    done = mpirun(4, HERE / "limited_pipeline.py", tmp_path, limit, more, "stages")
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for rank in ranks:
        assert rank["size"] == 4 and rank["values"] <= limit
        np.testing.assert_allclose(rank["losses"], unlimited.losses, rtol=1e-5)
        assert len(rank["weights"]) == LAYERS // 4
    assert sum(rank["states"] for rank in ranks) < 1.01 * states
    assert sorted(name for rank in ranks for name in rank["weights"]) == sorted(unlimited.weights)
