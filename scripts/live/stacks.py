"""One weight set on vLLM, llama-server and transformers, one core each in turn; 4 bits against 32 on llama-server.

    python scripts/live/stacks.py measure --only stacks --repeat 3 --out results/live-stacks

    python scripts/live/stacks.py compare --out results/live     # from what was measured

Writes the recipes and campaigns of this machine's servers into .live/stacks and leaves the rest to `knee stacks run`:
starting, measuring, ending; and to `knee compare`. scripts/live/stacks builds what is started here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomli_w

LIVE = Path(".live").absolute()
FOLDER, MODEL = LIVE / "stacks", LIVE / "smollm2/model"
SEATS, CONTEXT = 8, 1024  # requests at once, on the servers that have such a limit; tokens of each
WORKLOAD = {"input_tokens": 64, "output_tokens": 32, "tokenizer": str(MODEL)}
LEVELS = "1,2,4,8,12,16"  # the same for all, so that every level has a ratio
NAMES = ("stacks", "quantised", "answers")
VARIED = {  # what may differ
    "stacks": "engine,max-num-seqs",
    "quantised": "precision",
    "answers": "engine,max-num-seqs,precision",
}
QUESTIONS = Path("scripts/live/questions.jsonl").absolute()


def llama_server() -> dict[str, Any]:
    binary = str(LIVE / "llama/llama-server")
    command = [binary, "--model", "{model}", "--alias", "{served}", "--host", "127.0.0.1", "--port", "{port}"]
    return {
        "title": "llama-server",
        "command": [*command, "--metrics", "--no-webui", "--threads", "1", "--threads-batch", "1"],
        "model_file": "*.gguf",
        "version": [binary, "--version"],
        "flags": {
            "dtype": [],
            "max_num_seqs": ["--parallel", "{value}"],
            "max_model_len": ["--ctx-size", "{cache_tokens}"],
            "prefix_caching=off": ["--no-cache-prompt"],
        },
    }


def recipes() -> dict[str, dict[str, Any]]:
    """Return the servers as this machine has them: from .live, on one thread, in float32."""
    transformers = LIVE / "transformers/bin/transformers"
    return {
        "vllm": {
            "title": "vLLM on the CPU",
            "command": [
                str(LIVE / "vllm/bin/vllm"), "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}",
                "--served-model-name", "{served}", "--enforce-eager",
            ],
            "env": {
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "0",
                "VLLM_NO_USAGE_STATS": "1",
                "HF_HUB_OFFLINE": "1",
            },
            "flags": {
                "dtype=fp32": ["--dtype", "float32"],
                "max_num_seqs": ["--max-num-seqs", "{value}"],
                "max_model_len": ["--max-model-len", "{value}"],
                "prefix_caching=off": ["--no-enable-prefix-caching"],
            },
        },
        "llama-server": llama_server(),
        "transformers": {
            "title": "transformers serve",
            "command": [
                str(transformers), "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}", "--device", "cpu",
                "--continuous-batching", "--attn-implementation", "sdpa", "--cb-num-blocks", "512",
                "--cb-block-size", "32", "--cb-max-batch-tokens", "512",
            ],
            "env": {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
            "served": "{model}",
            "version": [str(transformers), "version"],
            "flags": {"dtype=fp32": ["--dtype", "float32"]},
        },
    }  # fmt: skip


def campaign(name: str) -> dict[str, Any]:
    """Return the campaign file of that name; the bounds of a run are given by options."""
    seats = {"max_num_seqs": SEATS, "max_model_len": CONTEXT}
    path = {each: str(FOLDER / f"{each}.toml") for each in recipes()}
    q4 = {"name": "q4", "recipe": path["llama-server"], **seats, "model": str(LIVE / "smollm2/model-q4/model.gguf")}
    f32: list[dict[str, Any]] = [
        {"recipe": path["vllm"], **seats, "dtype": "fp32"},
        {"recipe": path["llama-server"], **seats, "dtype": "fp32"},
        {"recipe": path["transformers"], "dtype": "fp32"},
    ]
    # The servers have core 0, knee core 1. No prediction: it knows no 32-bit weights.
    made: dict[str, Any] = {"name": f"live-{name}", "workload": WORKLOAD, "hardware": {"host_cpus": [0]}}
    if name == "quantised":
        return {**made, "stack": [{**f32[1], "name": "f32"}, q4]}
    if name == "answers":
        asked = {"file": str(QUESTIONS), "repeats": 2, "output_tokens": 16}
        return {**made, "quality": asked, "stack": [*f32, q4]}
    return {**made, "stack": f32}


def write() -> None:
    """Write every recipe and campaign into .live/stacks."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, recipe in recipes().items():
        (FOLDER / f"{name}.toml").write_text(tomli_w.dumps(recipe))
    for name in NAMES:
        (FOLDER / f"live-{name}.toml").write_text(tomli_w.dumps(campaign(name)))


