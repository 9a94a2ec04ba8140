"""Arguments and values of the environment reach a program unchanged with every launcher."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import Error, _command
from test_launch import ENVIRONMENT, LOCKSTEP, ROOT, launch
from test_launch_texts import dry_run

WORDS = [
    *(
        "--num",
        "3",
        "--n",
        "--s",
        "--i",
        "--",
        "-n",
        "",
        "a b",
        "*",
        "~",
        "#",
        "-",
    ),  # launch itself has --num-workers and --image
    *("$HOME", "$(HOSTNAME)", "$$", "`id`", "it's", 'say "x"', r"back\slash", r"\n", "%d %%", "a:b", "ü😀"),
    "two\n#$ -N lines\r\n#SBATCH --ntasks=9\n it's \\",
]
VALUES = ["--flag=1", ":", "a=b:c", "", "a;b c", *WORDS[-12:]]
PROGRAM = """
import json, os, sys
values = [os.environ[f"VALUE{number}"] for number in range(int(sys.argv[1]))]
print(json.dumps([sys.argv[2:], values]))
"""


def arguments(program: Path) -> list[str]:
    """Arguments of `lockstep launch`; half of the values follow a colon."""
    program.write_text(PROGRAM)
    settings = [("--env", f"VALUE{number}{'=:'[number % 2]}{value}") for number, value in enumerate(VALUES)]
    return [*(word for pair in settings for word in pair), sys.executable, str(program), str(len(VALUES)), *WORDS]


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("launcher", ["local", "slurm", "sge"])
def test_words_reach_the_program(tmp_path: Path, launcher: str) -> None:
    """Replacements for sbatch and qsub run the script here."""
    fake(tmp_path, "sbatch", 'bash "$1"')
    fake(tmp_path, "srun", "echo localhost")
    fake(tmp_path, "qsub", 'echo "localhost 1 all.q UNDEFINED" > nodes; PE_HOSTFILE=nodes bash "$1"')
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = arguments(tmp_path / "3d.py")
    done = launch("-n", "1", "--launcher", launcher, *words, environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.removeprefix("[worker 0] ")) == [WORDS, VALUES]


@pytest.mark.parametrize(("launcher", "mark"), [("slurm", "#SBATCH"), ("sge", "#$")])
def test_no_word_is_taken_for_an_option_of_the_queue(tmp_path: Path, launcher: str, mark: str) -> None:
    def options(*words: str) -> list[str]:
        lines = dry_run("-n", "1", "--launcher", launcher, *words).splitlines()
        return [line for line in lines if line.startswith(mark)]

    assert options(*arguments(tmp_path / "train.py")) == options("train.py") != []


def expanded(text: str) -> str:
    """Expands the text like a container's command in Kubernetes. Requires that all names are known."""
    return re.sub(r"\$(\$|\(.*?\))", lambda match: "$" if match[1] == "$" else "replaced", text)


def test_kubernetes_gives_programs_their_words(tmp_path: Path) -> None:
    words = arguments(tmp_path / "train.py")
    text = dry_run("-n", "1", "--launcher", "kubernetes", "--image", "i", *words)
    command = [expanded(json.loads(line.strip()[2:])) for line in text.splitlines() if line.startswith(" " * 16 + "-")]
    end = command.index("--")
    assert command[end + 4 :] == WORDS
    settings = command[command.index("/etc/mpi/hostfile") + 1 : end]
    assert settings[1::2] == [f"VALUE{number}={value}" for number, value in enumerate(VALUES)]


def test_a_manifest_has_no_character_that_yaml_has_not() -> None:
    manifest = ("-n", "1", "--launcher", "kubernetes", "--image", "i", "./train")
    assert r'- "ü😀\U0000007f\U00000085\u0001"' in dry_run(*manifest, "ü😀\x7f\x85\x01")
    with pytest.raises(Error, match=re.escape(r"'\udcff' is not UTF-8, so it cannot be in a manifest")):
        dry_run(*manifest, os.fsdecode(b"\xff"))


def test_words_need_not_be_text(tmp_path: Path) -> None:
    fake(tmp_path, "sbatch", 'cat "$1"')
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for options in ([], ["--dry-run"]):
        command = [LOCKSTEP, "launch", "-n", "1", "--launcher", "slurm", *options, "./train", b"\xff"]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert b" -- ./train '\xff'\n" in done.stdout


def test_what_elastic_starts_has_its_options() -> None:
    """--h is an option of mpirun, and neither --help nor --hosts."""
    command = ["mpirun", "--h", "--host", "a:1", "train", "--res", "1"]
    parsed = _command._parser().parse_args(["elastic", "--restart", "2", *command])
    assert (parsed.restart, parsed.launch) == (2, command)


def test_what_runs_between_hosts_of_tests_has_its_options() -> None:
    """--r is neither --rate nor --ranks. Without root or hosts, hosts.py reports that the program is missing; with them
    it runs the program.
    """
    script = str(ROOT / "test/hosts/hosts.py")
    done = subprocess.run(
        [sys.executable, script, "--hosts", "1", "echo", "--r"], capture_output=True, text=True, check=False
    )
    assert "ambiguous option" not in done.stderr
    assert done.returncode != 2, done.stderr


def test_a_colon_alone_would_begin_another_program() -> None:
    with pytest.raises(Error, match="an argument of the program is ':', with which mpirun begins another program"):
        dry_run("-n", "1", "./train", "a", ":", "b")
