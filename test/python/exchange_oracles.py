"""The algorithms of the exchanges of the library, from their papers, in NumPy: all ranks' gradients to what all get."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Arrays = list[np.ndarray]


class Oracle:
    """One gradient's exchange. `states` has what the ranks keep: stacked along a first dimension if each has its own."""

    def __init__(self, shape: tuple[int, ...], ranks: int) -> None:
        self.shape, self.ranks = shape, ranks
        self.states: dict[str, np.ndarray] = {}

    def step(self, gradients: Arrays) -> np.ndarray:
        raise NotImplementedError

    def bytes(self) -> list[int]:
        """What a rank gives to each collective."""
        raise NotImplementedError

    def zeros(self) -> np.ndarray:
        return np.zeros((self.ranks, *self.shape))


class TopK(Oracle):
    """Stich, Cordonnier, Jaggi, algorithm 1: memory m, v = m + g, send top_k(v), keep v - top_k(v)."""

    def __init__(self, shape: tuple[int, ...], ranks: int, fraction: float) -> None:
        super().__init__(shape, ranks)
        self.k = max(1, round(fraction * math.prod(shape)))
        self.states["error"] = self.zeros()

    def step(self, gradients: Arrays) -> np.ndarray:
        total = np.zeros(self.shape)
        for memory, gradient in zip(self.states["error"], gradients, strict=True):
            wanted = memory + gradient
            least = np.sort(np.abs(wanted), axis=None)[-self.k]
            sent = np.where(np.abs(wanted) >= least, wanted, 0)
            memory[...] = wanted - sent
            total += sent
        return total

    def bytes(self) -> list[int]:
        return [4 * self.k, 4 * self.k]  # positions, values


class PowerSGD(Oracle):
    """Vogels, Karimireddy, Jaggi, algorithms 1 and 2, with means over ranks; their sum is what training here uses."""

    def __init__(self, shape: tuple[int, ...], ranks: int, rank: int, q: np.ndarray | None = None) -> None:
        super().__init__(shape, ranks)
        self.rows = shape[0] if len(shape) > 1 else 0
        self.columns = math.prod(shape[1:])
        self.rank = rank
        self.compresses = len(shape) > 1 and (self.rows + self.columns) * rank < self.rows * self.columns
        if self.compresses:
            assert q is not None and q.shape == (self.columns, rank)
            self.states = {"error": self.zeros(), "q": q.astype(np.float64)}

    def step(self, gradients: Arrays) -> np.ndarray:
        if not self.compresses:
            return np.sum(gradients, axis=0, dtype=np.float64)
        errors = self.states["error"]
        matrices = [(g + e).reshape(self.rows, self.columns) for g, e in zip(gradients, errors, strict=True)]
        p = np.mean([m @ self.states["q"] for m in matrices], axis=0)
        basis, triangle = np.linalg.qr(p)
        basis = basis * np.sign(np.diag(triangle))  # the orthonormal columns of Gram and Schmidt
        q = np.mean([m.T @ basis for m in matrices], axis=0)
        decompressed = basis @ q.T
        for error, matrix in zip(errors, matrices, strict=True):
            error[...] = (matrix - decompressed).reshape(self.shape)
        self.states["q"] = q * self.ranks  # its length does not matter: the next p is made orthonormal
        return (decompressed * self.ranks).reshape(self.shape)

    def bytes(self) -> list[int]:
        if not self.compresses:
            return [4 * math.prod(self.shape)]
        return [4 * self.rows * self.rank, 4 * self.columns * self.rank]


class SignSGD(Oracle):
    """Bernstein et al., algorithm 1: v = beta v + (1 - beta) g, send sign(v), receive sign(sum of signs)."""

    def __init__(self, shape: tuple[int, ...], ranks: int, momentum: float) -> None:
        super().__init__(shape, ranks)
        self.momentum = momentum
        self.states["momentum"] = self.zeros()

    def step(self, gradients: Arrays) -> np.ndarray:
        momenta = self.states["momentum"]
        momenta[...] = self.momentum * momenta + (1 - self.momentum) * np.stack(gradients)
        return np.sign(np.sum(np.where(momenta >= 0, 1, -1), axis=0))

    def bytes(self) -> list[int]:
        return [math.ceil(math.prod(self.shape) / 8)]


def dct(x: np.ndarray) -> np.ndarray:
    """The orthonormal DCT-II of the last dimension, from its definition."""
    n = x.shape[-1]
    result = np.empty(x.shape)
    for k in range(n):
        scale = math.sqrt((1 if k == 0 else 2) / n)
        result[..., k] = scale * sum(x[..., i] * math.cos(math.pi * k * (2 * i + 1) / (2 * n)) for i in range(n))
    return result


def inverse_dct(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1]
    result = np.empty(x.shape)
    for i in range(n):
        result[..., i] = sum(
            x[..., k] * math.sqrt((1 if k == 0 else 2) / n) * math.cos(math.pi * k * (2 * i + 1) / (2 * n))
            for k in range(n)
        )
    return result


