"""What text from outside does to a terminal and in a page, and what is installed: `scripts/trust` prints the table."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trust_table

from tests import test_packaging
from tests.builders.browser import CHROMIUM
from tests.trust import guard_pages, guard_surface

TITLE = "Terminal, pages, supply chain"
HEADER = ("what comes from outside", "where", "holds")
BROWSER = "elements, and in Chromium" if CHROMIUM else "elements alone: no Chromium in PATH"
PINS = {
    "packages are installed by their digests": test_packaging.test_nothing_is_installed_that_has_no_digest,
    "every pin has digests": test_packaging.test_every_pin_has_the_digests_of_its_files_and_no_other_source,
    "the base image is one image": test_packaging.test_the_container_s_base_image_is_one_image,
}


def rows() -> Iterator[trust_table.Row]:
    """Yield a row for each case; those of the terminal need a few seconds each, those of Chromium some ten."""
    with tempfile.TemporaryDirectory() as place:
        for name, problems in guard_surface.rows(Path(place)):
            yield name, "terminal", "; ".join(problems) or "yes"
    problems = guard_pages.misdrawn()
    yield "a formula in every field", "pictures", "; ".join(problems) or "yes"
    for name, text in guard_pages.PAYLOADS.items():
        problems = guard_pages.misshapen(text) + (guard_pages.ran(text) if CHROMIUM else [])
        yield f"{name} in every field", f"pages: {BROWSER}", "; ".join(problems) or "yes"
    for name, holds in PINS.items():
        try:
            holds()
            yield name, "installation", "yes"
        except AssertionError as error:
            yield name, "installation", next(iter(str(error).splitlines()), "no")


if __name__ == "__main__":
    sys.exit(not trust_table.show(TITLE, HEADER, rows()))
