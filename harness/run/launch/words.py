"""Words of one token each, by a tokenizer that the operator names.

It is loaded in a process of its own. Its folder may come from others, and its code runs only with --trust-remote-code;
the process has no standard input, so it cannot ask for consent. It may take long or fail, and is killed when the run is
interrupted.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable

import msgspec

from harness.base import interpreter
from harness.base.errors import HarnessError
from harness.workload.text import COMMON, single_token_words

_FEWEST = 64  # words below which prompts would repeat themselves
_MOST_OWN = 4096  # words of the tokenizer's vocabulary that are tried
_TRUST = "--trust-remote-code"
_HUB_S = 4.0  # within which the hub has to answer


class _Found(msgspec.Struct, frozen=True, tag=True):
    words: tuple[str, ...]
    tokenizer_json: str  # "" if it has none


class _Failed(msgspec.Struct, frozen=True, tag=True):
    fact: str
    code: bool  # it has code, and no consent to run it


async def of_tokenizer(tokenizer: str, *, trust_remote_code: bool) -> tuple[tuple[str, ...], str]:
    """Return the words of one token each by the named tokenizer, and its tokenizer.json ("" if it has none).

    It is loaded in a process of its own. Raise HarnessError if that fails, if it has code that is not trusted, or too
    few words.
    """
    command = interpreter.module("harness.run.launch.words", tokenizer, *([_TRUST] if trust_remote_code else []))
    # It has a process session of its own: Ctrl-C reaches the run alone, which ends it.
    process = await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    place, way_out = f"--tokenizer {tokenizer}", "give a model folder or leave it out"
    if process.returncode:
        fact = f"loading it ended with status {process.returncode}"
        raise HarnessError(f"no tokenizer there ({fact})", place=place, way_out=way_out)
    answer: _Found | _Failed = msgspec.msgpack.decode(output, type=_Found | _Failed)
    if isinstance(answer, _Failed):
        if answer.code:
            raise HarnessError(
                "it is a tokenizer with code of its own, which is not run",
                place=place,
                way_out=f"read it, then {_TRUST}",
            )
        raise HarnessError(f"no tokenizer there ({answer.fact})", place=place, way_out=way_out)
    if len(answer.words) < _FEWEST:
        raise HarnessError(f"only {len(answer.words)} words are one token each", place=place, way_out="leave it out")
    return answer.words, answer.tokenizer_json


def _loaded(tokenizer: str, *, trust_remote_code: bool) -> _Found:
    """Load the tokenizer; return its words of one token each, and its tokenizer.json ("" for a slow one)."""
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # torch is missing on purpose
    from transformers import AutoTokenizer

    here = os.path.isdir(tokenizer) or not _hub_answers()
    # False, not None: None would ask on the terminal.
    loaded = AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=trust_remote_code, local_files_only=here)
    tokens_of: Callable[[str], int] = lambda text: len(loaded.encode(text, add_special_tokens=False))  # noqa: E731
    # Words that a small vocabulary splits are left out; its own short words come in.
    own = {token[1:] for token in loaded.get_vocab() if token[:1] in ("Ġ", "▁")}
    own = {word for word in own if word.isascii() and word.isalpha()}
    candidates = sorted({*COMMON, *sorted(own, key=lambda w: (len(w), w))[:_MOST_OWN]})
    found = single_token_words(tokens_of, candidates)
    return _Found(found, loaded.backend_tokenizer.to_str() if loaded.is_fast else "")


def _hub_answers() -> bool:
    """Return whether the hub answers, or refuses, within a few seconds; its own client tries for a minute."""
    from huggingface_hub import constants

    try:
        urllib.request.urlopen(constants.ENDPOINT, timeout=_HUB_S).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # its own client may trust other certificates
    except OSError:
        return False
    return True


def main(arguments: list[str]) -> None:
    """Load the tokenizer and write what was found, or why not, to stdout; other output is dropped."""
    output = os.dup(1)
    os.dup2(2, 1)
    trust = _TRUST in arguments[1:]
    answer: _Found | _Failed
    try:
        answer = _loaded(arguments[0], trust_remote_code=trust)
    except Exception as error:  # noqa: BLE001  # any failure to load is a fact about the folder
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        answer = _Failed(first, not trust and "trust_remote_code" in str(error))
    with os.fdopen(output, "wb") as file:
        file.write(msgspec.msgpack.encode(answer))


if __name__ == "__main__":
    main(sys.argv[1:])
