"""`knee sim`: the simulated endpoint as a server of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from harness.base.errors import HarnessError
from harness.cli import deployed
from harness.cli.grouped import Grouped, flag_of, option, under

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.sim.profile import Profile

_EXAMPLES = """\b
Examples:
  knee sim
  knee sim --model-config qwen3-8b --gpu l40s --max-num-seqs 64
  knee sim --speed 10"""


@click.command(cls=Grouped, epilog=_EXAMPLES)
@under(
    "Server",
    option("--host", default="127.0.0.1", show_default=True),
    option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."),
    option("--profile", metavar="MODEL/GPU", help="Default llama-3.1-8b/h100-sxm, with --max-num-seqs 16."),
    option("--speed", default=1.0, show_default=True, type=float, help="How many times faster than real time it runs."),
    option("--prefix-caching", is_flag=True, help="Keep KV blocks for prompts that begin alike."),
    option("--block-size", default=16, show_default=True, type=click.IntRange(1), help="Tokens of a KV block."),
    option(
        "--scheduling-policy",
        default="fcfs",
        show_default=True,
        type=click.Choice(["fcfs", "priority"]),
        help="Which request goes first: by arrival, or the lowest `priority` in its body.",
    ),
    option("--reasoning-tokens", default=0, type=click.IntRange(0), help="Reasoning before each answer to a chat."),
    option("--log", metavar="FILE", help="Log the time of every token."),
    option("--calibration", metavar="FILE", help="Profile of `knee calibrate model`: as fast as that server was."),
)
@deployed.options
def sim(
    profile: str | None,
    calibration: str | None,
    reasoning_tokens: int,
    host: str,
    port: int,
    log: str | None,
    **flags: Any,
) -> None:
    """Serve the simulated endpoint.

    It is an OpenAI-compatible server that only pretends to be a model on a GPU. --profile names the model and the GPU,
    or --model-config and --gpu do. By the same options it is what `knee predict` predicts.
    """
    import msgspec

    from harness.sim import process

    chosen = msgspec.structs.replace(_profile(profile, flags), reasoning_tokens=reasoning_tokens)
    if calibration is not None:
        from harness.predict.calibration import apply
        from harness.run import prediction

        applied = apply(chosen.model, chosen.deployment, prediction.calibration(calibration))
        chosen = msgspec.structs.replace(chosen, deployment=applied)

    def ready(url: str) -> None:
        print(f"ready {url}", flush=True)
        print(f"measure it from another terminal: knee run {url}   (Ctrl-C ends it)", file=sys.stderr, flush=True)
        if process.beyond_this_machine(host):
            note = (
                "it listens beyond this machine, and anyone who reaches it may use it; --host 127.0.0.1 prevents that"
            )
            print(f"note: {note}", file=sys.stderr, flush=True)

    process.serve(chosen, host, port, log=log, ready=ready)


def _profile(profile: str | None, flags: Mapping[str, Any]) -> Profile:
    """Return what to serve; a model or a card that is not named is the default's.

    Raise HarnessError for options without an effect, and for --profile beside a named model or card.
    """
    from harness.sim import profile as profiles

    for flag, of in (("hub", "model_config"), ("host_cpus", "gpu")):
        if flags[flag] and flags[of] is None:
            raise HarnessError(
                f"it has no effect without {flag_of(of)}", place=flag_of(flag), way_out=f"add {flag_of(of)}"
            )
    own = ("speed", "dtype", "kv_dtype", "prefix_caching", "block_size", "scheduling_policy")
    settings = deployed.figures(flags) | {name: flags[name] for name in own}
    named = [flag for flag in ("model_config", "gpu") if flags[flag] is not None]
    if not named:
        return profiles.profile(profiles.DEFAULT if profile is None else profile, **settings)
    if profile is not None:
        fact = f"it names a model and a card, as {flag_of(named[0])} does"
        raise HarnessError(fact, place="--profile", way_out="leave one of them out")
    model, card = profiles.DEFAULT.split("/")
    path, name = deployed.model(flags["model_config"] or model, hub=flags["hub"])
    return profiles.served(path, deployed.card(flags["gpu"] or card, flags["host_cpus"]), name=name, **settings)
