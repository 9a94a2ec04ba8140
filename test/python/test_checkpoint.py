"""exe.save, exe.saved and exe.load: the loaded contents, numbers of ranks, and refusals."""

from __future__ import annotations

import functools
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import lockstep as ls
from cases import CASES, MLP_SPLIT
from lockstep._checkpoint import checkpoint
from lockstep._checkpoint.checkpoint_file import CheckpointFile
from ranks import errors_of, run_in_threads
from test_checkpoint_file import header_of
from test_errors import LABELS, X, mlp, raises, training
from test_mesh import MESH, whole

States = dict[str, np.ndarray]
ADAM = ls.optim.Adam(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.safetensors"


def compiled(world: ls.Communicator | None = None, **options: Any) -> ls.Executable:
    return ls.compile(training(ADAM), world=world, threads=1, **options)


def share(world: ls.Communicator, mesh: dict[str, int] | None, step: int) -> dict[str, np.ndarray]:
    """This rank's rows of the batch of a step."""
    x = X * np.float32(np.sin(step + 1))
    [(x, label)] = ls.data.batches(x, LABELS, size=6, world=world, mesh=mesh)
    return {"x": x, "label": label}


def run(exe: ls.Executable, begin: int, end: int, mesh: dict[str, int] | None = None) -> None:
    for step in range(begin, end):
        exe(**share(exe._world(), mesh, step))


def states_of(exe: ls.Executable) -> States:
    return {name: exe.state[name] for name in exe.state}


def assert_same_bits(found: States, expected: States) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        assert found[name].tobytes() == value.tobytes(), name


def in_ranks(n: int, body: Callable[[ls.Communicator], Any]) -> list[Any]:
    results = run_in_threads(n, body)
    failures = [result for result in results if isinstance(result, Exception)]
    assert not failures, failures
    return results


# Loaded contents


def test_a_run_that_is_loaded_goes_on_as_the_one_that_was_saved(path: Path) -> None:
    one, other = compiled(), compiled()
    run(one, 0, 4)
    one.save(path)
    saved = states_of(one)
    run(one, 4, 8)
    assert other.load(str(path)) == {"step": 4} and other.step == 4
    assert_same_bits(states_of(other), saved)
    run(other, 4, 8)
    assert_same_bits(states_of(other), states_of(one))
    assert one.state["optimizer/step"] == 8
    one.load(path)  # goes back to the saved step
    assert_same_bits(states_of(one), saved)
    assert one.step == 4


def test_the_file_has_all_states_as_the_package_safetensors_reads_them(path: Path) -> None:
    exe = compiled()
    run(exe, 0, 3)
    exe.save(path)
    assert_same_bits(safetensors.numpy.load_file(path), states_of(exe))
    assert {state.name for state in training(ADAM).states} == set(exe.state)
    again = ls.compile(ls.load_weights(training(ADAM), path), threads=1)
    assert_same_bits(states_of(again), states_of(exe))


def test_running_statistics(path: Path) -> None:
    case = next(case for case in CASES if "convnet" in str(case.model))
    model = ls.load_onnx(case.model, dims={"batch": 4})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), case.optimizer)
    (x,) = model.inputs
    image = np.random.Generator(np.random.PCG64(0)).standard_normal(x.shape).astype(np.float32)
    exe, other = ls.compile(step, threads=1), ls.compile(step, threads=1)
    exe(**{x.name: image, "label": np.array([0, 1, 0, 1])})
    exe.save(path)
    other.load(path)
    assert_same_bits(states_of(other), states_of(exe))
    running = [name for name in exe.state if "running" in name]
    assert running
    for name in running:
        assert not np.array_equal(exe.state[name], step.initial_value(name)), name


@pytest.mark.parametrize(
    "dtype", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"]
)
def test_states_of_every_dtype(dtype: str, path: Path) -> None:
    graph = ls.parse(
        f"graph @g(state %a: {dtype}[2,3], state %b: {dtype}[]) -> (y: {dtype}[2,3]) {{\n  return %a\n}}\n"
    )
    exe, other = ls.compile(graph), ls.compile(graph)
    for name, count in (("a", 6), ("b", 1)):
        size = len(exe.state[name].tobytes())
        bits = (np.arange(1, size + 1) % (2 if dtype == "bool" else 256)).astype(np.uint8)
        exe._assign_whole(name, bits)
        assert size % count == 0
    exe.save(path)
    other.load(path)
    assert_same_bits(states_of(other), states_of(exe))
    assert any(other.state["a"].tobytes())


