"""Words of one token each by the tokenizer of the server, which cuts a text into tokens at `POST /tokenize`.

vLLM and llama-server have such a page and say which tokens; no other server is asked. What it says is held against the
words that were sent. Left out: a tokenizer that the operator names (`vocabulary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from harness.load import control
from harness.load.control import Client, Page
from harness.run.launch.endpoint import Address
from harness.run.launch.vocabulary import FEWEST
from harness.workload.text import COMMON, spaced

_MOST_S = 10.0  # for a page that need not be there
_BLANKS = ("Ġ", "▁", " ")  # before a word, as vocabularies write it


async def words(client: Client, where: Address, owner: object, model: str, within_s: float) -> tuple[str, ...]:
    """Words of one token each; none where the server does not say, or says too few.

    `owner` is what it names as the owner of its models.
    """
    text = "".join(spaced(COMMON))
    bodies: dict[str, dict[str, object]] = {
        "vllm": {"model": model, "prompt": text, "add_special_tokens": False, "return_token_strs": True},
        "llamacpp": {"content": text, "with_pieces": True},
    }
    if not isinstance(owner, str) or owner not in bodies:
        return ()
    sent, headers = msgspec.json.encode(bodies[owner]), {"Content-Type": "application/json"}
    try:
        async with control.response(
            client, "POST", where.path("/tokenize"), min(within_s, _MOST_S), sent, headers
        ) as reply:
            data = Page(reply.status, {}, await control.whole(reply)).json()
    except control.TransportError:
        return ()
    found = single_tokens(_pieces(data))
    return found if len(found) >= FEWEST else ()


def single_tokens(pieces: Sequence[str]) -> tuple[str, ...]:
    """Those of our words that are one token each, by the pieces of a text of such words; the blank may be Ġ or ▁.

    >>> single_tokens(["Ġtime", "Ġye", "ar", "▁way", " day"])
    ('time', 'way', 'day')
    """
    ours, starts = set(COMMON), [piece[:1] in _BLANKS for piece in pieces]
    whole = [
        piece[1:] for piece, begins, ends in zip(pieces, starts, [*starts, True][1:], strict=True) if begins and ends
    ]
    return tuple(dict.fromkeys(word for word in whole if word in ours))


def _pieces(data: Any) -> list[str]:
    """The texts of the tokens in an answer of vLLM or of llama-server; empty where it is neither."""
    if not isinstance(data, dict):
        return []
    found = data.get("token_strs")
    if found is None and isinstance(data.get("tokens"), list):
        found = [each.get("piece") if isinstance(each, dict) else None for each in data["tokens"]]
    return [each if isinstance(each, str) else "" for each in found] if isinstance(found, list) else []
