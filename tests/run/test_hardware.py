"""The card by its driver, and the driver's figures against the data sheet's: pynvml itself over a library of our own.

So the names that a driver writes as bytes, its structures and its error codes become what pynvml makes of them. How
cards share a model, and machines in the place of a card, are in test_cli_calibrate.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.data.machines import Card
from harness.observe import gpu
from harness.observe.gpu import Gpus
from harness.run import experiment, prediction
from harness.sim.process import running
from harness.sim.profile import profile
from harness.spec.scenario import Hardware

pynvml = pytest.importorskip("pynvml")

OK = pynvml.NVML_SUCCESS
SM, MEM = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
H100 = {"name": b"NVIDIA H100 80GB HBM3", "memory": 81_559 * 2**20, "clocks": {SM: 1980, MEM: 2619}}  # bytes, MHz


class Driver:
    """libnvidia-ml with these cards: functions that fill in what they are handed, and return a status.

    One that is not here is one that the driver lacks.
    """

    def __init__(self, *cards: dict[str, Any]) -> None:
        self.cards = cards

    def card(self, handle: Any) -> dict[str, Any]:
        return self.cards[ctypes.cast(handle, ctypes.c_void_p).value - 1]

    def nvmlInitWithFlags(self, flags: int) -> int:
        return OK

    def nvmlShutdown(self) -> int:
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.cards)
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return OK

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        text.value = b"GPU-%d" % self.cards.index(self.card(handle))
        return OK

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        text.value = self.card(handle)["name"]
        return OK

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.total = memory._obj.free = self.card(handle)["memory"]
        return OK

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:
        known = self.card(handle)["clocks"].get(kind.value)
        if known is None:
            return pynvml.NVML_ERROR_NOT_SUPPORTED
        clock._obj.value = known
        return OK


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Opens the GPUs of a driver with these cards."""
    found: list[Gpus] = []

    def open_(*cards: dict[str, Any]) -> Gpus:
        monkeypatch.setattr(pynvml, "nvmlLib", Driver(*cards))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        gpus = gpu.opened(pynvml, {})
        assert gpus is not None
        found.append(gpus)
        return gpus

    yield open_
    for gpus in found:
        gpus.close()


def facts(opened: Any, **card: Any) -> list[Card]:
    return list(opened(H100 | card).facts())


def test_a_name_that_the_driver_writes_as_bytes_is_the_key_of_a_card(opened: Any) -> None:
    cards = facts(opened)
    assert cards[0].name == "NVIDIA H100 80GB HBM3"
    assert msgspec.json.decode(msgspec.json.encode(cards), type=list[Card]) == cards, "a manifest holds it as it is"
    found = prediction.find(Hardware(), cards)
    assert found.card is not None
    assert found.card.key == "h100-sxm"
    assert found.notes == ["the GPU is h100-sxm by its driver"]


def test_a_key_that_is_not_this_machines_card_is_told_of(opened: Any) -> None:
    found = prediction.find(Hardware(gpu="h200-sxm"), facts(opened))
    assert found.card is not None
    assert found.card.key == "h200-sxm", "whoever gives a key means it"
    assert found.notes == ["--gpu names h200-sxm, and its driver h100-sxm: is it that card?"]


def test_equal_cards_are_told_of_once(opened: Any) -> None:
    found = prediction.find(Hardware(gpu="h200-sxm", gpus=2, tp=2), opened(H100, H100).facts())
    assert [note for note in found.notes if "is it that card?" in note] == found.notes[-1:]


def test_a_card_that_no_table_has_is_none(opened: Any) -> None:
    assert prediction.find(Hardware(), facts(opened, name=b"NVIDIA H100 80GB HBM4")).card is None


@pytest.mark.slow
def test_a_run_finds_its_card(opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, out = opened(H100 | {"memory": 97_871 * 2**20}), tmp_path / "run"
    monkeypatch.setattr(experiment.gpu, "opened", lambda: gpus)
    with running(profile(max_num_seqs=4, speed=8.0)) as url:
        CliRunner().invoke(
            cli,
            [
                "run", "--url", url, "--model-config", "llama-3.1-8b", "--levels", "1", "--level-seconds", "300ms",
                "--input-tokens", "16", "--output-tokens", "8", "--no-plots", "--quiet", "--out", str(out),
            ],
        )  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["gpu"] == manifest["prediction"]["gpu"] == "h100-sxm"
    assert manifest["gpu_facts"][0]["memory_bytes"] == 97_871 * 2**20
    assert "the GPU is h100-sxm by its driver" in manifest["notes"]
