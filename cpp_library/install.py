"""Installs the C++ library (`make install`): its headers, the shared library, and the file by which pkg-config finds them.

    install.py LIBLOCKSTEP.SO PREFIX

DESTDIR in the environment is the folder of a package's files, in which PREFIX will be the root of what it contains.
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION = runpy.run_path(str(ROOT / "python_bindings/lockstep/_version.py"))["VERSION"]
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
# Of Abseil, what the headers use. Debian's packages have its files for pkg-config, as for all of its libraries.
PKG_CONFIG = f"""prefix=@PREFIX@
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: lockstep
Description: A graph compiler for data-parallel training
Version: {VERSION}
Requires: absl_status absl_statusor absl_strings absl_time
Cflags: -std=c++20 -I${{includedir}}/lockstep
Libs: -L${{libdir}} -llockstep -Wl,-rpath,${{libdir}}
"""


def headers(first: str) -> set[str]:
    """Returns the paths of the headers of this repository that a header includes, directly or indirectly."""
    found: set[str] = set()
    left = [first]
    while left:
        name = left.pop()
        included = INCLUDE.findall((ROOT / name).read_text())
        new = {each for each in included if (ROOT / each).exists()} - found
        found |= new
        left += new
    return found


def copy(source: Path, to: Path) -> None:
    """Replaces a file, such that programs that use the old one keep it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)
    shutil.copyfile(source, to)
    to.chmod(0o644)


def install(library: Path, prefix: Path, root: Path) -> None:
    include = root / "include/lockstep"
    shutil.rmtree(include, ignore_errors=True)  # headers of another version
    copy(ROOT / "cpp_library/lockstep.h", include / "lockstep.h")
    for name in headers("cpp_library/lockstep.h"):
        copy(ROOT / name, include / name)
    copy(library, root / "lib/liblockstep.so")
    copy(ROOT / ".venv/lib/libdnnl.so.3", root / "lib/lockstep/libdnnl.so.3")
    description = root / "lib/pkgconfig/lockstep.pc"
    description.parent.mkdir(parents=True, exist_ok=True)
    description.write_text(PKG_CONFIG.replace("@PREFIX@", str(prefix)))


if __name__ == "__main__":
    prefix = Path(sys.argv[2]).absolute()
    install(Path(sys.argv[1]), prefix, Path(os.environ.get("DESTDIR", "") + str(prefix)))
