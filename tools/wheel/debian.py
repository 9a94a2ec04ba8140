"""Files of other Debian releases, which `make wheel` links and compiles with: build/wheel/debian/.

apt fetches and checks the packages, with lists of its own below that folder, and nothing is installed:

- root/: libraries of Debian 11, whose glibc is the oldest that the wheel runs with
- python/: the headers of Debian 13's Python, which have the stable ABI of Python 3.12
- abseil/: the sources of Debian 12's Abseil, whose archives cannot be linked into an extension module
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/wheel/debian"
# The packages of each folder, with their release.
PACKAGES = {
    "root": [("bullseye", name) for name in ("libc6", "libc6-dev", "libgomp1", "libzstd1")],
    "python": [("trixie", "libpython3.13-dev")],
}
SOURCES = {"abseil": "bookworm"}
LIBRARIES = "usr/lib/x86_64-linux-gnu"  # below root/


def archive() -> str:
    """Returns the address of the Debian archive from which this system installs its packages."""
    targets = ["apt-get", "indextargets", "--format", "$(LABEL) $(CODENAME) $(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.splitlines()
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    for label, release, address in (line.split() for line in lines if len(line.split()) == 3):
        if label == "Debian" and release == codename:
            return address
    raise SystemExit("wheel: apt has no Debian archive, from which files of other releases are fetched")


class Apt:
    """apt-get with lists and caches in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        for name in ("state/lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        releases = sorted({release for packages in PACKAGES.values() for release, _ in packages})
        address = archive()
        lines = [f"deb {address} {release} main" for release in releases]
        lines += [f"deb-src {address} {release} main" for release in sorted(set(SOURCES.values()))]
        (folder / "sources.list").write_text("".join(line + "\n" for line in lines))
        options = {
            "Dir::State": folder / "state",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Acquire::Languages": "none",
            "APT::Sandbox::User": "",
        }
        (folder / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in options.items()))
        self._folder = folder
        self.run("update")

    def run(self, *arguments: str) -> None:
        environment = {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf")}
        subprocess.run(["apt-get", "-qq", *arguments], cwd=self._folder, env=environment, check=True)


def _unpack(apt: Apt, folder: Path) -> None:
    for name, packages in PACKAGES.items():
        (folder / name).mkdir()
        for release, package in packages:
            apt.run("download", f"{package}/{release}")
            (file,) = (folder / "apt").glob(f"{package}_*.deb")
            subprocess.run(["dpkg-deb", "-x", file, folder / name], check=True)
    for source in SOURCES:
        apt.run("source", source)
        (unpacked,) = (each for each in (folder / "apt").glob(f"{source}-*") if each.is_dir())
        unpacked.rename(folder / source)


def _prepare(folder: Path) -> None:
    """Makes `-lgomp` find GNU OpenMP of root/, and `-lstdc++` the archive of the compiler's library.

    Links in root/ then stay below it, and Bazel takes no folder of the sources for a package of its own.
    """
    for file in folder.rglob("BUILD.bazel"):
        file.unlink()
    root = folder / "root"
    for link in [each for each in root.rglob("*") if each.is_symlink() and each.readlink().is_absolute()]:
        target = root / link.readlink().relative_to("/")
        link.unlink()
        link.symlink_to(os.path.relpath(target, link.parent))
    libraries = root / LIBRARIES
    (libraries / "libgomp.so").symlink_to("libgomp.so.1")
    asked = subprocess.run(["gcc", "-print-file-name=libstdc++.a"], capture_output=True, text=True, check=True)
    (libraries / "libstdc++.a").symlink_to(Path(asked.stdout.strip()).resolve())


def fetch() -> None:
    """Makes the folder, unless it is there and this file has not changed since."""
    stamp = FOLDER / "made-by.py"
    if stamp.exists() and stamp.read_bytes() == Path(__file__).read_bytes():
        return
    print("wheel: fetching files of other Debian releases into build/wheel/debian (40 MB)", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "apt").mkdir(parents=True)
    _unpack(Apt(FOLDER / "apt"), FOLDER)
    _prepare(FOLDER)
    shutil.rmtree(FOLDER / "apt")
    shutil.copyfile(__file__, stamp)
