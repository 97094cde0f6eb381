"""TLS on the measured path: the same stamped reads, decrypted in memory; a handshake is part of opening.

`ssl.MemoryBIO` is between socket and cipher, so that the kernel's stamps stay and `sockets` needs to know nothing
of TLS. Certificates are verified unless the target is `insecure`.

A connection may end without close_notify: whether the response was complete follows from its framing and its finish
reason. Left out: client certificates, renegotiation, resumed sessions, HTTP/2 (the httpx transport has it).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl

from harness.base.errors import HarnessError
from harness.load.loop import HotSelector, now
from harness.load.sockets import Connection, SocketTransport
from harness.load.transport import Exchange, Target, TlsError

_PIECE = 2048  # bytes that are decrypted at once: most records have fewer, and memory for the longest takes time
_OTHER_NAME = (62, 64)  # openssl/x509_vfy.h: of a host, of an IP address
_UNKNOWN_AUTHORITY = "its certificate comes from an authority that is not trusted here", "give --ca-file PEM"
_REFUSED = {  # codes of the same file: why a certificate is refused, and the way out
    10: ("its certificate has expired", "renew it; --insecure measures all the same"),
    18: ("its certificate is self-signed", "give it as --ca-file, or --insecure"),
    **dict.fromkeys((2, 19, 20, 21), _UNKNOWN_AUTHORITY),
}


def context(target: Target) -> ssl.SSLContext:
    """Return the TLS settings of a client for a target, and HTTP/1.1; httpx sets protocols of its own over it.

    It trusts the target's own authorities, else the system's, else (in a bare container) Mozilla's; with `insecure`
    anybody.
    """
    try:
        made = ssl.create_default_context(cafile=target.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        fact = "no PEM certificates in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise HarnessError(
            fact, place=f"--ca-file {target.ca_file}", way_out="give the PEM file of the authority"
        ) from None
    if not target.ca_file and not _system_trusts_anybody(made):
        import certifi

        made.load_verify_locations(certifi.where())
    if target.insecure:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    made.set_alpn_protocols(["http/1.1"])
    return made


def _system_trusts_anybody(made: ssl.SSLContext) -> bool:
    folder = ssl.get_default_verify_paths().capath  # read only when needed
    return made.cert_store_stats()["x509_ca"] > 0 or bool(folder and os.listdir(folder))


def explained(error: ssl.SSLError) -> tuple[str, str]:
    """Return why there is no TLS, and the way out."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            mismatch = error.verify_message.removesuffix(".").partition("certificate is not ")[2]
            return f"its certificate is not {mismatch}", "give the host that the certificate names"
        other = f"its certificate is refused ({error.verify_message})", "see openssl s_client; or --insecure"
        return _REFUSED.get(error.verify_code, other)
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS", "is it http://?"
    return f"no TLS with it ({reason(error)})", "see openssl s_client"


def reason(error: OSError) -> str:
    """Return a TLS failure in few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return str(error) or type(error).__name__


class SecureConnection(Connection):
    """One TLS connection; what the loop reads and the socket takes is ciphertext, the rest is as on a plain one."""

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(self, sock: socket.socket, pool: SocketTransport, made: ssl.SSLContext, host: str) -> None:
        super().__init__(sock, pool)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = made.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    async def shake_hands(self) -> None:
        """Shake hands, before the connection is in the selector; TlsError with the reason where that fails."""
        loop = asyncio.get_running_loop()
        began = now()
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await loop.sock_sendall(self.sock, self._outgoing.read())
                    data = await loop.sock_recv(self.sock, 65_536)
                    if data:
                        self._incoming.write(data)
                    else:
                        self._incoming.write_eof()
            await loop.sock_sendall(self.sock, self._outgoing.read())
        except OSError as error:
            with contextlib.suppress(OSError):  # the alert that gives the server the reason
                self.sock.send(self._outgoing.read())
            raise TlsError(reason(error)) from error
        self.tls_ns = now() - began

    def begin(self, exchange: Exchange, data: bytes) -> None:
        """Encrypt, then stamp and send."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            raise TlsError(reason(error)) from error
        super().begin(exchange, self._outgoing.read())

    def decrypt(self, data: bytes, stamp: int) -> bytes | None:
        """Return what a read brings in plain text; None if the connection ends with it: then all of it is taken."""
        tls, incoming = self._tls, self._incoming
        incoming.write(data)
        pieces: list[bytes] = []
        failure: ssl.SSLError | None = None
        try:
            while piece := tls.read(_PIECE):
                pieces.append(piece)
                if len(piece) < _PIECE and not incoming.pending:  # whole: nearly every read of a token stream
                    break
            ended = not piece
        except ssl.SSLWantReadError:  # the rest of a record is still to come
            ended = False
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            ended, failure = True, error
        if self._outgoing.pending:  # what the TLS layer itself has to send, after what is still unsent
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
            self._pool.selector.want_write(self, True)
        if not ended:
            return b"".join(pieces)
        if pieces:
            self.arrived(b"".join(pieces), stamp)
        if failure is None or self._exchange is None:
            self.lost(None, stamp)
        else:
            self._exchange.fail("tls", reason(failure))
            self._finish(stamp)
        return None

    def received(self, data: bytes, stamp: int) -> None:
        if piece := self.decrypt(data, stamp):
            self.arrived(piece, stamp)

    def close(self) -> None:
        """Tell the server that the connection ends, unless some of a request is still unsent, and close it."""
        if self.open and not self._unsent:
            with contextlib.suppress(OSError):  # sends close_notify; raises if the peer's has not come
                self._tls.unwrap()
            with contextlib.suppress(OSError):
                self.sock.send(self._outgoing.read())
        super().close()


class SecureTransport(SocketTransport):
    """Open TLS connections to one address."""

    def __init__(self, target: Target, selector: HotSelector) -> None:
        super().__init__(target, selector)
        self._context = context(target)

    async def _connected(self, sock: socket.socket) -> Connection:
        connection = SecureConnection(sock, self, self._context, self._target.host)
        await connection.shake_hands()
        return connection
