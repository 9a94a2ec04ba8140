"""Finds the shared libraries that programs need, and makes stubs for libraries that are linked but never called."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

# Libraries that every machine has, and of which it must use its own.
GLIBC = re.compile(r"(ld-linux.*|lib(c|m|pthread|dl|rt|resolv|util|nsl|anl)|linux-vdso)\.so(\.|$)")


def is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _run(*command: str | Path, check: bool = True, env: dict[str, str] | None = None) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=check, env=env).stdout


class Closure:
    """Libraries by name, with all that they need except glibc. The libraries that `unused` ones need are left out."""

    def __init__(self, unused: Iterable[str], folders: Iterable[Path]) -> None:
        self.libraries: dict[str, Path] = {}
        self.users: defaultdict[str, set[Path]] = defaultdict(set)
        self._unused = set(unused)
        self._folders = ":".join(map(str, folders))

    @staticmethod
    def needed(path: Path) -> list[str]:
        return re.findall(r"\(NEEDED\).*\[(.*)\]", _run("readelf", "-d", path))

    def _found(self, path: Path) -> dict[str, Path]:
        """The paths at which the dynamic linker finds the libraries that a program or library needs."""
        out = _run("ldd", path, check=False, env={"LD_LIBRARY_PATH": self._folders, "PATH": "/usr/bin:/bin"})
        return {name: Path(file) for name, file in re.findall(r"^\s*(\S+) => (/\S+) \(", out, re.MULTILINE)}

    def _walk(self, path: Path) -> tuple[dict[str, Path], list[tuple[str, Path]]]:
        """The libraries that a file needs, by name, and pairs of a library and the file that needs it."""
        found, libraries, uses = self._found(path), {}, []
        todo = [path]
        while todo:
            user = todo.pop()
            for name in self.needed(user):
                if GLIBC.match(name):
                    continue
                if name not in found:
                    raise SystemExit(f"cuda-bundle: {user} needs {name}, which the dynamic linker does not find")
                uses.append((name, user))
                if name not in libraries:
                    libraries[name] = found[name]
                    todo += [] if name in self._unused else [found[name]]
        return libraries, uses

    def add(self, path: Path) -> None:
        libraries, uses = self._walk(path)
        self.libraries |= libraries
        for name, user in uses:
            self.users[name].add(user)

    def missing(self, path: Path) -> set[str]:
        """The libraries that a file needs and that are not in this closure."""
        return self._walk(path)[0].keys() - self.libraries.keys()


def _symbols(kind: str, path: Path) -> dict[str, str]:
    """Dynamic symbols by name, each with its version or ""."""
    symbols = {}
    for line in _run("nm", "-D", kind, path).splitlines():
        name, _, version = line.split()[-1].partition("@")
        symbols[name] = version.lstrip("@")
    return symbols


def stand_in(library: Path, users: Iterable[Path], to: Path) -> None:
    """Writes a stub of `library` with those of its functions that `users` call. A call of one ends the process."""
    defined = _symbols("--defined-only", library)
    wanted = sorted({name for user in users for name in _symbols("--undefined-only", user)} & defined.keys())
    versions: defaultdict[str, list[str]] = defaultdict(list)
    for name in wanted:
        versions[defined[name]].append(name)
    soname = re.findall(r"\(SONAME\).*\[(.*)\]", _run("readelf", "-d", library))[0]
    code = "void abort(void);\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in wanted)
    script = "".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in versions.items() if version)
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "stand_in.c").write_text(code)
        (Path(folder) / "versions").write_text(script)
        options = [f"-Wl,--version-script={folder}/versions"] if script else []
        _run("gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", *options, "-o", to, f"{folder}/stand_in.c")
