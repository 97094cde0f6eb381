"""The commands that `bench/same` runs on both sides, by parts of the contract."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

KNEE = ("-m", "harness")


class Case(NamedTuple):
    """A command, and what of it is compared beside what it prints."""

    name: str
    words: str  # as typed after `knee`
    files: tuple[str, ...] = ()  # patterns, below the working folder
    copies: dict[str, str] = {}  # noqa: RUF012  # folders that it may write to: name and source
    shapes: bool = False  # keys and types in place of contents; what it prints is left out
    stdin: str = ""
    program: tuple[str, ...] = KNEE
    forked: bool = True  # from a process that has imported knee; else a process of its own

    @property
    def arguments(self) -> list[str]:
        return [*self.program, *shlex.split(self.words)]


Printed = Callable[[str], str]
Part = Callable[[Printed, Path], list[Case]]

TRACE = "".join(f"{at},{300 + 7 * at},{20 + at}\n" for at in range(20))
CONVERSATION = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "One?"},
    {"from": "gpt", "value": "1"},
    {"from": "human", "value": "Two?"},
    {"from": "gpt", "value": "2 or so"},
]
FILES = {  # that the commands name, beside results, scenarios and tests
    "misspelt.toml": "[ramp]\nlevls = [1]\n",
    "broken.toml": "[ramp\n",
    "notes.txt": "hello\n",
    "thresholds.txt": "# of a release\nplateau >= 100\nttft_p99@8 < 2s\nerror_rate < 1%\nknee >= 20\n",
    "day.csv": "time,requests_per_s\n0,5\n3600,20\n7200,50\n10800,10\n",
    "points.csv": "concurrency,output_tokens_per_s\n1,50\n2,95\n4,180\n8,320\n16,470\n32,520\n64,525\n",
    "timed.csv": "concurrency,output_tokens_per_s,itl_s,ttft_s\n1,50,0.02,0.05\n8,320,0.024,0.09\n64,525,0.1,0.9\n",
    "trace.csv": "at_s,input_tokens,output_tokens\n" + TRACE,
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.2225670,879,55\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n118,GPT-4,417,0,417,API log\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2, 3]}\n'
    '{"timestamp": 0, "input_length": 7319, "output_length": 490, "hash_ids": [0, 14, 15]}\n'
    '{"timestamp": 3052, "input_length": 600, "output_length": 1, "hash_ids": []}\n',
    "sharegpt.json": json.dumps([{"id": f"c{number}", "conversations": CONVERSATION} for number in range(4)]),
    "sessions.toml": '[workload.dataset]\npath = "sharegpt.json"\nsessions = true\nhistory = "scripted"\n',
    "requests.jsonl": '{"messages": [{"role": "user", "content": "Why?"}], "max_tokens": 77}\n'
    '{"prompt": "Say it", "completion": "It is said."}\n',
    "batch.jsonl": '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", '
    '"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Why?"}], "max_tokens": 9}}\n',
    "broken.jsonl": '{"prompt": "Say it", "max_tokens": 5}\n{"prompt": \n{"prompt": "Again", "max_tokens": 5}\n',
    "sim.toml": '[[class]]\nname = "chat"\nshare = 3\ninput = "64"\noutput = "16"\nslo = { ttft_p95 = "1s" }\n\n'
    '[[class]]\nname = "report"\nshare = 1\ninput = "256"\noutput = "32"\n',
}


def texts(*commands: str, forked: bool = True) -> list[Case]:
    """Return commands of which all that they print is compared."""
    return [Case(words, words, forked=forked) for words in commands]


def read_commands(text: str) -> dict[str, list[str]]:
    """Return the lines of each section; a comment is a line of its own, or follows a section's name.

    >>> read_commands("# of two\\n[one]  # about it\\nrun\\n\\n[two]\\nfit -")
    {'one': ['run'], 'two': ['fit -']}
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if heading := re.match(r"\[(\w+)\]", line):
            found[heading[1]] = some = []
        elif line and not line.startswith("#"):
            some.append(line)
    return found


COMMANDS = read_commands(Path(__file__).with_name("same.txt").read_text())


def help_pages(printed: Printed, inputs: Path) -> list[Case]:
    """Walk from verb to sub-verb through the lists of commands."""
    found, open_ = [], [""]
    while open_:
        verb = open_.pop(0)
        found.append(f"{verb} --help".strip())
        _, _, below = printed(found[-1]).partition("\nCommands:\n")
        open_ += [f"{verb} {name}".strip() for name in re.findall(r"^  (\S+)", below, re.MULTILINE)]
    shells = (f"completion {shell}" for shell in ("bash", "zsh", "fish"))
    return texts(*found, "--version", *shells, forked=False)


def scenario_files(inputs: Path) -> list[str]:
    return sorted(path.stem for path in (inputs / "scenarios").glob("*.toml"))


def documented(inputs: Path) -> Iterator[str]:
    """Write the complete scenarios of docs/workloads.md to files."""
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", (inputs / "docs/workloads.md").read_text(), re.S)):
        path = inputs / f"workloads-{number:02}.toml"
        path.write_text(block)
        yield path.name


