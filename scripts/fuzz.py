"""Fuzz what reads a server's bytes: framing, events, dialects, as the transport joins them; or what reads files.

Each input is one hostile answer (tests/trust/fuzzing.py makes it). It is read whole and in random cuts, every fiftieth
byte by byte too; the readings must give the same record and nothing may be raised. It is also read by the compiled path
and by the pure one, in the same reads, every fiftieth over TLS too: their records must be equal in all. Every other
thousand meets limits so small that it reaches them. A finding is printed in the shortest form that still shows it; exit
status 1.

With --readers each input is a damaged manifest, spool, parquet file, scenario, model config or one of the small files
(tests/trust/fuzzing_readers.py makes it). Its reader gives a value or one line of error; nothing else may leave it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence

from harness.dialects.sse import EventParser
from harness.dialects.tokens import TokenPlacer
from tests.dialects.test_placer import byte_level
from tests.trust.fuzzing import Both, Encrypted, Reader, cut, difference, mutated, small_limits
from tests.trust.fuzzing_readers import SHARES, Readers

_BLOCK = 1000  # inputs that share their limits
_LONG = 20_000  # bytes of a file that is not made shorter
_EXACT_EVERY = 50  # byte by byte costs ten times the rest


class Tried:
    """What became of the inputs so far."""

    def __init__(self) -> None:
        self.inputs = 0
        self.errors: collections.Counter[str] = collections.Counter()


def finding(
    reader: Reader,
    both: Both,
    encrypted: Encrypted,
    data: bytes,
    places: Sequence[float],
    reset: bool,
    placer: TokenPlacer | None,
    exact: bool,
    tried: Tried,
) -> str:
    """Return what is wrong with the readings of this input; empty if nothing is. Places are parts of its length."""
    whole, parts = cut(data, ()), cut(data, [int(place * len(data)) for place in places])
    try:
        outcome = reader.outcome(parts, reset=reset, placer=placer)
        tried.errors[outcome.error or "none"] += 1
        wrong = difference(outcome, reader.outcome(whole, reset=reset, placer=placer), whole)
        if exact and not wrong:
            single = reader.outcome(cut(data, range(len(data))), reset=reset, placer=placer)
            wrong = difference(single, outcome, parts)
        wrong = wrong or both.difference(data, reset=reset, placer=placer)
        if exact and not wrong:
            wrong = encrypted.difference(data)
    except Exception as error:  # noqa: BLE001  # whatever it is: nothing may leave
        return f"{type(error).__name__}: {error}"
    return wrong


def shortest(data: bytes, wrong: Callable[[bytes], str]) -> bytes:
    """Return the input without all that can be left out while it still shows something wrong."""
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            less = data[:at] + data[at + size :]
            if wrong(less):
                data = less
            else:
                at += size
        size //= 2
    return data


def fuzz(inputs: int, seconds: float, seed: int) -> int:
    """Try so many inputs, or as many as the time allows; the number of findings, 0 or 1."""
    choose, reader, both, encrypted, tried = random.Random(seed), Reader(), Both(), Encrypted(), Tried()
    placer = byte_level()[1]
    began = time.monotonic()
    while tried.inputs < inputs and time.monotonic() - began < seconds:
        small = tried.inputs // _BLOCK % 2 == 1
        with small_limits() if small else contextlib.nullcontext():
            for _ in range(min(_BLOCK, inputs - tried.inputs)):
                data = mutated(choose)
                places, reset = (choose.random(), choose.random(), choose.random()), choose.random() < 0.2
                with_placer = placer if tried.inputs % 16 == 0 else None
                exact = tried.inputs % _EXACT_EVERY == 0
                tried.inputs += 1
                if not finding(reader, both, encrypted, data, places, reset, with_placer, exact, tried):
                    continue

                def wrong(data: bytes) -> str:
                    return finding(reader, both, encrypted, data, places, reset, with_placer, True, Tried())  # noqa: B023

                few = shortest(data, wrong)
                print(f"FINDING: seed {seed}, input {tried.inputs}, limits {'small' if small else 'real'}")
                print(f"input: {few!r}\ncut at {[int(p * len(few)) for p in places]}, {reset=}\n{wrong(few)}")
                return 1
    took = time.monotonic() - began
    if EventParser.buffered:
        print(f"FINDING: seed {seed}: {EventParser.buffered} bytes of answers that are over are still counted")
        return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{tried.inputs:,} inputs, {tried.inputs / took:,.0f} inputs/s, seed {seed}, peak {peak:.0f} MiB, 0 findings")
    print("records: " + ", ".join(f"{name} {count:,}" for name, count in tried.errors.most_common()))
    return 0


def fuzz_readers(inputs: int, seconds: float, seed: int) -> int:
    """Return the same of the readers of files: a share of the inputs for each, in turn."""
    choose, readers = random.Random(seed), Readers()
    turn = [name for name, share in SHARES.items() for _ in range(share)]
    tried: collections.Counter[str] = collections.Counter()
    refused: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    try:
        while tried.total() < inputs and time.monotonic() - began < seconds:
            name = turn[tried.total() % len(turn)]
            tried[name] += 1
            data = readers.mutated(name, choose)
            wrong = readers.wrong(name, data)
            refused[name] += readers.refused
            if wrong:
                few = data if len(data) > _LONG else shortest(data, lambda less: readers.wrong(name, less))  # noqa: B023
                print(f"FINDING: seed {seed}, input {tried.total()}, {name}: {wrong}\ninput: {few!r}")
                return 1
    finally:
        readers.close()
    took = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    count = tried.total()
    print(f"{count:,} damaged files, {count / took:,.0f} a second, seed {seed}, peak {peak:.0f} MiB, 0 findings")
    print("refused: " + ", ".join(f"{name} {refused[name]:,} of {count:,}" for name, count in tried.items()))
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Fuzz what reads bytes from outside; exit status 1 on a finding.")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="how many inputs (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long (default: never)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other inputs (default: %(default)s)")
    parser.add_argument("--readers", action="store_true", help="what reads files, not what reads a server's bytes")
    options = parser.parse_args(arguments)
    return (fuzz_readers if options.readers else fuzz)(options.inputs, options.seconds, options.seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
