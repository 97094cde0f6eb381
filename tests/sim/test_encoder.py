"""The simulated endpoint as an encoder: what it reads and writes, and whole runs against it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.data.summary import Summary
from harness.dialects import DIALECTS
from harness.predict.sequence import SimulatedRequest
from harness.predict.step import pass_time, step_cost
from harness.results.result import Result
from harness.sim import api, connection
from harness.sim.api import RefusalError
from harness.sim.connection import ENCODE, AnswerWriter
from harness.sim.machines import Passes
from harness.sim.profile import Profile, profile, reference
from harness.workload.request import Message, Request

MINILM = profile("all-minilm-l6-v2/l4")
ASKED = Request(
    number=0,
    prompt=(Message("query", "a b"), Message("document", "c d e"), Message("document", "f")),
    output_tokens=0,
)
TEXTS = msgspec.structs.replace(ASKED, prompt=ASKED.prompt[1:])


def read(path: str, body: dict[str, Any], served: Any = MINILM) -> connection.Encoding:
    return connection.read_texts(path, json.dumps({"model": "all-minilm-l6-v2"} | body).encode(), served)


@pytest.mark.parametrize(
    ("name", "request_", "texts"),
    [
        ("embeddings", TEXTS, (3 + 2, 1 + 2)),  # [CLS] text [SEP]
        ("rerank", ASKED, (2 + 3 + 3, 2 + 1 + 3)),  # [CLS] query [SEP] document [SEP]
        ("score", ASKED, (8, 6)),
    ],
)
def test_a_client_decodes_the_tokens_that_the_server_counted(name: str, request_: Request, texts: Any) -> None:
    dialect = DIALECTS[name]
    found = connection.read_texts("/v1" + dialect.path, dialect.encoder("all-minilm-l6-v2").encode(request_), MINILM)
    assert found.texts == texts
    decoder = dialect.decoder()
    decoder.feed(AnswerWriter(found, "r", MINILM, 1).whole(), 1)
    response = decoder.end(2)
    assert (response.error, response.input_tokens) == ("", sum(texts))


def test_vectors_have_the_model_s_width() -> None:
    found = json.loads(AnswerWriter(read("/v1/embeddings", {"input": ["a", "b"]}), "r", MINILM, 1).whole())
    assert [len(each["embedding"]) for each in found["data"]] == [384, 384]
    assert found["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/embeddings", {"input": []}, "there is no text"),
        ("/v1/embeddings", {"input": " ".join(["w"] * 511)}, "one text has 513"),
        ("/v1/rerank", {"documents": ["a"]}, "there is no query"),
        ("/v1/embeddings", {"input": 3}, "Expected"),
        ("/v1/embeddings", {"input": "a", "model": "other"}, "does not exist"),
    ],
)
def test_what_cannot_be_computed_is_refused(path: str, body: dict[str, Any], words: str) -> None:
    with pytest.raises(RefusalError) as caught:
        read(path, body)
    assert words in caught.value.body.decode()


def test_a_model_that_generates_serves_no_vectors_and_an_encoder_no_text() -> None:
    llama = profile("llama-3.1-8b/h100-sxm")
    with pytest.raises(RefusalError, match="does not support /v1/embeddings"):
        read("/v1/embeddings", {"input": "a", "model": None}, llama)
    with pytest.raises(RefusalError, match="does not support"):
        read("/v1/score", {"text_1": "a", "text_2": "b", "model": None}, reference())
    with pytest.raises(RefusalError, match="it generates no text"):
        api.read("/v1/completions", b'{"prompt": "a"}', MINILM)


def passes(most: int) -> Passes:
    return Passes(MINILM.model, msgspec.structs.replace(MINILM.deployment, max_num_seqs=most))


def submit(machine: Passes, id: int, *texts: int) -> None:
    machine.submit(SimulatedRequest(id, sum(texts), 0, texts=texts))


def test_a_pass_is_launched_and_then_filled() -> None:
    cost, machine = step_cost(MINILM.model, MINILM.deployment), passes(4)
    assert machine.step() is None
    submit(machine, 1, 10)
    launch = machine.step()
    submit(machine, 2, 20, 30)  # in time: the pass is being launched
    done = machine.step()
    assert launch is not None
    assert done is not None
    assert (launch.duration, launch.tokens) == (cost.step + cost.api, [])
    assert [token.request for token in done.tokens] == [1, 2]
    assert done.duration == pytest.approx(pass_time(cost, [(1, 10), (1, 20), (1, 30)], 2))
    assert (done.computed, machine.step()) == (60, None)


def test_a_request_that_does_not_fit_has_the_rest_in_the_next_pass() -> None:
    machine = passes(4)
    submit(machine, 1, 10, 10, 10)
    submit(machine, 2, 20, 20)
    submit(machine, 3, 30)
    steps = [machine.step() for _ in range(4)]
    assert [[token.request for token in step.tokens] for step in steps if step] == [[], [1], [], [2, 3]]
    assert [step.computed for step in steps if step] == [0, 50, 0, 50]


def test_a_request_that_is_cut_is_forgotten() -> None:
    machine = passes(4)
    submit(machine, 1, 10)
    machine.step()
    assert (machine.cancel(1), machine.cancel(1), machine.step()) == (True, False, None)


def test_only_paths_that_a_dialect_posts_to_are_served() -> None:
    assert set(ENCODE) <= {dialect.root + dialect.path for dialect in DIALECTS.values()}
    assert isinstance(MINILM, Profile)


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "texts"), [("embeddings", 1), ("embeddings", 3), ("rerank", 4)])
def test_a_run_counts_what_the_endpoint_counted(scenario: str, texts: int, tmp_path: Path) -> None:
    """Words, with two special tokens a text, or three and sixteen of the query."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "harness", "run", scenario, "--url", "sim:", "--inputs", str(texts)]
    command += ["--input-tokens", "40", "--levels", "1,8", "--level-seconds", "1", "--out", str(out), "--quiet"]
    done = subprocess.run([*command, "--no-plots"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 3), done.stderr  # 3: this machine was too busy for the client
    run = Result.open(out)
    assert {r.input_tokens for r in run.records if not r.error} == {40 * texts}
    assert {(r.output_tokens, r.first_token_s, r.arrivals) for r in run.records} == {(None, None, b"")}
    summary = msgspec.json.decode((out / "summary.json").read_bytes(), type=Summary)
    assert (summary.unit, run.manifest.unit) == ("input tokens", "input tokens")
    for level in summary.levels:
        assert level.documents_per_s
        assert level.documents_per_s.mean == pytest.approx(texts * (level.requests_per_s.mean or 0))
        assert level.throughput.mean == pytest.approx(40 * texts * (level.requests_per_s.mean or 0), rel=0.02)
        assert (level.itl_s.n, level.ttft_s.n) == (0, 0)
    assert "ITL" not in (out / "report.md").read_text()
    assert summary.prediction is not None
    assert summary.prediction.inputs == (texts if texts > 1 else msgspec.UNSET)