def test_a_program_without_states(path: Path) -> None:
    exe = ls.compile(ls.parse("graph @g(%x: f32[2]) -> (y: f32[2]) {\n  %y = neg %x : f32[2]\n  return %y\n}\n"))
    exe.save(path, step=1)
    assert exe.load(path) == {"step": 1}


def test_mlp_inference_can_be_saved_too(path: Path) -> None:
    """An executable that does not train saves its parameters."""
    exe = ls.compile(mlp(), threads=1)
    exe.save(path)
    assert set(safetensors.numpy.load_file(path)) == set(exe.state)


def test_metadata_comes_back_as_it_was(path: Path) -> None:
    exe = compiled()
    given = {"data_position": 2**62, "name": 'é\n"', "loss": 0.1, "best": float("inf"), "done": True, "none": ""}
    exe.save(path, step=12, metadata=given)
    found = exe.load(path)
    assert found == {"step": 12, **given}
    assert {name: type(value) for name, value in found.items()} == {
        "step": int,
        **{n: type(v) for n, v in given.items()},
    }
    numbers = {"f": np.float32(0.1), "i": np.int32(3), "b": np.bool_(True), "a": np.array(2.5, np.float32)}
    exe.save(path, step=np.int64(13), metadata=numbers)
    assert exe.load(path) == {"step": 13, "f": float(np.float32(0.1)), "i": 3, "b": True, "a": 2.5}
    exe.save(path, metadata={"nan": float("nan")})
    assert np.isnan(exe.load(path)["nan"])


def test_metadata_that_cannot_come_back(path: Path) -> None:
    exe = compiled()
    with raises("save: metadata's a is [1], expected text, a number, True or False"):
        exe.save(path, metadata={"a": [1]})
    with raises("save: metadata's a is None, expected text, a number, True or False"):
        exe.save(path, metadata={"a": None})
    with raises("save: metadata has a step; pass it as the argument step"):
        exe.save(path, metadata={"step": 1})
    with raises("save: a name in metadata is 1, expected text"):
        exe.save(path, metadata={1: 1})
    with raises("save: step is -1, expected at least 0"):
        exe.save(path, step=-1)
    with raises("save: metadata's a is", "does not fit into 64 bits"):
        exe.save(path, metadata={"a": 2**63})
    with pytest.raises(TypeError):
        exe.save(path, steps=1)
    assert not path.exists()


# Settings


def test_settings_come_back_and_schedules_go_on(path: Path) -> None:
    """A scheduled rate is that of the step from which training continues; a momentum has the value that was set."""
    rate = ls.schedule.step(0.2, every=2, gamma=0.5)
    sgd = ls.optim.SGD(rate, momentum=0.9)
    one, other = (ls.compile(training(sgd), threads=1) for _ in range(2))
    one.set(momentum=0.5)
    run(one, 0, 3)
    one.save(path)
    run(one, 3, 6)
    assert other.load(path) == {"step": 3}
    assert other.settings["momentum"] == 0.5
    run(other, 3, 6)
    assert other.settings["learning_rate"] == one.settings["learning_rate"] == rate(5)
    assert_same_bits(states_of(other), states_of(one))
    about = json.loads(header_of(path))["__metadata__"]
    assert json.loads(about["lockstep.settings"]) == {"optimizer/learning_rate": rate(2), "optimizer/momentum": 0.5}
    assert json.loads(about["lockstep.schedules"]) == {"optimizer/learning_rate": repr(rate)}


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_has_the_step_and_the_settings(ranks: int, path: Path) -> None:
    one = compiled()
    one.set(learning_rate=0.25)
    run(one, 0, 2)
    one.save(path)

    def body(world: ls.Communicator) -> tuple[int, dict[str, float]]:
        exe = compiled(world)
        exe.load(path)
        return exe.step, dict(exe.settings)

    assert in_ranks(ranks, body) == [(2, dict(one.settings))] * ranks
    assert one.settings["learning_rate"] == 0.25


