"""`lockstep launch` on this host: output, exit codes, signals, missing programs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep._launch.ends import End, Ends
from lockstep._launch.output import Lines
from lockstep._launch.rank import padded
from ranks import MPI_ENVIRONMENT

ROOT = Path(__file__).parents[2]
HOST = socket.gethostname()
LOCKSTEP = ROOT / "tools" / "lockstep"
ENVIRONMENT = {**os.environ, **MPI_ENVIRONMENT, "PYTHONPATH": str(ROOT / "python_bindings")}


# The number of a rank, for sh, with each launcher.
RANK = "${RANK:-$OMPI_COMM_WORLD_RANK}"


def launch(*arguments: Any, environment: Mapping[str, str] = ENVIRONMENT, cwd: Path | None = None) -> Any:
    command = [LOCKSTEP, "launch", *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_messages_of_ranks_are_known_behind_the_tags_of_open_mpi_5() -> None:
    ends = Ends(workers=2)
    lines = Lines(ends, keeps_words=True)
    message = b"lockstep launch: ended with exit code %d on host node%d, one of 2 ranks\n"
    assert lines.take(b"[1,0]<stdout>:   three spaces\n") == b"[worker 0]    three spaces\n"
    assert lines.take(b"[1,0]<stderr>: " + message % (0, 1)) == b""
    assert lines.take(b"[1,1]<stderr>: " + message % (3, 2)).endswith(b"ended with exit code 3 on host node2\n")
    assert ends.failures() == ["worker 1 on host node2 ended with exit code 3"]


def test_a_manifest_is_written(tmp_path: Path) -> None:
    done = launch("-n", "2", "--launcher", "kubernetes", "--image", "i", "python", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "lockstep launch: written to lockstep-train.yaml\n")
    assert 'kind: "MPIJob"\n' in (tmp_path / "lockstep-train.yaml").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_root_is_told_that_it_is() -> None:
    done = launch("-n", "1", "--dry-run", "x", environment={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "0"})
    assert done.stderr == "lockstep launch: running as root, so mpirun gets --allow-run-as-root\n"


def test_errors_go_to_stderr(tmp_path: Path) -> None:
    done = launch("-n", "2", "-H", tmp_path / "none", "x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"lockstep launch: the hosts file {tmp_path}/none cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--launcher", "slurm", "x"), "there is no program sbatch on this host: install Slurm's commands"),
        (("--launcher", "sge", "x"), "there is no program qsub on this host: install Grid Engine's commands"),
        (("--launcher", "local", "x"), "there is no program mpirun on this host: install Open MPI"),
        (("-s", "1", "x"), "there is no program mpirun on this host: install Open MPI"),
        (("-H", "HOSTS", "x"), "there is no program ssh on this host: install OpenSSH"),
        (("-H", "HOSTS", "--sync-dst-dir", "/d", "x"), "there is no program rsync on this host: install rsync"),
    ],
)
def test_missing_programs(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """PATH has only the programs that the launcher itself needs, and ssh unless it is the missing one."""
    (tmp_path / "hosts").write_text("192.0.2.1\n")
    here = {"env", "bash", "dirname", "readlink", *(["ssh"] if "rsync" in message else [])}
    for program in here:
        (tmp_path / program).symlink_to(Path(shutil.which(program) or ""))
    words = [str(tmp_path / "hosts") if word == "HOSTS" else word for word in arguments]
    done = launch("-n", "1", *words, environment={**ENVIRONMENT, "PATH": str(tmp_path)}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"lockstep launch: {message}"), done.stderr
    assert not list(tmp_path.glob("lockstep-*")), "no script is left"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_output_has_the_rank_before_each_line(how: str, workers: int) -> None:
    script = "echo to stdout; echo to stderr >&2; printf '10%%\\r20%%\\n'; printf 'no end'"
    done = launch("-n", workers, "--launcher", how, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace("\r", "\r\n").splitlines()
    for rank in range(workers):
        mine = [line.partition("] ")[2] for line in lines if line.startswith(f"[worker {rank}] ")]
        assert mine == ["to stdout", "10%", "20%", "no end"]
    assert len(lines) == 4 * workers
    assert sorted(done.stderr.splitlines()) == [f"[worker {rank}] to stderr" for rank in range(workers)]


def test_no_line_is_lost_or_torn(how: str) -> None:
    """Open MPI's own tags lose two of three lines here."""
    program = "import sys\nfor i in range(9000): print(i % 7); print('e', i, 'x' * (i % 90), file=sys.stderr)"
    done = launch("-n", "3", "--launcher", how, sys.executable, "-c", program)
    assert done.returncode == 0
    for rank in range(3):
        prefix = f"[worker {rank}] "
        mine = [line.removeprefix(prefix) for line in done.stdout.splitlines() if line.startswith(prefix)]
        assert mine == [str(i % 7) for i in range(9000)]
        mine = [line.removeprefix(prefix) for line in done.stderr.splitlines() if line.startswith(prefix)]
        assert mine == [f"e {i} {'x' * (i % 90)}".rstrip() if i % 90 else f"e {i} " for i in range(9000)]


