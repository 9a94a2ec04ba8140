#!/usr/bin/env python3
"""The conformance suite and its failures on several hosts: test/hosts/hosts.py. Skips if there are none.

hosts_test.py CONFORMANCE_MPI_MAIN HOSTS.PY
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROGRAM = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(Path(sys.argv[2]).parent))
os.environ["PATH"] += ":/usr/sbin:/sbin"  # the directories of ip and tc
# Open MPI unloads its plugins at the end, so the leak checker cannot distinguish their memory from ours.
os.environ["ASAN_OPTIONS"] = "detect_leaks=0"

from hosts import Hosts, skipped, why_not

LEARNS = re.compile(r"^rank (\d+) learns: (.*)$", re.MULTILINE)


class Failed(Exception):
    pass


def check(condition: bool, what: str, output: str) -> None:
    if not condition:
        raise Failed(f"{what}\n{output}")


def run(hosts: Hosts, ranks: list[int], *arguments: str) -> tuple[int, str]:
    done = hosts.mpirun(
        ranks,
        PROGRAM,
        str(sum(ranks)),
        *arguments,
        timeout=200,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def suite(ranks: list[int], *arguments: str) -> str:
    with Hosts(len(ranks), "1gbit") as hosts:
        status, output = run(hosts, ranks, *arguments)
        check(status == 0, f"exit status {status}", output)
        for name, count in zip(hosts.names, ranks, strict=True):
            passed = re.findall(rf"^rank \d+ of {sum(ranks)} on {name}: [1-9]\d* cases passed$", output, re.MULTILINE)
            check(len(passed) == count, f"{len(passed)} of {count} ranks passed on {name}", output)
        return re.search(r"\d+ cases passed", output)[0] + " on each"


def stopped() -> str:
    """Stops a rank on the other host, not its first, during a collective: the others blame only this rank."""
    with Hosts(2, "1gbit") as hosts:
        _, output = run(hosts, [2, 2], "stop=3", "after=60")
        told = [message for _, message in LEARNS.findall(output)]
        blame = rf"waited 4s in all_reduce max [^;]* for rank 3 on host {hosts.names[1]}: [a-z, ]+$"
        named = [message for message in told if re.search(blame, message)]
        # mpirun ends the job when the stopped rank ends, perhaps before all ranks have printed.
        check(len(named) >= 2 and len(named) == len(told), f"{len(named)} of {len(told)} blamed it alone", output)
        return named[0]


def died() -> str:
    """The job ends within 5 s after the fault, and a message names the rank."""
    with Hosts(2, "1gbit") as hosts:
        status, output = run(hosts, [2, 2], "die=3")
        ended = time.time()
        check(status != 0, "exit status 0", output)
        died_at = re.search(r"^the victim dies at (\d+) ms$", output, re.MULTILINE)
        check(died_at is not None, "rank 3 did not die", output)
        took = ended - int(died_at[1]) / 1000
        check(took < 5, f"the job took {took:.1f} s to end", output)
        found = re.search(r"^.*(rank 3 |died while rank).*$", output, re.MULTILINE)
        check(found is not None, "nobody says which rank", output)
        return f"after {took:.1f} s: {found[0]}"


def cut() -> str:
    """Cuts the link of a host that computes, without notice: each side names the other within 20 s."""
    with Hosts(2, "1gbit") as hosts, tempfile.TemporaryDirectory() as folder:
        command = hosts.command([1, 1], PROGRAM, "2", f"loop={folder}/rank")
        job = subprocess.Popen(command, env=hosts.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            begun = Path(folder) / "rank0.begun"
            wait_for(begun.exists, 30, "the ranks did not begin")
            hosts.set_link(1, "down")
            begin = time.monotonic()
            said = [Path(folder) / f"rank{rank}" for rank in (0, 1)]
            wait_for(lambda: all(each.exists() for each in said), 20, "a rank has not learnt it after 20 s")
            took = time.monotonic() - begin
            for rank, path in enumerate(said):
                text = path.read_text()
                other = rf"rank {1 - rank} on host {hosts.names[1 - rank]}: (its connection is lost|cannot be reached)"
                check(re.search(other, text) is not None, f"rank {rank} does not name the other", text)
            return f"after {took:.1f} s: {said[0].read_text().strip()}"
        finally:
            subprocess.run(["pkill", "-9", "-f", f"loop={folder}/rank"], check=False)
            job.kill()
            job.wait()


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, what, "")
        time.sleep(0.05)


SUITES: dict[str, Callable[[], str]] = {
    "two hosts": lambda: suite([1, 1]),
    "three hosts, unevenly": lambda: suite([1, 2, 1]),
}
if "LOCKSTEP_TEST_EVERYTHING" in os.environ:
    SUITES |= {
        "two ranks on each of two hosts": lambda: suite([2, 2]),
        "four hosts": lambda: suite([1, 1, 1, 1]),
        "three hosts, three ranks on one": lambda: suite([1, 3, 1]),
        "the order of ranks, 2 + 2": lambda: suite([2, 2], "in_rank_order"),
        "the order of ranks, 1 + 3": lambda: suite([1, 3], "in_rank_order"),
        "two hosts, by MPI": lambda: suite([1, 1], "by_mpi=all"),
    }
FAULTS: dict[str, Callable[[], str]] = {"a stopped rank": stopped, "a dead rank": died, "a cut link": cut}


def holds(named: tuple[str, Callable[[], str]]) -> bool:
    name, case = named
    try:
        print(f"{name}: {case()}", flush=True)
        return True
    except (Failed, subprocess.TimeoutExpired) as error:
        print(f"FAILED: {name}: {error}\n{getattr(error, 'stdout', '') or ''}", flush=True)
        return False


def main() -> int:
    reason = why_not()
    if reason:
        return skipped("hosts_test", reason)
    with ThreadPoolExecutor(3) as pool:  # ranks wait most of their time
        held = list(pool.map(holds, SUITES.items()))
    held += [holds(fault) for fault in FAULTS.items()]  # these depend on time
    return held.count(False)


if __name__ == "__main__":
    sys.exit(main())