def test_a_schedule_is_stronger_than_what_was_set_and_a_number_than_an_old_schedule(path: Path) -> None:
    fixed, scheduled = (ls.compile(training(ls.optim.SGD(rate)), threads=1) for rate in (0.3, lambda step: 0.1 + step))
    run(fixed, 0, 2)
    fixed.save(path)
    scheduled.load(path)
    assert scheduled.settings["learning_rate"] == 0.1, "not 0.3, which might be outside its range"
    run(scheduled, 2, 3)
    assert scheduled.settings["learning_rate"] == 2.1
    scheduled.save(path)
    assert fixed.load(path) == {"step": 3}
    assert fixed.settings["learning_rate"] == 2.1


def test_what_a_setting_follows_is_told_by_its_name(path: Path) -> None:
    """The file names the function for its readers; a function without a name is named by its class."""

    def falling(step: int) -> float:
        return 0.5**step

    exe = compiled()
    for follows, text in ((falling, falling.__qualname__), (functools.partial(pow, 0.5), "partial")):
        exe.set(learning_rate=follows)
        exe.save(path)
        about = json.loads(header_of(path))["__metadata__"]
        assert json.loads(about["lockstep.schedules"]) == {"optimizer/learning_rate": text}


def test_settings_of_one_program_alone_are_left(path: Path) -> None:
    decaying, plain = (ls.compile(training(ls.optim.SGD(0.1, weight_decay=decay)), threads=1) for decay in (0.25, 0.0))
    assert "optimizer/weight_decay" in decaying.settings and "optimizer/weight_decay" not in plain.settings
    plain.set(learning_rate=0.5)
    plain.save(path)
    decaying.load(path)
    assert dict(decaying.settings) == {"optimizer/learning_rate": 0.5, "optimizer/weight_decay": 0.25}
    decaying.set(learning_rate=0.75)
    decaying.save(path)
    plain.load(path)
    assert dict(plain.settings) == {"optimizer/learning_rate": 0.75}


def test_a_value_that_the_program_does_not_take_changes_nothing(path: Path) -> None:
    def program(high: float) -> ls.Executable:
        return ls.compile(
            ls.parse(
                f"""graph @g(state %s: f32[2], setting %rate: f64[] in [0.0, {high}) = 0.5) -> (y: f64[], %s: f32[2]) {{
                  %t = add %s, %s : f32[2]
                  return %rate, %t
                }}"""
            ),
            threads=1,
        )

    wide, narrow = program(9.0), program(1.0)
    wide.set(rate=5)
    wide.state["s"] = np.ones(2, np.float32)
    wide.save(path, step=7)
    with raises(f"{path}: setting rate is 5, expected a finite number of at least 0 and below 1"):
        narrow.load(path)
    assert (narrow.step, narrow.settings["rate"]) == (0, 0.5)
    assert not narrow.state["s"].any()


def test_ranks_that_save_different_settings(path: Path) -> None:
    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        exe.set(learning_rate=0.1 + world.rank)
        exe.save(path)

    for message in errors_of(2, body):
        assert "save: setting optimizer/learning_rate is 0.1 on rank 0, and 1.1 on rank 1 on host" in message
    assert not path.exists()


# Ranks


def test_any_number_of_ranks_goes_on_from_what_two_saved(path: Path) -> None:
    """Any number of ranks loads it and continues bitwise like ranks that were given the states one by one. Two ranks
    continue like two ranks that never stopped.
    """

    def first(world: ls.Communicator) -> States:
        exe = compiled(world)
        run(exe, 0, 3)
        exe.save(path, step=3)
        run(exe, 3, 6)
        return states_of(exe)

    uninterrupted = in_ranks(2, first)
    given = safetensors.numpy.load_file(path)

    def second(world: ls.Communicator, load: bool) -> States:
        exe = compiled(world)
        if load:
            assert exe.load(path) == {"step": 3}
        else:
            for name, value in given.items():
                exe.state[name] = value
        run(exe, 3, 6)
        exe.check_replicas()
        return states_of(exe)

    for n in (1, 2, 3, 6):
        loaded, expected = (in_ranks(n, lambda world, load=load: second(world, load)) for load in (True, False))
        assert len(loaded) == n
        for rank in range(n):
            assert_same_bits(loaded[rank], expected[rank])
            if n == 2:
                assert_same_bits(loaded[rank], uninterrupted[rank])


