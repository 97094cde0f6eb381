"""A document is whole at its end, wherever it is cut, and bounded."""

import pytest

from harness.base.errors import ProtocolError
from harness.dialects import sse
from harness.dialects.sse import DocumentParser


def test_a_document_is_its_pieces_and_takes_no_room_once_it_is_read() -> None:
    before, whole = DocumentParser.buffered, DocumentParser()
    for piece in (b'{"a"', b"", b": 1}"):
        whole.feed(piece)
    assert DocumentParser.buffered == before + 8
    assert (whole.end(), whole.end(), DocumentParser.buffered) == ([b'{"a": 1}'], [], before)


@pytest.mark.parametrize(("bound", "value"), [("LONGEST_DOCUMENT", 5), ("DOCUMENTS_TOGETHER", 8)])
def test_a_document_beyond_a_bound_is_given_up(bound: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DocumentParser, "buffered", 0)
    monkeypatch.setattr(sse, bound, value)
    other, whole = DocumentParser(), DocumentParser()
    other.feed(b"four")
    whole.feed(b"four")
    with pytest.raises(ProtocolError) as caught:
        whole.feed(b"!!")
    assert (caught.value.error, whole.end(), DocumentParser.buffered) == ("line_too_long", [], 4)
