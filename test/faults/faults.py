#!/usr/bin/env python3
"""Disturbs jobs at random moments and checks who is named, how soon, how the job ends and what it leaves behind.

    faults.py --times 20                                every kind of fault, on every number of hosts and ranks
    faults.py --kinds kill,stop --places 1x2,2x2 --seed 7

A job is `lockstep elastic --restart 0 -- mpirun … rank.py`, or with servers `lockstep launch … store_rank.py`, or with
--without-mpi `lockstep launch --launcher direct … rank.py`, on the hosts of test/hosts/hosts.py. Each outcome is added to a file, from which fault_tables.py makes the tables of
docs/faults.md. Needs root.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from job import ROOT, Job, Outcome  # isort: skip  (which names the folders of the next two)

from hosts import Hosts, why_not
from server_jobs import ServerJob

from lockstep._launch.supervise import wait_until

RATE = "1gbit"
BEGIN_SECONDS = 300.0  # until all ranks must have begun to train
END_SECONDS = 200.0  # from the fault until the job must have ended
GONE_SECONDS = 30.0  # from its end, with links restored, until all its processes and files must be gone
LATEST = 1.5  # the latest fault, in seconds of training
PATIENT, IMPATIENT = 600.0, 3.0  # timeouts of communicators


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of fault; the culprit is chosen at random."""

    name: str
    about: str
    commit: Callable[[Job, int], None]  # of the job and the culprit
    limit: float  # seconds within which the culprit has to be named
    timeout: float = PATIENT
    is_link: bool = False  # the culprit is the link of a host, not a rank
    first: bool = False  # the culprit is always rank 0
    survives: bool = True  # the culprit gets an Error too
    in_pairs: bool = False  # two ranks that differ are named, and one of them is the culprit
    mend: Callable[[Job, int], None] = lambda job, culprit: None
    role: str = ""  # "worker" or "server" if the job has servers; the culprit is then a number in that role
    tolerant: bool = False  # the job tolerates workers that die

    @property
    def goes_on(self) -> bool:
        """True if the job continues without the culprit and succeeds."""
        return self.tolerant and self.role == "worker"

    @property
    def is_survived(self) -> bool:
        """True if the job continues without waiting for the culprit, so that no rank has to name it."""
        return self.goes_on and not self.survives

    def fits(self, place: str) -> bool:
        return ("+" in place) == bool(self.role) and not (self.is_link and len(PLACES[place]) == 1)


class TrainingJob(Job):
    """`lockstep elastic --restart 0 -- mpirun … rank.py`, or `lockstep launch --launcher direct … rank.py`."""

    def __init__(self, hosts: Hosts, ranks: Sequence[int], folder: Path, kind: Kind, without_mpi: bool = False) -> None:
        self.kind = kind
        program = (sys.executable, Path(__file__).with_name("rank.py"), folder, kind.timeout)
        if without_mpi:
            lines = "".join(f"{name} slots={count}\n" for name, count in zip(hosts.names, ranks, strict=True))
            (folder / "hosts").write_text(lines)
            launch = (ROOT / "tools" / "lockstep", "launch", "--launcher", "direct", "-n", sum(ranks))
            super().__init__(hosts, ranks, folder, (*launch, "-H", folder / "hosts", "--", *program))
            return
        places = ",".join(f"{name}:{count}" for name, count in zip(hosts.names, ranks, strict=True))
        exported = [word for name in ("PYTHONPATH", "LOCKSTEP_RECORD") for word in ("-x", name)]
        elastic = (ROOT / "tools" / "lockstep", "elastic", "--restart", "0", "--hosts", places, "--", "mpirun")
        super().__init__(hosts, ranks, folder, (*elastic, *exported, *program))

    def judge(self, outcome: Outcome, fault: float) -> None:
        errors = self.errors()
        noticed = re.search(r"(?:mpirun noticed that process rank|exit code \d+: worker) (\d+) ", self.output())
        outcome.by_mpirun = not self.kind.is_link and noticed is not None and int(noticed[1]) == outcome.culprit
        for rank, host in enumerate(self.host_of):
            is_culprit = not self.kind.is_link and rank == outcome.culprit
            if is_culprit and not self.kind.survives:
                continue
            if rank not in errors:
                outcome.silent += 1
                continue
            message = str(errors[rank]["message"])
            outcome.messages.append(f"rank {rank}: {message}")
            named = blamed(message) or ({rank} if is_culprit else set())  # a rank does not give its own number
            if self.kind.is_link:  # one end of a link is the host, the other all other hosts
                right = bool(named) and all(
                    (self.host_of[each] == outcome.culprit) != (host == outcome.culprit) for each in named
                )
            else:
                right = outcome.culprit in named and len(named) <= (2 if self.kind.in_pairs else 1)
            if right:
                outcome.named.append(float(errors[rank]["time"]) - fault)
            else:
                outcome.problems.append(f"rank {rank} does not name it: {message}")