def test_lines_come_as_they_are_written(how: str) -> None:
    """Lines come at once, not when a buffer is full: the program waits for the answer to its first line."""
    program = "import sys; print('question'); print('got', input())"
    job = subprocess.Popen(
        [LOCKSTEP, "launch", "-n", "1", "--launcher", how, sys.executable, "-c", program],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None and job.stdin is not None
    assert job.stdout.readline() == "[worker 0] question\n"
    assert job.communicate("answer\n", timeout=60)[0] == "[worker 0] got answer\n"
    assert job.returncode == 0


def test_parts_of_lines_find_together() -> None:
    ends = Ends(workers=2, servers=1, tolerates_workers=False)
    lines = Lines(ends, keeps_words=True)
    assert lines.take(b"mpirun says\n") == b"mpirun says\n"
    assert lines.take(b"[1,0]<stdout>:one and [1,2]<stdout>:three\0\0\n") == b"[server 0] three\n"
    assert lines.take(b"[12,0]<stdout>:two\n") == b"[worker 0] one and two\n"
    assert lines.take(b"[1,1]<stderr>:50%\0\0\r\n") == b"[worker 1] 50%\r"
    assert lines.take(b"[1,2]<stderr>:lockstep launch: ended with exit code 0 on host b\0\n") == b""
    told = b"[1,0]<stderr>:lockstep launch: ended by signal 15 on host b, as it was told\n"
    assert lines.take(told) == b""
    assert ends.exit_code(9, was_overdue=True) == 9
    ended = lines.take(b"[1,1]<stderr>:lockstep launch: ended by signal 9 on host c\0\0\n")
    assert ended == b"[worker 1] lockstep launch: ended by signal 9 on host c\n"
    assert ends.exit_code(1, was_overdue=True) == 137
    words = "the job has failed with exit code 137: worker 1 on host c ended by signal 9: 50%"
    assert ends.last_words(137) == [words]
    assert lines.take(b"[1,1]<stdout>:begun[1,0]<stdout>:x\n") == b"[worker 0] x\n"
    assert lines.rest() == b"[worker 1] begun\n"


def test_a_progress_bar_is_a_line_now_and_then_where_there_is_no_terminal() -> None:
    lines = Lines(Ends(2, 0, False), keeps_words=True, is_terminal=False)
    shown = [lines.take(b"[1,%d]<stderr>:%s" % (rank, padded(text))) for rank, text in (
        (0, b"\r"), (0, b"10%\r"), (0, b"20%\r"), (1, b"10%\r"), (0, b"a line\n"), (0, b"30%\r"), (0, b"100%\n"),
    )]  # fmt: skip
    assert b"".join(shown) == b"[worker 0] 10%\n[worker 1] 10%\n[worker 0] a line\n[worker 0] 100%\n"


@pytest.mark.parametrize("line", [b"\n", b"x\n", b"\xc3\xbc\n", b"10%\r", b"dos\r\n", b"no end", b"y" * 50 + b"\n"])
def test_no_line_is_shorter_than_a_tag(line: bytes) -> None:
    whole = padded(line)
    assert len(whole) >= len("[12345,123456]<stdout>:")
    shown = Lines(Ends(1, 0, False), keeps_words=False).take(b"[1,0]<stdout>:" + whole)
    assert shown == b"[worker 0] " + line.rstrip(b"\r\n") + (b"\r" if line.endswith(b"\r") else b"\n")


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("echo no bread >&2; exit 7", 7, "with exit code 7"),
        ("echo no bread >&2; kill -9 $$", 137, "by signal 9"),
        ("echo no bread >&2; exec no-such-program", 127, "with exit code 127"),
    ],
)
def test_exit_codes(how: str, script: str, code: int, said: str) -> None:
    """The last line is the launcher's, after all of mpirun's."""
    done = launch("-n", "3", "--launcher", how, "sh", "-c", f"[ {RANK} = 1 ] || sleep 60; {script}")
    assert done.returncode == code
    lines = done.stderr.splitlines()
    assert f"[worker 1] lockstep launch: ended {said} on host {HOST}" in lines
    assert "[worker 0] lockstep launch: ended" not in done.stderr, "this one was told to end"
    words = "sh: 1: exec: no-such-program: not found" if code == 127 else "no bread"
    assert (
        lines[-1]
        == f"lockstep launch: the job has failed with exit code {code}: worker 1 on host {HOST} ended {said}: {words}"
    )


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("Error: all_reduce.wait %loss.1, at loss: rank 1 on host h gave up: ValueError: no", 1),
        ("Error: rank 1 on host h (process 7) died while rank 0 on host h waited in barrier `b`", 1),
        ("Error: stage 0 of @f, transfer.wait: rank 1 (stage 1) on host h (process 7) died while rank 0 waited", 1),
        ("Error: rank 1 on host h: its connection is lost: reset", 1),
        ("Error: server 0 (rank 2 of the job, process 7 on host h) died: its connection is closed", 2),
        ("Error: server 0 (rank 2 of the job, process 7 on host h) says: worker 1 (process 8 on host g) died: x", 1),
        ("Error: rank 3 on host h gave up: no", 0),  # it has not failed
        ("Error: rank 0 on host h gave up: no", 0),
        ("ValueError: rank 1 is wrong", 0),
    ],
)
def test_the_cause_is_named_before_who_has_heard_of_it(words: str, first: int) -> None:
    ends = Ends(workers=2, servers=1)
    assert ends.failures() == []
    ends.note_words(0, words)
    ends.note_words(1, "Error: rank 0 on host h gave up: no" if first == 0 else "ValueError: no")
    for rank in range(3):
        ends.note(End(rank, rank + 4, True, "h"))
    lines = ends.last_words(4)
    assert f": {ends.name(first)} on host h ended with exit code {first + 4}" in lines[0]
    others = [ends.name(rank) for rank in range(3) if rank != first]
    assert [line.partition(" on")[0] for line in lines[1:]] == [f"then {name}" for name in others]
    assert ends.exit_code(4, was_overdue=False) == first + 4