class DeMo(Oracle):
    """Peng, Quesnelle, Kingma, algorithm 1: m = beta m + g, q = the fast components of m, m -= q, sum of all q."""

    def __init__(
        self, shape: tuple[int, ...], ranks: int, keep: int, chunk: tuple[int, int], decay: float, sign: bool
    ) -> None:
        super().__init__(shape, ranks)
        self.chunk, self.decay, self.sign = chunk, decay, sign
        self.keep = min(keep, math.prod(chunk))
        self.rows = shape[0] if len(shape) > 1 else 1
        self.states["momentum"] = self.zeros()

    def strongest(self, matrix: np.ndarray) -> np.ndarray:
        """The part of a matrix that the strongest frequencies of each chunk make."""
        height, width = self.chunk
        result = np.empty(matrix.shape)
        for row in range(0, matrix.shape[0], height):
            for column in range(0, matrix.shape[1], width):
                chunk = matrix[row : row + height, column : column + width]
                spectrum = dct(dct(chunk).T).T
                least = np.sort(np.abs(spectrum), axis=None)[-self.keep]
                kept = np.where(np.abs(spectrum) >= least, spectrum, 0)
                result[row : row + height, column : column + width] = inverse_dct(inverse_dct(kept).T).T
        return result

    def step(self, gradients: Arrays) -> np.ndarray:
        total = np.zeros(self.shape)
        for momentum, gradient in zip(self.states["momentum"], gradients, strict=True):
            momentum[...] = self.decay * momentum + gradient
            fast = self.strongest(momentum.reshape(self.rows, -1)).reshape(self.shape)
            momentum -= fast
            total += fast
        return np.sign(total) if self.sign else total

    def bytes(self) -> list[int]:
        kept = math.prod(self.shape) // math.prod(self.chunk) * self.keep
        return [4 * kept, 4 * kept]  # positions, values


def hadamard(n: int) -> np.ndarray:
    """Sylvester's matrix, orthonormal: the sign of element i, j is the parity of the bits that i and j share."""
    signs = [[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]
    return np.array(signs) / math.sqrt(n)


class FourBit(Oracle):
    """SDP4Bit, section 3.2: smooth, quantize to 4 bits, all_to_all, add, quantize, all_gather; error feedback."""

    def __init__(self, shape: tuple[int, ...], ranks: int, group: int) -> None:
        super().__init__(shape, ranks)
        self.group, self.count = group, math.prod(shape)
        self.padded = math.ceil(self.count / (ranks * group)) * ranks * group
        self.states["error"] = self.zeros()

    def rounded(self, x: np.ndarray) -> np.ndarray:
        groups = x.reshape(-1, self.group)
        scale = np.maximum(np.abs(groups).max(axis=1, keepdims=True), 1e-30) / 7
        codes = np.rint(groups / scale)
        assert np.abs(codes).max() <= 7
        return (codes * scale).reshape(x.shape)

    def step(self, gradients: Arrays) -> np.ndarray:
        errors = self.states["error"]
        smooth = np.zeros((self.ranks, self.padded))
        for rank, (gradient, error) in enumerate(zip(gradients, errors, strict=True)):
            smooth[rank, : self.count] = (gradient + error).ravel()
        smooth = (smooth.reshape(self.ranks, -1, 32) @ hadamard(32)).reshape(self.ranks, self.padded)
        sent = self.rounded(smooth)
        total = sent.sum(axis=0)
        received = self.rounded(total)
        lost = smooth - sent
        share = self.padded // self.ranks
        for rank in range(self.ranks):  # the owner of a share also keeps what rounding its sum loses
            of_rank = slice(rank * share, (rank + 1) * share)
            lost[rank, of_rank] += (total - received)[of_rank]
            errors[rank] = self.rough(lost[rank])
        return self.rough(received)

    def rough(self, x: np.ndarray) -> np.ndarray:
        result: np.ndarray = (x.reshape(-1, 32) @ hadamard(32)).ravel()[: self.count].reshape(self.shape)
        return result

    def bytes(self) -> list[int]:
        groups = self.padded // self.group
        of_all, of_share = (self.padded // 2, 4 * groups), (self.padded // 2, 4 * groups)
        return [*of_all, *(each // self.ranks for each in of_share)]


def chunk_of(shape: tuple[int, ...], most: int) -> tuple[int, int]:
    """The largest divisors, at most `most`, of the extents of a gradient as a matrix."""
    extents = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
    height, width = (max(d for d in range(1, most + 1) if extent % d == 0) for extent in extents)
    return height, width


def q_of(body: Any) -> np.ndarray | None:
    """The initial q of PowerSGD, which is random."""
    q: np.ndarray | None = body.initial_value("q") if any(each.name == "q" for each in body.states) else None
    return q