def test_states_that_ranks_share_are_whole_in_the_file(path: Path) -> None:
    """Saved on a mesh of two axes; loaded on the same mesh, with its axes swapped, on one rank, and on two ranks of one
    axis.
    """

    def first(world: ls.Communicator) -> tuple[States, States]:
        exe = compiled(world, mesh=MESH, split=MLP_SPLIT)
        run(exe, 0, 3, MESH)
        exe.save(path)
        saved = states_of(exe)
        run(exe, 3, 5, MESH)
        return saved, states_of(exe)

    of_ranks = in_ranks(4, first)
    parts = [saved for saved, _ in of_ranks]
    in_file = safetensors.numpy.load_file(path)
    split = 0
    for name, value in in_file.items():
        of = name.removesuffix("/adam_m").removesuffix("/adam_v")
        dim = MLP_SPLIT.get(of, {}).get("model")
        expected = parts[0][name] if dim is None else np.concatenate([parts[0][name], parts[1][name]], axis=dim)
        np.testing.assert_array_equal(value, expected, err_msg=name)
        split += dim is not None
    assert split == 9
    assert in_file["fc1.weight"].shape == (16, 12)
    np.testing.assert_array_equal(in_file["fc1.weight"], whole("fc1.weight", parts))

    def again(world: ls.Communicator) -> States:
        exe = compiled(world, mesh=MESH, split=MLP_SPLIT)
        exe.load(path)
        assert_same_bits(states_of(exe), parts[world.rank])
        run(exe, 3, 5, MESH)
        return states_of(exe)

    for found, (_, expected) in zip(in_ranks(4, again), of_ranks, strict=True):
        assert_same_bits(found, expected)

    def elsewhere(world: ls.Communicator, **options: Any) -> None:
        exe = compiled(world, **options)
        exe.load(path)
        exe.check_replicas()
        exe.save(path.with_name(f"{world.size}.safetensors"))

    turned = {"model": 2, "data": 2}
    in_ranks(4, lambda world: elsewhere(world, mesh=turned, split=MLP_SPLIT))
    in_ranks(1, elsewhere)
    in_ranks(2, lambda world: elsewhere(world))
    for n in (1, 2, 4):
        assert_same_bits(safetensors.numpy.load_file(path.with_name(f"{n}.safetensors")), in_file)


def test_what_fits_is_the_same_for_all_numbers_of_ranks(path: Path) -> None:
    def body(world: ls.Communicator) -> str:
        file = path.with_name(f"{world.size}")
        compiled(world).save(file)
        opened = checkpoint.CheckpointFile(str(file))
        opened.close()
        assert opened.program["name"] == "mlp"
        assert opened.program["backend"] == "cpu"
        assert opened.program["mesh"] == (f"{{data={world.size}}}" if world.size > 1 else "{}")
        assert "build " in opened.program["built_with"]
        return opened.program["fits"]

    assert len({fits for n in (1, 2, 3) for fits in in_ranks(n, body)}) == 1


def test_ranks_that_ask_for_different_things(path: Path) -> None:
    def asking(**of_rank_one: Any) -> Callable[[ls.Communicator], None]:
        def body(world: ls.Communicator) -> None:
            exe = compiled(world)
            request = {"path": path, "step": 1, "metadata": {"epoch": 3}, "background": False}
            exe.save(**{**request, **(of_rank_one if world.rank == 1 else {})})

        return body

    host = re.escape(ls.Communicator.single().host(0))
    for request, what in (
        ({"step": 2}, "save: metadata's step is 1 on rank 0, and 2 on rank 1 on host"),
        ({"metadata": {"epoch": 4}}, "save: metadata's epoch is 3 on rank 0, and 4 on rank 1 on host"),
        ({"metadata": {"epoch": 3, "more": 1}}, "save: metadata's more is null on rank 0, and 1 on rank 1 on host"),
        ({"metadata": None}, "save: metadata's epoch is 3 on rank 0, and null on rank 1 on host"),
        ({"background": True}, "save: background is false on rank 0, and true on rank 1 on host"),
        ({"path": "/elsewhere"}, f'save: path is "{path}" on rank 0, and "/elsewhere" on rank 1 on host'),
    ):
        for message in errors_of(2, asking(**request)):
            assert re.search(rf"{re.escape(what)} {host}$", message)
    for request, what in (
        ({"path": None}, "rank 1 on host .*: the path is None, expected text or a path"),
        ({"step": "one"}, "rank 1 on host .*: save: step is 'one', expected a whole number"),
        ({"metadata": 5}, "rank 1 on host .*: save: metadata is 5, expected names"),
    ):
        for message in errors_of(2, asking(**request)):
            assert re.search(what, message)
    assert not path.exists()


