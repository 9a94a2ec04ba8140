"""One of several ranks is wrong, differs, or is gone: each rank soon gets a lockstep.Error that names the rank and the
cause.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import lockstep as ls
from ranks import errors_of, mpirun, run_in_threads
from test_errors import HERE, LABELS, MLP, X, mlp, raises, training

LIMIT = 5.0  # seconds within which ranks must notice that one of them is gone


# Several ranks, as threads


def test_a_batch_that_ranks_cannot_share() -> None:
    for message in errors_of(4, lambda world: ls.compile(training(), world=world)):
        assert re.search(r"input %x .*6.*shared evenly by the 4 ranks", message)
    with raises("dimension 0 of input %x", "shared evenly by the 4 ranks"):
        ls.distribute(training(), {"data": 4})
    for message in errors_of(4, lambda world: ls.data.batches(X, LABELS, size=6, world=world)):
        assert "a batch of 6 cannot be shared evenly by 4 ranks" in message
    with raises("different lengths", "[6, 5]"):
        ls.data.batches(X, LABELS[:5], size=2)
    with raises("a batch of 7", "6 samples"):
        ls.data.batches(X, LABELS, size=7)
    with raises("a batch of 0"):
        ls.data.batches(X, LABELS, size=0)


@pytest.mark.parametrize("mesh", [{"data": 3}, {"data": 1}, {"data": 2, "model": 2}])
def test_a_mesh_that_does_not_fit_the_world(mesh: dict[str, int]) -> None:
    for message in errors_of(2, lambda world: ls.compile(training(), world=world, mesh=mesh)):
        assert re.search(r"mesh \{data=\d.*\} needs \d ranks, and the world has 2", message)


@pytest.mark.parametrize("mesh", [{"data": 0}, {"data": -1}, {"data": -1, "model": -1}, {"data": -2, "model": -1}])
def test_an_axis_without_ranks(mesh: dict[str, int]) -> None:
    """Two negative sizes together might match the world's size."""
    for message in errors_of(2, lambda world: ls.compile(training(), world=world, mesh=mesh)):
        assert f"mesh axis data has size {mesh['data']}, expected at least 1" in message
    with raises("mesh axis data has size", "expected at least 1"):
        ls.distribute(training(), mesh)


