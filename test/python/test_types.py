"""mypy's strict mode accepts the examples, and the public interface has types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lockstep as ls

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
FOLDERS = [EXAMPLES, *sorted({path.parent for path in EXAMPLES.glob("*/*.py")})]

OTHER_OPTIONS = """
ls.optim.SGD(0.1, momentum=0.9)
ls.optim.SGD(ls.schedule.cosine(0.1, steps=9))
ls.optim.AdamW(lambda step: 0.1 / (step + 1))
ls.optim.SGD("fast")
ls.compile(ls.parse(""), thread=1)
x = ls.graph.Builder("g").input("x", "f32", (2, 3))
y = ls.graph.relu(ls.graph.nn.gelu(2 * x.T @ x[0]) + x.mean(0)).to("f16")
values, indices = ls.graph.top_k(y, dim=0, k=1)
gradients = [each.shape for each in ls.gradients(y.sum(), [x])]
ls.graph.concat(x, y, dim="0")
ls.graph.relu("x")
"""


def mypy(*files: Path, paths: list[Path]) -> subprocess.CompletedProcess[str]:
    cache = ROOT / "build/mypy" / os.environ.get("PYTEST_XDIST_WORKER", "all")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "mypy.ini", "--cache-dir", cache]
    places = os.pathsep.join(map(str, [ROOT / "python_bindings", *paths]))
    return subprocess.run(
        [*command, *files],
        check=False,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": places},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_examples(folder: Path) -> None:
    """Each folder is a program of its own: several have a module `model`."""
    files = sorted(folder.glob("*.py"))
    done = mypy(*files, paths=[EXAMPLES, EXAMPLES / "language"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(files)} source file" in done.stdout


def test_every_public_name_has_a_type(tmp_path: Path) -> None:
    names = list(ls.__all__)
    for part in ls.__all__:
        if isinstance(module := getattr(ls, part), ModuleType):
            names += [f"{part}.{name}" for name in module.__all__]
    program = tmp_path / "program.py"
    program.write_text("import lockstep as ls\n" + "".join(f"reveal_type(ls.{name})\n" for name in names))
    done = mypy(program, paths=[])
    assert done.returncode == 0, done.stdout + done.stderr
    revealed = [line.split("Revealed type is ")[1] for line in done.stdout.splitlines() if "Revealed type is" in line]
    assert len(revealed) == len(names) > 100
    for name, text in zip(names, revealed, strict=True):
        assert text != '"Any"' and "*args: Any" not in text, f"{name}: {text}"


def test_options_of_a_wrong_type_are_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import lockstep as ls\n" + OTHER_OPTIONS)
    errors = [line for line in mypy(program, paths=[]).stdout.splitlines() if ": error: " in line]
    assert len(errors) == 4
    assert '"SGD" has incompatible type "str"' in errors[0]
    assert 'Unexpected keyword argument "thread" for "compile"' in errors[1]
    assert 'Argument "dim" to "concat" has incompatible type "str"; expected "int"' in errors[2]
    assert 'Argument 1 to "relu" has incompatible type "str"' in errors[3]
