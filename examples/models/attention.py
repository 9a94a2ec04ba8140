"""Attention in single operations and as one function, and a hand-written network like Llama."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from registry import BATCH, Example, example, language_model
from torch import nn

WIDTH, HEADS, LENGTH, VOCABULARY = 16, 4, 8, 40


class Attention(nn.Module):
    """Self-attention of [batch, length, width]. `how` is "written" (single operations), "function", "causal" or
    "mask"."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        n, t, _ = x.shape
        q, k, v = (part.view(n, t, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.how == "written":
            scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
            past = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            y = torch.softmax(scores.masked_fill(~past, float("-inf")), -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.how == "causal")
        return self.out(y.transpose(1, 2).reshape(n, t, WIDTH))


class AttentionRegression(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(how)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x))


class MaskedAttention(AttentionRegression):
    """Masks the positions of a sequence that are not words."""

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x + self.attention(self.norm(x), words[:, None, None, :])


def regression(how: str) -> Example:
    inputs = {"x": torch.randn(BATCH, LENGTH, WIDTH)}
    if how == "mask":
        inputs["words"] = torch.arange(LENGTH) < torch.tensor([[8], [5], [3], [1]])
        return Example(MaskedAttention(how), inputs, torch.randn(BATCH, LENGTH, WIDTH), "mean_squared_error")
    return Example(AttentionRegression(how), inputs, torch.randn(BATCH, LENGTH, WIDTH), "mean_squared_error")


@example
def attention_written() -> Example:
    return regression("written")


@example
def attention_function() -> Example:
    return regression("function")


@example
def attention_causal() -> Example:
    return regression("causal")


@example
def attention_mask() -> Example:
    return regression("mask")


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Applies rotary positions (Su et al., 2021) to [batch, heads, length, width]."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=x.dtype, device=x.device) / half)
    angle = torch.arange(x.shape[2], dtype=x.dtype, device=x.device)[:, None] * frequency
    cos, sin = torch.cos(angle), torch.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class LlamaBlock(nn.Module):
    """Root-mean-square norms, rotary positions, groups of queries that share keys, a gated perceptron (Touvron et al.,
    2023)."""

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.groups = groups
        self.norm1, self.norm2 = RmsNorm(WIDTH), RmsNorm(WIDTH)
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, groups * head, bias=False), nn.Linear(WIDTH, groups * head, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 32, bias=False), nn.Linear(WIDTH, 32, bias=False)
        self.down = nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, _ = x.shape
        y = self.norm1(x)
        q = rotate(self.q(y).view(n, t, HEADS, -1).transpose(1, 2))
        k = rotate(self.k(y).view(n, t, self.groups, -1).transpose(1, 2))
        v = self.v(y).view(n, t, self.groups, -1).transpose(1, 2)
        k, v = (each.repeat_interleave(HEADS // self.groups, 1) for each in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, t, WIDTH)
        x = x + self.out(y)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(LlamaBlock(), LlamaBlock())
        self.norm, self.head = RmsNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens)))).transpose(1, 2)


@example
def llama() -> Example:
    return language_model(Llama(), VOCABULARY, LENGTH)