def scenarios(printed: Printed, inputs: Path) -> list[Case]:
    """Print scenarios: the ready ones, those of the documentation, and what options make of them."""
    files = [*scenario_files(inputs), *documented(inputs), "sessions.toml", "sim.toml"]
    campaigns = sorted(path.stem for path in (inputs / "scenarios/campaigns").glob("*.toml"))
    return texts(
        "run --list",
        "stacks list",
        *(f"run {name} --print-scenario" for name in files),
        *(f"run {words} --print-scenario" for words in COMMANDS["options"]),
        *(
            f"run {name} {COMMANDS['options'][2]} --gpu l4 --print-scenario"
            for name in ("chat", "rag", "embeddings", "map")
        ),
        *(f"stacks run {name} --model /models/llama --gpu h100-sxm --print" for name in campaigns),
        *(f"stacks run chat --stack {name} --model /models/m --print" for name in ("vllm", "sglang", "tgi", "sim")),
        "stacks run chat --stack vllm --stack sglang --model /models/m --tp 2 --repeat 3 --max-model-len 4096 --print",
    )


def mistakes(printed: Printed, inputs: Path) -> list[Case]:
    """Return wrong uses: the line that says so, and the exit status."""
    return texts(*COMMANDS["mistakes"])


def requests(printed: Printed, inputs: Path) -> list[Case]:
    """Print the first requests of scenarios, APIs and datasets."""
    apis = re.findall(r"[a-z-]+", re.sub(r"\s+", " ", printed("run --help")).partition("--api NAME One of ")[2])
    apis = apis[: apis.index("default")] if "default" in apis else []
    first = "--print-requests 200 --seed 1"
    datasets = (
        "trace.csv",
        "azure.csv",
        "burst.csv",
        "mooncake.jsonl",
        "sharegpt.json",
        "requests.jsonl",
        "batch.jsonl",
    )
    return texts(
        *(f"run {name} {first}" for name in [*scenario_files(inputs), *documented(inputs), "sessions.toml"]),
        *(f"run chat --print-requests 20 --seed {seed}" for seed in (2, 3)),
        *(f"run --api {api} --print-requests 20 --seed 1" for api in apis),
        *(f"run --dataset {file} --print-requests 20 --seed 1" for file in datasets),
        "run --dataset trace.csv --arrivals trace --print-requests 40 --seed 1",
        "run --dataset mooncake.jsonl --arrivals 'trace(speed=2)' --print-requests 9 --seed 1",
        "run --dataset results/live-vllm --print-requests 20 --seed 1",
        *(f"run {words} {first}" for words in COMMANDS["options"] if "--rate 10" in words or "--rate 5 " in words),
        *(f"run {words} {first}" for words in COMMANDS["options"] if "--input-tokens" in words or "--think" in words),
    )


MODELS = {  # with what most cards need to hold them
    "llama-3.1-8b": "", "llama-3.1-70b": "--tp 4", "llama-3.2-1b": "", "mixtral-8x7b": "--tp 4", "qwen3-8b": "",
    "qwen3-30b-a3b": "--ep 4 --tp 4", "qwen3-next-80b-a3b": "--tp 8", "gemma-3-12b": "--tp 2", "gpt-oss-20b": "",
    "deepseek-v3": "--tp 16 --dtype fp8", "nemotron-3-nano-30b-a3b": "--dtype fp8", "llama-4-scout": "--tp 8",
    "bge-m3": "",
}  # fmt: skip
CARDS = ("h100-sxm", "a100-80-sxm", "l4", "b200-sxm", "mi300x", "tpu-v5e", "rtx4090")


def predict(printed: Printed, inputs: Path) -> list[Case]:
    """Predict a grid of models and cards, and the options one by one."""
    grid = [f"predict --model {model} --gpu {card} {more} --json" for model, more in MODELS.items() for card in CARDS]
    some = [f"predict {words}{end}" for words in COMMANDS["predictions"] for end in ("", " --json")]
    lists = ["predict --list models", "predict --list gpus"]
    return texts(*grid, *some, *lists)


FOREIGN = ("aiperf.json", "aiperf.csv", "guidellm.json", "inference_perf.json", "llm_d.json", "llm_d_0.1.json",
           "sglang.jsonl", "table.csv", "vllm.json")  # fmt: skip
THRESHOLDS = "-t 'plateau >= 100' -t 'ttft_p99@8 < 2s' -t 'error_rate < 1%' -t 'knee >= 20' -t 'itl_p95@8 < 50ms'"
FORMATS = [f"check results/live-vllm {THRESHOLDS} --format {kind}" for kind in ("markdown", "junit", "github")]