def test_a_rank_that_does_not_save_is_told_what_the_others_call(path: Path) -> None:
    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        if world.rank == 0:
            exe.save(path)
        exe(**share(world, None, 0))

    for message in errors_of(2, body):
        assert "`save() of an executable`" in message
        assert re.search("; rank 0 calls no program there: all ranks make the same calls, in the same order$", message)


def test_a_rank_tells_its_own_error_though_another_has_given_up(path: Path) -> None:
    through = threading.Barrier(2)

    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        through.wait(60)  # else the other rank may still be in compile
        if world.rank == 1:
            world.abort("no more data")
        exe.save(path, step=-1)

    for rank, message in enumerate(errors_of(2, body)):
        assert re.search(f"rank {rank} on host .*: save: step is -1, expected at least 0", message)


def test_values_that_are_no_parts_of_a_whole_are_refused(path: Path) -> None:
    graph = ls.parse(
        "graph @own(%x: f32[2] split(0), state %noise: f32[3] local) -> (y: f32[2]) {\n"
        "  %y = neg %x : f32[2]\n  return %y\n}\n"
    )

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(graph, world=world, threads=1)
        with raises("save: state noise is local along data"):
            exe.save(path)
        world.barrier()  # the world is still usable

    in_ranks(2, body)
    assert not list(path.parent.iterdir())


# Refusals of load, before it changes anything


def test_programs_that_do_not_fit(path: Path) -> None:
    compiled().save(path)
    plain = ls.compile(training(), threads=1)
    before = states_of(plain)
    with raises(f"{path}: there is a state optimizer/step, which the program @mlp does not have"):
        plain.load(path)
    assert_same_bits(states_of(plain), before)
    plain.save(path)
    with raises(f"{path}: there is no state optimizer/step, which the program @mlp has"):
        compiled().load(path)
    for text, difference in (
        ("state %w: f32[3]", "state w is f32[2], and f32[3] in the program @g"),
        ("state %w: f64[2]", "state w is f32[2], and f64[2] in the program @g"),
        ("state %w: f32[]", "state w is f32[2], and f32[] in the program @g"),
        ("state %wa: f32[2]", "there is no state wa, which the program @g has; there is w"),
    ):
        exe = ls.compile(ls.parse("graph @g(state %w: f32[2]) -> (y: f32[2]) {\n  return %w\n}\n"))
        exe.save(path)
        type_ = text.split(": ")[1]
        name = text.split()[1].rstrip(":")
        other = ls.compile(ls.parse(f"graph @g({text}) -> (y: {type_}) {{\n  return {name}\n}}\n"))
        with raises(f"{path}: {difference}"):
            other.load(path)


