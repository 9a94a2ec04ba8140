"""A copy of the checkout in which mutants are built, with its own Bazel output. The checkout itself is never changed."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WORK = ROOT / "build" / "mutants"
TREE = WORK / "tree"
# libclang's package has no equivalents of some GCC headers, and cannot read those for vector registers.
CLANG_ARGUMENTS = ["-xc++", "-ferror-limit=0", "-U__SSE2__", "-U__SSE3__", "-U__SSSE3__", "-w"]


def copy_checkout() -> str:
    """Makes the copy equal to the checkout, uncommitted changes included. Returns a hash of the sources that tests are
    made of.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    names = sorted(name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file())
    TREE.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for name in names:
        content = (ROOT / name).read_bytes()
        if not name.startswith("test/mutants/"):
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        write_if_different(TREE / name, content)
        (TREE / name).chmod((ROOT / name).stat().st_mode)
    kept = set(names)
    for path in TREE.rglob("*"):
        if path.is_file() and not path.is_symlink() and str(path.relative_to(TREE)) not in kept:
            path.unlink()  # the checkout no longer has the file
    environment = TREE / ".venv"
    if not environment.is_symlink():
        environment.symlink_to((ROOT / ".venv").resolve())
    return digest.hexdigest()[:16]


def write_if_different(path: pathlib.Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def bazel(command: str, *arguments: str, capture: bool = True) -> subprocess.CompletedProcess:
    """Runs Bazel in the copy. Its server ends soon after the last command."""
    flags = os.environ.get("BAZEL_FLAGS", "").split() if command == "build" else []
    return subprocess.run(
        [*os.environ.get("BAZEL", "bazel").split(), "--max_idle_secs=120", command, *flags, *arguments],
        cwd=TREE,
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.PIPE if capture else None,
        text=True,
        check=False,
    )


def ask_bazel(command: str, *arguments: str) -> str:
    """Returns what Bazel prints; ends the program if it fails."""
    done = bazel(command, *arguments)
    if done.returncode != 0:
        sys.exit(f"mutants: bazel {command} {' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def label_of(file: str) -> str:
    return ask_bazel("query", file).strip()


class Compilation:
    """The command that compiles one file, run in the copy."""

    def __init__(self, file: str, output_base: str):
        owners = ask_bazel("query", f"same_pkg_direct_rdeps({label_of(file)})").split()
        if not owners:
            sys.exit(f"mutants: no target compiles {file}")
        query = f'mnemonic("CppCompile", inputs("{re.escape(file)}", {" + ".join(owners)}))'
        actions = json.loads(ask_bazel("aquery", "--define=units=off", query, "--output=jsonproto")).get("actions", [])
        commands = [action["arguments"] for action in actions if file in action["arguments"]]
        if not commands:
            sys.exit(f"mutants: {file} is not compiled by itself; name a .cc file")
        self.file = file
        self.arguments = [self.placed(each, output_base) for each in self.kept(commands[0])]

    @staticmethod
    def kept(command: list[str]) -> list[str]:
        """Returns the arguments that affect the meaning of the source, without the outputs and the source."""
        kept, skip = [], False
        for argument in command[1:]:
            if skip:
                skip = False
            elif argument in ("-c", "-o", "-MF"):
                skip = True
            elif argument != "-MD":
                kept.append(argument)
        return kept

    @staticmethod
    def placed(argument: str, output_base: str) -> str:
        if argument.startswith("external/"):
            return f"{output_base}/{argument}"
        if argument.startswith("bazel-out/"):
            return f"{output_base}/execroot/lockstep/{argument}"
        return argument

    def for_clang(self) -> list[str]:
        """Returns the arguments with which libclang reads the file."""
        kept = [each for each in self.arguments if not each.startswith(("-W", "-fno-canonical", "-O", "-g", "-U"))]
        kept = [each for each in kept if each != "_FORTIFY_SOURCE"]
        for i in range(1, len(kept)):
            if kept[i - 1] in ("-iquote", "-I", "-isystem") and not kept[i].startswith("/"):
                kept[i] = f"{TREE}/{kept[i]}"
        headers = subprocess.run(["g++", "-print-file-name=include"], check=True, capture_output=True, text=True)
        return [*CLANG_ARGUMENTS, *kept, "-isystem", headers.stdout.strip()]

    def check(self) -> str:
        """Compiles the file in the copy. Returns the compiler's messages, or "" if it compiles."""
        command = ["g++", *self.arguments, "-w", "-O0", "-fsyntax-only", self.file]
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stderr
