"""The GPUs of this machine, whoever made them."""

from __future__ import annotations

from typing import Protocol

from harness.data.machines import Card
from harness.data.record import Sample
from harness.observe.amd import AmdGpus
from harness.observe.gpu import Gpus


class Cards(Protocol):
    """GPUs that are opened for reading."""

    def facts(self) -> list[Card]: ...

    def samples(self, time_s: float) -> list[Sample]: ...

    def close(self) -> None: ...


def opened() -> Cards | None:
    """NVIDIA's by NVML, else AMD's by AMD SMI; None where there are none."""
    return Gpus.open() or AmdGpus.open()