# Behaviour of an mpirun whose ranks are all on other hosts, so that none is a process of this host.
@pytest.mark.parametrize(
    ("ends", "options", "code", "said"),
    [
        (
            [(0, "with exit code 3"), (1, "by signal 15")],
            "",
            3,
            "the job has not ended within 1 s after worker 0 failed",
        ),
        ([(1, "with exit code 0"), (0, "with exit code 0")], "", 0, "the job has not ended within 1 s after all ranks"),
        (
            [(1, "by signal 9"), (0, "with exit code 0")],
            "--tolerate-workers",
            0,
            "the job has not ended within 1 s after all ranks",
        ),
    ],
)
def test_an_mpirun_that_stays_is_ended(
    tmp_path: Path, ends: list[tuple[int, str]], options: str, code: int, said: str
) -> None:
    told = {15: ", as it was told"}
    notes = [
        f"[1,{rank}]<stderr>:lockstep launch: ended {how} on host far{told.get(int(how.split()[-1]), '')}"
        for rank, how in ends
    ]
    fake = tmp_path / "mpirun"
    fake.write_text("#!/bin/sh\n" + "".join(f"echo '{note}' >&2\n" for note in notes) + "exec sleep 100\n")
    fake.chmod(0o755)
    program = f"""
from lockstep import _command
from lockstep._launch import ends
ends.LINGER_SECONDS, ends.LOST_SECONDS = 1 if {code} == 0 else 50, 1
raise SystemExit(_command.main(["launch", "-n", "2", *{options.split()}, "train"]))
"""
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert f"lockstep launch: {said}" in lines
    last = "the job has failed with exit code 3: worker 0 on host far ended with exit code 3"
    assert (lines[-1] == f"lockstep launch: {last}") == (code != 0)


