"""The prediction of prefill and decode on GPUs of their own, as a document."""

from __future__ import annotations

from harness.data.summary import Band
from harness.predict.disaggregated import Disaggregated, Pool
from harness.report.document import Column, Document, Section
from harness.report.format import ms, number


def report(found: Disaggregated) -> Document:
    """What each pool can take, the ratio that balances them, and the levels."""
    pools = [("prefill", found.prefill), ("decode", found.decode)]
    tightest, least = min(pools, key=lambda each: each[1].requests_per_s.mid)
    rate = number(found.best_requests_per_s)
    balance = (
        f"1 prefill GPU for {1 / found.balance:.3g} of decode"
        if found.balance < 1
        else f"{found.balance:.3g} prefill GPUs for 1 of decode"
    )
    prefill, decode = found.best_split
    head = [
        f"{found.model} on {found.gpu}, {found.input_tokens:g} tokens in, {found.output_tokens:g} out: "
        f"{number(least.requests_per_s.mid)} requests/s, bound by {tightest}",
        f"Balance: {balance}; of {prefill + decode} GPUs {prefill} + {decode} reach {rate} requests/s",
    ]
    rows: list[tuple[str, Pool]] = pools
    levels = found.levels
    return Document(
        sections=[
            Section(lines=head),
            Section(
                "Each pool alone",
                columns=[
                    Column("", [name for name, _ in rows], words=True),
                    Column("GPUs", [number(pool.gpus) for _, pool in rows]),
                    Column("replicas", [number(pool.replicas) for _, pool in rows]),
                    Column("most req/s", [number(pool.requests_per_s.mid) for _, pool in rows]),
                    Column("low", [number(pool.requests_per_s.low) for _, pool in rows]),
                    Column("high", [number(pool.requests_per_s.high) for _, pool in rows]),
                ],
            ),
            Section(
                "Together",
                columns=[
                    Column("C", [number(each.concurrency) for each in levels]),
                    *_band([each.output_tokens_per_s for each in levels]),
                    Column("req/s", [number(each.requests_per_s.mid) for each in levels]),
                    Column("ITL ms", [ms(each.itl_s) for each in levels]),
                    Column("TTFT ms", [ms(each.ttft_s) for each in levels]),
                    Column("bound by", [each.bound_by for each in levels], words=True),
                ],
            ),
            Section("Notes", lines=found.notes),
        ]
    )


def _band(bands: list[Band]) -> list[Column]:
    ends = {
        "tok/s": [each.mid for each in bands],
        "low": [each.low for each in bands],
        "high": [each.high for each in bands],
    }
    return [Column(name, [number(value) for value in values]) for name, values in ends.items()]
