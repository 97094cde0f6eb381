"""Which transport a target asks for: plain sockets, TLS on them, or httpx."""

from __future__ import annotations

from harness.load.loop import HotSelector
from harness.load.transport import SocketTransport, Target, Transport


def transport_for(target: Target, selector: HotSelector) -> Transport:
    """The transport that the target asks for; TLS and httpx are imported only where they are."""
    if target.transport == "httpx":
        from harness.load.httpclient import HttpxTransport

        return HttpxTransport(target, selector)
    if target.scheme == "https":
        from harness.load.tls import SecureTransport

        return SecureTransport(target, selector)
    return SocketTransport(target, selector)
