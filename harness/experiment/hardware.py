"""What serves, as far as a run can know it: the card, the model on it, and what a server was calibrated to reach.

A card is a row of the table by the key that is given, else by what its driver calls itself, or it is this machine's own
cores, measured. Measuring loads the cores fully for about two seconds: before load, never while it runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness import decoding
from harness.errors import HarnessError
from harness.observe import machine
from harness.observe.machine import Machine
from harness.predict import catalog, roofline, tune
from harness.predict.catalog import Gpu
from harness.predict.model import Model, model
from harness.predict.roofline import Deployment
from harness.predict.tune import Calibration
from harness.scenario import Hardware

_MOST_TOKENS = 10**12  # of one replica's cache: more is no figure of a server
HOST = "host"  # the key of this machine's own cores


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The card that serves, if it is known, and how it is known."""

    card: Gpu | None = None
    machine: Machine | None = None  # where the card is this machine
    notes: list[str] = []


def find(asked: Hardware, facts: Sequence[Mapping[str, Any]] | None) -> Found:
    """The card by its key, else by the drivers' `facts` of the GPUs beside a server on this machine.

    Where the drivers contradict the data sheet a note says so.
    """
    key, notes = asked.gpu, []
    if key is None:
        keys = {catalog.key_of(each["name"] or "") for each in facts or []}
        key = keys.pop() if len(keys) == 1 else None
        if key is None:
            return Found()
        notes.append(f"the GPU is {key} by its driver")
        if facts and len(facts) != asked.gpus:
            notes.append(f"{len(facts)} GPUs are here, the prediction is for {asked.gpus}: say --gpus and --tp")
    if key.lower() == HOST:
        measured = measure(asked.host_cpus)
        return Found(card=host(measured), machine=measured)
    card = catalog.gpu(key)
    return Found(card=card, notes=[*notes, *_contradicted(card.key, facts or [])])


def measure(cpus: Sequence[int] | None = None) -> Machine:
    """What these processors of this machine reach; None: all that this process may use."""
    return machine.measure(len(os.sched_getaffinity(0)), cpus)


def host(measured: Machine) -> Gpu:
    """A measured machine in the place of a card."""
    return Gpu(
        key=HOST,
        memory_bytes=measured.memory_bytes,
        bandwidth=measured.bandwidth,
        flops=measured.flops,
        certainty="measured",
        source=measured.source,
        vendor=measured.cpu,
    )


def _contradicted(key: str, facts: Sequence[Mapping[str, Any]]) -> list[str]:
    row = catalog.driver_figures(key)
    return list(dict.fromkeys(said for each in facts for said in machine.differs(key, row, each)))


def deployed(
    asked: Hardware, card: Gpu | None, cache_config: Mapping[str, Any] | None
) -> tuple[Model, Deployment] | None:
    """The model and where it runs, by the data sheet; None where either is not known.

    `cache_config` is what the engine says of its own KV blocks: that beats the estimate.
    """
    if card is None or asked.model_config is None:
        return None
    figures: dict[str, Any] = {"gpus": asked.gpus}
    if asked.tp is not None:
        figures["tp"] = asked.tp
        if asked.gpus % asked.tp == 0:
            figures["dp"] = asked.gpus // asked.tp
        else:
            fact = f"{asked.gpus} GPUs are no whole replicas of {asked.tp}"
            raise HarnessError(fact, place="--tp", way_out="give as many by --gpus as serve, or a multiple")
    elif asked.gpus > 1:
        way_out = f"say --tp {asked.gpus} for one replica over all, or --tp 1 for replicas side by side"
        raise HarnessError(f"{asked.gpus} GPUs, but not how they share the model", place="--gpus", way_out=way_out)
    if asked.max_num_seqs is not None:
        figures["max_num_seqs"] = asked.max_num_seqs
    with contextlib.suppress(KeyError, TypeError, ValueError):
        cache = cache_config or {}
        tokens = int(cache["num_gpu_blocks"]) * int(cache["block_size"])
        if 0 < tokens < _MOST_TOKENS:
            figures["kv_tokens"] = tokens
    config = catalog.model_config(asked.model_config)
    made = model(config, asked.model_config, dtype=asked.dtype or "auto", kv_dtype=asked.kv_dtype or "auto")
    return made, roofline.deployment(card, **figures)


def calibration(path: str) -> Calibration:
    """The profile file that `knee calibrate model` wrote."""
    with decoding.reading(path, "a calibration", "write one with `knee calibrate model DIR --out FILE`"):
        text = decoding.content(Path(path))
    return tune.decode(text, path)