def _signal(number: signal.Signals) -> Callable[[Job, int], None]:
    return lambda job, rank: os.kill(job.pid(rank), number)


def _order(what: str) -> Callable[[Job, int], None]:
    return lambda job, rank: job.order(rank, what)


def _fill_disk(job: Job, _: int) -> None:
    """Also fills the space that is freed when a checkpoint in progress replaces the previous one."""
    end = time.monotonic() + 1
    with (job.folder / "disk" / "full").open("wb", buffering=0) as file:
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            time.sleep(0.02)


KINDS = [
    Kind("kill", "the process is killed, as by kill -9", _signal(signal.SIGKILL), 5, survives=False),
    Kind("stop", "the process is stopped", _signal(signal.SIGSTOP), IMPATIENT + 5, IMPATIENT, survives=False),
    Kind("raise", "the program raises an exception", _order("raise"), 5, survives=False),
    Kind("exit", "the program ends, with exit code 0", _order("exit"), 5, survives=False),
    Kind("program", "the rank calls another program", _order("program"), 5, in_pairs=True),
    Kind("state", "only this rank assigns a state", _order("state"), 5, in_pairs=True),
    Kind("data", "the rank's batch has a label out of range", _order("data"), 5),
    Kind("disk", "the disk is full at the next checkpoint", _fill_disk, 5, first=True),
    Kind(
        "cut",
        "the switch drops all packets of a host",
        lambda job, host: job.hosts.set_switch(host, False),
        20,
        is_link=True,
        mend=lambda job, host: job.hosts.set_switch(host, True),
    ),
    Kind(
        "down",
        "the cable of a host is pulled",
        lambda job, host: job.hosts.set_link(host, "down"),
        20,
        is_link=True,
        mend=lambda job, host: job.hosts.set_link(host, "up"),
    ),
    Kind(
        "slow",
        "the link of a host carries 1 kbit/s",
        lambda job, host: job.hosts.set_rate(host, "1kbit", burst="8k"),
        IMPATIENT + 5,
        IMPATIENT,
        is_link=True,
        mend=lambda job, host: job.hosts.set_rate(host, RATE),
    ),
]


def _of_roles() -> Iterator[Kind]:
    """The faults of jobs with servers, which tolerate the death of workers or do not."""
    for tolerant, role in itertools.product((False, True), ("worker", "server")):
        name, how = ("-tolerant", ", with --tolerate-workers") if tolerant else ("", "")
        of = {"role": role, "tolerant": tolerant}
        kill, stop = _signal(signal.SIGKILL), _signal(signal.SIGSTOP)
        yield Kind(f"{role}-kill{name}", f"a {role} is killed{how}", kill, 5, survives=False, **of)
        yield Kind(
            f"{role}-stop{name}", f"a {role} is stopped{how}", stop, IMPATIENT + 5, IMPATIENT, **of, mend=_continue
        )


