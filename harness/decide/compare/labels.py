"""Which folders and files are of which stack: by the names in front of them, else by what tells them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from harness.base.errors import HarnessError
from harness.decide.compare import runs
from harness.decide.compare.runs import Run
from harness.results.foreign import formats


def labelled(stacks: Sequence[str]) -> list[Run]:
    """The runs of every folder and file, labelled; several files of one label are one stack's."""
    named = [_named(text) for text in stacks]
    folders = {place: runs.read_folder(place) for _, place in named if Path(place).is_dir()}
    files = {place: formats.read(place) for _, place in named if place not in folders}
    started = {place: own[0].stack or "" for place, own in folders.items() if own}
    engines = {place: (own[0].facts.engine or "").partition(" ")[0] for place, own in folders.items() if own}
    engines |= {place: found.engine or "" for place, found in files.items()}
    labels = _labels(named, started, engines)
    out: list[Run] = []
    for label in dict.fromkeys(labels):
        own = [place for each, (_, place) in zip(labels, named, strict=True) if each == label]
        each_once(own)
        out += [msgspec.structs.replace(run, label=label) for place in own for run in folders.get(place, [])]
        out += runs.of_files(label, [(place, files[place]) for place in own if place in files])
    return out


def each_once(places: Sequence[str]) -> Sequence[str]:
    """The places of one side; HarnessError where one is given twice, which would count as its own repeat."""
    known = [Path(place).resolve() for place in places]
    for place, own in zip(places, known, strict=True):
        if known.count(own) > 1:
            raise HarnessError("is given twice", place=place, way_out="give each folder once")
    return places


def _named(text: str) -> tuple[str, str]:
    """A stack's name, "" for none, and its folder or file.

    >>> _named("vllm=results/a"), _named("results/a=b")
    (('vllm', 'results/a'), ('', 'results/a=b'))
    """
    name, equals, place = text.partition("=")
    return (name, place) if equals and name and "/" not in name and not Path(text).exists() else ("", text)


def _labels(named: Sequence[tuple[str, str]], *found: Mapping[str, str]) -> list[str]:
    """The stacks' names: those in front of them, else the first names found that tell them apart, else their own.

    >>> _labels([("", "runs/a"), ("", "runs/b"), ("x", "c")], {}, {"runs/a": "vllm", "runs/b": "llamacpp"})
    ['vllm', 'llamacpp', 'x']
    >>> _labels([("", "runs/a"), ("", "old/a"), ("", "b.json")], {"runs/a": "vllm", "old/a": "vllm"})
    ['runs/a', 'old/a', 'b']
    """
    bare = [place for name, place in named if not name]
    for names in found:
        known = [names.get(place, "") for place in bare]
        if all(known) and len(set(known)) > 1:
            return [name or names[place] for name, place in named]
    stems = {place: Path(place).name if Path(place).is_dir() else Path(place).stem for place in bare}
    alone = {place for place in bare if list(stems.values()).count(stems[place]) == 1}
    return [name or (stems[place] if place in alone else place) for name, place in named]