def test_a_damaged_tensor_changes_no_state_on_any_rank(path: Path) -> None:
    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        exe.save(path)
        world.barrier()
        if world.rank == 0:
            with open(path, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\x77")
        world.barrier()
        run(exe, 0, 2)
        before = states_of(exe)
        with pytest.raises(ls.Error, match="rank 0 on host .*: it is damaged: the bytes of the state") as caught:
            exe.load(path)
        assert str(path) in str(caught.value)
        assert_same_bits(states_of(exe), before)
        run(exe, 2, 4)
        exe.check_replicas()

    in_ranks(2, body)


def test_a_file_is_closed_whether_it_was_loaded_or_not(path: Path) -> None:
    def is_open() -> bool:
        return any(os.path.realpath(f"/proc/self/fd/{each}") == str(path) for each in os.listdir("/proc/self/fd"))

    exe = compiled()
    exe.save(path)
    exe.load(path)
    assert not is_open()
    other = ls.compile(training(), threads=1)
    with pytest.raises(ls.Error, match="which the program @mlp does not have") as caught:
        other.load(path)
    assert not is_open(), caught
    path.write_bytes(b"a text, which is no checkpoint")
    with pytest.raises(ls.Error, match="this is not a checkpoint") as caught:
        exe.load(path)
    assert not is_open(), caught
    with open(path, "rb"):
        assert is_open()


def test_ranks_that_see_different_files_or_none(path: Path) -> None:
    def body(world: ls.Communicator) -> list[str]:
        exe = compiled(world)
        exe.save(path, step=1)
        exe.save(path.with_name("other"), step=2)
        messages = []
        for name in ("other", "none"):
            with pytest.raises(ls.Error) as caught:
                exe.load(path.with_name(name) if world.rank == 1 else path)
            messages.append(str(caught.value))
        assert exe.load(path) == {"step": 1}
        return messages

    for different, none in in_ranks(2, body):
        assert re.search(r"rank 0 on host .* and rank 1 on host .* see different files under this name", different)
        assert re.match(rf"rank 1 on host .*: {path.with_name('none')}: No such file or directory", none)


def test_a_load_that_fails_elsewhere_waits_for_its_own_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader must not read from a file that is closed meanwhile."""
    read, done = CheckpointFile.read, []

    def reading(self: CheckpointFile, name: str) -> Any:
        if not self.path.endswith("0"):
            raise ls.Error("the disk is gone")
        time.sleep(0.03)
        value = read(self, name)
        done.append(name)
        return value

    compiled().save(path.with_name("0"))
    path.with_name("1").write_bytes(path.with_name("0").read_bytes())
    monkeypatch.setattr(CheckpointFile, "read", reading)

    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        try:
            exe.load(path.with_name(str(world.rank)))
        finally:
            if world.rank == 0:
                assert len(done) == len(exe.state)

    for message in errors_of(2, body):
        assert re.search("rank 1 on host .*: the disk is gone", message)


@pytest.mark.parametrize("what", ["save", "load"])
def test_a_rank_without_memory_is_named_by_the_others(what: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled().save(path)
    content = path.read_bytes()

    def body(world: ls.Communicator) -> ls.Error | None:
        exe = compiled(world)
        world.barrier()
        if world.rank == 0:
            monkeypatch.setattr(CheckpointFile, "read", short)
            monkeypatch.setattr(checkpoint, "in_file_order", short)
        world.barrier()
        try:
            exe.save(path) if what == "save" else exe.load(path)
        except MemoryError as error:  # not raised: the other ranks must learn it from save and load
            return ls.Error(f"own: {error}")
        except ls.Error as error:
            return error
        return None

    def short(*args: Any) -> Any:
        with turn:
            if not failed:
                failed.append(True)
                raise MemoryError("nothing is left")
        return original[what](*args)

    turn, failed = threading.Lock(), []
    original: dict[str, Any] = {"load": CheckpointFile.read, "save": checkpoint.in_file_order}
    begin = time.monotonic()
    messages = errors_of(2, body)
    assert time.monotonic() - begin < 20
    own = next(i for i, message in enumerate(messages) if message.startswith("own: nothing is left"))
    assert f"rank {own} on host" in messages[1 - own] and "nothing is left" in messages[1 - own]
    assert path.read_bytes() == content


def test_a_second_reading_that_fails_leaves_no_half_loaded_state_in_use(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = compiled(), compiled()
    run(one, 0, 3)
    one.save(path)
    count, reads = len(states_of(one)), []
    read = CheckpointFile.read

    def failing(self: CheckpointFile, name: str) -> Any:
        reads.append(name)
        if len(reads) == count + 3:
            raise ls.Error(f"{path}: the disk is gone")
        return read(self, name)

    monkeypatch.setattr(CheckpointFile, "read", failing)
    with raises("the disk is gone"):
        other.load(path)
    assert other.step == 0
    for use in (lambda: run(other, 0, 1), lambda: other.save(path.with_name("d"))):
        with raises("not all states were loaded", "assign the states"):
            use()
    other.load(path)
    assert_same_bits(states_of(other), states_of(one))
    run(one, 3, 5)
    run(other, 3, 5)
    assert_same_bits(states_of(other), states_of(one))
