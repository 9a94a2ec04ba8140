"""Metadata of an exported file: notes and facts about the module that the graph keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._base.errors import listed
from .check import Traced

if TYPE_CHECKING:
    import torch


def write_metadata(
    program: torch.onnx.ONNXProgram,
    module: torch.nn.Module,
    traced: Traced,
    generators: list[str],
    second_names: Mapping[str, str],
    statistics: set[str],
) -> list[str]:
    """Writes notes and facts about the module into the exported program. Returns the notes that the caller shows as warnings."""
    name, metadata = type(module).__name__, program.model.metadata_props
    warned = [f"{what}: it stays {value}" for what, value in traced.changed.items()]
    if generators:
        warned.append(
            f"{name} draws from {' and '.join(generators)} in forward, and the graph keeps the numbers of this export; draw with "
            "torch, or give the numbers as an input"
        )
    notes = list(warned)
    if traced.drawn:
        metadata["lockstep.drawn_in_training"] = draws = (
            f"{name} draws random numbers in training mode ({', '.join(traced.drawn)})"
        )
        notes.append(f"{draws}, which evaluations and predictions draw too; import it in eval() mode for these")
    if traced.idle_dropout:
        metadata["lockstep.idle_dropout"] = (
            f"{name} was imported in evaluation mode, and its dropout ({', '.join(traced.idle_dropout)})"
        )
    moving = {
        each for each in statistics if module.training and each.rpartition(".")[2] in ("running_mean", "running_var")
    }
    still = moving - program.model.graph.initializers.keys()
    if still:
        notes.append(f"no result depends on {listed(still)}, which do not move as in PyTorch")
    if second_names:
        metadata["lockstep.second_names"] = json.dumps(second_names)
    for i, note in enumerate(notes):
        metadata[f"lockstep.note.{i}"] = note
    return warned
