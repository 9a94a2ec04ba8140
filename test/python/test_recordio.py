"""RecordIO files that MXNet wrote (recordio/make.py), compared with MXNet's own reading, and damaged files."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lockstep as ls

FILES = Path(__file__).parent / "recordio"
EXPECTED = json.loads((FILES / "expected.json").read_text())
PLAIN = [(key, bytes.fromhex(content)) for key, content in EXPECTED["plain"]]


def test_records_are_those_that_mxnet_reads() -> None:
    records = ls.data.records(FILES / "plain.rec")
    assert list(zip(records.keys, records, strict=True)) == PLAIN
    assert len(PLAIN) == 12 and records.num_parts == 1


def test_without_an_index_the_file_is_walked_through(tmp_path: Path) -> None:
    shutil.copy(FILES / "plain.rec", tmp_path / "walked.rec")
    records = ls.data.records(tmp_path / "walked.rec")
    assert records.keys == list(range(12))
    assert list(records) == [content for _, content in PLAIN]


def test_an_index_of_another_name_decides_which_records_come_and_in_which_order(tmp_path: Path) -> None:
    lines = (FILES / "plain.idx").read_text().splitlines()
    (tmp_path / "some.idx").write_text("\n".join([lines[5], lines[1]]))
    records = ls.data.records(FILES / "plain.rec", tmp_path / "some.idx")
    assert list(zip(records.keys, records, strict=True)) == [PLAIN[5], PLAIN[1]]


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "empty.rec").write_bytes(b"")
    assert len(ls.data.records(tmp_path / "empty.rec")) == 0


def test_threads_and_processes_read_records() -> None:
    records = pickle.loads(pickle.dumps(ls.data.records(FILES / "plain.rec", num_parts=2, part_index=1)))
    assert records.num_parts == 2
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: records[i % 6], range(600)))
    assert found == [content for _, content in PLAIN[6:]] * 100


# --- Images


def test_headers_of_images_are_those_that_mxnet_reads() -> None:
    images = ls.data.image_records(FILES / "images.rec", labels="numbers")
    assert len(images) == len(EXPECTED["images"]) == 5
    for i, expected in enumerate(EXPECTED["images"]):
        header, content = images.unpacked(i)
        assert np.asarray(header.label).tolist() == expected["label"]
        assert list(header.id) == expected["id"]
        assert content == bytes.fromhex(expected["content"])
        pixels, label = images[i]
        decoded = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), np.float32) / 255
        np.testing.assert_allclose(pixels, decoded.transpose(2, 0, 1), rtol=1e-6)
        assert (label.dtype, label.tolist()) == (np.float32, expected["label"])


def test_labels_are_classes() -> None:
    images = ls.data.image_records(FILES / "images.rec", size=4)
    found = [images[i] for i in range(3)]
    assert [int(label) for _, label in found] == [3, 0, 2] and found[0][1].dtype == np.int64
    assert {pixels.shape for pixels, _ in found} == {(3, 4, 4)}
    for index, label in ((3, r"\[ ?1.5 -2. *7. *\]"), (4, "2.5")):
        with pytest.raises(
            ls.Error, match=rf"images.rec: the record at byte \d+ has the label {label}, which is not a class"
        ):
            images[index]
    with pytest.raises(ls.Error, match='labels is \'floats\', expected "classes" or "numbers"'):
        ls.data.image_records(FILES / "images.rec", labels="floats")


def test_batches_of_the_images_of_a_part() -> None:
    images = ls.data.image_records(FILES / "images.rec", size=4, num_parts=2, part_index=0)
    ((pixels, labels),) = ls.data.batches(images, size=2)
    assert pixels.shape == (2, 3, 4, 4) and labels.tolist() == [3, 0]
    assert len(pickle.loads(pickle.dumps(images))) == 2


# --- Damaged files


def chunk(content: bytes, which: int = 0, magic: int = 0xCED7230A) -> bytes:
    return struct.pack("<II", magic, which << 29 | len(content)) + content + bytes(-len(content) % 4)


WHOLE = chunk(b"a record")
DAMAGED = [  # the file, and the error message
    (WHOLE + b"\n", "the file ends at byte 17, within the head of a record at byte 16"),
    (
        WHOLE + chunk(b"x", magic=7),
        "there is no record at byte 16: expected 0xced7230a, found 0x00000007",
    ),
    (WHOLE + chunk(b"12345678")[:-3], "the file ends at byte 29, but the record at byte 16 ends at byte 32"),
    (WHOLE + chunk(b"12345678")[:-1], "the file ends at byte 31, but the record at byte 16 ends at byte 32"),
    (WHOLE + chunk(b"12345678", 1), "the file ends at byte 32, within the record at byte 16"),
    (WHOLE + chunk(b"1", 3), "at byte 16, where a record begins, one continues"),
    (WHOLE + chunk(b"1", 2), "at byte 16, where a record begins, one continues"),
    (chunk(b"1234", 1) + WHOLE, "at byte 12, where a record continues, one begins"),
    (chunk(b"1234", 1) + chunk(b"", 1), "at byte 12, where a record continues, one begins"),
    (WHOLE + chunk(b"1", 5), "the record at byte 16 is of an unknown kind, 5"),
    (b"\x1f\x8b" + bytes(20), "there is no record at byte 0"),
]


@pytest.mark.parametrize(("content", "words"), DAMAGED)
def test_a_damaged_file_is_named_with_the_byte(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged.rec"
    path.write_bytes(content)
    with pytest.raises(ls.Error, match=f"{re.escape(str(path))}: {words}"):
        ls.data.records(path)


def test_a_record_that_is_damaged_fails_when_it_is_read(tmp_path: Path) -> None:
    content = (FILES / "plain.rec").read_bytes()
    shutil.copy(FILES / "plain.idx", tmp_path / "cut.idx")
    (tmp_path / "cut.rec").write_bytes(content[:-4])
    records = ls.data.records(tmp_path / "cut.rec")
    assert [records[i] for i in range(11)] == [content for _, content in PLAIN[:11]]
    with pytest.raises(
        ls.Error, match=r"cut.rec: the file ends at byte 804, but the record at byte 288 ends at byte 808"
    ):
        records[11]
    (tmp_path / "cut.rec").write_bytes(content[:100] + b"zero" + content[104:])
    with pytest.raises(ls.Error, match="cut.rec: there is no record at byte 100"):
        ls.data.records(tmp_path / "cut.rec")[6]


def test_a_file_that_becomes_shorter_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "shorter.rec"
    path.write_bytes(WHOLE * 2)
    records = ls.data.records(path)
    path.write_bytes(WHOLE + WHOLE[:10])
    with pytest.raises(ls.Error, match="shorter.rec: the file ends at byte 26, within a record"):
        records[1]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("0\t0\n1 16\n", "line 2 is '1 16', expected a number, a tab and an offset"),
        ("0\t0\nabc\t16\n", "line 2 is 'abc\\\\t16'"),
        ("0\t900\n", "line 1 has a record at byte 900, but .*plain.rec has 808 bytes"),
        ("0\t808\n", "line 1 has a record at byte 808, but .*plain.rec has 808 bytes"),
        ("0\t-4\n", "line 1 has a record at byte -4"),
        ("\n", "line 1 is ''"),
    ],
)
def test_an_index_that_is_wrong(index: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.idx").write_text(index)
    with pytest.raises(ls.Error, match=f"wrong.idx: {words}"):
        ls.data.records(FILES / "plain.rec", tmp_path / "wrong.idx")


def test_files_that_there_are_not(tmp_path: Path) -> None:
    with pytest.raises(ls.Error, match="nowhere.rec: No such file"):
        ls.data.records(tmp_path / "nowhere.rec")
    with pytest.raises(ls.Error, match="nowhere.idx: there is no such file"):
        ls.data.records(FILES / "plain.rec", tmp_path / "nowhere.idx")
    with pytest.raises(ls.Error, match="images.rec: this is not an index of records"):
        ls.data.records(FILES / "plain.rec", FILES / "images.rec")


def test_records_that_are_no_images(tmp_path: Path) -> None:
    header = struct.pack("<IfQQ", 0, 1.0, 0, 0)
    (tmp_path / "none.rec").write_bytes(
        chunk(b"short") + chunk(header + b"no image") + chunk(struct.pack("<IfQQ", 3, 0.0, 0, 0) + bytes(8))
    )
    images = ls.data.image_records(tmp_path / "none.rec")
    for index, words in (
        (0, "the record at byte 0 has 5 bytes, but the header of an image has 24"),
        (1, "the record at byte 16: this is not a readable image"),
        (2, "the record at byte 56 should have 3 labels, but ends after 8 bytes of them"),
    ):
        with pytest.raises(ls.Error, match=words):
            images[index]
