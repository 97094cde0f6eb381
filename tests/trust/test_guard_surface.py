"""Text from outside steers no terminal and floods none; see guard_surface.py."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from harness.base import terminal
from harness.base.errors import HarnessError, nearest
from tests.trust import guard_surface


@pytest.mark.slow
@pytest.mark.parametrize("name", guard_surface.CASES)
def test_text_from_outside_steers_no_terminal(name: str, tmp_path: Path) -> None:
    assert guard_surface.CASES[name](tmp_path) == []


def test_every_character_that_steers_or_hides_is_shown_as_an_escape_and_no_other() -> None:
    kinds = ("Cc", "Cf", "Cs", "Zl", "Zp")
    steer = [
        chr(i) for i in range(sys.maxunicode + 1) if unicodedata.category(chr(i)) in kinds and chr(i) not in "\n\t"
    ]
    assert [char for char in steer if not terminal.visible(char).startswith("\\")] == []
    kept = "a\n\tß \u00a0–±·→ ∞…━ مرحبا 日本 🦙 e\u0301"
    assert terminal.visible(kept) == kept


def test_json_keeps_its_data() -> None:
    data = {"a\x7f": guard_surface.HOSTILE + "\ud800 é 🦙"}
    text = terminal.json_text(json.dumps(data, ensure_ascii=False))
    assert json.loads(text) == data
    assert terminal.visible(text) == text


def test_a_long_text_keeps_its_ends_and_a_long_list_its_first_names() -> None:
    assert terminal.clean("a" * 9 + "\n" + "b" * 15_000_000, 15) == "aaaaaaa…bbbbbb"
    assert terminal.MOST - 2 <= len(terminal.clean("\x1b" * 1_000)) <= terminal.MOST
    assert nearest("x", (f"model-{i}" for i in range(100_000))).endswith(", model-23 and 99,976 more")


def test_a_mistake_is_cut_in_each_of_its_parts() -> None:
    error = HarnessError("f" * 9_000, place="p" * 9_000, way_out="give --url")
    assert len(str(error)) < 1_300
    assert str(error).endswith("ff; give --url")


def test_what_stderr_cannot_encode_is_no_crash() -> None:
    code = "from harness.base.terminal import guard; import sys; guard(); sys.stderr.write('evil \\ud800 – \\x1b')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=True)
    assert done.stderr == b"evil \\ud800 \\u2013 \\u001b"
