"""Synthetic images: PNG by its own rules, all of one size in bytes, no two alike."""

import base64
import struct
import zlib

import pytest

from harness.spec.scenario import WorkloadSpec
from harness.workload import image
from harness.workload.image import Images


def pixels(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and the rows of an image, each chunk held against its checksum."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, found = 8, {}
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(kind + data),)
        found[kind] = data
        at += 12 + length
    assert list(found) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colours, *rest = struct.unpack(">IIBBBBB", found[b"IHDR"])
    assert (depth, colours, rest) == (8, 2, [0, 0, 0])
    return width, height, zlib.decompress(found[b"IDAT"])


@pytest.mark.parametrize(("width", "height"), [(512, 512), (1, 1), (17, 2), (33, 100)])
def test_an_image_has_all_its_rows_and_only_the_last_differs(width: int, height: int) -> None:
    one, other = (base64.b64decode(each) for each in Images(2, width, height, 7).of(3))
    assert len(one) == len(other)
    rows, row = pixels(one), 1 + 3 * width
    assert (rows[:2], len(rows[2]), set(rows[2][::row])) == ((width, height), row * height, {0})
    assert rows[2][:-row] == pixels(other)[2][:-row]
    assert rows[2][-row:] != pixels(other)[2][-row:]


def test_an_image_is_its_request_s_own_whichever_worker_makes_it() -> None:
    first, second = Images(2, 64, 64, 7), Images(2, 64, 64, 7)
    assert first.of(5) == second.of(5)
    assert len({*first.of(5), *first.of(6), *Images(2, 64, 64, 8).of(5)}) == 6


def test_what_a_request_sends_is_known_before() -> None:
    spec = WorkloadSpec(images=3, image_size="640x480")
    sent = Images(3, 640, 480, 1).of(9)
    assert image.plan(spec) == (3, 640, 480)
    assert image.request_bytes(spec) == sum(len(base64.b64decode(each)) for each in sent)
    assert (image.plan(WorkloadSpec()), image.request_bytes(WorkloadSpec())) == (None, 0)
