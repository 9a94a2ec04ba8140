"""Other releases of Debian for `make wheel-check ARGS="--chroot trixie"`: build/wheel/chroots/RELEASE, by debootstrap.

Needs root and the Debian package debootstrap. A chroot is bare: Python, its venv and pip, and no compiler. Debian 11's
Python is too old, so there Debian 12's is compiled from its sources, once, with the compiler of Debian 11.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import debian

FOLDER = debian.ROOT / "build/wheel/chroots"
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
COMPILED = "/opt/python3.11"
PYTHON = {"bullseye": f"{COMPILED}/bin/python3.11"}  # elsewhere that of the system
TO_COMPILE = "gcc make libc6-dev zlib1g-dev libffi-dev libssl-dev libexpat1-dev"
COMPILE = f"""
apt-get install -qq --no-install-recommends {TO_COMPILE}
cd /opt/Python-3.11*
./configure -q --prefix={COMPILED} CFLAGS=-O1
make -s -j{os.cpu_count()}
make -s install
apt-get purge -qq gcc make libc6-dev
apt-get autoremove -qq
rm -rf "$PWD"
"""


def inside(root: Path, *arguments: str) -> list[str]:
    """Returns a command that runs another one in a chroot, with a /proc and /dev that end with it."""
    script = 'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(root), *arguments]


def run(root: Path, script: str) -> None:
    """Runs a script of the shell in a chroot, as root."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
    command = inside(root, "sh", "-ec", script)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-4000:])
        sys.exit(f"wheel-check: a script failed in {root}: {script}")


def _compile_python(root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        debian.Apt(Path(folder)).run("source", "--download-only", "python3.11")
        (archive,) = Path(folder).glob("python3.11_*.orig.tar.*")
        subprocess.run(["tar", "-xf", archive, "-C", root / "opt"], check=True)
    print(f"wheel-check: compiling Python 3.11 in {root} (minutes)", flush=True)
    run(root, COMPILE)


def make(release: str) -> Path:
    """Returns the folder of a release, after making it if necessary. Packages are trusted as this system does."""
    root = FOLDER / release
    stamp = root / "opt/made"
    if stamp.exists():
        return root
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("wheel-check: --chroot needs root and the Debian package debootstrap")
    print(f"wheel-check: making {root}", flush=True)
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    include = "--include=ca-certificates,python3,python3-venv,python3-pip"
    # A release that debootstrap does not know yet is made as the newest one.
    known = Path("/usr/share/debootstrap/scripts", release).exists()
    script = [] if known else ["/usr/share/debootstrap/scripts/sid"]
    subprocess.run(
        ["debootstrap", "--variant=minbase", include, release, root, debian.archive(), *script],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    if ("/" / CERTIFICATES).exists():
        shutil.copyfile("/" / CERTIFICATES, root / CERTIFICATES)
    if release in PYTHON:
        _compile_python(root)
    stamp.touch()
    return root
