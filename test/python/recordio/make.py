"""Writes the files of this folder, with MXNet 1.9.1 (Python 3.11, NumPy before 1.24): python
test/python/recordio/make.py

They are checked in: the files that MXNet wrote, and in expected.json the contents that MXNet read from them.
"""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import mxnet as mx
import numpy as np
from PIL import Image

HERE = Path(__file__).parent
MAGIC = struct.pack("<I", 0xCED7230A)
CONTENTS = [
    b"a record",
    b"",
    b"x",
    b"five!",
    MAGIC,
    MAGIC * 3,
    b"four" + MAGIC + b"behind",
    b"odd" + MAGIC + b"stays as it is",
    b"ends with" + b"..." + MAGIC,
    MAGIC + b"begins with, " + MAGIC + b"and has another, not at a multiple of four",
    b"zeros" + bytes(9),
    bytes(range(256)) * 2,
]


def image(i: int, kind: str) -> bytes:
    pixels = np.zeros((6, 8, 3), np.uint8)
    pixels[..., i % 3] = 40 * i + 50
    pixels[0, 0] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def main() -> None:
    names = {name: str(HERE / name) for name in ("plain.rec", "plain.idx", "images.rec", "images.idx")}
    writer = mx.recordio.MXIndexedRecordIO(names["plain.idx"], names["plain.rec"], "w")
    for i, content in enumerate(CONTENTS):
        writer.write_idx(100 - i, content)
    writer.close()
    writer = mx.recordio.MXIndexedRecordIO(names["images.idx"], names["images.rec"], "w")
    for i, label in enumerate((3.0, 0.0, [2.0], [1.5, -2.0, 7.0], 2.5)):
        header = mx.recordio.IRHeader(0, label, 2**33 + i, 0)
        writer.write_idx(i, mx.recordio.pack(header, image(i, "JPEG" if i == 2 else "PNG")))
    writer.close()

    reader = mx.recordio.MXIndexedRecordIO(names["plain.idx"], names["plain.rec"], "r")
    plain = [[key, (reader.read_idx(key) or b"").hex()] for key in reader.keys]
    reader = mx.recordio.MXIndexedRecordIO(names["images.idx"], names["images.rec"], "r")
    images = []
    for key in reader.keys:
        header, content = mx.recordio.unpack(reader.read_idx(key))
        label = np.asarray(header.label).tolist()
        images.append({"label": label, "id": [header.id, header.id2], "content": content.hex()})
    (HERE / "expected.json").write_text(json.dumps({"plain": plain, "images": images}, indent=1) + "\n")


if __name__ == "__main__":
    main()
