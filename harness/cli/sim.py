"""`knee sim`: the simulated endpoint as a server of its own."""

from __future__ import annotations

import click


@click.command()
@click.option("--profile", default="llama-3.1-8b/h100-sxm", show_default=True, metavar="MODEL/GPU")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8000, show_default=True, type=int, help="0 takes a free one.")
@click.option("--max-num-seqs", default=16, show_default=True, type=int)
@click.option("--speed", default=1.0, show_default=True, type=float, help="How much faster than life it runs.")
@click.option("--calibration", metavar="FILE", help="Profile of `knee calibrate model`: as fast as that server was.")
@click.option("--log", metavar="FILE", help="Write log: a frame a request.")
def sim(
    profile: str, host: str, port: int, max_num_seqs: int, speed: float, calibration: str | None, log: str | None
) -> None:
    """Serve the simulated endpoint: an OpenAI-compatible server that only pretends to be a model on a GPU."""
    from harness.sim import endpoint
    from harness.sim import profile as profiles

    chosen = profiles.profile(profile, max_num_seqs=max_num_seqs, speed=speed)
    if calibration is not None:
        import msgspec

        from harness.experiment import hardware
        from harness.predict import tune

        applied = tune.apply(chosen.model, chosen.deployment, hardware.calibration(calibration))
        chosen = msgspec.structs.replace(chosen, deployment=applied)
    endpoint.serve(chosen, host, port, log=log, ready=lambda url: print(f"ready {url}", flush=True))
