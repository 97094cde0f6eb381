import doctest
import re

import msgspec
import pytest

from harness.predict import claims as module
from harness.predict.catalog import gpu, model_config, models
from harness.predict.claims import claims, facts, holding, holds, notes
from harness.predict.deployment import deployment
from harness.predict.model import model
from harness.spec.work import MeanLengths

CHAT = MeanLengths(1000, 200)
SEVEN = model(model_config("llama-2-7b"), "llama-2-7b")


def seventy(dtype="auto", **more):
    return model(model_config("llama-3.1-70b"), "llama-3.1-70b", dtype=dtype, **more)


def on(card="h100-sxm", **figures):
    return deployment(gpu(card), **figures)


def ids(found):
    return {claim.id for claim in found}


def test_every_claim_has_a_condition_a_status_and_a_name_of_its_own():
    rows = claims()
    assert len({claim.id for claim in rows}) == len(rows)
    for claim in rows:
        assert claim.quote
        assert claim.status in ("unsourced", "wrong", "checked")
        assert all(re.fullmatch(r"[a-z]+=[^ =]+", part) for part in claim.condition.split())
        if claim.low is not None and claim.high is not None:
            assert claim.low <= claim.high


def test_a_claim_is_shown_only_where_its_whole_condition_holds():
    shown = ids(holding(facts(SEVEN, on("a100-80-sxm"), CHAT)))
    assert {"benchmark-7b-a100", "7b-large-batch", "tier-basic-7b"} <= shown
    assert "benchmark-7b-h100" not in shown  # another card
    assert "quantised" not in shown
    assert "70b-large-batch" not in shown
    eight = facts(seventy("fp8"), on(tp=8, acceptance=0.7, draft_tokens=3), CHAT)
    assert {"benchmark-scaling-8", "fp8-doubles", "speculative", "70b-fp8-h100"} <= ids(holding(eight))


def test_fp8_doubles_only_where_the_card_multiplies_in_it():
    assert "fp8-doubles" not in ids(holding(facts(seventy("fp8"), on("a100-80-sxm", tp=8), CHAT)))


@pytest.mark.parametrize(
    ("name", "card", "figures"),
    [
        ("llama-2-7b", "a100-80-sxm", {}),
        ("llama-2-7b", "h100-sxm", {"draft_tokens": 3, "acceptance": 0.7}),
        ("llama-3.1-70b", "a100-80-sxm", {"tp": 8}),
    ],
)
def test_a_rate_of_generated_tokens_is_no_claim_about_a_run_that_generates_none(name, card, figures):
    made, where = model(model_config(name), name), on(card, **figures)
    rates = ("tok/s", "tokens/second", "Decode throughput", "million tokens", "concurrent sequences", "peculative")

    def notes_of(workload):
        return [claim.id for claim in holding(facts(made, where, workload)) if any(x in claim.quote for x in rates)]

    assert notes_of(CHAT)
    assert notes_of(MeanLengths(1000, 0)) == []


def test_the_speed_of_one_stream_is_no_claim_about_an_encoder():
    encoder = model(model_config("bge-m3"), "bge-m3")
    assert "decode-batch-1" in ids(holding(facts(SEVEN, on(), CHAT)))
    assert "decode-batch-1" not in ids(holding(facts(SEVEN, on(), MeanLengths(1000, 0))))
    assert "decode-batch-1" not in ids(holding(facts(encoder, on("l4"), CHAT))), "whatever is asked, it generates none"


@pytest.mark.parametrize("name", [name for name in models() if not model(model_config(name), name).generates])
def test_nothing_is_said_of_an_encoder_or_a_reranker(name):
    encoder = model(model_config(name), name)
    assert holding(facts(encoder, on("l4"), CHAT)) == []
    assert notes(encoder, on("l4"), CHAT) == []


def test_what_is_said_of_one_gpu_is_not_said_of_a_machine_without_any():
    machine = msgspec.structs.replace(gpu("h100-sxm"), key="host")
    shown = ids(holding(facts(SEVEN, deployment(machine), CHAT)))
    assert "tier-basic-7b" in shown
    assert {"decode-batch-1", "7b-large-batch"}.isdisjoint(shown)


def test_wrong_claims_are_never_shown_as_claims():
    wrong = {claim.id for claim in claims() if claim.status == "wrong"}
    assert wrong >= {"kv-70b", "peak-h100", "prefill-7b-a100", "users-70b-fp8", "conversations-8"}
    everything = {"size": "70b", "weights": "fp8", "card": "h100", "gpus": "1", "users": "thousands"}
    assert not ids(holding(everything)) & wrong


def test_a_70bs_kv_is_not_the_quoted_1_6_mb():
    (note,) = notes(seventy(), on(tp=4), CHAT)
    assert "327,680 B" in note  # G22
    assert "2,621,440 B" in note  # G21


def test_a_sparse_peak_is_told_from_the_dense_one():
    (note,) = notes(SEVEN, on(), CHAT, peak_flops=1979e12)
    assert note == "1,979 TFLOPS is the sparse peak of h100-sxm; dense matrices reach 989"
    assert notes(SEVEN, on(), CHAT, peak_flops=989e12) == []


def test_prefill_of_a_7b_on_an_a100_stays_under_its_flop_roof():
    # 312e12 / (2 · (6,738,149,376 - 131,072,000)): the input embedding is only looked up
    (note,) = notes(SEVEN, on("a100-80-sxm"), CHAT)
    assert "the FLOP roof of a100-80-sxm for llama-2-7b is 23,611 at 100 % MFU" in note


def test_a_70b_that_cannot_lie_on_one_card_is_said_before_it_fails():
    found = notes(seventy(), on(), CHAT)
    assert any("141 GB of 16-bit weights do not fit on one h100-sxm of 86 GB" in note for note in found)


def test_fifty_users_of_a_70b_on_one_card_have_hardly_any_context():
    def notes_of(made, where):
        (note,) = (note for note in notes(made, where, CHAT) if "50 chat users" in note)
        return note

    small = seventy("fp8", kv_dtype="fp8")
    # 81559 MiB · 0.9 - 72.653e9 - 2 · 8192 · (4 · 8192 + 3 · 28672) B - 0.35 GiB = 1.992e9, / 163,840, for 50
    assert notes_of(small, on(max_num_seqs=256)).endswith("each would have 243 KV tokens")
    tight = on()  # the sampler of 1,024 requests takes 5 GB
    assert notes_of(small, tight).endswith("weights and activations leave no KV for any of them")
    assert notes_of(small, on(kv_tokens=100_000)).endswith("each would have 2,000 KV tokens")


def test_thousands_of_conversations_are_not_all_in_flight():
    eight = on("a100-80-sxm", dp=8)
    assert any("15,000 conversations on 8 GPUs" in note for note in notes(SEVEN, eight, CHAT, users=[15_000]))
    assert not any("conversations" in note for note in notes(SEVEN, eight, CHAT, users=[512]))


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0
    assert not holds(claims()[0], {})
