"""Canaries before the load and inside it: against fakes, a scripted server, and whole runs with planted faults."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.dialects import DIALECTS
from harness.load.transport import Target
from harness.run.launch.endpoint import Address, Endpoint, Model
from harness.run.launch.unloaded import Reply, resumed, with_answers, with_canaries
from harness.sim import profile as profiles
from harness.sim.api import WORDS, read
from harness.spec import reading, scenario
from harness.spec.scenario import QualitySpec
from harness.workload.canaries import PROMPTS, Canary, Exact, digests
from harness.workload.request import Request
from tests.builders import servers, virtual_run
from tests.builders.endpoints import PATH
from tests.builders.streams import DONE, END, delta

TWO = (Canary(prompt="one", output_tokens=5, expected=Exact("a b")), Canary(prompt="two", output_tokens=5))
TWICE = QualitySpec(repeats=2)


def launch(port: int = 1) -> Endpoint:
    profile = profiles.embedded(scenario.Sim())
    found = virtual_run.launch(scenario.Scenario(), profile)
    target = Target(scheme="http", host="127.0.0.1", port=port, path=PATH, headers={})
    wire = msgspec.structs.replace(found.wire, target=target)
    return msgspec.structs.replace(found, wire=wire, address=Address(f"http://h:{port}", "h", port, ""))


def with_replies(*replies: Reply) -> tuple[Endpoint, list[Request]]:
    """What two canaries asked twice are answered, and what was asked."""
    sent: list[Request] = []

    async def ask(request: Request) -> Reply:
        sent.append(request)
        return replies[len(sent) - 1]

    return asyncio.run(with_answers(TWICE, TWO, launch(), ask)), sent


def test_every_prompt_is_asked_before_any_is_asked_again() -> None:
    found, sent = with_replies(Reply("a b", "stop"), Reply("c", "stop"), Reply("a d", "length"), Reply("c", "stop"))
    assert [each.canary for each in sent] == [0, 1, 0, 1]
    assert found.alone.canaries
    kept = [(each.canary, each.differs_at, each.score, each.finish_reason) for each in found.alone.canaries.answers]
    assert kept == [(0, None, 1.0, "stop"), (1, None, None, "stop"), (0, 1, 0.0, "length"), (1, None, None, "stop")]
    assert found.alone.canaries.digests == [digests("a b"), digests("c")]
    assert [each.first for each in found.prompts.canaries] == found.alone.canaries.digests


def test_a_prompt_whose_first_answer_fails_is_compared_with_nothing() -> None:
    found, _ = with_replies(Reply(error="timeout"), Reply("c", "stop"), Reply("a b", "stop"), Reply("c", "stop"))
    assert found.alone.canaries
    assert found.alone.canaries.digests[0] == ""
    assert [each.error for each in found.alone.canaries.answers] == ["timeout", "", "", ""]


def test_where_all_fail_nothing_is_loaded() -> None:
    with pytest.raises(HarnessError, match="no canary is answered: http_5xx"):
        with_replies(Reply(error="timeout"), Reply(error="http_5xx"))


def test_a_resumed_run_goes_on_with_the_first_answers_and_with_no_other_prompts(tmp_path: Path) -> None:
    spec = QualitySpec(file=str(tmp_path / "questions.jsonl"), output_tokens=5)
    Path(spec.file or "").write_text('{"prompt": "one", "exact": "a b"}\n{"prompt": "two"}\n')
    begun, _ = with_replies(Reply("a b"), Reply("c"), Reply("a b"), Reply("c"))
    assert begun.alone.canaries
    assert resumed(spec, launch(), begun.alone.canaries).prompts.canaries == begun.prompts.canaries
    Path(spec.file or "").write_text('{"prompt": "one", "exact": "a c"}\n{"prompt": "two"}\n')
    with pytest.raises(HarnessError, match="its prompts are not those that the run began with"):
        resumed(spec, launch(), begun.alone.canaries)


def test_answers_of_a_server_are_read_and_its_errors_are_kept() -> None:
    numbers = itertools.count()

    def script(request: servers.Request) -> None:
        match next(numbers) % 3:
            case 0:
                request.stream(delta(content=" to"), delta("stop", content=" be"), END, DONE)
            case 1:
                request.answer(503, b"busy")
            case _:
                request.stream(delta(content=" cut"))

    target = scenario.Target(request_timeout=5.0)
    with servers.serving(script) as port:
        found = asyncio.run(with_canaries(TWICE, target, launch(port), lambda text: None))
    assert found.alone.canaries
    seen = {(each.error, each.finish_reason) for each in found.alone.canaries.answers}
    assert seen == {("", "stop"), ("http_5xx", ""), ("truncated", "")}
    assert len(found.alone.canaries.answers) == 2 * len(PROMPTS)


def test_canaries_name_the_model_as_the_load_does() -> None:
    seen: set[str] = set()

    def script(request: servers.Request) -> None:
        seen.add(json.loads(request.body)["model"])
        request.stream(delta("stop", content=" to"), END, DONE)

    with servers.serving(script) as port:
        found = launch(port)
        codec = msgspec.structs.replace(found.wire.codec, model="Qwen3-8B")
        wire = msgspec.structs.replace(found.wire, codec=codec)
        hidden = msgspec.structs.replace(found, wire=wire, model=Model(name="(hidden)"))
        asyncio.run(with_canaries(TWICE, scenario.Target(request_timeout=5.0), hidden, lambda text: None))
    assert seen == {"Qwen3-8B"}


def run(folder: Path, *, corrupt: float, questions: str = "", watched: bool = True) -> virtual_run.Run:
    """Levels of 16 and 32 requests in flight on the clock that jumps; above 16 a share of the answers is corrupted."""
    quality: dict[str, Any] = {"repeats": 12, "output_tokens": 3} | ({"file": questions} if questions else {})
    spec = reading.build(
        {
            "workload": {"input_tokens": 16, "output_tokens": 2, "seed": 5},
            "ramp": {"levels": [16, 32], "level_seconds": 6},
            "sim": {"max_num_seqs": 64},
        }
        | ({"quality": quality} if watched else {}),
        place="test",
    )
    served = profiles.embedded(spec.sim)
    return virtual_run.run(spec, served, folder, server=virtual_run.Server(served, corrupt=corrupt, above=16))


@pytest.mark.slow
def test_planted_corruption_is_named_at_its_level_and_no_text_is_kept(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "zyzzyva quixotic", "regex": "."}\n{"prompt": "xylophone", "exact": "no"}\n')
    folder = tmp_path / "run"
    folder.mkdir()
    found = run(folder, corrupt=0.5, questions=str(questions))
    assert [(each.code, each.at) for each in found.summary.verdicts if each.code == "answers_changed"] == [
        ("answers_changed", 32)
    ]
    sixteen, thirty_two = found.summary.levels
    assert sixteen.quality
    assert thirty_two.quality
    assert sixteen.quality.agreement.mean == 1.0
    assert thirty_two.quality.agreement.mean is not None
    assert 0.2 < thirty_two.quality.agreement.mean < 0.8
    assert sixteen.quality.accuracy
    assert sixteen.quality.accuracy.mean == 0.5  # any answer, and none
    sent = [each.canary is not None for each in found.result.records]
    assert 0 < sum(sent) <= 0.02 * len(sent) + 1
    said = {b"zyzzyva", b"quixotic", b"xylophone", *_answers_of(found)}
    kept = [repr(found.result.records).encode(), *(file.read_bytes() for file in folder.iterdir())]
    assert [word for word in said for content in kept if word in content] == []


def _answers_of(found: virtual_run.Run) -> list[bytes]:
    """The first two words of the canaries' answers."""
    encoder, served = DIALECTS["chat"].encoder(found.server.profile.model_name), found.server.profile
    prompts = [Canary(prompt=prompt, output_tokens=3) for prompt in ("zyzzyva quixotic", "xylophone")]
    salts = [read(PATH, encoder.encode(each.request(0, 0)), served).salt for each in prompts]
    return [WORDS[salt & 63] + WORDS[(salt + (salt | 1)) & 63] for salt in salts]


@pytest.mark.slow
def test_a_clean_run_is_silent_and_as_fast_as_one_without_canaries(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("with", "without")]
    for folder in folders:
        folder.mkdir()
    watched, plain = run(folders[0], corrupt=0.0), run(folders[1], corrupt=0.0, watched=False)
    assert [each for each in watched.summary.verdicts if each.code == "answers_changed"] == []
    assert not plain.summary.unloaded_quality
    for one, other in zip(watched.summary.levels, plain.summary.levels, strict=True):
        a, b = one.requests_per_s, other.requests_per_s
        assert a.ci95
        assert b.ci95
        assert max(a.ci95[0], b.ci95[0]) <= min(a.ci95[1], b.ci95[1])
        assert one.output_tokens_mean == other.output_tokens_mean == 2.0  # canaries have 3
