"""`--launcher kubernetes`: an MPIJob for Kubeflow's MPI operator, with pods for the workers and one for mpirun."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .._base.errors import Error
from .batch import launch_there
from .job import Job, Plan

_HOSTS = "/etc/mpi/hostfile"  # the operator's list of the workers' pods


def plan(job: Job, image: str) -> Plan:
    """
    Args:
      image: of all containers. It has the program, Lockstep, Open MPI and sshd.
    """
    text = "\n".join(_yaml(manifest(job, image))) + "\n"
    return Plan(file=f"lockstep-{job.name}.yaml", text=text)


def manifest(job: Job, image: str) -> dict[str, Any]:
    # Kubernetes replaces $(NAME), and turns $$ into $.
    launch = [word.replace("$", "$$") for word in launch_there(replace(job, python="python3"), _HOSTS)]
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": job.name},
        "spec": {
            "slotsPerWorker": 1,
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0},
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, {"name": "launcher", "image": image, "command": launch}),
                "Worker": _replicas(job.workers, {"name": "worker", "image": image}),  # the operator runs sshd in it
            },
        },
    }


def _replicas(count: int, container: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": count, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Yields the lines of a block."""
    items = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for key, each in items:
        head = indent + ("-" if key is None else f"{key}:")
        if not isinstance(each, dict | list):
            yield f"{head} {_scalar(each)}"
        elif key is None:
            first, *others = _yaml(each, indent + "  ")
            yield from (f"{head} {first.strip()}", *others)
        else:
            yield head
            yield from _yaml(each, indent + "  ")


def _scalar(value: str | int) -> str:
    """Returns a scalar as in JSON, so that YAML takes no text for another type.

    YAML does not read DEL, which is escaped, or surrogates, which are an Error."""
    text = json.dumps(value, ensure_ascii=False)
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise Error(f"{value!r} is not UTF-8, so it cannot be in a manifest")
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
