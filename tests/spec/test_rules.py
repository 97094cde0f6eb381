"""What has no effect is refused where a person sets it, and only there; a trace is an open loop."""

from __future__ import annotations

import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.base.errors import HarnessError
from harness.cli import cli
from harness.library.run import laid_over
from harness.run import requests
from harness.spec import reading, rules, shard
from harness.spec.load import Levels, Load, Rates, RateSearch, Search, Trace
from harness.spec.scenario import Scenario
from harness.spec.shard import FIRST_REQUEST, Shard

_CLOSED = "a closed loop sends a request when the one before has ended; give --rate, or leave it out"
_GIVEN = "it ends a search, and a load that is given leaves nothing to search; leave one of them out"
REFUSED = {
    "--levels 1,2 --quick": f"--quick: {_GIVEN}",
    "--rate 5 --quick": f"--quick: {_GIVEN}",
    "--dataset TRACE --arrivals trace --quick": f"--quick: {_GIVEN}",
    "--levels 8 --burstiness 0.5": f"--burstiness: {_CLOSED}",
    "--levels 8 --arrivals constant": f"--arrivals: {_CLOSED}",
    "--arrivals poisson": f"--arrivals: {_CLOSED}",
    "--rate 5 --start burst": "--start: an open loop has no slots that begin; leave one of them out",
    "--dataset TRACE --arrivals trace --start staggered": "--start: an open loop has no slots that begin; leave one of "
    "them out",
    "--levels 8 --duration 1h --precision 0.02": "--precision: a soak's window ends after its duration, however "
    "precise it is; leave one of them out",
    "--level-seconds 10s --precision 0.02": "--precision: a window of level_seconds ends after that time, however "
    "precise it is; leave one of them out",
    "--arrivals wave(period=60s,low=1,high=5) --precision 0.02": "--precision: a window has whole periods of the "
    "arrivals, however precise it is; leave one of them out",
    "--rate auto --slo e2e=1s --max-ttft 2s": "--max-ttft: a search for a rate ends by its limits alone; give --slo "
    "ttft_p99=TIME",
    "--api embeddings --max-ttft 2s": "--max-ttft: this API sends no tokens, so nothing has this time; leave it out",
    "--api embeddings --output-tokens 128": "--output-tokens: a request of this API gets no answer; leave it out",
    "--api rerank --no-stream": "--stream: an answer of this API comes in one piece; leave it out",
    "--probe prefill --output-tokens 9": "--output-tokens: a prefill probe asks for one token; leave it out",
    "--probe decode --input-tokens 9": "--input-tokens: a decode probe has prompts of its own; leave it out",
    "--dataset TRACE --input-tokens 9": "--input-tokens: a dataset has prompts of its own; leave one of them out",
    "map --input-tokens 9": "--input-tokens: sweep.input_tokens has the lengths; leave one of them out",
    "conversation --input-tokens 9": "--input-tokens: messages of a session have user_tokens; leave it out",
    "checks --input-tokens 512": "--input-tokens: classes have lengths of their own; leave it out",
    "--duration 1h --levels 8 --knee-share 0.5": "--knee-share: it is the load of a soak without one; give --duration "
    "and no --levels, or leave it out",
    "--duration 1h --dataset TRACE --arrivals trace --knee-share 0.5": "--knee-share: it is the load of a soak without "
    "one; give --duration and no --levels, or leave it out",
    "--knee-share 0.5": "--knee-share: it is the load of a soak without one; give --duration and no --levels, or leave "
    "it out",
    "--url sim: --host-cpus 0,1": "--host-cpus: it is used with gpu = host only; give --gpu host",
    "--agents 8": "--agents: this workload has no sessions; give a --dataset or a scenario with sessions, or --levels "
    "for requests in flight",
    "--levels 8 --max-concurrency 64": "--max-concurrency: it bounds a search, and --levels leaves nothing to search; "
    "leave one of them out",
}
TAKEN = {
    "--quick": Search,
    "--duration 1h --precision 0.02 --knee-share 0.5": Search,
    "--rate auto --slo e2e=1s --quick --arrivals constant": RateSearch,
    "--rate 5 --burstiness 0.5 --max-concurrency 64": Rates,
    "--dataset TRACE --arrivals trace --keep-going --max-concurrency 64": Trace,
    "--dataset TRACE --arrivals trace(speed=2) --duration 1h": Trace,
    "--dataset TRACE --arrivals trace --rate 5": Rates,
    "--dataset TRACE --output-tokens 64": Search,
    # a ready scenario, and an option that takes the effect of one of its fields
    "soak --levels 32": Levels,
    "soak --rate 5": Rates,
    "overload --levels 8": Levels,
    "overload --rate auto": RateSearch,
    "chat --levels 1,2": Levels,
    "map --level-seconds 10s": Levels,
    "chat --api embeddings --slo e2e=1s": Search,
    "embeddings --api chat": Search,
}


