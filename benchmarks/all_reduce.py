"""Measures all_reduce of f32 sums of 4 KiB to 100 MiB: Lockstep, MPI_Allreduce and gloo, on two ranks of this machine.

benchmarks/all_reduce_bench.cc runs the first two in alternation, call by call. torch.distributed, over gloo and over
lockstep.torch_distributed, runs between its rounds, in the same way: several buffers, written again before each call;
the time of the slowest rank from a barrier; medians. Ours are in memory of the communicator, the others' anywhere.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contestant import ENVIRONMENT, free_port

ROOT = Path(__file__).resolve().parents[1]
SIZES = [
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    64 << 20,
    100 << 20,
]  # as in all_reduce_bench.cc
ROTATED = 256 << 20


def torch_worker(backend: str, seconds: float) -> None:
    import torch
    import torch.distributed as dist

    if backend == "lockstep":
        import lockstep.torch_distributed  # noqa: F401

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group(backend, rank=rank, world_size=ranks)
    for size in SIZES:
        buffers = [torch.empty(size // 4) for _ in range(max(2, min(16, ROTATED // size)))]
        times: list[float] = []
        deadline = time.perf_counter() + seconds
        keep_on = torch.ones(1)
        while keep_on.item() and len(times) < 2000:
            buffer = buffers[len(times) % len(buffers)]
            buffer.fill_(float(rank + len(times)))
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(buffer)
            slowest = torch.tensor([time.perf_counter() - start])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            times.append(slowest.item())
            keep_on = torch.tensor([float(time.perf_counter() < deadline or len(times) < 5)])
            dist.broadcast(keep_on, 0)
        if rank == 0:
            print(json.dumps({"bytes": size, f"{backend}_ms": 1e3 * statistics.median(times)}), flush=True)
    dist.destroy_process_group()


def mpirun(ranks: int, *command: str | Path) -> str:
    environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(free_port())}
    return subprocess.run(
        ["mpirun", "-np", str(ranks), *map(str, command)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def one_round(ranks: int, seconds: float) -> list[dict[str, Any]]:
    ours = json.loads(mpirun(ranks, ROOT / "bazel-bin/benchmarks/all_reduce_bench", "--json", f"--seconds={seconds}"))
    rows = ours["rows"] if isinstance(ours, dict) else ours
    gloo, lockstep = ([*_torch_rows(ranks, backend, seconds)] for backend in ("gloo", "lockstep"))
    return [{**row, **one, **other} for row, one, other in zip(rows, gloo, lockstep, strict=True)]


def _torch_rows(ranks: int, backend: str, seconds: float) -> Iterator[dict[str, Any]]:
    printed = mpirun(ranks, sys.executable, __file__, "--torch-worker", backend, "--seconds", str(seconds))
    return (json.loads(line) for line in printed.splitlines() if line.startswith("{"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds for each size and contestant in a round")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/all_reduce.json")
    parser.add_argument("--torch-worker", metavar="BACKEND", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch_worker:
        return torch_worker(arguments.torch_worker, arguments.seconds)
    if importlib.util.find_spec("torch") is None:
        sys.exit(
            "benchmarks/all_reduce.py compares with gloo of PyTorch, which is not installed: .venv/bin/pip install torch==2.13.0"
        )
    rounds = [one_round(arguments.ranks, arguments.seconds) for _ in range(arguments.rounds)]
    rows = []
    names = {"ours_ms": "Lockstep", "mpi_ms": "MPI_Allreduce", "lockstep_ms": "by torch", "gloo_ms": "gloo by torch"}
    print(
        f"{'bytes':>10}",
        *(f"{name:>16}" for name in names.values()),
        f"{'against MPI':>12} {'by torch, against gloo':>23}",
    )
    for same_size in zip(*rounds, strict=True):
        row = {
            "bytes": same_size[0]["bytes"],
            **{name: statistics.median(row[name] for row in same_size) for name in names},
            "against_mpi": statistics.median(r["mpi_ms"] / r["ours_ms"] for r in same_size),
            "against_gloo": statistics.median(r["gloo_ms"] / r["lockstep_ms"] for r in same_size),
        }
        rows.append(row)
        times = (f"{row[name]:13.4f} ms" for name in names)
        print(f"{row['bytes']:10}", *times, f"{row['against_mpi']:11.2f}x {row['against_gloo']:22.2f}x")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"ranks": arguments.ranks, "rows": rows}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
