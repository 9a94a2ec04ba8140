"""DistributedOptimizer: an optimizer of torch that uses the gradients of all ranks."""

from __future__ import annotations

import hashlib
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .._base import checks
from .._base.errors import Error
from .._torch.memory import bytes_of
from ._buckets import Bucket, Buckets, Named, partition
from ._compression import Compression
from ._objects import allgather_object
from ._session import Session, session
from ._tensors import Average, ReduceOp, Sum, check_process_set, check_tensor, op_of

STEPS_BETWEEN_COMPARISONS = 512


@dataclass(frozen=True)
class Options:
    """Options of a DistributedOptimizer, which documents them."""

    compression: Any
    reduce: ReduceOp
    predivide: float
    passes: int
    sparse_as_dense: bool


class Gradients:
    """The processing of one optimizer's gradients between a backward pass and a step."""

    def __init__(self, job: Session, options: Options, named: list[Named], groups: Any) -> None:
        """Collective, with the same arguments on all ranks.

        Args:
          named: all of the optimizer's parameters.
          groups: as for DistributedOptimizer.
        """
        self.job, self.options, self.passes = job, options, options.passes
        self._known = {parameter: name for name, parameter in named}
        self._buckets: list[Buckets] = []
        self._names: dict[torch.Tensor, str] = {}
        self._places: dict[torch.Tensor, tuple[Buckets, Bucket, torch.Tensor]] = {}
        self._passes_done: dict[torch.Tensor, int] = {}
        self.synchronized = False
        self.is_skipped = False
        self._steps = 0
        self._add_buckets([(name, parameter) for name, parameter in named if parameter.requires_grad], groups)

    def _add_buckets(self, named: list[Named], groups: Any) -> None:
        for _, parameter in named:
            check_tensor("DistributedOptimizer", parameter)
        options, parts = self.options, partition(named, groups)
        _compare(named, parts, options)
        added = Buckets(self.job, parts, options.compression.dtype, options.reduce, options.predivide)
        self._buckets.append(added)
        for bucket in added.all:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                self._places[parameter] = (added, bucket, view)
        for name, parameter in named:
            self._names[parameter] = name
            self._passes_done[parameter] = 0
            parameter.register_post_accumulate_grad_hook(self._hook())

    def adopt(self, groups: list[dict[str, Any]]) -> None:
        """Reduces parameters that were added to the optimizer later: those of added groups, and those that now require
        a gradient. Collective if there are any. All ranks must add them in the same step."""
        named = [
            (self._known.get(parameter, f"parameter {place} of group {number}"), parameter)
            for number, group in enumerate(groups)
            for place, parameter in enumerate(group["params"])
            if parameter.requires_grad and parameter not in self._names
        ]
        if named:
            self._add_buckets(named, None)

    def compare_replicas(self) -> None:
        """Compares the parameters of all ranks bitwise, after the first step and then after each 512 steps. Collective.

        Raises:
          Error: names the first parameter that differs, and the ranks.
        """
        self._steps += 1
        if self._steps % STEPS_BETWEEN_COMPARISONS != 1:
            return
        digests = {
            name: hashlib.blake2b(bytes_of(parameter.detach().contiguous()), digest_size=16).hexdigest()
            for parameter, name in self._names.items()
        }
        # Of ranks that have not joined.
        everyones = allgather_object((self.job.world.rank, digests), "DistributedOptimizer's replicas")
        first, expected = everyones[0]
        for rank, others in everyones:
            for name, digest in expected.items():
                if others[name] != digest:
                    raise Error(
                        f"hvd.DistributedOptimizer: {name} of rank {rank} differs from that of rank {first} in step {self._steps}; "
                        "hvd.broadcast_parameters makes them equal, and other code that changes parameters must "
                        "do so on every rank"
                    )

    def _hook(self) -> Callable[[torch.Tensor], None]:
        # Parameters outlive optimizers, so a hook holds only a weak reference.
        this = weakref.ref(self)

        def hook(parameter: torch.Tensor) -> None:
            gradients = this()
            if gradients is not None:
                gradients._add(parameter)

        return hook

    def _add(self, parameter: torch.Tensor) -> None:
        """Called on autograd's thread when a backward pass has added to a parameter's gradient."""
        with self.job.lock:
            if self._passes_done[parameter] == self.passes:
                raise Error(
                    f"the gradient of {self._names[parameter]!r} was computed more than backward_passes_per_step = {self.passes} "
                    "times before step() or synchronize()"
                )
            buckets, bucket, view = self._places[parameter]
            self._move(parameter, view)
            self._passes_done[parameter] += 1
            if self._passes_done[parameter] == self.passes:
                buckets.arrived(bucket)

    def _move(self, parameter: torch.Tensor, view: torch.Tensor) -> None:
        """Moves the gradient to its bucket, where later passes add to it."""
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
        elif gradient is view:
            return
        else:
            if gradient.is_sparse:
                if not self.options.sparse_as_dense:
                    raise Error(
                        f"the gradient of {self._names[parameter]!r} is sparse; sparse_as_dense=True reduces it as a dense one"
                    )
                gradient = gradient.to_dense()
            with torch.no_grad():
                view.copy_(gradient)
        parameter.grad = view

    def synchronize(self) -> None:
        with self.job.lock:
            # Other ranks may have gradients that this rank does not have. Those count as zero here.
            for parameter, (_, _, view) in self._places.items():
                if self._passes_done[parameter] < self.passes:
                    self._move(parameter, view)
            for buckets in self._buckets:
                buckets.start_rest()
            for buckets in self._buckets:
                self.job.finish(self.job.start(buckets.step()))
            self._passes_done = dict.fromkeys(self._passes_done, 0)
        self.synchronized = True

    def restart(self) -> None:
        """Forgets passes whose gradients have not been reduced. Waits for reductions that have started."""
        if self.is_pending():
            self.synchronize()
        self.synchronized = self.is_skipped = False

    def is_pending(self) -> bool:
        """True if there was a backward pass since the last synchronization."""
        return any(self._passes_done.values())


