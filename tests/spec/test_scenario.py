"""Scenario files: strict, resolvable, repeatable."""

import json
import tomllib
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from harness.base.errors import HarnessError
from harness.data import manifest
from harness.dialects import DIALECTS
from harness.load.transport import TRANSPORTS
from harness.spec import bounds, reading, scenario
from harness.spec.choices import APIS
from harness.spec.load import Rates
from tests.trust import guard_files


def build(text: str) -> scenario.Scenario:
    return reading.build(tomllib.loads(text), place="x.toml")


def test_durations_and_counts_may_be_written_with_units() -> None:
    got = build('[ramp]\nlevel_seconds = "1.5m"\nmax_concurrency = "1k"\n[workload]\ninput_tokens = "2k"')
    assert (got.ramp.level_seconds, got.ramp.max_concurrency, got.workload.input_tokens) == (90.0, 1000, 2000)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[ramp]\nlevles = [1]", "x.toml: unknown field 'levles' at $.ramp.levles; did you mean 'levels'?"),
        ("[rampp]", "x.toml: unknown field 'rampp' at $.rampp; did you mean 'ramp'?"),
        (
            "[ramp]\nlevels = [0]",
            "x.toml: a level is 1 to 1,000,000 requests in flight at $.ramp.levels; write [1, 2, 4, 8]",
        ),
        (
            "[workload]\noutput_tokens = 0",
            "x.toml: an answer has 1 to 10,000,000 tokens at $.workload.output_tokens; give a number in that range",
        ),
        (
            '[target]\napi = "grpc"',
            "x.toml: unknown api 'grpc' at $.target.api; known: " + ", ".join(APIS),
        ),
        ('[ramp]\nstart = "late"', "x.toml: unknown start 'late' at $.ramp.start; known: staggered, burst, batch"),
        ("[ramp]\nrates = []", "x.toml: a rate is above 0 at $.ramp.rates; write [5, 10, 20]"),
        (
            "[hardware]\nprice_per_mtok = [1]",
            "x.toml: not two or three prices at $.hardware.price_per_mtok; write it like 0.15,0.60 or 0.15,0.60,0.075",
        ),
        ("[ramp]\nworkers = 0", "x.toml: it must be 1 or more at $.ramp.workers; give 1 or more, or 'auto'"),
        ("[sim]\nspeed = 0", "x.toml: it must be above 0 at $.sim.speed; 1 is the hardware's own"),
    ],
)
def test_a_mistake_is_one_line_with_place_and_way_out(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        build(text)
    assert str(caught.value) == line


@pytest.mark.parametrize("name", list(guard_files.NAMES.values()))
def test_a_name_that_could_leave_the_results_folder_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(HarnessError) as caught:
        build(f"name = {json.dumps(name)}")
    assert str(caught.value).startswith("x.toml: it cannot name a folder at $.name; one line without '/'")
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize("name", ["run", "Chat, 8B auf H100 (größer)", "a..b", "x" * 200])
def test_a_name_may_be_words(name: str) -> None:
    assert build(f"name = {json.dumps(name)}").name == name


def test_a_wrong_type_names_its_path() -> None:
    with pytest.raises(HarnessError, match=r"\$\.ramp\.levels"):
        build('[ramp]\nlevels = "1,2"')


def test_the_resolved_toml_reads_back_to_the_same_scenario() -> None:
    first = build(
        'name = "a \\"é\\""\n[target]\nurl = "http://h:1"\n'
        'extra_body = { top_p = 0.5, stop = ["x"] }\nheaders = { "X-A" = "e" }\n'
        "[ramp]\nlevels = [1, 2]\n[hardware]\nprice = 2.5"
    )
    again = build(scenario.to_toml(first))
    assert again == first
    assert scenario.digest(again) == scenario.digest(first)


def test_tables_within_tables_and_control_characters_read_back() -> None:
    first = build('[target]\nextra_body = { a = { b = [{ c = 1 }, { d = "x\\u007f\\n" }], e = [] } }')
    assert first.target.extra_body == {"a": {"b": [{"c": 1}, {"d": "x\x7f\n"}], "e": []}}
    assert build(scenario.to_toml(first)) == first


def test_null_is_refused_where_toml_would_have_to_say_it() -> None:
    first = build("")
    first = msgspec.structs.replace(first, target=msgspec.structs.replace(first.target, extra_body={"a": [None]}))
    with pytest.raises(HarnessError, match="null cannot be written in TOML"):
        scenario.to_toml(first)


def test_limits_searches_and_level_maps_read_back_to_the_same_scenario() -> None:
    first = build(
        'name = "größe 😀"\n'
        '[slo]\nttft_p99 = "2s"\nitl_p99 = "50ms"\ne2e = 10\n"ttft_p99.9" = 5.5\n'
        '[ramp]\nprecision = 0.05\nmax_ttft = "500ms"\nquick = true\nslo_fail = true\n'
        '[sweep]\ninput_tokens = ["1k", 2000]\noutput_tokens = [64]\n'
        'urls = { small = "http://h:1", "größer, 2" = "unix:/run/a@b" }'
    )
    assert first.slo == {"ttft_p99": 2.0, "itl_p99": 0.05, "e2e": 10.0, "ttft_p99.9": 5.5}
    assert (first.ramp.max_ttft, first.sweep.input_tokens) == (0.5, [1000, 2000])
    again = build(scenario.to_toml(first))
    assert again == first
    assert scenario.digest(again) == scenario.digest(first)
    swept = build('[target]\nurl = "sim:"\n[sweep]\nmax_num_seqs = [8, 16]\n[ramp]\nmax_ttft = 2')
    assert build(scenario.to_toml(swept)) == swept
    probed = build('[ramp]\nprobe = "prefill"\nlevels = [1, 2]')
    assert build(scenario.to_toml(probed)) == probed


def test_a_scenario_without_limits_and_map_prints_neither() -> None:
    printed = scenario.to_toml(build(""))
    assert "[slo]" not in printed
    assert "[sweep]" not in printed


SLO = '\n[slo]\nttft = "1s"'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[slo]\ntfft_p99 = "2s"', "x.toml: $.slo: unknown limit 'tfft_p99'; did you mean 'ttft_p99'?"),
        ("[slo]\nttft = 0", "x.toml: a limit is above 0 at $.slo.ttft; write it like '2s' or '50ms'"),
        (
            "[slo]\nttft = nan",
            "x.toml: not a scenario: nan is a number beyond reason at $.slo.ttft; write what can be measured",
        ),
        (
            '[slo]\nttft = "2 parsecs"',
            "x.toml: $.slo.ttft: '2 parsecs' is not a duration; write it like '50ms', '2s' or '5m'",
        ),
        (
            "[ramp]\nprecision = 0.0",
            "x.toml: a half-width is above 0, at most 0.5 at $.ramp.precision; write 0.02 for 2 %",
        ),
        (
            "[ramp]\nprecision = 2",
            "x.toml: a half-width is above 0, at most 0.5 at $.ramp.precision; write 0.02 for 2 %",
        ),
        ('[ramp]\nmax_ttft = "0s"', "x.toml: a bound is above 0 at $.ramp.max_ttft; write it like '2s' or '500ms'"),
        ('[ramp]\nprobe = "both"', "x.toml: unknown probe 'both' at $.ramp.probe; known: prefill, decode"),
        (
            '[ramp]\nprobe = "prefill"\n[workload.prefix]\ntokens = 100',
            "x.toml: its prompts have no prefix at $.ramp.probe; leave workload.prefix out",
        ),
        (
            '[ramp]\nprobe = "decode"\nrates = [1]',
            "x.toml: a probe holds levels: rates exclude it at $.ramp.probe; leave one of them out",
        ),
        (
            '[ramp]\nprobe = "decode"\nsearch_rate = true' + SLO,
            "x.toml: a probe holds levels: rates exclude it at $.ramp.probe; leave one of them out",
        ),
        (
            "[ramp]\nsearch_rate = true\nrates = [1.5]" + SLO,
            "x.toml: a search chooses its own rates: levels and rates exclude it at $.ramp.search_rate; "
            "leave one of them out",
        ),
        (
            "[ramp]\nsearch_rate = true\nlevels = [1]" + SLO,
            "x.toml: a search chooses its own rates: levels and rates exclude it at $.ramp.search_rate; "
            "leave one of them out",
        ),
        (
            '[ramp]\narrivals = "wave(period=60s,lo=1,high=9)"',
            "x.toml: $.ramp.arrivals: unknown 'lo' in wave; did you mean 'low'?",
        ),
        (
            '[ramp]\nlevels = [1]\narrivals = "series(0s:10,60s:40)"',
            "x.toml: arrivals with rates of their own are an open loop: levels exclude them at $.ramp.arrivals; "
            "leave one of them out",
        ),
        (
            '[ramp]\nprobe = "decode"\narrivals = "series(0s:10,60s:40)"',
            "x.toml: a probe holds levels: rates exclude it at $.ramp.probe; leave one of them out",
        ),
        (
            '[ramp]\narrivals = "trace"',
            "x.toml: no dataset has times to replay at $.ramp.arrivals; give --dataset FILE",
        ),
        (
            '[ramp]\nrates = [700000]\narrivals = "series(0s:10,60s:40)"',
            "x.toml: 1.12e+06 requests a second are more than the 1,000,000 that a machine can send "
            "at $.ramp.arrivals; give 1,000,000 or less",
        ),
        (
            "[ramp]\nsearch_rate = true",
            "x.toml: no SLO to search by at $.ramp.search_rate; give --slo, like ttft_p99=2s",
        ),
        ("[ramp]\nslo_fail = true", "x.toml: no SLO to miss at $.ramp.slo_fail; give --slo, like ttft_p99=2s"),
        (
            "[sweep]\ninput_tokens = [0]",
            "x.toml: a value is 1 to 10,000,000 at $.sweep.input_tokens; write [128, 512, 2048]",
        ),
        (
            '[sweep]\noutput_tokens = ["1k", 1000]',
            "x.toml: a value is given twice at $.sweep.output_tokens; write each value once",
        ),
        (
            '[target]\nurl = "http://h"\n[sweep]\nmax_num_seqs = [8]',
            "x.toml: no server but sim: takes it from here at $.sweep.max_num_seqs; "
            "start a server for each setting: sweep.urls",
        ),
        (
            '[sweep]\nmax_num_seqs = [8]\nurls = { a = "http://h" }',
            "x.toml: max_num_seqs and urls are both the server's setting at $.sweep.urls; leave one of them out",
        ),
        (
            '[sweep]\nurls = { a = "http://h", b = "http://h" }',
            "x.toml: a url is given twice at $.sweep.urls; write each url once",
        ),
        (
            '[sweep]\nurls = { "" = "http://h" }',
            "x.toml: a setting has a name and a url at $.sweep.urls; write NAME = 'URL'",
        ),
        (
            '[sweep]\ninput_tokens = [1]\n[ramp]\nprobe = "decode"',
            "x.toml: a level map has a knee a cell, a probe none at $.sweep; leave [sweep] or ramp.probe out",
        ),
        (
            "[sweep]\ninput_token = [1]",
            "x.toml: unknown field 'input_token' at $.sweep.input_token; did you mean 'input_tokens'?",
        ),
    ],
)
def test_a_search_that_cannot_be_made_is_refused_in_one_line(text: str, line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        build(text)
    assert str(caught.value) == line


def test_a_complaint_at_a_place_that_no_type_has_is_shown_as_it_is() -> None:
    for path in ("$.ramp.levels[...]", "$.sweep.urls[...]", "$.target[0]", "$.none.such"):
        complaint = f"Expected `str`, got `int` - at `{path}`"
        message = str(bounds.located(complaint, scenario.Scenario, "x.toml"))
        assert message.startswith(f"x.toml: Expected 'str', got 'int' - at '{path}'")


def test_what_a_later_version_adds_is_refused_in_a_scenario_and_left_out_of_a_manifest() -> None:
    tree = {"ramp": {"colour": 1}, "class": [{"name": "a", "shape": 1}]}
    with pytest.raises(HarnessError, match=r"unknown field 'colour' at \$\.ramp\.colour"):
        reading.build(tree, place="x.toml")
    assert manifest.read({"scenario": tree}).scenario.class_[0].name == "a"  # type: ignore[index]


@pytest.mark.parametrize(
    "text", ['slo = "ttft=1s"', "[slo]\nttft_p99.9 = 2", "[sweep]\ninput_tokens = [1.5]", "slo = [1]"]
)
def test_a_limit_or_an_axis_of_a_wrong_type_is_refused(text: str) -> None:
    with pytest.raises(HarnessError, match="Expected"):
        build(text)


def test_the_address_of_a_setting_with_a_key_in_it_is_refused_without_repeating_it() -> None:
    with pytest.raises(HarnessError, match="an address with a key in it") as caught:
        build('[sweep]\nurls = { a = "https://me:s3cret@h" }')
    assert "s3cret" not in str(caught.value)


def test_the_digest_of_the_work_is_of_what_is_asked_alone() -> None:
    work = scenario.workload_digest
    base = work(build(""))
    same = ('name = "b"', "[workload]\nseed = 7", '[target]\nurl = "http://x"\nmodel = "m"', "[hardware]\nprice = 2")
    same += ('[ramp]\nstart = "burst"', "[ramp]\nlevels = [4]", "[slo]\nttft = 1", '[workload]\ntokenizer = "t"')
    assert {work(build(text)) for text in same} == {base}
    other = ("[workload]\ninput_tokens = 7", '[workload]\noutput_tokens = "5..9"', '[target]\napi = "completions"')
    other += (
        "[target.extra_body]\ntop_k = 1",
        '[ramp]\nthink = "1s"',
        "[ramp]\nrates = [4]",
    )
    other += ('[[class]]\nname = "x"\nshare = 1', "[workload.prefix]\ntokens = 64")
    found = [work(build(text)) for text in other]
    assert len({base, *found}) == len(found) + 1
    one, elsewhere, longer = (
        work(scenario.Scenario(workload=scenario.WorkloadSpec(dataset=scenario.DatasetSpec(path=path, requests=n))))
        for path, n in (("a.jsonl", 10), ("/b/a.jsonl", 10), ("a.jsonl", 11))
    )
    assert one == elsewhere
    assert one != longer


def test_what_the_digest_of_the_work_is_of_is_named_by_the_keys_of_a_scenario() -> None:
    def unlike(one: str, other: str) -> dict[str, tuple[str | None, str | None]]:
        a, b = scenario.workload_fields(build(one)), scenario.workload_fields(build(other))
        return {key: (a.get(key), b.get(key)) for key in sorted({*a, *b}) if a.get(key) != b.get(key)}

    assert unlike("[workload]\nseed = 7", "[ramp]\nlevels = [4]\nstart = 'burst'") == {}
    assert unlike("[ramp]\nlevels = [4]", "[ramp]\nrates = [4]") == {"load": ("closed loop", "open loop, poisson")}
    assert unlike("", '[workload]\ninput_tokens = "64±8"') == {"workload.input_tokens": ("512", "64±8")}
    assert unlike("", "[target.extra_body]\ntop_k = 1") == {"target.extra_body.top_k": (None, "1")}
    shares = ('[[class]]\nname = "x"\nshare = 1', '[[class]]\nname = "x"\nshare = 0.5')
    assert unlike(*shares) == {"class.x.share": ("1.0", "0.5")}


def test_any_change_changes_the_digest() -> None:
    assert scenario.digest(build("[workload]\nseed = 1")) != scenario.digest(build("[workload]\nseed = 2"))


def test_every_shipped_scenario_loads() -> None:
    files = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))
    assert files
    for file in files:
        reading.load(str(file))