# Worker 1 is stopped. The others have ended, or report that they wait for it.
@pytest.mark.parametrize(
    ("others", "options", "code", "first"),
    [
        ("echo no bread >&2; exit 3", ["--tolerate-workers", "-s", "1"], 3, "worker 0"),
        ("echo done", ["--tolerate-workers", "-s", "1"], 0, ""),
        ("echo done", [], 147, "worker 1"),
        (
            "echo lockstep: rank 0 on host h has waited 30 s in MPI_Finalize for rank 1 >&2; sleep 100",
            ["-s", "1"],
            147,
            "worker 1",
        ),
    ],
)
def test_a_worker_that_stays_stopped_keeps_no_job(
    server: str, others: str, options: list[str], code: int, first: str
) -> None:
    script = f"[ $OMPI_COMM_WORLD_RANK = 1 ] || {{ {others}; exit; }}; sh -c 'kill -STOP $$'"
    settings = ["--env", "A=1", "--env-server", f"PYTHONPATH={server}", "--env-server", "EXIT=0"]
    command = ["launch", "-n", "2", *options, *settings, "sh", "-c", script]
    program = f"""
from lockstep import _command
from lockstep._launch import ends
ends.LINGER_SECONDS = 1
raise SystemExit(_command.main({command}))
"""
    mark = f"launch-{os.getpid()}-stopped"
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert f"[worker 1] lockstep launch: stopped by a signal on host {HOST}\n" in done.stderr
    stopped = f"worker 1 on host {HOST} is stopped by a signal"
    assert f"lockstep launch: {stopped}, and the other ranks have waited only for that for 1 s\n" in done.stderr
    if first:
        assert f"lockstep launch: the job has failed with exit code {code}: {first} on host" in done.stderr
        assert done.stderr.splitlines()[-1].endswith(stopped)
    assert not processes_with(mark)


def test_who_goes_on_or_is_not_alone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep._launch.ends.LINGER_SECONDS", 0.0)
    ends = Ends(workers=3, servers=1)
    ends.note_stop(1, "h")
    assert not ends.overdue(), "the whole job may have been stopped by hand"
    ends.note_wait(0)
    assert not ends.overdue(), "worker 2 still works"
    ends.note(End(2, 0, False, "h"))
    ends.note_stop(1, "")
    assert not ends.overdue()
    ends.note_stop(1, "h")
    assert ends.overdue().startswith("worker 1 on host h is stopped")
    ends.note(End(1, 143, False, "h"))  # together with the job
    assert ends.failures() == ["worker 1 on host h is stopped by a signal"]
    unknown = Ends()
    unknown.note_stop(1, "h", of=2)
    unknown.note_wait(0)
    assert unknown.overdue().startswith("rank 1 on host h is stopped")


def test_who_may_die_keeps_no_job_from_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep._launch.ends.LOST_SECONDS", -1)
    for tolerates_workers, words in ((False, "after worker 0 failed"), (True, "")):
        ends = Ends(workers=2, servers=1, tolerates_workers=tolerates_workers)
        ends.note(End(0, 1, True, "h"))
        assert ends.overdue().endswith(words) and bool(ends.overdue()) == bool(words)
    ends.note(End(2, 1, True, "h"))
    assert ends.overdue().endswith("after server 0 failed")


def test_who_waits_says_so_itself() -> None:
    words = b"lockstep: rank 0 on host h has waited 30 s in MPI_Finalize for rank 1"
    for teller, waits in ((0, True), (2, False)):
        ends = Ends(workers=3)
        Lines(ends, keeps_words=True).take(b"[1,%d]<stderr>:%s\n" % (teller, words))
        assert (teller in ends._waiting) == waits