class _Methods:
    """The methods that a distributed optimizer overrides. They come before those of the optimizer's own class."""

    param_groups: list[dict[str, Any]]
    _gradients: Gradients | None  # None if there is only one rank

    def synchronize(self) -> None:
        """Waits until all gradients are reduced. A step() in `skip_synchronize()` then uses them unchanged."""
        if self._gradients is not None:
            self._gradients.adopt(self.param_groups)
            self._gradients.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Lets step() use the gradients as they are, after `synchronize()` and possible changes."""
        if self._gradients is None:
            yield
            return
        self._gradients.is_skipped = True
        try:
            yield
        finally:
            self._gradients.is_skipped = False

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        self._opt_called = True  # for schedulers
        gradients = self._gradients
        if gradients is None:
            return super().step(closure)  # type: ignore[misc]
        result = self._reduced_step(gradients, closure)
        gradients.compare_replicas()
        return result

    step.hooked = True  # type: ignore[attr-defined]  (torch's hooks are called by the own class' step, and not once more here)
    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  (a scheduler leaves it as it is)

    def _reduced_step(self, gradients: Gradients, closure: Callable[[], Any] | None) -> Any:
        if closure is not None:

            def reduced() -> Any:
                with torch.enable_grad():
                    loss = closure()
                self.synchronize()
                return loss

            return super().step(reduced)  # type: ignore[misc]
        if not gradients.is_skipped:
            if gradients.synchronized:
                warnings.warn(
                    "step() after synchronize() and outside of skip_synchronize() reduces the gradients again",
                    stacklevel=2,
                )
            self.synchronize()
        gradients.synchronized = False
        return super().step()  # type: ignore[misc]

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        if self._gradients is not None and self._gradients.is_pending():
            raise Error("zero_grad() after a backward pass and before step() or synchronize() would lose its gradients")
        super().zero_grad(*arguments, **options)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number from the next backward pass on. Call between steps."""
        passes = checks.integer("set_backward_passes_per_step: passes", passes, 1)
        if self._gradients is not None:
            if self._gradients.is_pending():
                raise Error("set_backward_passes_per_step: there was a backward pass since the last step")
            self._gradients.passes = passes

    def load_state_dict(self, *arguments: Any, **options: Any) -> None:
        if self._gradients is not None:
            self._gradients.restart()
        super().load_state_dict(*arguments, **options)  # type: ignore[misc]


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
) -> Any:
    """Returns the optimizer itself, whose step() then uses the gradients of all ranks. Collective.

    Gradients are stored in buckets of registered memory: `parameter.grad` is a view of a bucket, which is reduced in
    place. The reduction of a bucket starts when the backward pass has computed its gradients and those of the buckets
    before it, in the same order on all ranks. A parameter without a gradient counts as zero. Parameters that are added
    later, by `add_param_group` or because they require a gradient, are reduced from the next step on. In the first step
    and then in each 512th, ranks compare their parameters.

    Args:
      optimizer: of torch. Its class becomes a subclass of its class, so that its users, such as a scheduler, keep
        working.
      named_parameters: `model.named_parameters()`: names for messages, and the order of buckets. It has all parameters
        of the optimizer.
      compression: of gradients in transit.
      backward_passes_per_step: the number of passes whose gradients are summed before they are reduced, as in Horovod.
      op: Average or Sum.
      gradient_predivide_factor: with Average, gradients are divided by it before the sum and multiplied by it after.
      num_groups: the old name of `groups`.
      groups: a number of buckets, or a list of lists of parameters, each of which is a bucket. Each other parameter is
        a bucket of its own. None makes buckets of HOROVOD_FUSION_THRESHOLD bytes, 16 MiB by default.
      sparse_as_dense: reduce sparse gradients as dense ones. Otherwise they are an Error.
      process_set: not supported.

    Raises:
      Error: an argument is invalid; the optimizer is already distributed; or ranks have different parameters or
        options, of which the message has the first.
    """
    check_process_set("DistributedOptimizer", process_set)
    checks.instance("hvd.DistributedOptimizer: optimizer", optimizer, torch.optim.Optimizer, "one of torch.optim")
    if isinstance(optimizer, _Methods):
        raise Error("hvd.DistributedOptimizer: the optimizer is already distributed")
    reduce = op_of("DistributedOptimizer", op)
    if reduce not in (Average, Sum):
        raise Error(f"hvd.DistributedOptimizer: op is {reduce!r}, expected hvd.Average or hvd.Sum")
    predivide = checks.positive("hvd.DistributedOptimizer: gradient_predivide_factor", gradient_predivide_factor)
    if predivide != 1 and reduce is not Average:
        raise Error("hvd.DistributedOptimizer: gradient_predivide_factor needs op=hvd.Average")
    passes = checks.integer("hvd.DistributedOptimizer: backward_passes_per_step", backward_passes_per_step, 1)
    options = Options(compression, reduce, predivide, passes, checks.flag("sparse_as_dense", sparse_as_dense))
    named = _named(optimizer, named_parameters)
    job = session()
    gradients = None
    if job.world.size > 1:
        gradients = Gradients(job, options, named, groups if groups is not None else num_groups)
    own = type(optimizer)
    optimizer.__class__ = type(own.__name__, (_Methods, own), {"__module__": own.__module__})
    optimizer.__dict__.pop("step", None)  # a scheduler's wrapper, which would bypass this class
    optimizer._gradients = gradients  # type: ignore[attr-defined]
    return optimizer


