"""OpenTelemetry's metrics to a collector: OTLP/JSON over HTTP.

Protocol: opentelemetry.io/docs/specs/otlp (OTLP/HTTP); headers by OTEL_EXPORTER_OTLP_HEADERS, `name=value` with commas
between, values percent-encoded.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote

import msgspec

from harness.base.errors import HarnessError

_PATH = "/v1/metrics"
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_TIMEOUT_S = 10.0  # OpenTelemetry's own


class _Partial(msgspec.Struct, frozen=True):
    rejected: int | str = msgspec.field(name="rejectedDataPoints", default=0)
    message: str = msgspec.field(name="errorMessage", default="")


class _Answer(msgspec.Struct, frozen=True):
    partial: _Partial | None = msgspec.field(name="partialSuccess", default=None)


def is_address(out: str) -> bool:
    """Whether --out names a collector.

    >>> is_address("http://127.0.0.1:4318"), is_address("results/metrics")
    (True, False)
    """
    return out.lower().startswith(("http://", "https://"))


def post(document: dict[str, Any], address: str) -> str:
    """Send it, and return what became of it in a line; HarnessError where the collector did not take it."""
    import httpx

    try:
        url = httpx.URL(address)
        if not url.path.rstrip("/").endswith(_PATH):
            url = url.copy_with(path=url.path.rstrip("/") + _PATH)
        place = str(url.copy_with(userinfo=b"", query=None))  # either may hold a secret
    except httpx.InvalidURL:
        raise HarnessError("no address", place="--out", way_out="give http://HOST:4318") from None
    headers = {**_headers(os.environ.get(_HEADERS, "")), "Content-Type": "application/json"}
    try:
        answer = httpx.post(
            url, content=msgspec.json.encode(document), headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )
    except (httpx.HTTPError, UnicodeError) as error:
        fact = f"the collector was not reached ({type(error).__name__})"
        raise HarnessError(fact, place=place, way_out="see that it runs and takes OTLP over HTTP") from None
    if not answer.is_success:
        fact = f"the collector answered {answer.status_code}"
        raise HarnessError(fact, place=place, way_out=f"see its log, and {_HEADERS}")
    return f"{place}: {_outcome(answer.content)}"


def _outcome(content: bytes) -> str:
    try:
        partial = msgspec.json.decode(content or b"{}", type=_Answer).partial
    except (msgspec.DecodeError, UnicodeError):
        return "sent; the answer was not OTLP"
    if partial is None or (str(partial.rejected) == "0" and not partial.message):
        return "sent"
    message = "".join(each if each.isprintable() else " " for each in partial.message[:200])
    return f"sent; points refused: {str(partial.rejected)[:20]}" + (f" ({message})" if message else "")


def _headers(text: str) -> dict[str, str]:
    """The headers of the variable; its values are never shown.

    >>> _headers("api-key=a%20b, tenant=x")
    {'api-key': 'a b', 'tenant': 'x'}
    """
    found = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, sign, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not sign or not name or not (name + value).isascii() or not (name + value).isprintable():
            raise HarnessError(
                "not name=value with commas between", place=_HEADERS, way_out="percent-encode the values"
            )
        found[name] = value
    return found
