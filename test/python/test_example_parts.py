"""The parts of the examples: their networks, and how their samples are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

import lockstep as ls
from cases import ROOT
from example_parts import part

RANDOM = np.random.Generator(np.random.PCG64(1))
IMAGE = {"image": RANDOM.standard_normal((3, 3, 32, 32)).astype(np.float32)}
NETWORKS: dict[str, tuple[Callable[[int], onnx.ModelProto], dict[str, np.ndarray]]] = {
    "resnet18": (lambda seed: part("imagenet/model").resnet(18, 7, 32, 8, seed), IMAGE),
    "resnet50": (lambda seed: part("imagenet/model").resnet(50, 7, 32, 8, seed), IMAGE),
    "gpt": (lambda seed: part("language/model").gpt(2, 24, 3, 16, 0.1, seed), {"tokens": RANDOM.integers(256, size=(3, 16))}),
    "lstm": (lambda seed: part("pipeline/model").lstm(2, 24, 16, 0.1, seed), {"tokens": RANDOM.integers(256, size=(3, 16))}),
    "unet": (lambda seed: part("segmentation/model").unet(4, 32, 4, 2, seed), IMAGE),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_what_onnx_runtime_makes_of_it(name: str) -> None:
    make, inputs = NETWORKS[name]
    network = make(3)
    onnx.checker.check_model(network, full_check=True)
    assert network.SerializeToString() == make(3).SerializeToString() != make(4).SerializeToString()
    (expected,) = onnxruntime.InferenceSession(network.SerializeToString()).run(None, inputs)
    found = ls.compile(ls.load_onnx(network, dims={"batch": 3}), threads=1)(**inputs)["logits"]
    assert np.std(expected) > 0.01
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_block_of_a_resnet_starts_as_the_identity() -> None:
    states = ls.load_onnx(NETWORKS["resnet50"][0](0), dims={"batch": 1})
    for state in states.states:
        if state.name.endswith(".bn3.weight"):
            assert not states.initial_value(state.name).any()
        elif state.name.endswith("bn1.weight"):
            assert (states.initial_value(state.name) == 1).all()


# Images


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images of 64 x 48, one with a white left half and one of numbers, and a text file beside them."""
    folder = tmp_path_factory.mktemp("images")
    for name in "ab":
        (folder / name).mkdir()
    half = np.zeros((48, 64, 3), np.uint8)
    half[:, :32] = 255
    Image.fromarray(half).save(folder / "a/half.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64), np.uint8)).save(folder / "b/GREY.PNG")
    (folder / "b/notes.txt").write_text("no image")
    return folder


def test_images_of_an_evaluation_are_the_middle(folder: Path) -> None:
    images = part("imagenet/images")
    samples = images.Images(folder, ["a", "b"], size=28)
    assert [label for _, label in (samples[0], samples[1])] == [0, 1] and len(samples) == 2
    image, label = samples[0]
    assert image.shape == (3, 28, 28) and image.dtype == np.float32 and label.dtype == np.int64
    white, black = ((np.array([value] * 3) - images.MEAN) / images.DEVIATION for value in (1, 0))
    for x, colour in ((0, white), (12, white), (15, black), (27, black)):
        np.testing.assert_allclose(image[:, :, x], np.tile(colour[:, None], 28), rtol=1e-6)


def test_images_to_train_on_are_drawn_by_their_number(folder: Path) -> None:
    images = part("imagenet/images")
    samples = images.Images(folder, ["a", "b"], 28)
    first, again, later = (samples.drawn(0, epoch) for epoch in (0, 0, 1))
    np.testing.assert_array_equal(first[1][0], again[1][0])
    assert not np.array_equal(first[1][0], later[1][0])
    # About half of many draws are mirrored, and crops have between 8 % and all of the image.
    drawn = [samples.drawn(0, epoch)[0][0][0] for epoch in range(200)]
    left_is_white = [image[:, 0].mean() > image[:, -1].mean() for image in drawn if image[0, 0] != image[0, -1]]
    assert 0.35 < np.mean(left_is_white) < 0.65 and len(left_is_white) > 50
    boxes = [images._part(640, 480, np.random.Generator(np.random.PCG64(i))) for i in range(500)]
    sizes = np.array([(right - left, bottom - top) for left, top, right, bottom in boxes])
    areas, ratios = sizes.prod(axis=1) / (640 * 480), sizes[:, 0] / sizes[:, 1]
    assert 0.08 <= areas.min() < 0.12 and 0.8 < areas.max() <= 1
    assert 0.75 <= ratios.min() < 0.8 and 1.25 < ratios.max() <= 4 / 3
    assert all(0 <= left and 0 <= top and right <= 640 and bottom <= 480 for left, top, right, bottom in boxes)
    assert images._part(10000, 10, np.random.Generator(np.random.PCG64(0))) == (5000 - 20 / 3, 0, 5000 + 20 / 3, 10)


def test_what_is_read_ahead_comes_in_order_and_no_further(folder: Path) -> None:
    read_ahead = part("imagenet/images").read_ahead
    asked: list[int] = []

    class Samples:
        def __getitem__(self, number: int) -> tuple[int, int]:
            if number == 90:
                raise ls.Error("sample 90 is damaged")
            return number, -number

    def batches(count: int):
        for i in range(0, count, 10):
            asked.append(i)
            yield np.arange(i, i + 10), np.ones(10)

    numbers = []
    for first, second, weight in read_ahead(Samples(), batches(90), threads=3, ahead=2):
        numbers.extend(first)
        np.testing.assert_array_equal(first, -second)
        assert weight.shape == (10,)
        assert len(asked) <= len(numbers) // 10 + 2
    assert numbers == list(range(90))
    with pytest.raises(ls.Error, match="sample 90 is damaged"):
        list(read_ahead(Samples(), batches(100), threads=3))


# Text


def test_windows_are_followed_by_their_next_byte_wherever_they_begin() -> None:
    text = part("language/text")
    letters = np.arange(100, dtype=np.uint8)
    for offset in range(8):
        windows = text.Windows(letters, 8, offset)
        assert len(windows) == 11
        for index in range(len(windows)):
            tokens, label = windows[index]
            assert tokens.dtype == np.int64 and tokens.tolist() == [*range(offset + 8 * index, offset + 8 * index + 8)]
            np.testing.assert_array_equal(label, tokens + 1)
    begins = {int(text.windows_of_epoch(letters, 8, seed=0, epoch=epoch)[0][0][0]) for epoch in range(100)}
    assert begins == set(range(8))


def test_a_text_is_cut_in_two(tmp_path: Path) -> None:
    text = part("language/text")
    file = tmp_path / "text"
    file.write_bytes(bytes(range(200)))
    first, last = text.read(file, length=10)
    np.testing.assert_array_equal(np.concatenate([first, last]), np.arange(200))
    assert len(last) == 20
    with pytest.raises(ls.Error, match="text: 20 bytes to validate with, expected at least 22"):
        text.read(file, length=11)


def test_a_sample_is_what_the_model_says_of_the_text_so_far() -> None:
    """Also if the text is longer than the model's window, and independent of the padding of a window that is not full."""
    sampler = part("language/sample").Sampler(NETWORKS["gpt"][0](0))
    session = onnxruntime.InferenceSession(NETWORKS["gpt"][0](0).SerializeToString())
    text = list(b"To be")
    while len(text) < 40:
        seen = text[-16:]
        tokens = np.full((1, 16), 7)
        tokens[0, : len(seen)] = seen
        text.append(int(session.run(None, {"tokens": tokens})[0][0, :, len(seen) - 1].argmax()))
    assert sampler.sample("To be", 35, temperature=0) == bytes(text).decode(errors="replace")
    one, same, other = (sampler.sample("To be", 20, seed=seed) for seed in (1, 1, 2))
    assert one == same != other
    assert sampler.sample("", 1, temperature=0) == sampler.sample("\n", 1, temperature=0)[1:]


def test_what_cannot_be_sampled() -> None:
    sampler = part("language/sample").Sampler
    with pytest.raises(ls.Error, match="the temperature is -1.0, expected at least 0"):
        sampler(NETWORKS["gpt"][0](0)).sample("a", 1, temperature=-1.0)
    with pytest.raises(ls.Error, match=r"makes \['logits'\] of \['image'\], expected logits of tokens"):
        sampler(NETWORKS["unet"][0](0))


def test_temperature_sharpens_what_is_drawn() -> None:
    sampler = part("language/sample").Sampler(NETWORKS["gpt"][0](0))
    logits = np.zeros((1, 256, 16), np.float32)
    logits[0, 1, :] = 2.0
    logits[0, 2:, :] = -100.0
    sampler._model = lambda tokens: {"logits": logits}  # the ratio of e^2 to 1 for the bytes 1 and 0
    random = np.random.Generator(np.random.PCG64(0))
    for temperature in (0.5, 1.0, 2.0):
        drawn = [sampler._next([65], temperature, random) for _ in range(2000)]
        assert set(drawn) == {0, 1}
        assert abs(np.mean(drawn) - 1 / (1 + np.exp(-2 / temperature))) < 0.03


# Shapes


def test_shapes_follow_from_their_number() -> None:
    shapes = part("segmentation/shapes")
    one, same, other = (shapes.Shapes(50, 32, seed) for seed in (0, 0, 1))
    assert len(one) == 50
    for index in range(50):
        image, label = one[index]
        assert image.shape == (3, 32, 32) and image.dtype == np.float32
        assert label.shape == (32, 32) and label.dtype == np.int64
        assert 0 < (label > 0).mean() < 0.9
        for a, b in zip((image, label), same[index], strict=True):
            np.testing.assert_array_equal(a, b)
        assert not np.array_equal(image, other[index][0])
    assert set(np.unique([one[index][1] for index in range(50)])) == {0, 1, 2, 3}


@pytest.mark.parametrize(("kind", "share"), [(1, np.pi), (2, 2.0), (3, 3 * np.sqrt(3) / 4)])
def test_a_shape_has_the_area_of_its_kind(kind: int, share: float) -> None:
    """The areas of a circle of radius 1, and of the square and the triangle inscribed in it."""

    class Middle:  # draws the middle of the image, a radius of 0.3 of its size, and an angle
        def uniform(self, low: float, high: float, size: int | None = None) -> np.ndarray | float:
            return np.array([0.5, 0.5]) if size else {0.12: 0.3, 0: 0.7}[low]

    inside = part("segmentation/shapes").Shapes(1, 200, 0)._inside(kind, Middle())
    assert abs(inside.mean() / (share * 0.3**2) - 1) < 0.02


def test_intersections_over_unions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples/segmentation")  # as in a run of the program
    confusion = np.array([[6.0, 2, 0], [1, 3, 0], [0, 0, 0]])
    found = part("segmentation/train").intersections_over_unions(confusion)
    np.testing.assert_allclose(found, [6 / 9, 3 / 6, np.nan])