def _named(optimizer: torch.optim.Optimizer, named_parameters: Any) -> list[Named]:
    """Returns the optimizer's parameters, in the order of their names."""
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if named_parameters is None:
        named = [(f"parameter {i}", parameter) for i, parameter in enumerate(own)]
    else:
        named = list(named_parameters)
        if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
            raise Error("hvd.DistributedOptimizer: named_parameters: expected pairs, as of model.named_parameters()")
    names = [name for name, _ in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Error(f"hvd.DistributedOptimizer: named_parameters has {', '.join(twice)} twice")
    known = {id(parameter) for _, parameter in named}
    if missing := sum(id(parameter) not in known for parameter in own):
        raise Error(f"hvd.DistributedOptimizer: {missing} of the optimizer's parameters are not in named_parameters")
    owned = {id(parameter) for parameter in own}
    return [(name, parameter) for name, parameter in named if id(parameter) in owned]


def _compare(named: list[Named], parts: list[list[Named]], options: Options) -> None:
    """Compares the parameters and options of ranks. If they differ, all ranks raise an Error."""
    lines = [f"parameter {name} {parameter.dtype} {list(parameter.shape)}" for name, parameter in named]
    lines += [f"op {options.reduce}", f"gradient_predivide_factor {options.predivide}"]
    lines += [f"backward_passes_per_step {options.passes}", f"compression {options.compression.__name__}"]
    lines += [f"buckets {[len(part) for part in parts]}"]
    digests = allgather_object(hashlib.sha256("\n".join(lines).encode()).hexdigest(), "DistributedOptimizer")
    if len(set(digests)) == 1:
        return
    everyones = allgather_object(lines, "DistributedOptimizer's parameters")
    for rank, others in enumerate(everyones):
        for i in range(max(len(lines), len(everyones[0]), len(others))):
            first, other = (each[i] if i < len(each) else "nothing" for each in (everyones[0], others))
            if first != other:
                raise Error(f"hvd.DistributedOptimizer: rank 0 has {first}, rank {rank} has {other}")