def test_a_program_that_is_not_there(how: str) -> None:
    done = launch("-n", "1", "--launcher", how, "no-such-program")
    assert done.returncode == 127
    assert "[worker 0] lockstep launch: no-such-program cannot be run: No such file or directory\n" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        f"lockstep launch: the job has failed with exit code 127: worker 0 on host {HOST}"
    )


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (f"[ {RANK} = 1 ] && kill -9 $$; sleep 1; echo goes on", 0),
        (f"sleep 0.{RANK}; exit 5", 5),
    ],
)
def test_workers_that_die_are_tolerated_while_one_succeeds(how: str, script: str, code: int) -> None:
    done = launch("-n", "3", "--launcher", how, "--tolerate-workers", "sh", "-c", script)
    assert done.returncode == code, done.stderr
    if code == 0:
        assert sorted(done.stdout.splitlines()) == ["[worker 0] goes on", "[worker 2] goes on"]


@pytest.fixture
def server(tmp_path: Path) -> str:
    """A folder in which `python -m lockstep serve` is a program that prints its environment and ends with the code in
    EXIT.
    """
    (tmp_path / "lockstep").mkdir()
    (tmp_path / "lockstep" / "__init__.py").touch()
    program = "import os, sys\ne = os.environ\nprint(sys.argv[1], e['LOCKSTEP_WORKERS'], e['LOCKSTEP_SERVERS'], e['A'])\nsys.exit(int(e['EXIT']))\n"
    (tmp_path / "lockstep" / "__main__.py").write_text(program)
    return str(tmp_path)


@pytest.mark.parametrize(("code", "options"), [(0, []), (3, []), (3, ["--tolerate-workers"])])
def test_servers(server: str, code: int, options: list[str]) -> None:
    settings = ["--env", "A=both", "--env-server", f"PYTHONPATH={server}", "--env-server", f"EXIT={code}"]
    script = "echo worker $LOCKSTEP_WORKERS $LOCKSTEP_SERVERS $A"
    done = launch("-n", "2", "-s", "1", *settings, *options, "sh", "-c", script)
    assert done.returncode == code, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[server 0] serve 2 1 both",
        "[worker 0] worker 2 1 both",
        "[worker 1] worker 2 1 both",
    ]


def test_a_job_without_a_server_is_lost(server: str) -> None:
    """When workers may die, mpirun ends no process, and workers that are starting would wait for ever."""
    mark = f"launch-{os.getpid()}-lost"
    settings = ["--env", "A=1", "--env-server", f"PYTHONPATH={server}", "--env-server", "EXIT=3"]
    command = ["launch", "-n", "1", "-s", "1", "--tolerate-workers", *settings, "sleep", "100"]
    program = f"""
from lockstep import _command
from lockstep._launch import ends
ends.LOST_SECONDS = 1
raise SystemExit(_command.main({command}))
"""
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "[server 0] lockstep launch: ended with exit code 3 on host" in done.stderr
    assert "lockstep launch: the job has not ended within 1 s after server 0 failed" in done.stderr
    assert not processes_with(mark)


def await_lines(job: subprocess.Popen[str], count: int) -> None:
    assert job.stdout is not None
    for _ in range(count):
        assert job.stdout.readline().endswith("ready\n")


