"""The card that serves, and the calibration profile of a server.

Measuring this machine as the card loads its cores fully for about two seconds: before load, never during it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from harness.base import decoding
from harness.data.manifest import Card, Machine
from harness.observe import machine
from harness.predict import served, tune
from harness.predict.tune import Calibration
from harness.spec.scenario import Hardware


def find(hardware: Hardware, cards: Sequence[Card] | None) -> served.ServingCard:
    """The card by its key, else by the drivers; `host` measures this machine's cores now."""
    return served.find(hardware, cards, measure)


def measure(cpus: Sequence[int] | None = None) -> Machine:
    """What these processors of this machine reach; None: all that this process may use."""
    return machine.measure(len(os.sched_getaffinity(0)), cpus)


def calibration(path: str) -> Calibration:
    """The profile file that `knee calibrate model` wrote."""
    with decoding.reading(path, "a calibration", "write one with `knee calibrate model DIR --out FILE`"):
        text = decoding.content(Path(path))
    return tune.decode(text, path)
