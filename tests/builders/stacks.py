"""The servers that people run, each as its streams and mistakes are: scripts for `tests.servers`.

What they send was seen (docs/servers.md): the order of chunks, where usage stands, what closes when.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

from tests.builders.servers import Request
from tests.builders.streams import DONE, delta, event, usage

Script = Callable[[Request], None]


def models(model: str = "toy", **entry: Any) -> bytes:
    return json.dumps({"object": "list", "data": [{"id": model, "object": "model", **entry}]}).encode()


def prompt_words(r: Request) -> int:
    body = json.loads(r.body)
    return len((body["messages"][0]["content"] if "messages" in body else body["prompt"]).split())


def most(r: Request) -> int:
    body = json.loads(r.body)
    return int(body.get("max_tokens") or body["max_completion_tokens"])


def chat(r: Request, prompt: int, *, done: bytes = DONE) -> None:
    """A good answer of as many tokens as requested."""
    n = most(r)
    chunks = [delta("length" if i == n - 1 else None, content=" x") for i in range(n)]
    r.stream(*chunks, event({"choices": [], "usage": usage(prompt, n)}), done)


def refuse(r: Request, status: int, message: str) -> None:
    r.answer(status, json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode())


def counting(tokens: Callable[[int], int], context: int | None = None) -> Script:
    """A server whose prompts of so many words come to so many tokens; a context that is too small says so."""

    def script(r: Request) -> None:
        if r.path == "/v1/models":
            r.answer(200, models() if context is None else models(max_model_len=context))
        elif r.path != "/v1/chat/completions":
            r.answer(404, b"{}")
        elif context is not None and tokens(prompt_words(r)) + most(r) > context:
            refuse(r, 400, f"This model's maximum context length is {context} tokens. However, you requested more.")
        else:
            chat(r, tokens(prompt_words(r)))

    return script


def llama(r: Request, *, slots: int = 4, n_ctx: int = 512, overhead: int = 8, cached: int = 5) -> None:
    """llama-server: its limits on a page of its own; ends the connection after a stream though it said keep-alive."""
    if r.path == "/v1/models":
        r.answer(200, models(owned_by="llamacpp", meta={"n_ctx_train": 8192, "n_vocab": 32000, "n_params": 1}))
    elif r.path == "/props":
        props = {"default_generation_settings": {"n_ctx": n_ctx}, "total_slots": slots, "build_info": "b7000-abc"}
        r.answer(200, json.dumps({**props, "model_path": "/models/toy.gguf"}).encode())
    elif r.path == "/v1/chat/completions":
        n, prompt = most(r), prompt_words(r) + overhead
        last = event({"choices": [], "usage": usage(prompt, n), "timings": {"cache_n": cached, "predicted_n": n}})
        chunks = [delta(content=" x") for _ in range(n)]
        r.stream_and_close(delta(role="assistant", content=None), *chunks, delta("length"), last, DONE)
    else:
        refuse(r, 404, "File Not Found")


def transformers(r: Request) -> None:
    """transformers serve: /v1/models is 500 and its connection gone after it; unknown fields are 422; no [DONE]."""
    if r.path == "/v1/models":
        r.answer(500, b"Internal Server Error", "text/plain")
        r.sock.settimeout(5)
        r.sock.recv(1)  # the next request: the connection ends under it
        r.reset()
    elif r.path == "/v1/chat/completions":
        body = json.loads(r.body)
        if unknown := [name for name in ("ignore_eos",) if name in body]:
            r.answer(422, json.dumps({"detail": f"Unexpected fields in the request: {set(unknown)}"}).encode())
            return
        n = most(r)
        tokens = [delta(content=" x") for _ in range(n)]
        r.stream(delta(role="assistant"), *tokens, delta("length", usage=usage(prompt_words(r) + 8, n)))
    else:
        r.answer(404, b'{"detail":"Not Found"}')


def azure(r: Request) -> None:
    """Azure OpenAI: no /v1, a version in every query, max_completion_tokens, the temperature that it likes."""
    path, _, query = r.path.partition("?")
    if (path, query) != ("/openai/deployments/gpt/chat/completions", "api-version=2024-10-21"):
        refuse(r, 404, "Resource not found")
    elif "max_tokens" in json.loads(r.body):
        refuse(
            r, 400, "Unsupported parameter: 'max_tokens' is not supported with this model. "
            "Use 'max_completion_tokens' instead.",
        )  # fmt: skip
    elif "temperature" in json.loads(r.body):
        refuse(
            r, 400, "Unsupported value: 'temperature' does not support 0 with this model. "
            "Only the default (1) value is supported.",
        )  # fmt: skip
    elif unknown := [name for name in ("ignore_eos",) if name in json.loads(r.body)]:
        refuse(r, 400, f"Unknown parameter: '{unknown[0]}'.")
    elif "continuous_usage_stats" in json.loads(r.body)["stream_options"]:
        refuse(r, 400, "Unknown parameter: 'stream_options.continuous_usage_stats'.")
    else:
        chat(r, prompt_words(r) + 7)


def gzips(r: Request) -> None:
    """A proxy that compresses all the same, whatever is requested."""
    coded = "Content-Encoding: gzip\r\n"
    if r.path == "/v1/models":
        r.answer(200, gzip.compress(models()), extra=coded)
    elif r.path == "/v1/chat/completions":
        r.answer(200, gzip.compress(delta("length", content=" x") + DONE), "text/event-stream", coded)
    else:
        r.answer(404, gzip.compress(b"{}"), extra=coded)


def dead_upstream(r: Request) -> None:
    """nginx with nobody behind it."""
    page = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>"
    r.answer(502, page, "text/html", "Server: nginx\r\n")