def measure(arguments: argparse.Namespace) -> int:
    """Run the campaigns, one after the other, whatever became of the one before; the worst of their statuses."""
    write()
    statuses = []
    for name in arguments.only or NAMES:
        bounds = ["--levels", LEVELS, "--level-seconds", f"{arguments.level_seconds:g}"]
        bounds += ["--repeat", str(arguments.repeat)]
        if name == "answers":  # the questions come before the load, so that one run of two levels tells
            bounds = ["--levels", "1,8", "--level-seconds", "20"]
        if arguments.short:
            bounds = ["--levels", "1,2", "--level-seconds", "2"]
        out = f"{arguments.out}-{'short-' if arguments.short else ''}{name}"
        command = ["taskset", "-c", "1", sys.executable, "-m", "harness", "stacks", "run"]
        command += [str(FOLDER / f"live-{name}.toml"), "--model", str(MODEL), *bounds, "--yes", "--out", out]
        statuses.append(subprocess.call(command))
        if statuses[-1] >= 128 or statuses[-1] < 0:  # it was ended
            break
        if not arguments.short:
            without_checkout(Path(out))
            compare(name, out)
    return max(statuses, key=abs)


def without_checkout(out: Path) -> None:
    """Paths of this checkout become relative in the folders of a campaign: they may be committed."""
    for manifest in sorted(out.rglob("manifest.json")):
        manifest.write_text(manifest.read_text().replace(f"{LIVE.parent}/", ""))
        if manifest.parent != out:
            subprocess.run([sys.executable, "-m", "harness", "report", str(manifest.parent), "--quiet"])


def compare(name: str, out: str) -> int:
    """`knee compare` over the runs of a campaign, from their records; into the campaign's folder."""
    runs = [str(each) for each in sorted(Path(out).glob("*-[0-9]"))]
    command = [sys.executable, "-m", "harness", "compare", *runs, "--vary", VARIED[name], "--out", f"{out}/comparison"]
    return subprocess.call(command)


def main() -> None:
    parser = argparse.ArgumentParser(description="One weight set on three servers.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring, comparing = verbs.add_parser("measure"), verbs.add_parser("compare")
    for verb in (measuring, comparing):
        verb.add_argument("--only", choices=NAMES, action="append", help="this campaign alone")
        verb.add_argument("--out", default="results/live", help="what the names of the folders begin with")
    measuring.add_argument("--repeat", type=int, default=3, help="runs of each stack, in turns")
    measuring.add_argument("--level-seconds", type=float, default=12.0, help="of every window")
    measuring.add_argument("--short", action="store_true", help="the levels 1 and 2, 2 s each, once")
    arguments = parser.parse_args()
    if arguments.verb == "measure":
        sys.exit(measure(arguments))
    sys.exit(max(compare(name, f"{arguments.out}-{name}") for name in arguments.only or NAMES))


if __name__ == "__main__":
    main()
