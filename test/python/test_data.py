"""Which samples each rank gets of a batch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import lockstep as ls

SAMPLES = np.arange(22)
TARGETS = SAMPLES + 100


def epoch(ranks: int, seed: int | None) -> list[np.ndarray]:
    """The global batches that the shares of all ranks make up, in rank order."""
    shares = []
    for rank in range(ranks):
        batches = ls.data.batches(SAMPLES, TARGETS, size=6, world=SimpleNamespace(rank=rank, size=ranks), seed=seed)
        assert len(batches) == 3
        assert batches.dropped == 4
        for sample, target in batches:
            assert len(sample) == 6 // ranks
            np.testing.assert_array_equal(target, sample + 100)
        shares.append([sample for sample, _ in batches])
    return [np.concatenate(batch) for batch in zip(*shares, strict=True)]


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_ranks_share_the_batches_that_one_rank_would_have(ranks: int, seed: int | None) -> None:
    np.testing.assert_array_equal(epoch(ranks, seed), epoch(1, seed))


def test_no_sample_comes_twice_and_the_seed_alone_decides_the_order() -> None:
    first, second = np.concatenate(epoch(2, seed=1)), np.concatenate(epoch(2, seed=2))
    assert len(set(first)) == len(first) == 18
    np.testing.assert_array_equal(first, np.concatenate(epoch(2, seed=1)))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(np.concatenate(epoch(2, seed=None)), SAMPLES[:18])


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_every_seed_shuffles(seed: int) -> None:
    shuffled = np.concatenate(epoch(1, seed))
    assert not np.array_equal(shuffled, SAMPLES[:18])
    assert not np.array_equal(shuffled, np.sort(shuffled))
    assert not np.array_equal(shuffled, np.concatenate(epoch(1, seed + 1)))


@pytest.mark.parametrize(
    ("arrays", "size", "words"),
    [
        ((), 1, "no arrays"),
        ((SAMPLES, TARGETS[1:]), 2, "different lengths"),
        ((SAMPLES,), 7, "7 cannot be shared evenly by 2"),
        ((SAMPLES,), 24, "24 is more than the 22"),
    ],
)
def test_batches_that_cannot_be_had(arrays: tuple[np.ndarray, ...], size: int, words: str) -> None:
    with pytest.raises(ls.Error, match=words):
        ls.data.batches(*arrays, size=size, world=SimpleNamespace(rank=0, size=2))
