"""What other packages add is found by its name, and loaded only then."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.base import plugins
from harness.base.errors import HarnessError
from tests.builders.outside import install

GROUP = "knee.rules"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages, one of which adds three names to a group."""
    points = {"good": "knee_one:NUMBER", "gone": "knee_one:nothing", "unmade": "knee_one.unmade:X"}
    install(tmp_path, "knee-one", {"knee_one/__init__.py": "NUMBER = 7\n"}, {GROUP: points, "knee.readers": {"r": "x"}})
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("knee_one", None)


def test_names_are_listed_without_running_code_of_the_package(installed: Path) -> None:
    assert plugins.names(GROUP) == ["gone", "good", "unmade"]
    assert plugins.names("knee.exporters") == []
    assert "knee_one" not in sys.modules


def test_a_name_gives_what_the_package_has_there(installed: Path) -> None:
    assert plugins.find(GROUP, "good", int) == 7
    assert plugins.find(GROUP, "r") is None
    assert plugins.find(GROUP, "other") is None


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("good", "knee.rules good: knee_one:NUMBER is int, not str; mend knee-one, or uninstall it"),
        ("gone", "knee.rules gone: knee_one:nothing cannot be imported: module 'knee_one' has no attribute 'nothing'; "
                 "mend knee-one, or uninstall it"),
        ("unmade", "knee.rules unmade: knee_one.unmade:X cannot be imported: No module named 'knee_one.unmade'; "
                   "mend knee-one, or uninstall it"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_an_error_of_one_line(installed: Path, name: str, line: str) -> None:
    with pytest.raises(HarnessError) as error:
        plugins.find(GROUP, name, str)
    assert str(error.value) == line


def test_a_name_of_two_packages_is_an_error_that_names_both(installed: Path) -> None:
    install(installed, "knee-two", {"knee_two.py": "X = 1\n"}, {GROUP: {"good": "knee_two:X"}})
    with pytest.raises(HarnessError, match=r"good: knee-one and knee-two both have it; uninstall all but one"):
        plugins.find(GROUP, "good")
