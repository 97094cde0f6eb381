"""Prefill and decode at each level, by the records alone, compared with the step machine's own account.

    bench/phases [--noise] [--workload NAME]

The step machine of predict.batching serves ten workloads at six loads, without and with chunked prefill. Its account: a
step without a prompt is decoding; of one with a prompt, what it takes longer than its streams' decoding is prefill.
The records have what a client sees: when each request was sent and each token came. `--noise` moves every step by 5 %,
every token by 1 ms, and has users of 2 ms. Wanted: the share of busy time in prefill within 3 points, both rates
within 5 %.
"""

from __future__ import annotations

import argparse
import math
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import knee_truths
import msgspec
import numpy as np

from harness.analysis import step_account
from harness.analysis.level import Facts, summarise_level
from harness.data.levels import LevelPhases, LevelSummary
from harness.data.record import Level, Record
from harness.predict.batching import StepMachine
from harness.predict.deployment import Deployment
from harness.predict.sequence import SimulatedRequest
from harness.predict.step import decode_time

CHUNKS = (None, 2048)  # tokens of a step
LOADS = (1, 4, 16, 32, 64, 128)
SHARE, RATE = 0.03, 0.05  # wanted: points of the share, and of a rate


class Workload(NamedTuple):
    """Mean lengths of prompts and responses, tokens; `spread` of their logarithms."""

    prompt: int
    answer: int
    spread: float = 0.5
    seats: int = 1024
    long: float = 0.0  # share of prompts that are 16 times as long


WORKLOADS = {
    "chat": Workload(256, 200),
    "short": Workload(64, 16),
    "rag": Workload(4000, 200),
    "summary": Workload(8000, 400),
    "decode": Workload(32, 512),
    "reasoning": Workload(200, 1500),
    "code": Workload(2000, 30),
    "alike": Workload(1000, 200, spread=0.0),
    "mixed": Workload(256, 200, long=0.05),
    "seats": Workload(512, 128, seats=24),
}


class Truth(NamedTuple):
    """What the machine did in a window."""

    prefill_s: float
    decode_s: float
    prompt_tokens: int
    tokens: int

    @property
    def share(self) -> float:
        return self.prefill_s / (self.prefill_s + self.decode_s)


class Client(NamedTuple):
    """What lies between the machine and the stamps: relative noise of a step, seconds of a token and of a user."""

    step: float = 0.0
    token_s: float = 0.0
    user_s: float = 0.0


QUIET, NOISY = Client(), Client(0.05, 0.001, 0.002)


