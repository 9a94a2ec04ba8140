"""The wrapper that mpirun or agent.py starts as a rank. It runs the program, and passes on whole lines of its output.

    python rank.py PROGRAM ARGUMENT…

`lockstep elastic` lets mpirun put it before the programs of a command (orte_fork_agent). Open MPI 4.1 needs it: with
--tag-output, its buffer of twice the size of its input overflows if lines are shorter than tags, and lines are lost.

It runs as a file and imports nothing of this package, so that it starts at once. It ends as the program does, with the
same exit code or signal. Wrapper and program do not outlive each other, nor
mpirun's daemon or agent.py. It reports when the
program is stopped and when it continues. The program's output is a terminal, as under mpirun, so that the program
writes complete lines at once.
"""

import contextlib
import ctypes
import os
import pty
import resource
import selectors
import signal
import subprocess
import sys
import time
import tty

_PR_SET_PDEATHSIG = 1
_SHORTEST = 32  # bytes of a line, its end included; a tag has fewer
_LEFT_OVER_SECONDS = 1.0  # for output of the program's children after the program has ended
_LOOK_SECONDS = 1.0  # between checks for a stopped program
_GONE = signal.SIGPWR  # the signal for this process when its parent dies
# mpirun sends these to the process group, so the program gets them too.
_OF_THE_GROUP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Lines:
    """Copies whole lines from one descriptor to another. Pads lines so that none is shorter than mpirun's tag."""

    def __init__(self, source: int, to: int) -> None:
        self.source, self._to, self._rest = source, to, b""

    def copy(self) -> bool:
        """Copies the available data. Returns false at the end."""
        try:
            data = os.read(self.source, 65536)
        except OSError:  # all processes have closed the terminal
            data = b""
        lines = (self._rest + data).splitlines(keepends=True)
        # A carriage return at the end may belong to a newline that is still to come.
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        self._write(b"".join(map(padded, lines)))
        return bool(data)

    def finish(self) -> None:
        if self._rest:
            self._write(padded(self._rest))
            self._rest = b""

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._to, data) :]


def padded(line: bytes) -> bytes:
    """The line, padded with zeros. A carriage return at its end, as in progress bars, is kept before the newline."""
    text = line.rstrip(b"\r\n")
    end = b"\r\n" if line.endswith(b"\r") else b"\n"
    return text.ljust(_SHORTEST - len(end), b"\0") + end


def _tell_when_parent_dies(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _end_group(*_: object) -> None:
    """Kills the process group that mpirun's daemon made for this rank. The daemon would do it, but has died."""
    os.killpg(os.getpid(), signal.SIGKILL)


def _die_with_rank() -> None:
    _tell_when_parent_dies(signal.SIGKILL)


def _start(program: list[str], stdout: int, stderr: int) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(program, stdout=stdout, stderr=stderr, preexec_fn=_die_with_rank)  # noqa: PLW1509 (there are no threads)
    os.close(stdout)
    os.close(stderr)
    return child


def _is_stopped(process: int) -> bool:
    """True if a signal has stopped the process or a descendant. A process held by a debugger is not stopped."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            if stat.read().rpartition(b")")[2].split()[0] == b"T":
                return True
        with open(f"/proc/{process}/task/{process}/children", "rb") as children:
            return any(map(_is_stopped, map(int, children.read().split())))
    except OSError:  # the process has ended
        return False


class Look:
    """Reports when a process is stopped and when it continues."""

    def __init__(self, process: int) -> None:
        self._process, self._was_stopped, self._at = process, False, 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now - self._at < _LOOK_SECONDS:
            return
        self._at = now
        if _is_stopped(self._process) != self._was_stopped:
            self._was_stopped = not self._was_stopped
            _say(("stopped by a signal" if self._was_stopped else "goes on") + _place())


def _copy_until_end(child: subprocess.Popen[bytes], streams: list[Lines]) -> None:
    look = Look(child.pid)
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.source, selectors.EVENT_READ, stream)
        while selector.get_map():
            has_ended = child.poll() is not None
            if not has_ended:
                look()
            ready = selector.select(_LEFT_OVER_SECONDS)
            if not ready and has_ended:
                break
            for key, _ in ready:
                if not key.data.copy():
                    selector.unregister(key.fileobj)
    for stream in streams:
        stream.finish()


def _end_as(code: int) -> None:
    """Ends this process by the same signal, or with the same exit code."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has already dumped core if enabled
        with contextlib.suppress(OSError):  # the action of SIGKILL and SIGSTOP cannot be set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _place() -> str:
    size = os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("WORLD_SIZE", "")
    return f" on host {os.uname().nodename}" + (f", one of {size} ranks" if size else "")


def _say(text: str) -> None:
    os.write(2, padded(f"lockstep launch: {text}\n".encode()))


def main(program: list[str]) -> None:
    signal.signal(_GONE, _end_group)
    _tell_when_parent_dies(_GONE)
    told: list[int] = []
    for number in _OF_THE_GROUP:
        signal.signal(number, lambda which, _: told.append(which))  # the program would inherit SIG_IGN
    terminal, stdout = pty.openpty()
    tty.setraw(stdout)
    pipe, stderr = os.pipe()
    try:
        child = _start(program, stdout, stderr)
    except OSError as error:
        _say(f"{program[0]} cannot be run: {error.strerror}")
        _say(f"ended with exit code 127 on host {os.uname().nodename}")
        sys.exit(127)
    _copy_until_end(child, [Lines(terminal, 1), Lines(pipe, 2)])
    code = child.wait()
    how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
    _say(f"ended {how}{_place()}" + (", as it was told" if -code in told else ""))
    _end_as(code)


if __name__ == "__main__":
    main(sys.argv[1:])
