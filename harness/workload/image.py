"""Synthetic images, PNG by the standard library: each another one, so that no server has it in a cache.

All but the last row of an image is the same for a size; the last row is noise from a seed. It is stored as it is, so
that every image of a size has the same bytes: what a request sends is known before it is sent. Colours come in blocks
of 16 pixels: an image of 512x512 has some 4 KB, a server decodes all of its pixels.

Format: PNG, W3C Recommendation, section 5; zlib, RFC 1950; stored blocks, RFC 1951, section 3.2.4.
"""

from __future__ import annotations

import base64
import random
import struct
import zlib

from harness.spec import reuse
from harness.spec.scenario import WorkloadSpec

_BLOCK = 16  # pixels
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Images:
    """The images of the requests of a run; `of` gives those of one request, as base64."""

    def __init__(self, count: int, width: int, height: int, seed: int) -> None:
        self._count, self._seed = count, seed
        self._row = 3 * width
        rng = random.Random(f"image {width}x{height}")
        rows = bytearray()
        for at in range(0, height - 1, _BLOCK):
            row = b"".join(rng.randbytes(3) * _BLOCK for _ in range(-(-width // _BLOCK)))[: self._row]
            rows += (b"\0" + row) * min(_BLOCK, height - 1 - at)  # \0: the row is not filtered
        deflate = zlib.compressobj(6)
        self._begun = deflate.compress(bytes(rows)) + deflate.flush(zlib.Z_FULL_FLUSH)
        self._checksum = zlib.adler32(bytes(rows))
        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits a colour, RGB
        self._head = _SIGNATURE + _chunk(b"IHDR", header)

    def of(self, number: int) -> tuple[str, ...]:
        """Return the images of the request with this number."""
        rng = random.Random(f"{self._seed} {number}")
        return tuple(base64.b64encode(self.png(rng.randbytes(self._row))).decode() for _ in range(self._count))

    def png(self, last: bytes) -> bytes:
        """Return an image with these colours in its last row."""
        row = b"\0" + last
        stored = struct.pack("<BHH", 1, len(row), len(row) ^ 0xFFFF) + row  # 1: the last block
        checksum = struct.pack(">I", zlib.adler32(row, self._checksum))
        return self._head + _chunk(b"IDAT", self._begun + stored + checksum) + _chunk(b"IEND", b"")


def plan(workload: WorkloadSpec) -> tuple[int, int, int] | None:
    """Return how many images each request has, their width and their height; None: it has none."""
    if not workload.images:
        return None
    return workload.images, *reuse.image_size(workload.image_size or reuse.IMAGE_SIZE, "$.workload.image_size")


def request_bytes(workload: WorkloadSpec) -> int:
    """Return the bytes of the images of each request, as PNG; 0 without any."""
    planned = plan(workload)
    return sum(len(base64.b64decode(each)) for each in Images(*planned, 0).of(0)) if planned else 0


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