def verbs(printed: Printed, inputs: Path) -> list[Case]:
    """Decide by the committed folders, as text and as JSON, and write what can be written."""
    compared = "compare results/live-vllm-versus-adaptive results/live-vllm-versus-fixed --out made"
    ranked = "compare bf16=results/live-h100-bf16 fp8=results/live-h100-fp8 --vary precision --out made"
    planned = "plan results/live-h100-bf16 --rps 50 --price 3 --out made"
    checked = f"check results/live-vllm {THRESHOLDS} --junit made.xml --markdown made.md --quiet"
    listed = "list results --figure plateau --html made.html"
    read = [
        Case(words, words, ("folder/calibration.json", "made.json"), {"folder": "results/live-vllm"})
        for words in ("calibrate model folder", "calibrate model folder --model smollm2-135m --gpu l4 --on 1,8 --json")
    ]
    points = "calibrate model timed.csv --model llama-3.1-8b --gpu l4 --input-tokens 512 --output-tokens 99 --on 1,8"
    points += " --out made.json"
    reports = [
        Case(words, words, copies={"folder": f"results/{name}"})
        for name in ("live-vllm", "live-h100-bf16", "live-litellm", "live-embeddings", "live-answers/vllm-1")
        for words in (f"report folder --no-plots {option}" for option in ("--verbose", "--json"))
    ]
    made = "report folder"
    return [
        *texts(*(words + end for words in COMMANDS["verbs"] for end in ("", " --json")), *FORMATS),
        *(Case(words, words, ("made*", "made/*")) for words in (compared, ranked, planned, checked, listed)),
        *read,
        Case(points, points, ("made.json",)),
        *reports,
        Case(made, made, ("folder/report.*", "folder/summary.json"), {"folder": "results/live-vllm-ramp-1"}),
        Case(
            "report of a demo", "report demo", ("demo/*.md", "demo/*.html", "demo/*.json"), {"demo": "tests/data/demo"}
        ),
    ]


def exports(printed: Printed, inputs: Path) -> list[Case]:
    """Write other tools' formats, and read other tools' files."""
    formats = ("csv", "vllm")
    folders = ("live-vllm", "live-h100-bf16", "live-embeddings", "live-h200-prefill")
    written = [
        Case(words, words, ("made/**/*",))
        for name in folders
        for words in (f"export results/{name} --to {to} --out made" for to in formats)
    ]
    printed_ = [f"export results/live-vllm --to {to}" for to in formats]
    fits = [f"fit tests/data/foreign/{name}{end}" for name in FOREIGN for end in ("", " --json")]
    own = [f"fit results/{name} --json" for name in ("live-vllm", "live-h100-bf16", "live-embeddings")]
    csv = "concurrency,output_tokens_per_s,error\n1,50,1\n2,95,2\n4,180,3\n8,320,5\n16,470,9\n32,520,9\n"
    piped = [Case(f"{words} < CSV", words, stdin=csv) for words in ("fit -", "fit - --json --seed 3")]
    return [*written, *texts(*printed_, *fits, *own, "fit points.csv"), *piped]


WRITE_SCHEMAS = r"""
import os, pathlib
os.chdir("tree")
text = pathlib.Path("scripts/schema").read_text()
exec(text.split("<<'PY'\n")[1].split("\nPY")[0])
"""
LIST_LIBRARY = r"""
import inspect, harness
for name in sorted(harness.__all__):
    value = getattr(harness, name)
    if callable(value):
        print(name, inspect.signature(value))
    for each in sorted(vars(value)) if isinstance(value, type) else []:
        print(name, each) if not each.startswith("_") else None
"""


def reference(printed: Printed, inputs: Path) -> list[Case]:
    """Write the reference with every verdict and exit status, the schemas, and the names of the library."""
    return [
        Case(
            "docs/reference.md", "", ("tree/docs/reference.md",), forked=False, program=("tree/scripts/reference.py",)
        ),
        Case("schemas", "", ("tree/docs/*.schema.json",), shapes=True, forked=False, program=("-c", WRITE_SCHEMAS)),
        Case("import harness", "", forked=False, program=("-c", LIST_LIBRARY)),
    ]


def folders(printed: Printed, inputs: Path) -> list[Case]:
    """Report every committed folder that has records."""
    names = sorted(str(path.parent.relative_to(inputs)) for path in (inputs / "results").rglob("requests.parquet"))
    kept = ("folder/summary.json", "folder/report.md", "folder/report.html", "folder/curve.png")
    return [Case(name, "report folder", kept, {"folder": name}) for name in names]


def sim(printed: Printed, inputs: Path) -> list[Case]:
    """Measure the simulated endpoint for a second a level: which files there are, and their keys."""
    kept = ("out/*.json", "out/*.parquet")  # a report has the sections that the figures call for
    fixed = "--url sim: --level-seconds 1 --seed 1 --out out --quiet"
    return [Case(words, f"run {words} {fixed}", kept, shapes=True, forked=False) for words in COMMANDS["runs"]]


PARTS: dict[str, Part] = {
    "help": help_pages,
    "scenarios": scenarios,
    "mistakes": mistakes,
    "requests": requests,
    "predict": predict,
    "verbs": verbs,
    "exports": exports,
    "reference": reference,
    "folders": folders,
    "sim": sim,
}
