"""Training programs of accelerate, transformers' Trainer and Lightning, on two ranks, over gloo and over this backend.

    python test/torch_distributed/libraries.py                   # all three
    python test/torch_distributed/libraries.py lightning         # one of them

Each is written as for gloo, but for the lines that name the backend. Compares losses, metrics and weights bit for bit,
as sums over two ranks have one order, and prints a line for each library. Exits with 1 if one differs, fails or is not
installed. Models are tiny and data are random: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEEDS = {
    "accelerate": ("accelerate",),
    "trainer": ("transformers", "accelerate"),
    "lightning": ("lightning",),
}
RANKS = 2
Results = dict[str, Any]


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )


def samples() -> Any:
    """Returns random samples with labels. Their number is not divisible by batches of all ranks."""
    import torch

    made = torch.Generator().manual_seed(1)
    return torch.utils.data.TensorDataset(torch.randn(54, 8, generator=made), torch.randint(4, (54,), generator=made))


def train_with_accelerate(backend: str, folder: Path) -> Results:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import broadcast_object_list, gather_object

    torch.distributed.init_process_group(backend)  # on CPUs, accelerate itself makes a group of gloo, if there is none
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_dir=folder)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = torch.utils.data.DataLoader(samples(), 4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses, labels = [], []

    def epoch() -> None:
        for x, label in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), label)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean"))
            labels.append(accelerator.gather_for_metrics(label))

    epoch()
    accelerator.save_state(str(folder / "state"))
    epoch()
    accelerator.load_state(str(folder / "state"))
    epoch()
    ranks = gather_object([accelerator.process_index])
    word = ["from rank 0" if accelerator.is_main_process else None]
    broadcast_object_list(word)
    assert ranks == [*range(RANKS)] and word == ["from rank 0"], (ranks, word)
    padded = accelerator.gather(
        accelerator.pad_across_processes(torch.full((accelerator.process_index + 1,), 7.0), pad_index=-1.0)
    )
    accelerator.wait_for_everyone()
    return {
        "losses": losses,
        "labels": labels,
        "padded": padded,
        "weights": accelerator.unwrap_model(model).state_dict(),
    }


def train_with_trainer(backend: str, folder: Path) -> Results:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.distributed.init_process_group(backend)  # ddp_backend=… would be refused: on CPUs accelerate knows gloo alone
    made = torch.Generator().manual_seed(1)
    tokens = torch.randint(64, (50, 16), generator=made)
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        str(folder), use_cpu=True, max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        eval_strategy="steps", eval_steps=4, save_steps=4, logging_steps=1, report_to=[], disable_tqdm=True, seed=3,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:21])
    trainer.train()
    history = [
        each[name] for each in trainer.state.log_history for name in ("loss", "grad_norm", "eval_loss") if name in each
    ]
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    predictions = trainer.predict(rows[:7]).predictions
    assert len(history) == 18, history
    return {"history": history, "predictions": torch.tensor(predictions), "weights": model.state_dict()}


def train_with_lightning(backend: str, folder: Path) -> Results:
    import lightning
    import torch
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.gathered: list[torch.Tensor] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            self.gathered.append(self.all_gather(loss.detach()))
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            self.log("validation", loss, sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), 1e-2)

    lightning.seed_everything(0, verbose=False)
    module = Module()
    best = ModelCheckpoint(folder, monitor="validation", save_top_k=1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=RANKS, strategy=DDPStrategy(process_group_backend=backend), max_epochs=3,
        sync_batchnorm=False, gradient_clip_val=1.0, callbacks=[best], logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    loaders = [torch.utils.data.DataLoader(samples(), 4, shuffle=shuffle) for shuffle in (True, False)]
    trainer.fit(module, *loaders)
    validated = trainer.validate(module, loaders[1], ckpt_path=best.best_model_path, verbose=False)
    assert trainer.world_size == RANKS
    return {
        "gathered": module.gathered, "validated": validated[0]["validation"], "best": best.best_model_score,
        "weights": module.state_dict(),
    }  # fmt: skip


TRAIN: dict[str, Callable[[str, Path], Results]] = {
    "accelerate": train_with_accelerate,
    "trainer": train_with_trainer,
    "lightning": train_with_lightning,
}


def run_rank(library: str, backend: str, folder: Path) -> None:
    """Trains on this rank, and saves the results."""
    import torch

    if backend == "lockstep":
        import lockstep.torch_distributed  # noqa: F401
    results = TRAIN[library](backend, folder)
    assert torch.distributed.get_backend() == backend and torch.distributed.get_world_size() == RANKS
    torch.save(results, folder / f"results.{torch.distributed.get_rank()}")
    torch.distributed.destroy_process_group()


def results_of(library: str, backend: str) -> list[Results]:
    """Returns the results of each rank. Raises a RuntimeError with what was printed if a rank fails."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        command = [sys.executable, "-m", *launch, __file__, "--on", backend, "--folder", folder, library]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"fails over {backend}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
        return [torch.load(Path(folder) / f"results.{rank}") for rank in range(RANKS)]


def numbers_of(results: Any, name: str) -> Results:
    """Returns the tensors and numbers of nested lists and dictionaries by their names."""
    if not isinstance(results, (dict, list)):
        return {name: results}
    items = results.items() if isinstance(results, dict) else enumerate(results)
    return {path: number for key, each in items for path, number in numbers_of(each, f"{name}/{key}").items()}


def compare(library: str) -> str:
    """Trains over both backends. Returns what was compared. Raises a RuntimeError if something differs or fails."""
    import torch

    ours, theirs = (numbers_of(results_of(library, backend), library) for backend in ("lockstep", "gloo"))
    if ours.keys() != theirs.keys():
        raise RuntimeError(f"has other results than over gloo: {sorted(ours.keys() ^ theirs.keys())}")
    different = [
        name for name, number in ours.items() if not torch.equal(*map(torch.as_tensor, (number, theirs[name])))
    ]
    if different:
        raise RuntimeError(f"has other bits than over gloo in {len(different)} of {len(ours)}: {', '.join(different)}")
    return f"{len(ours)} tensors and numbers of {RANKS} ranks have the bits that they have over gloo"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(TRAIN)} (default: all)")
    parser.add_argument("--on", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if unknown := set(arguments.libraries) - TRAIN.keys():
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(TRAIN)}")
    if arguments.on:
        run_rank(arguments.libraries[0], arguments.on, arguments.folder)
        return 0
    failed = 0
    for library in arguments.libraries or TRAIN:
        missing = [name for name in ("torch", *NEEDS[library]) if importlib.util.find_spec(name) is None]
        try:
            if missing:
                raise RuntimeError(f"needs pip install {' '.join(missing)}")
            outcome = compare(library)
        except RuntimeError as error:
            failed, outcome = 1, str(error)
        versions = [f"{name} {importlib.metadata.version(name)}" for name in NEEDS[library] if name not in missing]
        print(f"{', '.join(versions) or library}: {outcome}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
