"""One rank of test_processes: creates and destroys communicators, checks that they leave nothing, then raises."""

import os
import sys
import threading

import lockstep as ls


def facts() -> dict[str, int]:
    with open("/proc/self/maps") as maps:
        mappings = sum(1 for _ in maps)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mappings": mappings,
        "threads": len(os.listdir("/proc/self/task")),
        "python threads": threading.active_count(),
    }


for _ in range(20):
    ls.Communicator.mpi()
before = facts()
for _ in range(int(sys.argv[1])):
    ls.Communicator.mpi().barrier()
after = facts()
assert before["descriptors"] == after["descriptors"], (before, after)
assert before["threads"] == after["threads"], (before, after)
assert after["mappings"] - before["mappings"] < 50, (before, after)  # the heap may grow in pieces
world = ls.Communicator.mpi()
print(f"rank {world.rank} of {world.size} made {sys.argv[1]}", flush=True)
raise ValueError("at the end")