def _continue(job: Job, culprit: int) -> None:
    with contextlib.suppress(LookupError, OSError):
        os.kill(job.pid(culprit), signal.SIGCONT)


KINDS += _of_roles()
# The number of ranks of each host, by hosts x ranks; with servers, the number of workers, by hosts x workers + servers.
PLACES = {
    "1x2": [2], "1x4": [4], "2x2": [1, 1], "2x4": [2, 2], "3x4": [2, 1, 1], "1x2+2": [2], "2x2+2": [1, 1]
}  # fmt: skip


def disturb(kind: Kind, hosts: Hosts, place: str, seed: int, without_mpi: bool = False) -> Outcome:
    """Starts a job on the hosts, commits the fault, and returns the outcome."""
    chance, ranks = random.Random(seed), PLACES[place]
    candidates = 1 if kind.first else len(ranks) if kind.is_link else sum(ranks)
    outcome = Outcome(kind.name, place, seed, chance.randrange(candidates), chance.uniform(0, LATEST))
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as name, small_disk(Path(name)):
        if kind.role:
            job: Job = ServerJob(hosts, ranks, Path(name), kind)
        else:
            job = TrainingJob(hosts, ranks, Path(name), kind, without_mpi)
        try:
            _observe(job, kind, outcome)
        finally:
            kind.mend(job, outcome.culprit)
            _await_gone(job, outcome)
    return outcome


def _observe(job: Job, kind: Kind, outcome: Outcome) -> None:
    if not wait_until(lambda: job.has_begun() or job.process.poll() is not None, BEGIN_SECONDS) or not job.has_begun():
        outcome.problems.append(f"the job did not begin: {job.output()[-2000:]}")
        return
    time.sleep(outcome.delay)
    if job.process.poll() is not None:
        outcome.problems.append(f"the job ended before the fault: {job.output()[-2000:]}")
        return
    fault = time.time()
    kind.commit(job, outcome.culprit)
    job.after_fault(outcome.culprit)
    if not wait_until(lambda: job.process.poll() is not None, END_SECONDS):
        outcome.problems.append(f"the job has not ended after {END_SECONDS:.0f} s")
    outcome.ended = time.time() - fault
    if (job.process.poll() == 0) != kind.goes_on:
        outcome.problems.append(f"the job's exit code is {job.process.poll()}: {job.output()[-2000:]}")
    job.judge(outcome, fault)
    if kind.is_survived:
        return
    if not outcome.named and not outcome.by_mpirun:
        outcome.problems.append(f"no rank names the culprit: {job.output()[-2000:]}")
    elif outcome.named and min(outcome.named) > kind.limit:
        outcome.problems.append(f"it was named after {min(outcome.named):.1f} s")


def blamed(message: str) -> set[int]:
    """The ranks that an error message blames."""
    ranks = re.findall(r"rank (\d+) on host \S+ and rank (\d+) on host \S+ disagree", message)
    if ranks:
        return {int(rank) for rank in ranks[0]}
    timeout = re.search(r"rank \d+ on host \S+ waited .* for (rank \d+ on host .*)$", message, re.DOTALL)
    if timeout:
        return {int(rank) for rank in re.findall(r"(?:^|; )rank (\d+) on host", timeout[1])}
    of_link = r"\S+: (?:its connection is (?:lost|closed)|cannot be reached|/)"  # or of a file: "/…"
    of_rank = r"\S+ (?:\(process \d+\) )?(?:died|gave up|has left)"
    return {int(rank) for rank in re.findall(rf"rank (\d+) on host (?:{of_link}|{of_rank})", message)[:1]}


