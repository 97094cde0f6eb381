"""Text on its way to a person: whatever could steer a terminal, or hide in it, is shown as an escape, and cut.

A server's error, a model's name, a scenario's field may hold anything: sequences that set a window's title or clear
the screen, marks that turn text round, characters without a width. `clean` is the one cleaner. `guard` puts it before
stdout and stderr of this process, so that libraries, tracebacks and usage errors go through it too. `console` is the
only writer that goes past the guard, because its colours and cursor moves are ours: it cleans the text between them.

Left out: characters that only look like others, and marks stacked on a letter.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

MOST = 400  # characters of one text in a sentence or a table
_MOST_LINE = 4_000  # longest line on stderr, whoever wrote it

# Unicode's controls, formats, surrogates, line and paragraph separators, and what else has no glyph by its definition
# (Default_Ignorable_Code_Point). Line feeds and tabs are no harm.
_STEERING = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    r"""Return the text with every character that steers or hides written as TOML and JSON write it.

    >>> print(visible("evil\x1b[2J\u202ename\n"), end="")
    evil\u001b[2J\u202ename
    """
    return _STEERING.sub(lambda match: _escape(ord(match[0])), text)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clean(text: object, most: int = MOST) -> str:
    r"""Return text from outside on one line, all visible, its middle left out where it is longer than `most`.

    >>> print(clean("evil\x1b[2J\nname"), clean("/models/meta-llama/Llama-3.1-8B", 15))
    evil\u001b[2J name /models…3.1-8B
    """
    whole = str(text)
    # Cut before it is worked on: what is shown of 15 MB is little.
    line = re.sub(r"[\t\n\r]+", " ", cut(whole, 8 * most)).strip()
    return cut(visible(cut(line, most)), most)


def cut(text: str, most: int) -> str:
    """Return the text, or its start and end around "…" where it is longer than `most`.

    >>> cut("/models/meta-llama/Llama-3.1-8B", 15), cut("abc", 3)
    ('/models…3.1-8B', 'abc')
    """
    keep = (most - 1) // 2
    return text if len(text) <= most else f"{text[:keep]}…{text[-(keep - 1) :]}"


def few(names: Iterable[str], most: int = 8) -> str:
    """Return the first names of a list, and how many more there are.

    >>> few(["a", "b", "c"], 2), few(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    listed = list(names)
    more = len(listed) - most
    return ", ".join(clean(name, 100) for name in listed[:most]) + (f" and {more:,} more" if more > 0 else "")


def json_text(text: str) -> str:
    r"""Return JSON that is the same data and steers no terminal.

    >>> print(json_text('"evil\x9b\ud800"'))
    "evil\u009b\ud800"
    """

    def escape(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))

    return _STEERING.sub(escape, text)


class Guard:
    """A text stream that shows what steers a terminal as escapes; everything else is the stream's own."""

    def __init__(self, stream: TextIO, most: int | None = None) -> None:
        self.stream, self._most = stream, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        if self._most is not None and len(text) > self._most:
            text = "".join(_cut_line(line, self._most) for line in text.splitlines(keepends=True))
        self.stream.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def _cut_line(line: str, most: int) -> str:
    return cut(line.rstrip("\n"), most) + "\n" * line.endswith("\n")


def guard() -> None:
    """Put the cleaner before this process's stdout and stderr; what their encoding lacks becomes an escape too."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # they move the cursor, which would show as escapes
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    if not isinstance(sys.stdout, Guard):
        sys.stdout = cast(TextIO, Guard(sys.stdout))
    if not isinstance(sys.stderr, Guard):
        sys.stderr = cast(TextIO, Guard(sys.stderr, _MOST_LINE))


def console(*, stderr: bool) -> Console:
    """Return a console that shows text from outside as text, and survives a closed reader, like `| head`."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Talk(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                text = segment.text if segment.control else visible(segment.text)
                yield segment if text == segment.text else segment._replace(text=text)

        def on_broken_pipe(self) -> None:
            self.quiet = True
            to_nobody(self.file)

    stream = sys.stderr if stderr else sys.stdout
    return Talk(file=stream.stream if isinstance(stream, Guard) else stream, stderr=stderr)


def to_nobody(stream: IO[str]) -> None:
    """Lose what is written to the stream from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
