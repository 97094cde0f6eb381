"""A model's config.json from the hub, with `--hub`: the one place where a prediction needs a network."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from harness.base import decoding
from harness.base.errors import HarnessError

_PLACE = "--hub"


def config(name: str) -> str:
    """Return the path of the config.json that the hub has for `name`, like meta-llama/Llama-3.1-8B; its cache keeps it.

    Where that says nothing of quantisation, the hf_quant_config.json comes with it, if there is one.
    """
    try:
        import huggingface_hub
    except ImportError:
        way_out = "install huggingface_hub, or give the path of a config.json"
        raise HarnessError("huggingface_hub is not installed", place=_PLACE, way_out=way_out) from None
    from huggingface_hub.errors import EntryNotFoundError

    # HfHubHTTPError and a hub that cannot be reached are OSErrors; a name that is none is a ValueError.
    try:
        found = huggingface_hub.hf_hub_download(name, "config.json")
    except (OSError, ValueError, EntryNotFoundError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        way_out = "see its name and HF_TOKEN, or give the path of a config.json"
        raise HarnessError(f"no config.json of {name!r} ({reason})", place=_PLACE, way_out=way_out) from None
    with suppress(OSError, ValueError, EntryNotFoundError):
        if b"quantization_config" not in decoding.content(Path(found)):
            huggingface_hub.hf_hub_download(name, "hf_quant_config.json")
    return found
