"""A result folder may come from others: nothing is written outside of it, whatever stands at the names in it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trust import guard_files as guard
from tests.trust.guard_files import Bases, Runner

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ready() -> Iterator[tuple[Bases, Runner]]:
    with tempfile.TemporaryDirectory() as place, guard.ready(Path(place)) as made:
        yield made


@pytest.fixture
def place() -> Iterator[Path]:
    """Not pytest's own folder, which is closed to the other user that some commands are run as."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize("command", list(guard.COMMANDS))
def test_nothing_outside_changes_whatever_stands_in_the_folder(
    command: str, ready: tuple[Bases, Runner], place: Path
) -> None:
    assert guard.of_command(command, *ready, place) == []


@pytest.mark.parametrize("name", list(guard.OTHERS))
def test_what_else_is_tried_holds(name: str, ready: tuple[Bases, Runner], place: Path) -> None:
    assert guard.OTHERS[name](ready[0], place, ready[1]) == []
