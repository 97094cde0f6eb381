"""What new users type by mistake: each gets one line with the fact, the place and the way out, and no traceback.

Status 2 is for what no command line may have: an option, a verb or a value of another kind. Status 1 is for what was
understood and cannot be done.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import cli

URL = "http://127.0.0.1:1"  # nothing listens there, so a mistake that is overlooked ends here

USAGE = {
    # verbs
    "runn http://h:8000": "runn: no such command; did you mean `knee run`?",
    "bench http://h:8000": "bench: no such command; did you mean `knee run`?",
    "guidellm benchmark --target URL": "guidellm: no such command; did you mean `knee run guidellm …`?",
    "version": "version: no such command; did you mean `knee --version`?",
    "serve": "serve: no such command; did you mean `knee sim`?",
    "http://h:8000": "http://h:8000: no such command; did you mean `knee run http://h:8000`?",
    "calibrate clint": "clint: no such command; did you mean `knee calibrate client`?",
    # what is missing
    "run": "no endpoint; give http://host:8000, or --url sim: for the simulated one",
    "run URL --levels": "--levels: it needs a value; write --levels VALUE",
    "predict --gpu l4": "no --model; name a model: `knee predict --list models`",
    "predict --model llama-3.1-8b": "no --gpu; name a card, or --gpu all: `knee predict --list gpus`",
    "report": "no DIR; see `knee report --help`",
    "export results/x": "no --to; give one of: csv, vllm",
    "fit": "no FILE|DIR|-; see `knee fit --help`",
    "compare": "no [NAME=]DIR|FILE; see `knee compare --help`",
    "completion": "no SHELL; see `knee completion --help`",
    # what is too much
    "plan a b": "b: too many arguments; write `knee plan [OPTIONS] DIR`",
    "export a b c --to csv": "b c: too many arguments; write `knee export [OPTIONS] DIR`",
    "sim llama": "llama: too many arguments; write `knee sim [OPTIONS]`",
    "completion bash zsh": "zsh: too many arguments; write `knee completion [OPTIONS] {bash|zsh|fish}`",
    "run --scenario chat URL": "--scenario: no such option; write the scenario without it",
    "run --scenarios chat URL": "--scenarios: no such option; write the scenario without it",
    "predict --scenario chat --gpu l4": "--scenario: no such option; write the scenario without it",
    "plan --folder x": "--folder: no such option; write the folder without it",
    # options of other tools
    "run URL --concurency 8": "--concurency: no such option; did you mean --concurrency?",
    "run URL --max-conc 8": "--max-conc: no such option; did you mean --max-concurrency?",
    "run URL --lora-modules a": "--lora-modules: no such option; write [[class]] tables with a model each, as "
    "docs/workloads.md shows",
    "run URL --prompt hello": '--prompt: no such option; write it into a file, like {"prompt": "…"}, and give '
    "--dataset FILE",
    "run URL --num-prompts": "--num-prompts: it needs a value; write --num-prompts VALUE",
    "run URL --dataset-name hf": "--dataset-name: 'hf' has no equal here; give --dataset hf:ORG/NAME:SPLIT, or another "
    "name: random, sharegpt, custom, burstgpt, sonnet, spec_bench",
    "run URL --traffic-scenario I(256,256)": "--traffic-scenario: 'I(256,256)' has no equal here; give --input-tokens "
    "and --output-tokens, or --dataset FILE",
    "run URL --data abisee/cnn_dailymail": "--data kind: 'abisee/cnn_dailymail' has no equal here; give --dataset "
    "FILE, a file of this machine, or prompt_tokens=512,output_tokens=128",
    # values of another kind
    "run URL --json=out.json": "--json: it takes no value; write --json alone",
    "run URL --price '$2'": "--price: '$2' is not a number; see `knee run --help`",
    "run URL --seed abc": "--seed: 'abc' is not a whole number; see `knee run --help`",
    "run URL --burstiness 0": "--burstiness: 0.0 is not in the range x>=0.001; see `knee run --help`",
    "run URL --transport http2": "--transport: 'http2' is not one of 'socket', 'httpx'; see `knee run --help`",
    "completion powershell": "SHELL: 'powershell' is not one of 'bash', 'zsh', 'fish'; see `knee completion --help`",
    "predict --quiet": "--quiet: no such option",
    "predict --list cards": "--list: 'cards' is not one of 'models', 'gpus'; see `knee predict --help`",
    "run URL --url http://g:8000": "--url and an address without it: URL; write all of them as --url",
    "run URL --levels 1 2 4": "2 4: no scenario; write several numbers with commas (--levels 1,2,4), and a value with "
    "blanks in quotes",
    "run URL --slo ttft_p99=2 s,itl=50ms": "s,itl=50ms: no scenario; write several numbers with commas "
    "(--levels 1,2,4), and a value with blanks in quotes",
    "run chat rag URL": "more than one scenario: chat, rag; give one, and options with --",
}
MISTAKES = {
    # addresses and files
    "run URL": "URL: nothing answers there (connection refused); start the server, then curl URL",
    "run ftp://h": "ftp://h: not an http address; write it like http://host:8000, https://host, "
    "unix:/run/server.sock, or sim: for the simulator",
    "run http:/h:8000": "http:/h:8000: not an http address; write it like http://host:8000, https://host, "
    "unix:/run/server.sock, or sim: for the simulator",
    "run localhost": "localhost: neither a file nor a ready scenario; `knee run --list` has the ready ones; an "
    "address is http://… or sim:",
    "run https://key@api.example.com": "--url: an address with a key in it would be stored with the result; give "
    "--api-key-env VARIABLE or --header",
    "run chatt URL": "chatt: neither a file nor a ready scenario; did you mean 'chat'?",
    "run none.toml URL": "none.toml: No such file or directory; give the path of a scenario.toml, or a name of "
    "`knee run --list`",
    "run misspelt.toml URL": "misspelt.toml: unknown field 'levls' at $.ramp.levls; did you mean 'levels'?",
    "sim --host nosuch.invalid": "--host: cannot listen on nosuch.invalid:8000: Name or service not known; give an "
    "address of this machine",
    "run URL --dataset .": ".: a folder without requests.parquet; give a file of it",
    "run URL --dataset lines.txt": 'lines.txt: it is text without columns; write each line like {"prompt": "…"}, or '
    "begin it with the line: prompt",
    "report notes.txt": "notes.txt: it is a file; give the folder of a run; `knee fit` and `knee compare` read "
    "files of other tools",
    "run URL --dataset none.jsonl": "none.jsonl: No such file or directory; give a file that can be read",
    # load
    "run URL --rate inf": "--rate: all requests at once have no rate; give --levels 64 to keep 64 in flight",
    "run URL --request-rate 0": "--rate: '0' names no rate above 0; write it like '5' or '5,10,20'",
    "run URL --rate auto": "--rate: no SLO to search by; give --slo, like ttft_p99=2s",
    "run URL --concurrency 1-8": "--levels: '1-8' is not a count; write it like '1,2,4,8'",
    "run URL --concurrency 0": "--levels: '0' names no level of at least 1; write it like '1,2,4,8'",
    "run URL --concurrency 8,8": "--levels: '8,8' names a level twice; write each level once",
    "run URL --levels 8 --rate 5": "--rate: levels and rates exclude each other; leave one of them out",
    "run URL --concurrency 8 --max-concurrency 64": "--max-concurrency: it bounds a search, and --levels leaves "
    "nothing to search; leave one of them out",
    "run URL --burstiness 0.5 --arrivals poisson": "--burstiness: --arrivals says how requests come, and so does this; "
    "leave one of them out",
    "run URL --arrivals uniform": "--arrivals: unknown arrivals 'uniform'; known: poisson, constant, gamma, series, "
    "wave, spike, trace",
    "run URL --isl 512-1024": "--input-tokens: '512-1024' is not a length: '512-1024' is not a number; write it like "
    "512, '512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'",
    "run URL --osl 0": "--output-tokens: '0' is not a length: 0 is not a whole number from 1 on; write it like 512, "
    "'512±64', '100..900', 'lognormal(512,300)' or '512:9,32k:1'",
    "run --base-url URL --backend vllm --num-prompts abc": "--max-requests: 'abc' is not a count; write it like '128' "
    "or '1.5k'",
    "run --base-url URL --backend vllm --num-prompts 1.5": "--max-requests: '1.5' is not a whole number; write it like "
    "'128' or '1.5k'",
    "run URL --profile qwen3-8b/l4": "--profile: it is of the simulated endpoint; leave it out, or --url sim:",
    # limits
    "run URL --slo p99ttft": "--slo: unknown limit 'p99ttft'; did you mean 'ttft_p99'?",
    "run URL --slo ttft-p95=2s": "--slo: unknown limit 'ttft-p95'; did you mean 'ttft_p95'?",
    "predict --model-config nosuch": "--model: unknown model 'nosuch'; give the path of its config.json, or one "
    "of the 92 that are shipped, like llama-2-7b, llama-2-13b, llama-2-70b",
    "run URL --slo ttft_p99=200": "--slo: '200' has no unit; write 200ms or 200s",
    "run URL --max-ttft 2": "--max-ttft: '2' has no unit; write 2ms or 2s",
    "run URL --slo 'ttft_p99<2s'": "--slo: 'ttft_p99<2s' has no '='; write it like 'ttft_p99=2s,e2e=10s'",
    "run URL --slo latency_p99=2s": "--slo: unknown limit 'latency_p99'; did you mean 'e2e_p99'?",
    "run URL --slo tfft=2s": "--slo: unknown limit 'tfft'; did you mean 'ttft'?",
    "run URL --goodput ttft=500": "--goodput: 'ttft=500' has no ':'; write it like 'ttft:500 tpot:50'",
    "run URL --slo-fail": "--slo-fail: no SLO to miss; give --slo, like ttft_p99=2s",
    "run URL --concurrency 1,8 --duration 60": "--duration: a soak has one load; give one level or rate, or "
    "none: it is then a share of the knee",
    "run URL --max-seconds soon": "--max-seconds: 'soon' is not a duration; write it like '50ms', '2s' or '5m'",
    "run URL --max-dollars 5": "--max-dollars: no price to count by; give --price or --price-per-mtok",
    # keys and bodies
    "run URL --api-key-env sk-123": "--api-key-env: it is not the name of a variable; export MY_KEY=… and give MY_KEY",
    "run URL --header 'Authorization Bearer sk-123'": "--header: not a name and a value; write it like 'Name: value', "
    "in quotes",
    # predictions
    "predict llama-3.1-8b --gpu l4": "llama-3.1-8b: it is a model, not a scenario; give --model llama-3.1-8b",
    "predict --model llama-3.1-8b --gpu h100": "--gpu: unknown GPU 'h100'; did you mean h100-pcie, h100-sxm, h100-nvl?",
    "predict --model llama-3.1-8b --gpu h100-sxm --rate 5": "--rate: it has no effect without --simulate; add "
    "--simulate",
    # results
    "report nowhere": "nowhere: no such result folder; give the --out of a run",
    "fit notes.txt": "notes.txt: no column 'concurrency' among 'hello'; begin it with the line "
    "'concurrency,output_tokens_per_s' or 'concurrency,output_tokens_per_s,error'",
    "sim --profile llama-3.1-8b": "--profile: 'llama-3.1-8b' is not MODEL/GPU; write it like 'llama-3.1-8b/h100-sxm'",
}


@pytest.mark.parametrize("typed", [*USAGE, *MISTAKES])
def test_a_mistake_is_one_line_that_says_what_to_type(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "misspelt.toml").write_text("[ramp]\nlevls = [1]\n")
    (tmp_path / "notes.txt").write_text("hello\n")
    (tmp_path / "lines.txt").write_text("write a poem about the sea\nsay hello\n")
    line = (USAGE.get(typed) or MISTAKES[typed]).replace("URL", URL)
    got = CliRunner().invoke(cli, shlex.split(typed.replace("URL", URL)))
    assert got.output == f"error: {line}\n"
    assert got.exit_code == (2 if typed in USAGE else 1)
    assert "sk-123" not in got.output, "it is a key"


def test_there_are_sixty_of_them() -> None:
    assert len(USAGE) + len(MISTAKES) >= 60
