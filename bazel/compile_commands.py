#!/usr/bin/env python3
"""Writes compile_commands.json, which tells clangd and clang-tidy how each source is compiled."""

import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUERY = 'mnemonic("CppCompile", deps(//...))'
ONLY_GCC = {"-fno-canonical-system-headers", "-Wno-free-nonheap-object", "-Wunused-but-set-parameter"}


def bazel(*arguments: str) -> str:
    return subprocess.run(["bazel", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    directory = bazel("info", "execution_root").strip()
    commands = {}
    for action in json.loads(bazel("aquery", "--define=units=off", QUERY, "--output=jsonproto"))["actions"]:
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1]
        if (ROOT / source).is_file():  # excludes sources of libraries, and generated ones
            arguments = [argument for argument in arguments if argument not in ONLY_GCC]
            commands[source] = {"directory": directory, "file": str(ROOT / source), "arguments": arguments}
    (ROOT / "compile_commands.json").write_text(json.dumps([commands[source] for source in sorted(commands)], indent=1))


if __name__ == "__main__":
    main()
