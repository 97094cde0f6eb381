"""No text from outside runs in a page, or makes an element of it; see guard_pages.py."""

from __future__ import annotations

import pytest

from tests.trust import guard_pages


@pytest.mark.slow
@pytest.mark.parametrize("name", guard_pages.PAYLOADS)
def test_text_from_outside_makes_no_element(name: str) -> None:
    assert guard_pages.misshapen(guard_pages.PAYLOADS[name]) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Glyph")  # the font lacks some of what is drawn
def test_no_formula_is_read_in_a_picture() -> None:
    assert guard_pages.misdrawn() == []


browser = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(guard_pages.CHROMIUM is None, reason="no headless Chromium (chromium in PATH)"),
]


@pytest.mark.parametrize("name", [pytest.param(name, marks=browser) for name in guard_pages.PAYLOADS])
def test_a_browser_runs_nothing_of_it(name: str) -> None:
    assert guard_pages.ran(guard_pages.PAYLOADS[name]) == []


@pytest.mark.parametrize("name", [pytest.param(name, marks=browser) for name in guard_pages.PAYLOADS])
def test_every_text_runs_where_nothing_is_escaped(name: str) -> None:
    assert guard_pages.opened(guard_pages.naive(guard_pages.PAYLOADS[name])) != []