def processes_with(mark: str) -> list[int]:
    """The processes that have the mark in their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes():
                found.append(int(environ.parent.name))
        except OSError:
            continue  # the process has ended
    return found


def start_waiting(how: str, mark: str, script: str, new_group: bool = False) -> subprocess.Popen[str]:
    command = [LOCKSTEP, "launch", "-n", "2", "--launcher", how, "--", "sh", "-c", script]
    pipe = subprocess.PIPE
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    # Under nohup SIGHUP is ignored, and processes inherit that.
    here = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        job = subprocess.Popen(command, env=environment, stdout=pipe, text=True, process_group=0 if new_group else None)
    finally:
        signal.signal(signal.SIGHUP, here)
    await_lines(job, 2)
    return job


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing_behind(how: str, number: signal.Signals) -> None:
    """No children of ranks stay, and no ranks that do not want to end."""
    mark = f"launch-{os.getpid()}-{number}"
    job = start_waiting(how, mark, "trap '' INT TERM HUP; sleep 100 & echo ready; sleep 100; sleep 100")
    assert len(processes_with(mark)) >= 8
    job.send_signal(number)
    assert job.wait(30) == 128 + number
    assert not processes_with(mark)


def test_control_c_of_a_terminal_goes_to_all(how: str) -> None:
    """Also to mpirun."""
    mark = f"launch-{os.getpid()}-group"
    job = start_waiting(how, mark, "echo ready; sleep 100", new_group=True)
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(30) == 128 + signal.SIGINT
    assert not processes_with(mark)


def test_signals_for_programs_reach_them(how: str) -> None:
    script = "trap 'echo got it; exit 0' USR1; echo ready; while :; do sleep 0.05; done"
    job = start_waiting(how, "launch", script)
    job.send_signal(signal.SIGUSR1)
    stdout = job.communicate(timeout=30)[0]
    assert job.returncode == 0
    assert sorted(stdout.splitlines()) == ["[worker 0] got it", "[worker 1] got it"]


def test_who_stops_reading_ends_the_job(how: str) -> None:
    mark = f"launch-{os.getpid()}-pipe"
    job = subprocess.Popen(
        [LOCKSTEP, "launch", "-n", "2", "--launcher", how, "yes"],
        env={**ENVIRONMENT, "MARK_OF_JOB": mark},
        stdout=subprocess.PIPE,
    )
    assert job.stdout is not None
    assert job.stdout.readline().endswith(b"] y\n")
    job.stdout.close()
    assert job.wait(30) == 128 + signal.SIGTERM
    end = time.monotonic() + 5
    while processes_with(mark):
        assert time.monotonic() < end


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ranks_are_those_of_the_program(how: str, workers: int) -> None:
    program = "import lockstep as ls; w = ls.Communicator.from_environment(); w.barrier(); print(w.rank, w.size)"
    done = launch("-n", workers, "--launcher", how, sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[worker {rank}] {rank} {workers}" for rank in range(workers)]


def test_without_mpirun_ranks_start_and_meet_all_the_same(tmp_path: Path) -> None:
    """PATH has no mpirun. The secret is in no command line."""
    for program in ("env", "bash", "dirname", "readlink"):
        (tmp_path / program).symlink_to(Path(shutil.which(program) or ""))
    program = (
        "import os, pathlib, lockstep as ls; w = ls.Communicator.from_environment(); w.barrier(); e = os.environ; "
        "lines = b''.join(p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/cmdline')); "
        "print(w.size, w.transport, e['LOCAL_RANK'], e['LOCAL_WORLD_SIZE'], len(e['LOCKSTEP_SECRET']), "
        "e['LOCKSTEP_SECRET'].encode() in lines)"
    )
    secret = tmp_path / "secret"  # of another job, which must not count
    done = launch(
        "-n", "2", sys.executable, "-c", program,
        environment={**ENVIRONMENT, "PATH": str(tmp_path), "LOCKSTEP_SECRET_FILE": str(secret)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[worker {i}] 2 rendezvous {i} 2 64 False" for i in range(2)]


def test_a_worker_that_stays_stopped_keeps_no_job_without_mpirun() -> None:
    script = f"[ {RANK} = 1 ] || exit 0; sh -c 'kill -STOP $$'"
    command = ["launch", "-n", "2", "--launcher", "direct", "sh", "-c", script]
    program = f"""
from lockstep import _command
from lockstep._launch import ends
ends.LINGER_SECONDS = 1
raise SystemExit(_command.main({command}))
"""
    mark = f"launch-{os.getpid()}-stopped-direct"
    environment = {**ENVIRONMENT, "MARK_OF_JOB": mark}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 147, done.stderr
    assert done.stderr.splitlines()[-1].endswith(f"worker 1 on host {HOST} is stopped by a signal")
    assert not processes_with(mark)


def test_the_example_of_the_package_trains_alike_with_and_without_mpi() -> None:
    """The same losses, to the last printed digit."""
    program = (sys.executable, "-m", "lockstep.examples.digits", "--samples", "1280")
    printed = {}
    for launcher in ("local", "direct"):
        done = launch("-n", "2", "--launcher", launcher, *program)
        assert done.returncode == 0, done.stderr
        printed[launcher] = [re.sub(r"  \S+ s$", "", line) for line in done.stdout.splitlines()]
    assert printed["direct"] == printed["local"]
    assert printed["direct"][-1].startswith("[worker 0] 2 ranks, accuracy ")
