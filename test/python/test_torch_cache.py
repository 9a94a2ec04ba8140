"""PyTorch modules are exported once: by rank 0 for all ranks, and for later programs. The oracle is a newly exported
graph.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from lockstep._torch import cache, torch_modules
from ranks import errors_of, run_in_threads
from test_errors import raises

torch = pytest.importorskip("torch")
nn = torch.nn

X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
LABEL = np.array([0, 1, 2, 0, 1, 2], np.int32)
SCALE = 0.5


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


class Net(nn.Module):
    def __init__(self, seed: int = 0, scale: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.norm, self.out = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.frozen = nn.Parameter(torch.full((5,), 1.5), requires_grad=False)
        self.register_buffer("table", torch.arange(5.0))
        self.scale, self.names = scale, {"b", "a", "c"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(scaled(self.norm(self.first(x)) * self.frozen + self.table) * self.scale)


def imported(module: nn.Module, **options: Any) -> ls.Graph:
    return ls.from_torch(module, torch.zeros(2, 4), dims={"batch": 6}, output_names=["logits"], **options)


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The classes of the modules that were exported."""
    done: list[str] = []
    export = torch_modules._export

    def counted(module: nn.Module, *rest: Any) -> ls.Graph:
        done.append(type(module).__name__)
        return export(module, *rest)

    monkeypatch.setattr(torch_modules, "_export", counted)
    return done


