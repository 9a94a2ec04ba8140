"""No test is lost between a source and `make test`: BUILD files and bazel/units.bzl, whose language Python can run."""

from __future__ import annotations

import builtins
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked(pattern: str) -> list[str]:
    return subprocess.run(
        ["git", "ls-files", pattern], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()


class Select:
    """The result of `select`, with the branches to which a list was added."""

    def __init__(self, branches: dict[str, list[str]]) -> None:
        self.branches = branches

    def __radd__(self, before: list[str]) -> Select:
        return Select({condition: before + after for condition, after in self.branches.items()})


class Names(dict[str, Any]):
    """The names in a BUILD file: constants of other files are empty, and calls of rules are noted."""

    def __init__(self, folder: str) -> None:
        def glob(include: Iterable[str], exclude: Iterable[str] = (), **_: Any) -> list[str]:
            def found(patterns: Iterable[str]) -> set[str]:
                return {
                    str(file.relative_to(ROOT / folder)) for each in patterns for file in (ROOT / folder).glob(each)
                }

            return sorted(found(include) - found(exclude))

        super().__init__(glob=glob, load=lambda *_: None)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return [] if name.isupper() else lambda *_, **arguments: self.calls.append((name, arguments))


def rules() -> list[tuple[str, str, dict[str, Any]]]:
    """The folder, rule and arguments of each target."""
    found = []
    for file in tracked("*BUILD"):
        names = Names(str(PurePosixPath(file).parent))
        exec(compile((ROOT / file).read_text(), file, "exec"), names)  # noqa: S102, the repository's own text
        found += [(str(PurePosixPath(file).parent), *call) for call in names.calls]
    return found


def test_each_test_source_is_linked_into_one_test() -> None:
    all_rules = rules()
    linked: Counter[str] = Counter()
    groups: dict[str, list[str]] = {}
    for folder, rule, its in all_rules:
        if rule == "filegroup":
            groups[f"//{folder}:{its['name']}"] = [f"{folder}/{source}" for source in its.get("srcs", [])]
    for folder, rule, its in all_rules:
        if rule in ("unit_test", "cc_test") or its.get("alwayslink"):
            for source in its.get("srcs", []):
                linked.update(groups.get(source, [f"{folder}/{source}"]))
    sources = tracked("*_test.cc")
    assert len(sources) > 100
    linked["runtime/comm/mpi/mpi_abi_test.cc"] -= 2  # compiled with the header of each of three implementations
    assert {source: linked[source] for source in sources if linked[source] != 1} == {}


def run_units(function: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, str], dict[str, list[str]]]:
    """Calls a function of units.bzl. Returns the arguments of the rule that it makes, and the commands and sources of the
    texts that other rules generate for it."""
    made: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    native = SimpleNamespace(
        cc_library=lambda **its: made.append(its),
        cc_test=lambda **its: made.append(its),
        genrule=lambda **its: texts.append(its),
    )
    names: dict[str, Any] = {"native": native, "select": Select}
    exec((ROOT / "bazel/units.bzl").read_text(), names)  # noqa: S102
    names[function](**arguments)
    assert len(made) == 1
    return made[0], {its["outs"][0]: its["cmd"] for its in texts}, {its["outs"][0]: its["srcs"] for its in texts}


@pytest.mark.parametrize("count", [1, 10, 11, 25])
@pytest.mark.parametrize("function", ["unit_library", "unit_test"])
def test_units_have_each_source_once(function: str, count: int) -> None:
    sources = [f"s{i}.cc" for i in range(count - 1)] + ["//a:tests"]
    made, _, of = run_units(function, name="a", srcs=[*sources, "private.h", "table.inc"], shard_count=3)
    assert (made["name"], made["shard_count"]) == ("a", 3)
    units = made["srcs"].branches["//conditions:default"]
    assert units[:2] == ["private.h", "table.inc"]
    assert [source for unit in units[2:] for source in of[unit]] == sources
    assert max(len(of[unit]) for unit in units[2:]) <= 10
    assert len(units) == 2 + -(-count // 10)


def test_without_units_each_source_and_header_is_compiled() -> None:
    made, commands, of = run_units("unit_library", name="a", srcs=["s.cc", "private.h"], hdrs=["b/c.h", "t.inc"])
    alone = made["srcs"].branches["//bazel:each_source_alone"]
    assert alone[:2] == ["private.h", "s.cc"]
    assert [of[source] for source in alone[2:]] == [["private.h"], ["b/c.h"]]
    assert commands[alone[2]] == "echo '#include \"$(SRCS)\"' > $@"
    assert made["hdrs"] == ["b/c.h", "t.inc"]


def test_a_unit_names_the_lines_of_its_sources(tmp_path: Path) -> None:
    _, commands, _ = run_units("unit_test", name="a", srcs=["x.cc", "y.cc"])
    (tmp_path / "x.cc").write_text("int x;\nint w;\n")
    (tmp_path / "y.cc").write_text("int y;\n")
    command = commands["a_unit0.cc"].replace("$(SRCS)", "x.cc y.cc").replace("$@", "out.cc").replace("$$", "$")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "out.cc").read_text() == '#line 1 "x.cc"\nint x;\nint w;\n#line 1 "y.cc"\nint y;\n'


def test_make_lint_checks_every_python_file() -> None:
    done = subprocess.run(["make", "-n", "lint"], cwd=ROOT, check=True, capture_output=True, text=True)
    checked = re.findall(r"ruff check (.*)", done.stdout)[0].split()
    assert set(tracked("*.py")) <= set(checked)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "TESTING.md"])
def test_documents_name_commands_targets_and_files_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    commands = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert (
        set(re.findall(r"`make ([a-z-]+)", text)) | set(re.findall(r"^make ([a-z-]+) +#", text, re.MULTILINE))
        <= commands
    )

    targets = {f"//{folder}:{arguments.get('name')}" for folder, _, arguments in rules()}
    assert set(re.findall(r"//[a-z_/]+:[a-z_-]+", text)) <= targets
    packages = {f"//{PurePosixPath(file).parent}/" for file in tracked("*BUILD")}
    assert all(any(each.startswith(folder) for each in packages) for folder in re.findall(r"(//[a-z_/]+/)\.\.\.", text))

    files = "".join(f"/{file}\n" for file in tracked("*"))
    examples = ("build/", "bazel-bin/", ".venv/", "test/python/test_x.py")
    missing = [
        path
        for path in re.findall(r"`([\w.-]+/[\w./*-]*)`", text)
        if not path.startswith(examples)
        and re.search(f"/{re.escape(path.rstrip('/'))}[/\n]".replace(r"\*", "[^/\n]*"), files) is None
    ]
    assert missing == []