def typed(line: str, folder: Path) -> Any:
    trace = folder / "trace.csv"
    trace.write_text("at_s,input_tokens,output_tokens\n0,30,4\n1,30,4\n3,30,4\n")
    words = line.replace("TRACE", str(trace)).split()
    return CliRunner().invoke(cli, ["run", *words, "--print-scenario"])


@pytest.mark.parametrize("line", REFUSED)
def test_an_option_without_effect_is_refused_in_one_line(line: str, tmp_path: Path) -> None:
    got = typed(line, tmp_path)
    assert (got.output, got.exit_code) == (f"error: {REFUSED[line]}\n", 1)


@pytest.mark.parametrize("line", TAKEN)
def test_what_has_an_effect_is_taken_and_prints_back_to_the_same(line: str, tmp_path: Path) -> None:
    got = typed(line, tmp_path)
    assert got.exit_code == 0, got.output
    read = reading.build(tomllib.loads(got.output), place="printed")
    assert type(read.load) is TAKEN[line]
    (tmp_path / "again.toml").write_text(got.output)
    assert typed(str(tmp_path / "again.toml"), tmp_path).output == got.output


def test_a_file_is_refused_by_itself_and_not_where_an_option_gives_a_field_its_effect(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[ramp]\narrivals = "constant"\n')
    assert typed(str(file), tmp_path).output == f"error: {file}: {_CLOSED.replace(';', ' at $.ramp.arrivals;')}\n"
    assert typed(f"{file} --rate 5", tmp_path).exit_code == 0
    file.write_text('[ramp]\nlevels = [4]\nquick = false\narrivals = "poisson"\nstart = "staggered"\n')
    assert typed(str(file), tmp_path).exit_code == 0, "defaults say nothing"


def test_a_field_that_an_option_leaves_without_effect_falls_back_to_its_default(tmp_path: Path) -> None:
    read = tomllib.loads(typed("soak --levels 32", tmp_path).output)
    assert read["ramp"]["quick"] is False
    read = tomllib.loads(typed("embeddings --api chat", tmp_path).output)
    assert "inputs" not in read["workload"]


def test_a_program_s_options_are_refused_alike() -> None:
    with pytest.raises(HarnessError, match=r"^run: it ends a search, .* at \$\.ramp\.quick"):
        laid_over(None, "sim:", {"levels": [1], "quick": False})
    assert laid_over("soak", None, {"levels": [1]}).ramp.quick is False


@pytest.mark.parametrize(
    ("ramp", "found"),
    [
        ({}, Search()),
        ({"levels": [1, 2]}, Levels([1, 2])),
        ({"rates": [1.0]}, Rates([1.0])),
        ({"search_rate": True}, RateSearch()),
        ({"arrivals": "trace(speed=2)"}, Trace()),
        ({"arrivals": "trace", "rates": [2.0]}, Rates([2.0])),
        ({"arrivals": "trace", "search_rate": True}, RateSearch()),
    ],
)
def test_a_scenario_has_one_kind_of_load(ramp: dict[str, Any], found: Load) -> None:
    tree = {"ramp": ramp, "slo": {"e2e": 1.0}, "workload": {"dataset": {"path": "x"}}}
    read = reading.build(tree, place="x")
    assert read.load == found
    assert read.load.is_open == (type(found) in (Rates, RateSearch, Trace))


def test_a_trace_is_replayed_by_several_machines(tmp_path: Path) -> None:
    """Each machine sends its own requests at their own times, all of them together the trace."""
    trace = tmp_path / "trace.csv"
    trace.write_text("at_s,input_tokens,output_tokens\n" + "".join(f"{n},30,4\n" for n in range(12)))
    tree = {
        "target": {"url": "http://127.0.0.1:1"},
        "workload": {"dataset": {"path": str(trace)}, "seed": 1},
        "ramp": {"arrivals": "trace", "level_seconds": 4.0, "workers": 2, "keep_going": True},
    }
    spec = reading.build(tree, place="x")
    shard.check(spec)
    with requests.read(spec, print) as (read, rows):
        assert isinstance(read.load, Rates)
        dealt = [Shard(number=number, of=2, start_s=0.0, run_id="r") for number in (1, 2)]
        shares = [list(itertools.islice(requests.planned(read, rows, each), 6)) for each in dealt]
    together = sorted((each for share in shares for each in share), key=lambda each: each.number)
    assert [each.due_s for each in together] == [float(n) for n in range(12)]
    assert together[0].number >= FIRST_REQUEST


def test_every_rule_names_a_field_of_a_scenario() -> None:
    for rule in rules.WITHOUT_EFFECT:
        table, _, name = rule.path.partition(".")
        assert name in type(getattr(Scenario(), table)).__struct_fields__, rule.path
