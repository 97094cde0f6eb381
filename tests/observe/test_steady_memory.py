"""What is read every second or two for hours leaves nothing in memory."""

from __future__ import annotations

import gc
import sys

from harness.observe import server

PAGE = 'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


def test_thousands_of_pages_leave_no_objects() -> None:
    """Not even strings in the interpreter's cache of attributes, which holds 4,096 of them."""
    pages = server.Pages()

    def read(times: int) -> int:
        for i in range(times):
            pages.samples(float(i), PAGE)
        gc.collect()
        return sys.getallocatedblocks()

    before = read(50)
    assert read(4000) - before < 20