def test_a_missing_file_and_a_broken_one_say_so(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="No such file"):
        reading.load(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("[ramp\n")
    with pytest.raises(HarnessError, match="not TOML"):
        reading.load(str(tmp_path / "bad.toml"))


def test_an_address_with_a_key_in_it_is_refused_without_repeating_it() -> None:
    for url in (
        "https://me:s3cret@h",
        "https://s3cret@h",
        "https://h/v1?key=s3cret",
        "https://h/#s3cret",
        "http://me:s3/c@h",
    ):
        with pytest.raises(HarnessError, match="an address with a key in it") as caught:
            build(f'[target]\nurl = "{url}"')
        assert "s3" not in str(caught.value)
    build('[target]\nurl = "unix:/run/a@b#c?d.sock"')


@pytest.mark.parametrize("headers", ['"X Y" = "a"', '"" = "a"', '"X" = "a\\r\\nY: b"', '"X" = "é"', '"X" = "\\u0000"'])
def test_a_header_that_would_be_two_is_refused(headers: str) -> None:
    with pytest.raises(HarnessError, match="a header"):
        build(f"[target]\nheaders = {{ {headers} }}")


def test_a_named_secret_is_resolved_for_the_wire_and_stays_a_name_elsewhere() -> None:
    built = build(
        '[target]\napi_key_env = "KEY"\nheaders = { "X-Key" = "env:OTHER", "X-Lit" = "plain-s3cret" }\n'
        'extra_body = { user = "env:OTHER", auth = { token = "t0ken" }, top_p = 0.5 }'
    )
    environ = {"KEY": "the-key", "OTHER": "other-s3cret", "HTTPS_PROXY": "http://me:pr0xy%21@h"}
    wire = scenario.resolved(built, environ).target
    assert wire.headers == {"X-Key": "other-s3cret", "X-Lit": "plain-s3cret", "Authorization": "Bearer the-key"}
    assert wire.extra_body == {"user": "other-s3cret", "auth": {"token": "t0ken"}, "top_p": 0.5}
    hidden = {"the-key", "other-s3cret", "plain-s3cret", "t0ken", "pr0xy!", "pr0xy%21"}
    assert set(scenario.secrets(built, environ)) == {*hidden, "bWU6cHIweHkh"}, "the proxy's by Basic too"

    shown = scenario.shown(built)
    assert not any(secret in scenario.to_toml(shown) for secret in hidden)
    assert shown.target.headers == {"X-Key": "env:OTHER", "X-Lit": "(not stored)"}
    assert scenario.digest(shown) == scenario.digest(built)
    with pytest.raises(HarnessError, match="its value is not stored"):
        scenario.resolved(shown, environ)


def test_a_header_that_repeats_the_model_s_name_is_no_secret() -> None:
    built = build('[target]\nmodel = "m/llama-8b"\nheaders = { "X-Model" = "m/llama-8b" }')
    assert scenario.secrets(built, {}) == ()


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({}, "the variable KEY is not set; export KEY=…"),
        ({"KEY": ""}, "the variable KEY is empty; export KEY=…"),
        ({"KEY": "a\nb"}, "header Authorization: its value is not one line"),
    ],
)
def test_a_key_that_cannot_be_sent_is_said(environ: dict[str, str], line: str) -> None:
    with pytest.raises(HarnessError) as caught:
        scenario.resolved(build('[target]\napi_key_env = "KEY"'), environ)
    assert line in str(caught.value)


def test_a_scenario_names_the_apis_and_transports_that_there_are() -> None:
    hints = get_type_hints(scenario.Target)
    assert tuple(DIALECTS) == APIS
    assert get_args(hints["transport"]) == TRANSPORTS


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("", None),
        ('arrivals = "series(0s:10,60s:40)"', [25.0]),
        ('arrivals = "series(0s:10,60s:40)"\nrates = [5, 10]', [5.0, 10.0]),
        ("levels = [1, 2]", None),
        ('arrivals = "series(0s:10,60s:40)"\nsearch_rate = true' + SLO, None),
    ],
)
def test_arrivals_with_rates_of_their_own_are_an_open_loop(text: str, rates: list[float] | None) -> None:
    load = build(f"[ramp]\n{text}").load
    assert (load.loads if isinstance(load, Rates) else None) == rates


@pytest.mark.parametrize(
    ("hardware", "gpus"), [({}, 1), ({"tp": 2}, 2), ({"tp": 2, "gpus": 4}, 4), ({"gpus": 4}, 4), ({"tp": 1}, 1)]
)
def test_a_replica_over_several_gpus_counts_them(hardware: dict[str, int], gpus: int) -> None:
    assert reading.build({"hardware": hardware}, place="test").hardware.gpus == gpus
