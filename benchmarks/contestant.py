"""One contestant of a benchmark: processes that train a model in one of several ways, a round of steps per command."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import worker

if TYPE_CHECKING:
    from hosts import Hosts

ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}

# The program of a worker, by the beginning of the contestant's name.
WORKERS = {
    "mxnet": "mxnet_worker.py",
    "pipeline": "pipeline_worker.py",
    "exchange": "exchange_worker.py",
    "": "worker.py",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Contestant:
    """The processes of one contestant, which run steps on command."""

    def __init__(
        self,
        name: str,
        model: str,
        ranks: int,
        threads: int,
        hosts: Hosts | None = None,
        rows: int = 0,
        mxnet: str = "",
        prefix: Sequence[str] = (),
    ) -> None:
        """
        Args:
          name: the contestant, as worker.py takes it.
          hosts: the hosts over which the ranks are spread evenly; None: this machine.
          rows: the rows of each rank; 0: the ranks share the network's batch.
          mxnet: the Python that has MXNet, for contestants that begin with "mxnet".
          prefix: the beginning of the command of each worker.
        """
        self._directory = tempfile.TemporaryDirectory()
        directory = Path(self._directory.name)
        for rank in range(ranks):
            os.mkfifo(directory / f"command.{rank}")
            os.mkfifo(directory / f"report.{rank}")
        program = next(program for begin, program in WORKERS.items() if name.startswith(begin))
        command = [
            *prefix,
            mxnet if name.startswith("mxnet") else sys.executable,
            str(Path(__file__).with_name(program)),
            name,
            model,
            str(directory),
            str(threads),
            str(rows),
        ]
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "OMP_NUM_THREADS": str(threads),
            "MASTER_PORT": str(free_port()),  # for PyTorch's ranks; several contestants run at once
        }
        if hosts is not None:
            environment |= {**hosts.environment(), "MASTER_ADDR": hosts.address(0), "GLOO_SOCKET_IFNAME": "eth0"}
            passed = ("PYTHONPATH", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
            options = [part for variable in passed for part in ("-x", variable)]
            command = hosts.command([ranks // len(hosts.names)] * len(hosts.names), *command, options=options)
        elif name == "store-async" or name.startswith("lockstep-served"):
            # Started as by `lockstep launch`, with a server for each worker.
            environment |= {"LOCKSTEP_WORKERS": str(ranks), "LOCKSTEP_SERVERS": str(ranks)}
            serve = [sys.executable, "-m", "lockstep", "serve"]
            command = ["mpirun", "--oversubscribe", "-np", str(ranks), *command, ":", "-np", str(ranks), *serve]
        elif ranks > 1:
            command = ["mpirun", "-np", str(ranks), *command]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        # Opened in the same order as in the workers; stop() closes them.
        self._commands = [open(directory / f"command.{rank}", "w", buffering=1) for rank in range(ranks)]  # noqa: SIM115
        self._reports = [open(directory / f"report.{rank}") for rank in range(ranks)]  # noqa: SIM115
        self.seconds: list[float] = []
        self.processor_seconds: list[float] = []  # of a step, all ranks together, for each round
        self.last: list[dict[str, Any]] = []

    def run(self, steps: int, keep: bool = True) -> float:
        """Runs a round. Returns the median of rank 0: all ranks take the same time, since they wait for each other."""
        for commands in self._commands:
            print(steps, file=commands)
        self.last = [json.loads(reports.readline()) for reports in self._reports]
        seconds = self.last[0]["seconds"]
        if keep:
            self.seconds += seconds
            self.processor_seconds.append(sum(report["processor_seconds"] for report in self.last))
        return statistics.median(seconds)

    def measured(self) -> dict[str, float]:
        """Returns the times of steps, and the memory that all ranks take together."""
        mib = {
            name: sum(report[f"{name}_bytes"] for report in self.last) / 2**20
            for name in ("peak", "value")
            if f"{name}_bytes" in self.last[0]
        }
        return {
            "ms": 1e3 * statistics.median(self.seconds),
            "processor_seconds": statistics.median(self.processor_seconds),
            **{f"{name}_mib": value for name, value in mib.items()},
            "compile_seconds": self.last[0]["compile_seconds"],
        }

    def stop(self) -> None:
        for commands in self._commands:
            print("stop", file=commands)
        self._process.wait(60)
        for pipe in [*self._commands, *self._reports]:
            pipe.close()
        self._directory.cleanup()


def links_ms(gradient_bytes: float, hosts: int, rate: str) -> float:
    """Returns the least time in ms in which links of that rate reduce gradients of so many bytes on all hosts. Each link
    carries 2 (hosts - 1) / hosts times the bytes in each direction."""
    from hosts import bits_per_second

    return 1e3 * 8 * gradient_bytes * 2 * (hosts - 1) / hosts / bits_per_second(rate)


def prepare(model: str) -> None:
    """Exports the model and its batch in a separate process, as the workers of Lockstep do not need torch."""
    model = worker.network_of(model)
    path = worker.model_path(model)
    if path.exists():
        return
    code = (
        f"import networks, numpy, pathlib; path = pathlib.Path({str(path)!r}); networks.export({model!r}, path);"
        f"[numpy.save(path.with_suffix('.' + name + '.npy'), value) for name, value in zip(('x', 'label'), networks.batch({model!r}))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent, stdout=subprocess.DEVNULL)


def require_pytorch() -> None:
    """Ends the program if PyTorch is not installed."""
    if missing := [name for name in ("torch", "onnxscript") if importlib.util.find_spec(name) is None]:
        sys.exit(
            f"{Path(sys.argv[0]).name} compares with PyTorch, and {' and '.join(missing)} is not installed: "
            ".venv/bin/pip install torch==2.13.0 onnxscript==0.7.2"
        )


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