def lengths(work: Workload, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Yield the lengths of requests, tokens."""
    while True:
        scale = np.exp(work.spread * rng.normal(size=2) - work.spread**2 / 2)
        prompt = work.prompt * (16 if rng.uniform() < work.long else 1) * scale[0]
        yield max(4, round(prompt)), max(2, round(work.answer * scale[1]))


def served(
    where: Deployment, work: Workload, C: int, rng: np.random.Generator, client: Client = QUIET
) -> tuple[list[Record], tuple[float, float], Truth]:
    """Return the records of C users, the window, and the machine's account of it."""
    machine, drawn, wanted = StepMachine(knee_truths.MODEL, where), lengths(work, rng), 6 * C + 240
    sent: list[float] = []
    asked: list[tuple[int, int]] = []
    arrivals: dict[int, list[float]] = {}
    due = [(0.002 * user, user) for user in range(C)]
    now, done, start, kept = 0.0, 0, math.inf, np.zeros(4)

    while done < 2 * C + wanted:
        due.sort()
        while due and due[0][0] <= now:
            at, _ = due.pop(0)
            asked.append(next(drawn))
            machine.submit(SimulatedRequest(len(sent), *asked[-1]))
            sent.append(at)
        step = machine.step()
        if step is None:
            now = due[0][0]
            continue
        old = [token for token in step.tokens if arrivals.get(token.request)]
        context = sum(asked[token.request][0] + len(arrivals[token.request]) for token in old)
        plain = decode_time(machine.cost, len(old), context) if old else 0.0
        slower = math.exp(client.step * rng.normal()) if client.step else 1.0
        duration = step.duration * slower
        decoding = min(duration, plain * slower) if step.computed else duration
        now += duration
        for token in step.tokens:
            arrivals.setdefault(token.request, []).append(now)
            if token.finished:
                done += 1
                due.append((now + client.user_s, len(sent) + len(due)))
        if math.isinf(start) and done >= 2 * C:
            start = now
        elif now > start:
            kept += duration - decoding, decoding, step.computed, len(old)
    records = [_record(i, sent[i], asked[i], arrivals.get(i, []), rng, client) for i in range(len(sent))]
    prefill_s, decode_s, prompts, tokens = kept
    return records, (start + 1e-9, now + 1e-9), Truth(prefill_s, decode_s, int(prompts), int(tokens))


def _record(
    number: int, sent: float, asked: tuple[int, int], at: list[float], rng: np.random.Generator, client: Client
) -> Record:
    stamps = np.array(at) + client.token_s * rng.exponential(size=len(at))
    stamps = np.maximum.accumulate(stamps) if len(at) else stamps
    first, last = (float(stamps[0]), float(stamps[-1])) if len(at) else (None, None)
    whole = len(at) == asked[1]
    return Record(
        request_id=str(number), level=0, repeat=0, concurrency=1, worker=0, url="", scheduled_s=sent, sent_s=sent,
        connect_s=None, first_token_s=first, first_content_s=first, last_token_s=last, done_s=last if whole else None,
        input_tokens=asked[0], cached_tokens=None, output_tokens=asked[1] if whole else None, reasoning_tokens=None,
        token_source="usage", status=200, error="" if whole else "cancelled", finish_reason="length", bytes_received=0,
        arrivals=array("q", [round(each * 1e9) for each in stamps.tolist()]).tobytes(), tokens=b"",
    )  # fmt: skip


def summary(records: list[Record], window: tuple[float, float], C: int) -> LevelSummary:
    """Return the level as any report has it."""
    facts = Facts()
    return summarise_level(records, facts.table(records), [], Level(0, C, 0, 0.0, *window, window[1]), facts)


def deployment(work: Workload, chunk: int | None) -> Deployment:
    """Return where a workload is served: an H100 with room for all of it."""
    return msgspec.structs.replace(
        knee_truths.H100, max_num_seqs=work.seats, kv_tokens=64_000_000, max_num_batched_tokens=chunk
    )


class Judged(NamedTuple):
    """How far an account is from the machine's own."""

    share: float  # points
    prefill: float  # relative
    decode: float
    inside: bool  # the interval of the share has the true one

    @property
    def good(self) -> bool:
        return abs(self.share) <= SHARE and max(abs(self.prefill), abs(self.decode)) <= RATE


def judged(found: LevelPhases, truth: Truth) -> Judged | None:
    """Return the account beside the machine's; None where it is refused."""
    share, prefill, decode = found.prefill_share, found.prefill_tokens_per_s.mean, found.decode_tokens_per_s.mean
    if share.mean is None or prefill is None or decode is None:
        return None
    low, high = share.ci95 or (math.nan, math.nan)
    return Judged(
        share.mean - truth.share,
        prefill / (truth.prompt_tokens / truth.prefill_s) - 1,
        decode / (truth.tokens / truth.decode_s) - 1,
        low <= truth.share <= high,
    )


def run(name: str, chunk: int | None, client: Client) -> Iterator[tuple[int, LevelPhases, Truth]]:
    """Yield every load of a workload with its account, the steps of all loads known."""
    work, truths, levels = WORKLOADS[name], [], []
    for C in LOADS:
        rng = np.random.default_rng([C, chunk or 0])
        records, window, truth = served(deployment(work, chunk), work, C, rng, client)
        truths.append(truth)
        levels.append(summary(records, window, C))
    for C, level, truth in zip(LOADS, step_account.completed(levels), truths, strict=True):
        assert level.phases
        yield C, level.phases, truth


def main() -> None:
    """Print a line for each level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", action="store_true", help="steps, tokens and users that vary")
    parser.add_argument("--workload", choices=WORKLOADS, help="only this one")
    asked = parser.parse_args()
    rows, refused = list[Judged](), 0
    print("workload   chunk     C  in prefill  found (95 %)              points  prefill  decode")
    for name in [asked.workload] if asked.workload else WORKLOADS:
        for chunk in CHUNKS:
            for C, found, truth in run(name, chunk, NOISY if asked.noise else QUIET):
                print(f"{name:9} {chunk or '-':>6} {C:5} {truth.share:11.1%}  ", end="")
                row = judged(found, truth)
                if row is None:
                    refused += 1
                    print(f"refused: {found.reason}")
                    continue
                rows.append(row)
                low, high = found.prefill_share.ci95 or (math.nan, math.nan)
                ends = f"{found.prefill_share.mean:6.1%} ({low:6.1%} to {high:6.1%}) "
                mark = "" if row.good else " !"
                print(f"{ends} {100 * row.share:+6.1f} {row.prefill:+8.1%} {row.decode:+7.1%} {found.source}{mark}")
    within = sum(row.good for row in rows)
    print(f"{len(rows) + refused} levels: {within} within, {len(rows) - within} not, {refused} refused;", end=" ")
    print(f"{sum(row.inside for row in rows) / len(rows):.1%} of the intervals have the true share")


if __name__ == "__main__":
    main()
