#!/usr/bin/env python3
"""Every route on several hosts (test/hosts/hosts.py): correct results, consecutive messages, bytes on each wire.

routes_hosts_test.py TRAVEL_MAIN HOSTS.PY [--all]

With --all also large tensors, and worlds that take a minute. Skips, saying so, where this machine has no hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(Path(sys.argv[2]).parent))
os.environ["PATH"] += ":/usr/sbin:/sbin"  # the directories of ip and tc
# Open MPI unloads its plugins at the end, so the leak checker cannot distinguish their memory from ours.
os.environ["ASAN_OPTIONS"] = "detect_leaks=0"

from hosts import Hosts, skipped, why_not

# Hosts, ranks on each host, bytes of the operand or of the result.
FEW = [(4, 4, 1 << 20), (16, 1, 1 << 20)]
MANY = [(2, 1, 8 << 20), (3, 1, 8 << 20), (4, 1, 64 << 20), (5, 1, 8 << 20), (4, 4, 16 << 20), (16, 1, 16 << 20)]


def travels(hosts: int, ranks: int, size: int) -> str:
    """Returns the failure, or nothing."""
    with Hosts(hosts) as these:
        arguments = [str(hosts * ranks), str(ranks), str(size), "eth0"]
        done = these.mpirun(
            [ranks] * hosts,
            PROGRAM,
            *arguments,
            timeout=300,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        return f"exit status {done.returncode}"
    return "" if "collectives as expected" in done.stdout else "nobody says that all are as expected"


def main() -> int:
    reason = why_not()
    if reason:
        return skipped("routes_hosts_test", reason)
    failures = 0
    for hosts, ranks, size in FEW + (MANY if "--all" in sys.argv else []):
        begin = time.monotonic()
        print(f"{hosts} hosts of {ranks} ranks, {size} bytes", flush=True)
        wrong = travels(hosts, ranks, size)
        failures += bool(wrong)
        print(f"{'FAILED: ' + wrong if wrong else 'passed'} after {time.monotonic() - begin:.1f} s", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