def test_a_distributed_graph_in_a_world_of_another_size() -> None:
    placed = ls.distribute(training(), {"data": 3})
    for message in errors_of(2, lambda world: ls.compile(placed, world=world)):
        assert "{data=3}" in message
        assert "{data=2}" in message


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE"])
def test_ranks_of_a_job_that_would_train_a_model_each(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = training()
    monkeypatch.setenv(variable, "2")
    with raises(
        "compile: this process is one of 2 ranks", "world=ls.Communicator.from_environment()", "replicated=True"
    ):
        ls.compile(step)
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    for kvstore in (None, "local", ls.kv.create("device")):
        with raises("Trainer: kvstore=", "one of 2 ranks", 'kvstore="dist_sync"', "replicated=True"):
            ls.Trainer(mlp(), loss, kvstore=kvstore)
    monkeypatch.setenv(variable, "1")
    expected = float(ls.compile(step)(x=X, label=LABELS)["loss"])
    monkeypatch.setenv(variable, "2")
    alone = [
        ls.compile(step, replicated=True),
        ls.compile(step, world=ls.Communicator.single()),
        ls.Trainer(mlp(), loss, replicated=True).executable,
    ]
    assert [float(each(x=X, label=LABELS)["loss"]) for each in alone] == pytest.approx([expected] * 3)
    ls.compile(mlp())  # this trains nothing


def test_ranks_of_mpirun_that_would_train_a_model_each() -> None:
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import test_errors, lockstep as ls; ls.compile(test_errors.training())"
    done = mpirun(2, "-c", program)
    assert done.returncode != 0
    assert done.stderr.count("compile: this process is one of 2 ranks of a job") >= 1


def test_a_label_out_of_range_on_one_rank() -> None:
    def body(world: ls.Communicator) -> None:
        exe = ls.compile(training(), world=world, threads=1)
        exe(x=X[:3], label=np.array([0, 9 if world.rank == 1 else 1, 2]))

    other, culprit = errors_of(2, body)
    assert re.search(r"at loss.*label 9 at position \[1\]", culprit)
    assert re.search(r"rank 1 on host .* gave up.*label 9 at position \[1\]", other)


@pytest.mark.parametrize("what", ["a schedule", "a schedule that raises", "an input", "no input by name"])
def test_what_a_rank_meets_before_its_call_begins_is_told_at_once(what: str) -> None:
    def body(world: ls.Communicator) -> Exception:
        exe = ls.compile(training(), world=world, threads=1)
        feeds = {"x": X[:3], "label": np.array([0, 1, 2])}
        if world.rank == 1 and what == "an input":
            feeds["x"] = "foo"
        elif world.rank == 1 and what == "a schedule":
            exe.set(learning_rate=lambda step: "fast")
        elif world.rank == 1 and what == "a schedule that raises":
            exe.set(learning_rate=lambda step: {}[step])
        try:
            if world.rank == 1 and what == "no input by name":
                exe(feeds["x"])
            exe(**feeds)
        except (ls.Error, KeyError) as error:
            return error  # continues: only the call itself tells the others
        return ls.Error("none")

    begin = time.monotonic()
    other, culprit = run_in_threads(2, body, timeout=30)
    assert time.monotonic() - begin < LIMIT
    assert isinstance(culprit, KeyError if "raises" in what else ls.Error)
    cause = {
        "a schedule": "gives 'fast' at step 0, expected a number",
        "a schedule that raises": "KeyError: 0",
        "an input": "input x",
        "no input by name": "is called with inputs by name",
    }[what]
    assert isinstance(other, ls.Error)
    assert re.search(rf"rank 1 on host .* gave up.*{re.escape(cause)}", str(other)), other


def with_other_values(folder: Path) -> ls.Graph:
    """The MLP with one different initial value."""
    model = onnx.load(MLP)
    initializer = next(tensor for tensor in model.graph.initializer if tensor.name == "fc2.weight")
    value = numpy_helper.to_array(initializer).copy()
    value[3, 3] += 1e-3
    initializer.CopyFrom(numpy_helper.from_array(value, "fc2.weight"))
    onnx.save(model, folder / "other.onnx")
    return ls.load_onnx(folder / "other.onnx", dims={"batch": 6})


DIFFERENCES = {
    "a model and its training step": (lambda _: mlp(), {}, ["rank 0: all_reduce", "rank 1"]),
    "learning rates": (lambda _: training(ls.optim.SGD(0.2)), {}, ["rank 0", "0.1", "rank 1", "0.2"]),
    "optimizers": (
        lambda _: training(ls.optim.SGD(0.1, momentum=0.9)),
        {},
        ["program @mlp", "rank 0", "rank 1", "momentum"],
    ),
    "initial values": (
        lambda folder: training(model=with_other_values(folder)),
        {},
        ["fc2.weight", "rank 0", "rank 1"],
    ),
    "bucket sizes": (
        lambda _: training(),
        {"bucket_bytes": 64},
        ["options of compile", "rank 0", "rank 1", "bucket_bytes=64"],
    ),
    "batches": (
        lambda _: training(model=ls.load_onnx(MLP, {"batch": 8})),
        {},
        ["rank 0", "f32[3,12]", "rank 1", "f32[4,12]"],
    ),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_with_different(what: str, tmp_path: Path) -> None:
    make, options, parts = DIFFERENCES[what]

    def body(world: ls.Communicator) -> ls.Executable:
        if world.rank == 1:
            return ls.compile(make(tmp_path), world=world, threads=1, **options)
        return ls.compile(training(), world=world, threads=1)

    for message in errors_of(2, body):
        assert re.search(".*".join(map(re.escape, parts)), message, re.DOTALL), message


def test_what_all_ranks_have_found_in_compile_leaves_the_world_usable(tmp_path: Path) -> None:
    placement = {"fc1.weight": ls.split(0, "model")}
    wrong = [
        ({"placements": placement}, {"placements": placement}, "has no axis model|there is no axis|axis model"),
        ({"mesh": {"data": 3}}, {"mesh": {"data": 3}}, "needs 3 ranks, and the world has 2"),
        ({}, {"placements": {"fc1.weight": ls.split(7, "data")}}, "fc1.weight"),
        ({}, {"threads": 0}, "threads is 0"),
        ({}, {"threads": 4096}, "threads is 4096, expected at least 1 and at most 1024"),
        ({}, {"bucket_bytes": 64}, "options of compile"),
        ({}, {"backend": "gpu"}, 'no backend "gpu"'),
    ]

    def body(world: ls.Communicator) -> float:
        for on_0, on_1, words in wrong:
            options = on_1 if world.rank == 1 else on_0
            with pytest.raises(ls.Error) as caught:
                ls.compile(training(), world=world, **{"threads": 1, **options})
            assert re.search(words, str(caught.value)), str(caught.value)
            is_told = on_0 != on_1 and "options of" not in words and world.rank == 0
            assert bool(re.match("rank 1 on host .* gave up: ", str(caught.value))) == is_told, str(caught.value)
        with pytest.raises(ls.Error, match="fc2.weight"):
            ls.compile(with_other_values(tmp_path) if world.rank == 1 else mlp(), world=world, threads=1)
        exe = ls.compile(training(), world=world, threads=1)
        return float(exe(x=X[:3], label=np.array([0, 1, 2]))["loss"])

    losses = run_in_threads(2, body)
    assert losses[0] == losses[1], losses


def test_calls_after_one_that_failed_say_that_it_was_earlier() -> None:
    both = threading.Barrier(2)  # a failure of the communicator does not end this barrier

    def body(world: ls.Communicator) -> list[str]:
        exe = ls.compile(training(), world=world)
        both.wait(60)
        share = {"x": X[:3], "label": LABELS[:3]}
        calls = [
            lambda: exe(**{**share, "label": LABELS[: 3 - world.rank]}),
            lambda: exe(**share),
            lambda: ls.compile(training(), world=world),
            lambda: world.gather_bytes(b"any"),
            lambda: exe.check_replicas(),
        ]
        messages = []
        for call in calls:
            with pytest.raises(ls.Error) as caught:
                call()
            messages.append(str(caught.value))
        return messages

    ended = "the communicator takes no more calls, since an earlier one failed: rank 1 on host "
    for rank, (first, *later) in enumerate(run_in_threads(2, body)):
        assert "earlier" not in first and "expected i64[3]" in first
        assert ("rank 1 on host" in first) == (rank == 0)
        assert len(later) == 4 and all(ended in each and "found i64[2]" in each for each in later), later


def test_one_rank_without_the_backend() -> None:
    other, culprit = errors_of(2, lambda world: ls.compile(training(), "gpu" if world.rank == 1 else "cpu", world))
    assert 'no backend "gpu"' in culprit
    assert re.search(r'rank 1 on host .* gave up: .*"gpu"', other)


def test_an_option_that_is_wrong_on_one_rank() -> None:
    """The error is found in Python, before the compilation; the others already wait in compile."""
    other, culprit = errors_of(2, lambda world: ls.compile(training(), world=world, threads=1 - world.rank))
    assert culprit == "compile: threads is 0, expected at least 1"
    assert re.search(f"rank 1 on host .* gave up: {culprit}", other)


def test_a_rank_that_gives_up_while_others_wait() -> None:
    def give_up(world: ls.Communicator) -> None:
        if world.rank == 1:
            world.abort("no more data")
        world.barrier()

    messages = errors_of(3, give_up)
    assert all(re.search(r"rank 1 on host .* gave up: no more data", messages[rank]) for rank in (0, 2))


def test_a_rank_that_leaves_while_others_wait() -> None:
    worlds = ls.Communicator.in_process(3)
    left = worlds.pop(1)
    threading.Timer(0.2, lambda world: world.rank, [left]).start()  # keeps the rank alive until then
    del left
    begin = time.monotonic()
    with raises("rank 1 on host", "has left"):
        worlds[0].barrier()
    assert 0.1 < time.monotonic() - begin < LIMIT


def test_a_missing_rank_is_named_after_the_timeout() -> None:
    worlds = ls.Communicator.in_process(3, timeout=0.3)
    begin = time.monotonic()
    with raises("for rank 1", "rank 2", "not arrived"):
        worlds[0].barrier()
    assert time.monotonic() - begin < LIMIT


# An all_reduce removed by hand

DISTRIBUTED = str(ls.distribute(training(), {"data": 2}))
ALL_REDUCES = re.findall(r"^  (%\S+) = all_reduce (%\S+) .*\n", DISTRIBUTED, re.MULTILINE)


@pytest.mark.parametrize(("reduced", "partial"), ALL_REDUCES)
def test_a_removed_all_reduce(reduced: str, partial: str) -> None:
    lines = [line for line in DISTRIBUTED.splitlines() if not line.startswith(f"  {reduced} = ")]
    text = re.sub(rf"{re.escape(reduced)}(?![\w./])", partial, "\n".join(lines))
    assert reduced not in text.replace(DISTRIBUTED.splitlines()[1], "")
    graph = ls.parse(text + "\n")
    variable = partial.removeprefix("%grad/")
    wanted = ["result loss"] if partial == "%loss" else ["sgd", f"optimizer of {variable}", f"state %{variable}"]
    for message in errors_of(2, lambda world: ls.compile(graph, world=world, threads=1)):
        assert "partial(sum)" in message
        assert re.search(".*".join(map(re.escape, wanted)), message), message


def test_all_of_them_were_tried() -> None:
    assert len(ALL_REDUCES) == 7  # six parameters and the loss


# Several ranks, as processes


def fail(mode: str, n: int, folder: Path) -> tuple[str, dict[int, str], float]:
    """The stderr of all ranks, the messages of ranks that got an Error, and the seconds from the failure to the end of
    all.
    """
    done = mpirun(n, HERE / "mpi_failure.py", mode, folder, timeout=60)
    end = time.time()
    assert done.returncode != 0
    reports = {
        rank: json.loads((folder / f"{rank}.json").read_text())
        for rank in range(n)
        if (folder / f"{rank}.json").exists()
    }
    for rank, report in reports.items():
        assert report["seconds"] < LIMIT, f"rank {rank} waited for {report['seconds']} s"
    failed_at = folder / "failed-at"
    seconds = end - float(failed_at.read_text()) if failed_at.exists() else 0.0
    return done.stderr, {rank: report["message"] for rank, report in reports.items()}, seconds


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("kill", "died"),
        ("raise", "gave up: ValueError: no more data"),
        ("exit", "has left"),
        ("label", "gave up: .*label 9 at position \\[1\\]"),
    ],
)
def test_processes_that_lose_a_rank(mode: str, reason: str, tmp_path: Path) -> None:
    stderr, messages, seconds = fail(mode, 3, tmp_path)
    culprit = f"rank 1 on host {re.escape(socket.gethostname())}"
    assert re.search(f"{culprit}.*{reason}", stderr), stderr
    assert {0, 2} <= messages.keys()
    for rank in (0, 2):
        assert re.search(f"{culprit}.*{reason}", messages[rank])
    assert seconds < LIMIT


def test_processes_with_different_learning_rates(tmp_path: Path) -> None:
    _, messages, _ = fail("learning_rate", 2, tmp_path)
    assert messages.keys() == {0, 1}
    for message in messages.values():
        assert re.search(r"on rank 0: .*0\.1.*on rank 1: .*0\.2", message, re.DOTALL)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("wire", "bf16", "wire=bf16"),
        ("shard_optimizer", True, "shard_optimizer=true"),
        ("shared_weights", True, "shard_optimizer=true,shared_weights=true"),
        ("factors", True, "factors=true"),
        ("bucket_bytes", 1, "bucket_bytes=1"),
        ("optimize", False, "optimize=false"),
        ("replicated", True, "replicated=true"),
    ],
)
def test_options_of_compile_that_differ(option: str, value: object, text: str) -> None:
    def body(world: ls.Communicator) -> None:
        ls.compile(training(), world=world, **({option: value} if world.rank == 1 else {}))

    for message in errors_of(2, body):
        assert "ranks have different versions of the options of compile" in message
        assert f"\n  on rank 0: mesh={{data=2}}\n  on rank 1: mesh={{data=2}},{text}\n" in message
        assert message.endswith("Pass the same options to compile on all ranks.")