def trained(model: ls.Graph, world: ls.Communicator | None = None) -> tuple[list[bytes], dict[str, bytes]]:
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(0.1))
    exe = ls.compile(step, threads=1, **({} if world is None else {"world": world}))
    own = slice(None) if world is None else slice(6 // world.size * world.rank, 6 // world.size * (world.rank + 1))
    losses = [exe(x=X[own], label=LABEL[own])["loss"].tobytes() for _ in range(3)]
    return losses, {name: value.tobytes() for name, value in exe.state.items()}


def values_of(graph: ls.Graph) -> dict[str, bytes]:
    return {state.name: graph.initial_value(state.name).tobytes() for state in graph.states}


# Export by rank 0 for all


def test_rank_0_exports_for_all(exports: list[str]) -> None:
    """Even if the ranks' weights differ: all get those of rank 0."""
    modules = [Net(seed) for seed in range(3)]
    expected = imported(modules[0])
    assert exports.pop() == "Net" and expected.initial_value("first.weight").any()

    def body(world: ls.Communicator) -> Any:
        model = imported(modules[world.rank], world=world)
        assert str(model) == str(expected) and values_of(model) == values_of(expected)
        assert str(model.with_dims(batch=3)) == str(expected.with_dims(batch=3))
        return trained(model, world)

    assert run_in_threads(3, body) == run_in_threads(3, lambda world: trained(expected, world))
    assert exports == ["Net"]
    assert str(imported(modules[0], world=ls.Communicator.single())) == str(expected)


def test_an_error_of_rank_0_reaches_all() -> None:
    class Refused(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum() > 0 else x

    said = errors_of(3, lambda world: imported(Refused(), world=world))
    assert len(said) == 3
    for each in said:
        assert "rank 0" in each and "torch cannot export Refused: forward branches on the values of a tensor" in each
    with raises("from_torch: world is 2, expected a lockstep.Communicator"):
        imported(Net(), world=2)


def test_a_rank_that_waits_for_the_export_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds, waits = ls.Communicator.in_process(2, timeout=0.5), threading.Event()
    monkeypatch.setattr(torch_modules, "_export", lambda *args: waits.wait(60))
    exporting = threading.Thread(target=lambda: errors.append(error_of(worlds[0])), daemon=True)
    errors: list[str] = []

    def error_of(world: ls.Communicator) -> str:
        with pytest.raises(Exception) as caught:  # rank 0 has no graph
            imported(Net(), world=world)
        return str(caught.value)

    exporting.start()
    said = error_of(worlds[1])
    waits.set()
    exporting.join(60)
    assert "from_torch(world=...): rank 0 exports the module" in said, said


# For later programs


def test_a_module_is_exported_once_and_has_the_weights_that_it_has_now(exports: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    expected = imported(Net(1))
    first = imported(Net(0), cache=folder)
    assert exports == ["Net", "Net"] and len(list(folder.iterdir())) == 1
    second = imported(Net(1), cache=str(folder))
    assert exports == ["Net", "Net"]
    for graph, other in ((second, expected), (first, imported(Net(0)))):
        assert str(graph) == str(other) and values_of(graph) == values_of(other)
        for fact in ("constants", "fixed_inputs", "notes", "states"):
            assert getattr(graph, fact) == getattr(other, fact)
        assert trained(graph) == trained(other)
        assert str(graph.with_dims(batch=2)) == str(other.with_dims(batch=2))
    assert values_of(first) != values_of(second)


def test_constants_that_have_other_values_are_exported_again(exports: list[str], tmp_path: Path) -> None:
    for name in ("table", "frozen"):
        module = Net()
        imported(module, cache=tmp_path)
        exports.clear()
        with torch.no_grad():
            getattr(module, name)[0] = 7
        found = imported(module, cache=tmp_path)
        assert exports == ["Net"], name
        assert str(found) == str(imported(module, cache=tmp_path)) and "7.0" in str(found)
        assert exports == ["Net"], name


def test_a_rank_that_exports_and_one_that_finds_the_graph_compile_equal_programs(
    exports: list[str], tmp_path: Path
) -> None:
    """Unnamed values also get equal numbers, which ranks compare."""
    models = [imported(Net(), cache=tmp_path) for _ in range(2)]
    assert exports == ["Net"]
    found = run_in_threads(2, lambda world: trained(models[world.rank], world))
    assert found[0] == found[1]
    assert found == run_in_threads(2, lambda world: trained(models[0], world))


def test_rank_0_looks_into_the_cache_for_all(exports: list[str], tmp_path: Path) -> None:
    expected = imported(Net(), cache=tmp_path)
    found = run_in_threads(2, lambda world: imported(Net(), cache=tmp_path, world=world))
    assert exports == ["Net"]
    assert [str(each) for each in found] == [str(expected)] * 2


def test_another_process_finds_it(tmp_path: Path) -> None:
    """With any order of Python's sets."""
    program = """
import sys, torch, lockstep as ls
from lockstep._torch import torch_modules
from test_torch_cache import Net, imported
if sys.argv[2] == "found":
    torch_modules._export = lambda *args: sys.exit("it was exported again")
imported(Net(5), cache=sys.argv[1])
"""
    for seed, arguments in enumerate(("exported", "found", "found")):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        call = [sys.executable, "-c", program, str(tmp_path), arguments]
        subprocess.run(call, check=True, env=environment, cwd=Path(__file__).parent, timeout=300)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_file_is_replaced_and_a_folder_that_cannot_be_written_is_a_warning(
    exports: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = imported(Net(), cache=tmp_path)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert str(imported(Net(), cache=tmp_path)) == str(expected) and len(exports) == 2
    assert path.read_bytes() == content
    (tmp_path / "file").write_text("no folder")
    assert str(imported(Net(), cache=tmp_path / "file")) == str(expected) and len(exports) == 3
    assert f"from_torch: cache: {tmp_path / 'file'}" in caplog.text


def test_the_folder_that_true_means(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder_of(True) == str(tmp_path / "lockstep" / "torch")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.folder_of(True) == "/home/somebody/.cache/lockstep/torch"
    assert cache.folder_of(False) is None
    with raises("the path is 3, expected text or a path"):
        imported(Net(), cache=3)


def test_16_bit_weights_come_from_the_module(exports: list[str], tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        models = []
        for seed in (0, 1):
            module = nn.Linear(4, 3).to(dtype)
            nn.init.constant_(module.weight, seed + 0.5)
            models.append(ls.from_torch(module, torch.zeros(2, 4, dtype=dtype), dims={"batch": 6}, cache=tmp_path))
        assert [float(each.initial_value("weight").astype(np.float32)[0, 0]) for each in models] == [0.5, 1.5]
    assert exports == ["Linear"] * 2


# Parts that a key depends on


def key(module: nn.Module, inputs: Any = None, options: Any = ()) -> str:
    return cache._key(module, {"x": torch.zeros(2, 4)} if inputs is None else inputs, options)


def changed(change: Callable[[Any], object]) -> nn.Module:
    module = Net()
    module.own = adding(0)
    module.kept, module.settings = torch.ones(2), types.SimpleNamespace(depth=[1, {"heads": 2}])
    change(module)
    return module


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def adding(n: int) -> Callable[[Any], Any]:
    return lambda x: x + n


CHANGES: dict[str, Callable[[Any], object]] = {
    "the mode": lambda m: m.eval(),
    "the mode of a part": lambda m: m.norm.eval(),
    "a number": lambda m: setattr(m, "scale", 2.5),
    "the type of a number": lambda m: setattr(m, "scale", 2),
    "a set": lambda m: m.names.add("d"),
    "an attribute of a part": lambda m: setattr(m.norm, "eps", 1e-3),
    "the content of a tensor": lambda m: m.kept.mul_(2),
    "what an object has": lambda m: m.settings.depth[1].update(heads=3),
    "the class of an object": lambda m: setattr(m, "settings", type("Other", (), vars(m.settings))()),
    "a function": lambda m: setattr(m, "own", lambda x: x + 2),
    "a named function": lambda m: setattr(m, "own", doubled),
    "what a function encloses": lambda m: setattr(m, "own", adding(1)),
    "a part": lambda m: setattr(m, "more", nn.ReLU()),
    "the class of a part": lambda m: setattr(m, "norm", nn.BatchNorm2d(5)),
    "a hook": lambda m: m.first.register_forward_hook(lambda part, args, result: 2 * result),
    "a hook of a parameter": lambda m: m.first.weight.register_hook(doubled),
    "the shape of a parameter": lambda m: setattr(m.first, "weight", nn.Parameter(torch.zeros(5, 3))),
    "the dtype": lambda m: m.double(),
    "what is trained": lambda m: m.first.weight.requires_grad_(False),
    "a shared parameter": lambda m: setattr(m.norm, "bias", m.norm.weight),
    "shared elements": lambda m: setattr(m.norm, "bias", nn.Parameter(m.norm.weight.data)),
}


def test_a_key_is_that_of_each_module_that_is_the_same() -> None:
    keys = {key(changed(lambda m: None)) for _ in range(3)}
    module = changed(lambda m: None)
    module.first.register_forward_hook(doubled).remove()  # PyTorch numbers hooks over the whole process
    with torch.no_grad():
        module.first.weight.mul_(2)
        module.table.mul_(2)
        module(torch.ones(2, 4))
    keys.add(key(module))
    hooked = [changed(lambda m: m.first.register_forward_hook(doubled)) for _ in range(2)]
    assert len(keys) == 1 and key(hooked[0]) == key(hooked[1])


@pytest.mark.parametrize("what", CHANGES)
def test_a_key_sees(what: str) -> None:
    assert key(changed(CHANGES[what])) != key(changed(lambda m: None))


def module_of(text: str, **replaced: str) -> nn.Module:
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    space = types.ModuleType("somewhere")
    exec(text, vars(space))  # noqa: S102
    return space.Written()


WRITTEN = """
import types
import torch
HIDDEN = 3
other = types.ModuleType("other")
exec("def squared(x):\\n    return x ** 4", vars(other))
def called(x):
    return inner(x) + HIDDEN
def inner(x):
    return x - 7
class Base(torch.nn.Module):
    factor = 5
    def helper(self, x, by=9):
        return [x * part for part in (1, 2)][0] * self.factor * by
class Written(Base):
    @property
    def depth(self):
        return 6
    @staticmethod
    def fixed(x):
        return x * 8
    def forward(self, x):
        return called(self.helper(self.fixed(x))) * self.depth + other.squared(x)
"""


def test_a_key_sees_the_code_that_forward_reaches() -> None:
    """Each number of the program is in another place: a global, a function called by a function, a base class, a
    default, …
    """
    original = key(module_of(WRITTEN))
    assert key(module_of(WRITTEN + "\n# a comment\nUNUSED = 1\n")) == original
    keys = [key(module_of(WRITTEN, **{old: new})) for old, new in NUMBERS.items()]
    assert len({original, *keys}) == len(NUMBERS) + 1


NUMBERS = {
    "HIDDEN = 3": "HIDDEN = 4",
    "x ** 4": "x ** 5",
    "x - 7": "x - 8",
    "factor = 5": "factor = 6",
    "by=9": "by=10",
    "(1, 2)": "(1, 3)",
    "return 6": "return 7",
    "x * 8": "x * 9",
    "self.depth +": "self.depth -",
    "Written(Base)": "Written(Base, object)",
}


def test_a_key_sees_inputs_and_options() -> None:
    module, x = Net(), torch.zeros(2, 4)
    inputs = [
        {"x": x}, {"y": x}, {"x": torch.zeros(3, 4)}, {"x": x.double()}, {"x": x, "n": 1}, {"x": x, "n": 2}, {"x": [x]},
        {"x": [x, x.clone()]}, {"x": x.clone().requires_grad_()},
    ]  # fmt: skip
    options = [
        ({"batch": 6}, None), ({"batch": 7}, None), ({"batch": 6}, {}), ({"batch": 6}, {"x": 0}),
        ({"batch": 6}, {"x": {0: torch.export.Dim("batch")}}), ({"batch": 6}, {"x": {0: torch.export.Dim("batch", max=9)}}),
    ]  # fmt: skip
    keys = [*(key(module, each) for each in inputs), *(key(module, None, each) for each in options)]
    assert len(set(keys)) == len(inputs) + len(options)
    assert key(module, {"x": torch.ones(2, 4)}) == keys[0]
    torch.set_default_dtype(torch.float64)
    try:
        assert key(module) != keys[0]
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_key_sees_versions_and_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Net()
    keys = [key(module)]
    for owner, name, value in (
        (sys, "version", "3.0"),
        (torch, "__version__", "3.0"),
        (cache, "VERSION", "3.0"),
        (cache, "_versions", lambda: ("onnx 3.0",)),
        (cache, "_of_package", lambda: "another"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            keys.append(key(module))
    with torch.autocast("cpu"):
        keys.append(key(module))
    assert len(set(keys)) == len(keys) and key(module) == keys[0]
    assert [each.split()[0] for each in cache._versions()] == ["numpy", "onnx", "onnx-ir", "onnxscript"]


def test_what_nobody_can_look_into_is_an_error(tmp_path: Path) -> None:
    module = Net()
    module.first.source = (i for i in range(3))
    with raises("from_torch: cache: Net._modules['first'].source is of type builtins.generator", "leave out cache"):
        imported(module, cache=tmp_path)
    assert not list(tmp_path.iterdir())
