"""Modules with features that are not options, but that an import from PyTorch could lose: hooks, modes, shared storage,
draws.

Each is made by a function without arguments. Its `forward` takes no inputs and returns a loss.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune, rnn
from torch.utils.checkpoint import checkpoint

from torch_options import encoder_layer


class Small(nn.Module):
    """Two linear layers with weights, an input and a target of their own; `compute` is the computation with them."""

    def __init__(self, compute: Callable[[Any], torch.Tensor], **parts: Any) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.x, self.compute = nn.Parameter(torch.randn(4, 3)), compute
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self) -> torch.Tensor:
        return self.compute(self).square().mean()


def layers(m: Small) -> torch.Tensor:
    return m.second(torch.tanh(m.first(m.x)))


def changed(change: Callable[[Small], Any], compute: Callable[[Small], torch.Tensor] = layers, **parts: Any) -> Small:
    module = Small(compute, **parts)
    change(module)
    return module


def of_part(part: Callable[[], nn.Module], *inputs: torch.Tensor, evaluate: bool = False) -> Small:
    """Calls the part with the inputs; inputs of floats are parameters."""
    torch.manual_seed(6)
    made = part().train(not evaluate)
    stored = {f"given{place}": value for place, value in enumerate(inputs)}

    def compute(m: Small) -> torch.Tensor:
        results = m.part(*(getattr(m, name) for name in stored))
        while not isinstance(results, torch.Tensor):
            results = results[0]
        return results * torch.linspace(0.5, 2, results.shape[-1])  # squares of normalised values are all alike

    values = {
        name: nn.Parameter(value.clone()) if value.is_floating_point() else value for name, value in stored.items()
    }
    return Small(compute, part=made, **values)


# --- Hooks

MASK = torch.tensor([1.0, 0.0, 1.0])


def hooked_tensor(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    hidden.register_hook(lambda gradient: gradient * 0.5)
    return m.second(torch.tanh(hidden))


def halved(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return (inputs[0] * 0.5,)


def halve_parameter_gradient(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(0.5)


def embedding_with_masked_rows() -> Small:
    small = of_part(lambda: nn.Embedding(5, 3), torch.tensor([[1, 2, 0], [2, 4, 1]]))
    rows = torch.tensor([[1.0], [0.0], [1.0], [1.0], [0.0]])
    small.part.weight.register_hook(lambda gradient: gradient * rows)
    return small


HOOKS = {
    "a hook of a parameter": lambda: changed(lambda m: m.first.weight.register_hook(lambda gradient: gradient * MASK)),
    "a hook of a parameter after its gradient": lambda: changed(
        lambda m: m.first.weight.register_post_accumulate_grad_hook(halve_parameter_gradient)
    ),
    "a hook of a tensor in forward": lambda: Small(hooked_tensor),
    "a backward hook of a module": lambda: changed(lambda m: m.second.register_full_backward_hook(halved)),
    "a backward pre-hook of a module": lambda: changed(
        lambda m: m.second.register_full_backward_pre_hook(lambda module, gradients: (gradients[0] * 0.5,))
    ),
    "a forward hook": lambda: changed(
        lambda m: m.first.register_forward_hook(lambda module, given, result: 2 * result)
    ),
    "a forward pre-hook": lambda: changed(
        lambda m: m.first.register_forward_pre_hook(lambda module, given: (2 * given[0],))
    ),
    "rows of an embedding masked by a hook": embedding_with_masked_rows,
}

# --- Modes


def statistics(function: type[nn.Module], *shape: int, **options: Any) -> Callable[[], Small]:
    def make() -> Small:
        torch.manual_seed(7)
        small = of_part(lambda: function(3, **options), torch.randn(shape), evaluate=True)
        with torch.no_grad():
            small.part.running_mean.add_(torch.rand(3))
            small.part.running_var.add_(torch.rand(3))
        return small

    return make


def frozen(make: Callable[[], Small]) -> Small:
    small = make()
    small.part.requires_grad_(False)
    return small


def evaluated_inside(m: Small) -> torch.Tensor:
    m.part.eval()
    return m.part(m.first(m.x))


MODES = {
    "BatchNorm1d in evaluation mode": statistics(nn.BatchNorm1d, 4, 3),
    "BatchNorm2d in evaluation mode": statistics(nn.BatchNorm2d, 2, 3, 4, 4),
    "BatchNorm2d in evaluation mode, not affine": statistics(nn.BatchNorm2d, 2, 3, 4, 4, affine=False),
    "BatchNorm2d in evaluation mode, its parameters frozen": lambda: frozen(statistics(nn.BatchNorm2d, 2, 3, 4, 4)),
    "BatchNorm2d in training mode, its parameters frozen": lambda: frozen(
        lambda: of_part(lambda: nn.BatchNorm2d(3), torch.randn(2, 3, 4, 4))
    ),
    "InstanceNorm2d with statistics, in evaluation mode": statistics(
        nn.InstanceNorm2d, 2, 3, 4, 4, track_running_stats=True
    ),
    "BatchNorm1d that forward puts in evaluation mode": lambda: Small(evaluated_inside, part=nn.BatchNorm1d(3)),
    "a module in evaluation mode": lambda: Small(layers).eval(),
}

# --- Parameters that share memory


def overlapping(transposed: bool = False, whole: bool = False) -> Small:
    torch.manual_seed(8)
    storage = torch.randn(12)
    first = nn.Parameter(storage[:9].view(3, 3))
    second = nn.Parameter(first.data.t() if transposed else first.data if whole else storage[3:].view(3, 3))
    return Small(lambda m: torch.tanh(m.x @ m.a) @ m.b, a=first, b=second)


def tied(m: Small) -> None:
    m.second.weight = m.first.weight


SHARED = {
    "a parameter under two names": lambda: changed(tied),
    "two parameters of one storage": lambda: overlapping(whole=True),
    "two parameters whose views overlap": overlapping,
    "a parameter and its transpose of one storage": lambda: overlapping(transposed=True),
    "a parameter that is a transposed view": lambda: Small(
        lambda m: m.x @ m.a, a=nn.Parameter(torch.arange(9.0).view(3, 3).t() / 9)
    ),
}

# --- Values without gradient, and custom gradients


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


def without_grad(m: Small) -> torch.Tensor:
    with torch.no_grad():
        hidden = m.first(m.x)
    return m.second(hidden) + m.x


def in_inference_mode(m: Small) -> torch.Tensor:
    with torch.inference_mode():
        hidden = m.first(m.x)
    return m.second(m.x) + hidden


def switched(m: Small) -> torch.Tensor:
    with torch.set_grad_enabled(False):
        hidden = m.first(m.x)
    return m.second(hidden) + m.x


@torch.no_grad()
def decorated(m: Small) -> torch.Tensor:
    return m.first(m.x)


def straight_through(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    return m.second(hidden + (torch.round(hidden) - hidden).detach())


def penalty(m: Small) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(layers(m).sum(), m.x, create_graph=True)
    return gradient


# torch.autocast is not a case: the file has its casts, but 16-bit results are rounded too differently to compare.


def inner_requires(m: Small) -> torch.Tensor:
    hidden = m.first(m.x).detach().requires_grad_()
    return m.second(hidden) + m.x


GRADIENTS = {
    "detach()": lambda: Small(lambda m: m.second(m.first(m.x).detach()) + m.x),
    "detach() of a parameter": lambda: Small(lambda m: F.linear(m.first(m.x), m.second.weight.detach(), m.second.bias)),
    "detach_()": lambda: Small(lambda m: m.second(m.first(m.x).detach_()) + m.x),
    ".data of a value": lambda: Small(lambda m: m.second(m.first(m.x).data) + m.x),
    ".data of a parameter": lambda: Small(lambda m: F.linear(m.first(m.x), m.second.weight.data, m.second.bias)),
    "no_grad()": lambda: Small(without_grad),
    "no_grad() as a decorator": lambda: Small(lambda m: m.second(decorated(m)) + m.x),
    "set_grad_enabled(False)": lambda: Small(switched),
    "inference_mode()": lambda: Small(in_inference_mode),
    "detach().requires_grad_()": lambda: Small(inner_requires),
    "item() of a value": lambda: Small(lambda m: layers(m) * m.x.abs().max().item()),
    "tensor() of a value": lambda: Small(lambda m: layers(m) * torch.tensor(m.x.abs().max().item())),
    "tolist() of a value": lambda: Small(lambda m: layers(m) * m.x.abs().max(0).values.tolist()[0]),
    "numpy() of a value": lambda: Small(lambda m: layers(m) * torch.from_numpy(m.x.detach().numpy() + 1)),
    "a straight-through estimator": lambda: Small(straight_through),
    "an autograd.Function": lambda: Small(lambda m: m.second(Reversed.apply(m.first(m.x)))),
    "a gradient in forward": lambda: Small(penalty),
    "a checkpoint": lambda: Small(lambda m: m.second(checkpoint(m.first, m.x, use_reentrant=False))),
    "a reentrant checkpoint": lambda: Small(lambda m: m.second(checkpoint(m.first, m.x, use_reentrant=True))),
    "a parameter in f64": lambda: Small(
        lambda m: (m.x.double() @ m.a).float(), a=nn.Parameter(torch.ones(3, 3).double())
    ),
    "a parameter in f16": lambda: Small(lambda m: m.x @ m.a.float(), a=nn.Parameter(torch.ones(3, 3).half() / 2)),
    "a parameter in bf16": lambda: Small(lambda m: m.x @ m.a.float(), a=nn.Parameter(torch.ones(3, 3).bfloat16() / 2)),
    "a complex parameter": lambda: Small(
        lambda m: (m.x.to(torch.complex64) @ m.a).abs(), a=nn.Parameter(torch.ones(3, 3, dtype=torch.complex64))
    ),
}

# --- Weights computed from other weights


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).transpose(0, 1)


def quietly(change: Callable[[nn.Module], Any]) -> Callable[[Small], None]:
    def quiet(m: Small) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            change(m.first)

    return quiet


def spectral_in_evaluation() -> Small:
    return changed(quietly(parametrizations.spectral_norm)).eval()


WEIGHTS = {
    "weight_norm": lambda: changed(quietly(parametrizations.weight_norm)),
    "weight_norm of all dimensions": lambda: changed(
        quietly(lambda part: parametrizations.weight_norm(part, dim=None))
    ),
    "the older weight_norm": lambda: changed(quietly(nn.utils.weight_norm)),
    "spectral_norm": lambda: changed(quietly(parametrizations.spectral_norm)),
    "spectral_norm in evaluation mode": spectral_in_evaluation,
    "the older spectral_norm": lambda: changed(quietly(nn.utils.spectral_norm)),
    "the older spectral_norm in evaluation mode": lambda: changed(quietly(nn.utils.spectral_norm)).eval(),
    "orthogonal": lambda: changed(quietly(parametrizations.orthogonal)),
    "orthogonal by the Cayley map": lambda: changed(
        quietly(lambda part: parametrizations.orthogonal(part, orthogonal_map="cayley"))
    ),
    "a parametrization of one's own": lambda: changed(
        lambda m: parametrize.register_parametrization(m.first, "weight", Symmetric())
    ),
    "pruned": lambda: changed(lambda m: prune.random_unstructured(m.first, "weight", 0.5)),
}

# --- State that forward changes


def counted(m: Small) -> torch.Tensor:
    m.count += 1
    return layers(m) * m.count


def averaged(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    with torch.no_grad():
        m.mean.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
    return m.second(hidden - m.mean)


def overwritten(m: Small) -> torch.Tensor:
    with torch.no_grad():
        m.second.weight.mul_(0.9)
    return layers(m)


def through_data(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    hidden.data.mul_(2)
    return m.second(hidden) + m.x


def through_detach(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    hidden.view(-1).detach()[3:6] = 1
    return m.second(hidden) + m.x


def of_what_is_detached(m: Small) -> torch.Tensor:
    hidden = m.first(m.x).detach()
    hidden *= 2
    hidden.view(-1)[3:6] = 1
    return m.second(hidden) + m.x


def of_what_is_copied(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    return m.second(hidden) + hidden.detach().clone().mul_(2) + hidden.detach().double().mul_(3).float()


def in_no_grad(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    with torch.no_grad():
        hidden.mul_(2)
    return m.second(hidden) + m.x


def of_a_view_in_no_grad(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    with torch.no_grad():
        hidden[:, 0].mul_(2)
    return m.second(hidden) + m.x


def of_what_no_grad_makes(m: Small) -> torch.Tensor:
    with torch.no_grad():
        hidden = m.first(m.x)
        hidden.mul_(2)
    return m.second(hidden) + m.x


def with_assigned_data(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    hidden.data = hidden * 2
    return m.second(hidden) + m.x


def clamped(m: Small) -> torch.Tensor:
    m.second.weight.data.clamp_(-0.1, 0.1)
    return layers(m)


def assigned(m: Small) -> torch.Tensor:
    hidden = m.first(m.x)
    hidden[:, 0] = m.second(m.x)[:, 1] * 2
    hidden.view(-1)[3:6] += 1
    return hidden.masked_fill_(hidden > 1, 0.5)


def counting(m: Small) -> torch.Tensor:
    m.calls = getattr(m, "calls", 0) + 1
    return layers(m) * m.calls


CHANGES = {
    "a buffer that counts": lambda: Small(counted, count=torch.zeros(())),
    "a buffer that averages": lambda: Small(averaged, mean=torch.zeros(3)),
    "a parameter that forward overwrites": lambda: Small(overwritten),
    "a parameter whose .data forward clamps": lambda: Small(clamped),
    "a change in place of what is detached": lambda: Small(of_what_is_detached),
    "a change in place of a copy of what is detached": lambda: Small(of_what_is_copied),
    "a change in place of what no_grad() makes": lambda: Small(of_what_no_grad_makes),
    "a change in place through .data": lambda: Small(through_data),
    "a change in place through detach()": lambda: Small(through_detach),
    "a change in place in no_grad()": lambda: Small(in_no_grad),
    "a change in place of a view in no_grad()": lambda: Small(of_a_view_in_no_grad),
    ".data that is assigned": lambda: Small(with_assigned_data),
    "an attribute that counts calls": lambda: Small(counting),
    "assignment to views": lambda: Small(assigned),
}

# --- Sequences of different lengths

LENGTHS = torch.tensor([4, 2])


def packed(function: type[nn.Module], enforce_sorted: bool = True) -> Callable[[], Small]:
    def compute(m: Small) -> torch.Tensor:
        sequence = rnn.pack_padded_sequence(m.given, LENGTHS, enforce_sorted=enforce_sorted)
        return rnn.pad_packed_sequence(m.part(sequence)[0])[0]

    return lambda: Small(compute, part=function(3, 5), given=nn.Parameter(torch.randn(4, 2, 3)))


SEQUENCES = {
    "packed sequences of an LSTM": packed(nn.LSTM),
    "packed sequences of a GRU": packed(nn.GRU, enforce_sorted=False),
}

SPECIALS = {**HOOKS, **MODES, **SHARED, **GRADIENTS, **WEIGHTS, **CHANGES, **SEQUENCES}

# --- Draws: their loss differs between calls

LONG, SEQUENCE = torch.randn(6, 2, 3), torch.ones(5, 2, 4)


def picked(m: Small) -> torch.Tensor:
    rows = torch.multinomial(torch.tensor([0.1, 0.2, 0.3, 0.4]), 2, replacement=True)
    return layers(m)[rows]


def picked_once(m: Small) -> torch.Tensor:
    return layers(m)[torch.multinomial(torch.tensor([0.1, 0.2, 0.3, 0.4]), 2)]


def attended(m: Small) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        m.x[None, None], m.first(m.x)[None, None], layers(m)[None, None], dropout_p=0.5
    )


DRAWN: dict[str, Callable[[], Small]] = {
    "LSTM(dropout=0.5)": lambda: of_part(lambda: nn.LSTM(3, 4, 2, dropout=0.5), LONG),
    "GRU(dropout=0.5)": lambda: of_part(lambda: nn.GRU(3, 4, 2, dropout=0.5), LONG),
    "RNN(dropout=0.5)": lambda: of_part(lambda: nn.RNN(3, 4, 2, dropout=0.5), LONG),
    "MultiheadAttention(dropout=0.5)": lambda: of_part(
        lambda: nn.MultiheadAttention(4, 2, dropout=0.5), *[SEQUENCE] * 3
    ),
    "TransformerEncoderLayer(dropout=0.5)": lambda: of_part(lambda: encoder_layer(dropout=0.5), SEQUENCE),
    "TransformerDecoderLayer(dropout=0.5)": lambda: of_part(
        lambda: nn.TransformerDecoderLayer(4, 2, 6, dropout=0.5), SEQUENCE, SEQUENCE
    ),
    "Transformer(dropout=0.5)": lambda: of_part(lambda: nn.Transformer(4, 2, 1, 1, 6, dropout=0.5), SEQUENCE, SEQUENCE),
    "F.scaled_dot_product_attention(dropout_p=0.5)": lambda: Small(attended),
    "F.dropout(training=True) in evaluation mode": lambda: Small(lambda m: F.dropout(layers(m), 0.5, True)).eval(),
    "F.dropout2d(training=True) in evaluation mode": lambda: Small(
        lambda m: F.dropout2d(layers(m)[None], 0.5, True)
    ).eval(),
    "F.alpha_dropout(training=True)": lambda: Small(lambda m: F.alpha_dropout(layers(m), 0.5, True)),
    "F.rrelu(training=True)": lambda: Small(lambda m: F.rrelu(layers(m), 0.1, 0.9, True)),
    "torch.rand": lambda: Small(lambda m: layers(m) * torch.rand(4, 1)),
    "torch.randn": lambda: Small(lambda m: layers(m) + torch.randn(3)),
    "torch.randn_like": lambda: Small(lambda m: layers(m) + torch.randn_like(m.x)),
    "torch.randint": lambda: Small(lambda m: layers(m) * torch.randint(1, 5, (4, 1))),
    "torch.randperm": lambda: Small(lambda m: layers(m)[torch.randperm(4)] * m.x),
    "torch.normal": lambda: Small(lambda m: layers(m) + torch.normal(0.0, 2.0, (4, 3))),
    "torch.bernoulli": lambda: Small(lambda m: layers(m) * torch.bernoulli(torch.full((4, 3), 0.3))),
    "torch.multinomial": lambda: Small(picked),
    "torch.multinomial without replacement": lambda: Small(picked_once),
    "torch.poisson": lambda: Small(lambda m: layers(m) * torch.poisson(torch.full((4, 3), 2.0))),
    "Tensor.uniform_": lambda: Small(lambda m: layers(m) * torch.empty(4, 3).uniform_(0, 2)),
    "Tensor.normal_": lambda: Small(lambda m: layers(m) + torch.empty(4, 3).normal_(1, 2)),
    "Tensor.exponential_": lambda: Small(lambda m: layers(m) * torch.empty(4, 3).exponential_()),
    "Tensor.bernoulli_": lambda: Small(lambda m: layers(m) * torch.empty(4, 3).bernoulli_(0.3)),
    "Tensor.random_": lambda: Small(lambda m: layers(m) * torch.zeros(4, 3).random_(5)),
    "a draw of torch.distributions": lambda: Small(
        lambda m: torch.distributions.Normal(layers(m), m.x.exp(), validate_args=False).rsample()
    ),
}
