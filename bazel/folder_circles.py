#!/usr/bin/env python3
"""Checks that folders do not include each other in a circle: C++ by `#include`, the Python package by its imports.

A file that lies beside the folders of a layer, such as a contract that all of them include or a table that includes them all,
counts by itself.
Tests, and the files that only tests use, are left out: they may include whatever they need. A circle is printed with one file
for each of its steps.
"""

import ast
import itertools
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPP = ("core", "passes", "frontends", "runtime", "verify", "backends")
PACKAGE = "python_bindings/lockstep"
OF_TESTS = re.compile(r"_test\.cc$|_main\.cc$|/conformance/|test_support|simulated_device|test_case")


def files(*folders: str, suffixes: tuple[str, ...]) -> list[pathlib.PurePosixPath]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return [pathlib.PurePosixPath(name) for name in listed if name.endswith(suffixes) and (ROOT / name).is_file()]


def folder(room: str) -> str:
    """The folder that a room is, or lies in."""
    return room if (ROOT / room).is_dir() else str(pathlib.PurePosixPath(room).parent)


def cpp_edges():
    """Yields (room, room that it includes, the file that does)."""
    sources = files(*CPP, suffixes=(".cc", ".h"))

    def room(path: pathlib.PurePosixPath) -> str:
        return str(path.with_suffix("") if str(path.parent) in CPP else path.parent)

    for path in sources:
        if OF_TESTS.search(str(path)):
            continue
        for included in re.findall(r'^#include "([^"]+)"', (ROOT / path).read_text(), re.MULTILINE):
            if included.split("/")[0] in CPP and not OF_TESTS.search(included):
                yield room(path), room(pathlib.PurePosixPath(included)), path


def imported(node: ast.AST, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The modules, from the root, that a statement in a module of `package` imports; names of a root are its modules."""
    if isinstance(node, ast.Import):
        return [tuple(alias.name.split(".")) for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    above = package[: len(package) + 1 - node.level] if node.level else ()
    module = above + tuple(node.module.split(".") if node.module else ())
    return [module] if len(module) > 1 else [(*module, alias.name) for alias in node.names]


def python_edges():
    """Yields the same for the package, whose modules beside its folders count by themselves."""
    root = pathlib.PurePosixPath(PACKAGE).name
    for path in files(PACKAGE, suffixes=(".py",)):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            for module in imported(node, (root, *parts[:-1])):
                if module[0] == root and len(module) > 1:
                    yield f"{PACKAGE}/{parts[0]}", f"{PACKAGE}/{module[1]}", path


def circle(edges) -> list[str]:
    """Returns the lines that describe the shortest circle of several folders; none if there is none."""
    steps: dict[str, dict[str, pathlib.PurePosixPath]] = {}
    crossings = set()
    for source, target, path in edges:
        if source != target:
            steps.setdefault(source, {}).setdefault(target, path)
            if folder(source) != folder(target):
                crossings.add((source, target))

    def way(source: str, target: str) -> list[str]:
        """Returns the shortest way, both ends included; empty if there is none."""
        ways, seen = [[source]], {source}
        for one in ways:
            if one[-1] == target:
                return one
            for room in sorted(steps.get(one[-1], {}).keys() - seen):
                seen.add(room)
                ways.append([*one, room])
        return []

    circles = [[source, *back] for source, target in crossings if (back := way(target, source))]
    if not circles:
        return []
    shortest = min(circles, key=lambda rooms: (len(rooms), rooms))
    return [f"  {a} includes {b}: {steps[a][b]}" for a, b in itertools.pairwise(shortest)]


def main() -> int:
    failed = False
    for what, edges in (("C++", cpp_edges()), ("Python", python_edges())):
        lines = circle(edges)
        failed |= bool(lines)
        print(
            f"folder_circles: {what} has {'a circle of folders:' if lines else 'no circle of folders'}",
            *lines,
            sep="\n",
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
