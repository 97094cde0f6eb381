"""Data sets by name: the file of one that Hugging Face's hub has, from its cache where it is there.

`hf:org/name` is the first file of its training split, `hf:org/name:part` the first whose path has that part in it, and
`hf:org/name@revision` one revision. Of a split in several files the first is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from harness.base.errors import HarnessError, nearest

HUB = "hf:"
KNOWN = {  # by the names that people use
    "lmsys": "hf:lmsys/lmsys-chat-1m",
    "mt-bench": "hf:HuggingFaceH4/mt_bench_prompts",
    "openorca": "hf:Open-Orca/OpenOrca",
    "sharegpt": "hf:anon8231489123/ShareGPT_Vicuna_unfiltered:ShareGPT_V3_unfiltered_cleaned_split.json",
    "wildchat": "hf:allenai/WildChat-1M",
}
_READ = (".parquet", ".jsonl", ".ndjson", ".json", ".csv", ".tsv")
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+?))?(?::(.+))?")
_LICENCE = re.compile(r"^license:\s*(\S+)", re.MULTILINE)


class Named(msgspec.Struct, frozen=True):
    """A file of a data set with a name."""

    path: Path
    revision: str
    licence: str | None  # as its card names it


def named(text: str, revision: str | None = None) -> Named | None:
    """Return the file that a name means; None where the text is a path. HarnessError where it cannot be had."""
    if os.path.exists(text) or not (name := KNOWN.get(text, text)).startswith(HUB):
        return None
    match = _NAME.fullmatch(name.removeprefix(HUB))
    if match is None:
        raise HarnessError("it is no name of a data set", place=text, way_out="write it like hf:org/name:train")
    repository, asked, part = match.groups()
    try:
        from huggingface_hub import HfApi, constants, errors, hf_hub_download
    except ImportError:
        way_out = "pip install 'knee-harness[hub]', or give a file"
        raise HarnessError("huggingface_hub is not installed", place=text, way_out=way_out) from None
    wanted = revision or asked or "main"
    cache = Path(constants.HF_HUB_CACHE, f"datasets--{repository.replace('/', '--')}")
    with suppress(OSError):
        wanted = (cache / "refs" / wanted).read_text().strip()
    folder = cache / "snapshots" / wanted
    here = [each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()]
    if (chosen := _chosen(here, part)) is None:
        try:
            info = HfApi().dataset_info(repository, revision=wanted)
            there = [each.rfilename for each in info.siblings or ()]
            if (chosen := _chosen(there, part)) is None:
                way_out = nearest(part or "", there)
                raise HarnessError(f"it has no file of {part or 'a known format'}", place=text, way_out=way_out)
            for each in [chosen, *(["README.md"] if "README.md" in there else [])]:
                found = hf_hub_download(repository, each, repo_type="dataset", revision=info.sha)
                folder = Path(found.removesuffix(each))
        # Those of the hub, which are also those of the HTTP client that it uses, and a name that is none.
        except (ValueError, *errors.HfHubHTTPError.__bases__) as error:  # type: ignore[misc]  # all are errors
            reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            way_out = (
                f"where there is a network, `hf download {repository} --repo-type dataset`, and copy its folder to "
                f"{cache}; or give a file"
            )
            raise HarnessError(
                f"it is not in the cache, and not to be had ({reason})", place=text, way_out=way_out
            ) from None
    card = folder / "README.md"
    licence = _LICENCE.search(card.read_text(errors="replace")) if card.is_file() else None
    return Named(folder / chosen, folder.name, licence[1] if licence else None)


def _chosen(files: Iterable[str], part: str | None) -> str | None:
    """Return the first file of these that is read and has the part in its path, by default of a training split.

    >>> _chosen(["README.md", "data/test-0.parquet", "data/train-0.parquet"], None)
    'data/train-0.parquet'
    """
    found = sorted(each for each in files if each.endswith(_READ) and (part or "") in each)
    return next((each for each in found if "train" in each), found[0] if found else None)