def _await_gone(job: Job, outcome: Outcome) -> None:
    """Waits until nothing of the job is left. Processes and files that stay are a problem of the outcome, and are
    removed.
    """
    begin = time.time()
    if job.process.poll() is None:
        job.process.terminate()
    if not wait_until(lambda: not job.processes(), GONE_SECONDS):
        outcome.problems.append(f"processes stay: {job.processes()}")
        for each in job.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
    job.process.wait()
    outcome.gone = time.time() - begin
    shared = [name for name in os.listdir("/dev/shm") if any(host in name for host in job.hosts.names)]
    if shared:
        outcome.problems.append(f"files stay in /dev/shm: {shared}")
    for each in shared:  # so that the next job is not blamed for it
        Path("/dev/shm", each).unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mounts a file system of one megabyte at folder/disk, and unmounts it at the end."""
    (folder / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "lockstep-faults", folder / "disk"], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder / "disk"], check=True)


def campaign(
    kinds: Sequence[Kind],
    places: Sequence[str],
    times: int,
    minutes: float,
    out: Path,
    seed: int,
    without_mpi: bool,
) -> list[Outcome]:
    """Commits each fault on each place until the file has the wanted number of outcomes of it or the time is up.
    Returns the new outcomes.
    """
    done = [Outcome(**json.loads(line)) for line in out.read_text().splitlines()] if out.exists() else []
    counts = collections.Counter((each.kind, each.place) for each in done)
    outcomes, end = [], time.monotonic() + 60 * minutes
    for number in range(times):
        for kind, place in itertools.product(kinds, places):
            if counts[kind.name, place] > number or not kind.fits(place) or (kind.role and without_mpi):
                continue
            if time.monotonic() >= end:
                return outcomes
            with Hosts(len(PLACES[place]), RATE) as hosts:
                chance = zlib.crc32(f"{seed} {kind.name} {place} {number}".encode())
                outcome = disturb(kind, hosts, place, chance, without_mpi)
                names = hosts.names
            if set(names) & set(os.listdir("/run/netns")):
                outcome.problems.append(f"namespaces stay: {names}")
            outcomes.append(outcome)
            with out.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            first = f"{min(outcome.named):.1f}" if outcome.named else "-"
            problems = "".join(f"\n    {problem}" for problem in outcome.problems)
            print(
                f"{kind.name:20} {place}  named after {first} s, ended after {outcome.ended:.1f} s{problems}",
                flush=True,
            )
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(kind.name for kind in KINDS))
    parser.add_argument(
        "--places", default=",".join(PLACES), help="places, as hosts x ranks or hosts x workers + servers"
    )
    parser.add_argument(
        "--times",
        type=int,
        default=20,
        help="outcomes of each fault on each place, including those already in the file",
    )
    parser.add_argument("--minutes", type=float, default=40, help="no new job starts after this time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the choice of culprits and moments")
    parser.add_argument(
        "--without-mpi", action="store_true", help="starts jobs, which then have no servers, without MPI"
    )
    parser.add_argument(
        "--out", type=Path, help="file of the outcomes (default: build/faults.jsonl, or build/faults-without-mpi.jsonl)"
    )
    arguments = parser.parse_args()
    reason = why_not()
    if reason:
        parser.error(f"no hosts here: {reason}")
    by_name = {kind.name: kind for kind in KINDS}
    for option, names, known in (("kinds", arguments.kinds, by_name), ("places", arguments.places, PLACES)):
        unknown = [name for name in names.split(",") if name not in known]
        if unknown:
            parser.error(f"argument --{option}: there is no {unknown[0]}; there are {', '.join(known)}")
    without_mpi = arguments.without_mpi
    out = arguments.out or ROOT / "build" / ("faults-without-mpi.jsonl" if without_mpi else "faults.jsonl")
    out.parent.mkdir(parents=True, exist_ok=True)
    kinds, places = [by_name[name] for name in arguments.kinds.split(",")], arguments.places.split(",")
    outcomes = campaign(kinds, places, arguments.times, arguments.minutes, out, arguments.seed, without_mpi)
    failures = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"{len(outcomes)} faults, {failures} with problems; all are in {out}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
