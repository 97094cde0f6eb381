"""The shape of `map.json`: one knee a cell, over the axes that were swept, or over stacks.

Every cell is a result folder of its own, next to the file, with all the rest; the map can be made again from those. A
missing number is None, never 0.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from harness.base import decoding
from harness.base.errors import HarnessError
from harness.data.prediction import Prediction
from harness.data.views import Value
from harness.spec.work import Unit

FORMAT = 1
MAP = "map.json"
FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # names of cells, and of the servers in them


def must_name_a_folder(name: str, what: str, place: str) -> None:
    """Raise HarnessError if the name of a server or a stack cannot be that of a cell's folder."""
    if not FOLDER.fullmatch(name):
        way_out = "letters, digits, '.', '_' and '-', for it names folders"
        raise HarnessError(f"{name!r} cannot name a {what}", place=place, way_out=way_out)


FOR_PEOPLE = ("map.html", "map.md")
_MOST = 1000  # values of an axis
_LARGEST = 16 << 20  # bytes: thousands of cells, each with its prediction
INPUT, OUTPUT, INPUTS = "input_tokens", "output_tokens", "inputs"  # axes, in this order
SEQS, SERVER = "max_num_seqs", "server"  # the last two
REPEAT = "repeat"  # the slowest axis of a comparison, so that what is compared takes turns
BALANCE = "balance"  # the other axis of a comparison of two ways to balance replicas


class Axis(msgspec.Struct, frozen=True):
    """What was swept, and over which values, in their order."""

    name: str  # input_tokens | output_tokens | inputs | max_num_seqs | server | repeat | balance
    values: list[int | str]


class MeasuredCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the map: its place on the axes and the result of its run."""

    name: str  # name of its result folder, next to map.json
    at: dict[
        str, int | str
    ]  # prompt and answer length, or texts of a request, and the server's setting if one was swept
    status: int | None = None  # exit status of its run; None: there was none to its end
    error: str | None = None  # why it could not be measured
    left_out: str | None = None  # why it was not to be: the map's bounds
    knee: Value | None = None  # the unqualified one: of the SLO if there is one, else the seats, else the hinge
    hinge: Value | None = None  # the curve's hinge, reached or not
    plateau_tokens_per_s: Value | None = None  # the curve's plateau, reached or not
    plateau_reached: bool | None = None  # None: there is no curve
    verdicts: list[str] = []  # codes, the gravest first, each once
    prediction: Prediction | None = None  # made before the load; its levels are in the cell's own folder
    seconds: float = 0.0  # what it cost to measure
    requests: int = 0
    dollars: float | None = None  # cost by the prices of the scenario; None without any
    start_to_ready_s: float | None = None  # seconds until a server that was started for the cell was ready
    first_answer_s: float | None = None  # time of one request to that server


class Map(msgspec.Struct, frozen=True, kw_only=True):
    """The level map as far as it has come."""

    format: int = FORMAT
    name: str
    created: str | None = None
    model: str | None = None
    gpu: str | None = None
    simulated: bool = False
    complete: bool = False  # every cell was measured, or the budget of the whole ended it
    unit: str = Unit.OUTPUT_TOKENS.value  # a Unit: what the plateaus count
    axes: list[Axis]
    cells: list[MeasuredCell]

    @property
    def per_s(self) -> str:
        """Return the unit of its plateaus."""
        return Unit.known(self.unit).per_s

    def cell(self, at: dict[str, int | str]) -> MeasuredCell | None:
        """Return the first cell at a place, by the axes named; None if the map has not come to it."""
        return next((cell for cell in self.cells if all(cell.at.get(k) == v for k, v in at.items())), None)


def _must_have_axes(level_map: Map) -> None:
    """Raise ValueError for a map with no axes, unknown or repeated ones, or one without or with too many values."""
    axes = {axis.name for axis in level_map.axes}
    sizes = [len(axis.values) for axis in level_map.axes]
    known = {INPUT, OUTPUT, INPUTS, SEQS, SERVER, REPEAT, BALANCE}.issuperset(axes)
    if not axes or len(axes) < len(sizes) or not known or not all(0 < n <= _MOST for n in sizes):
        raise ValueError("its axes are none")


def is_map(path: str | Path) -> bool:
    """Return whether a folder is a level map, and not one run."""
    return os.path.lexists(Path(path) / MAP)


def read(path: str | Path) -> Map:
    """Return the level map in a folder's map.json; refuse one of another format or with wrong axes."""
    file = Path(path) / MAP
    with decoding.reading(str(file), "a map.json of this project", "give the --out of a sweep, or restore it"):
        level_map = decoding.typed(decoding.json(decoding.content(file, _LARGEST)), Map)
        if level_map.format != FORMAT:
            raise ValueError(f"it has format {level_map.format}, this program reads {FORMAT}")
        _must_have_axes(level_map)
    return level_map
