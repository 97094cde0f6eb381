"""The operator's consent: which secrets go to which address, before the first byte; and the load of a public host.

A scenario and a result folder may come from others. A variable that only they name is sent if `--allow-env` names it
as well. A secret goes to an address that only they name if that is confirmed. Typing an option is consent.

A server on this machine, in a private network or behind a Unix socket is the operator's own. The IP addresses of its
name decide that, not the name; a name without addresses here (a proxy may know it) is public.
"""

from __future__ import annotations

import asyncio
import ipaddress
import shlex
import socket
import sys
from collections.abc import Collection, Mapping, Sequence

import msgspec

from harness.base.errors import HarnessError
from harness.base.terminal import clean
from harness.run.launch.endpoint import Address
from harness.spec import scenario as scenarios
from harness.spec.scenario import Scenario

_WAY_OUT = "add --yes; --max-requests, --max-seconds and --max-dollars bound a run"


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator agreed to on the command line."""

    yes: bool = False  # to every question
    named_by: str = ""  # the file that alone names the address; "": it was typed
    resumed: bool = False  # whether that file is a result folder
    trust_remote_code: bool = False  # a tokenizer may run code of its own


def must_be_allowed(scenario: Scenario, typed: Collection[str], environ: Mapping[str, str], place: str) -> None:
    """Raise HarnessError if a scenario file names an environment variable or a command that was not `typed` too.

    `typed` are the names and commands on the command line, `place` is the file. A variable that is not set is not
    sent; its name may be a key in the wrong place, so no error quotes it.
    """
    hooks = scenario.hooks or scenarios.Hooks()
    for name, command in (("before_level", hooks.before_level), ("stop_replica", hooks.stop_replica)):
        if command and command not in typed:
            way_out = f"add --{name.replace('_', '-')} {shlex.quote(command)} if it may"
            raise HarnessError(f"$.hooks.{name} runs {command!r}", place=place, way_out=way_out)
    urls = list(scenario.sweep.urls.values()) or scenario.target.every_url or ["nowhere"]
    more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
    for name, path in scenarios.variables(scenario):
        if name not in typed and name in environ:
            fact = f"{path} names the variable {name}, which would be sent to {urls[0]}{more}"
            raise HarnessError(fact, place=place, way_out=f"add --allow-env {name} if it may be")


def is_public(address: str) -> bool:
    """Return whether an IP address can be reached from anywhere, by IANA's registries of special-purpose addresses.

    >>> [is_public(a) for a in ("127.0.0.1", "10.1.2.3", "fe80::1%eth0", "fd00::1", "1.1.1.1", "::ffff:1.1.1.1")]
    [False, False, False, False, True, True]
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_global


async def addresses(where: Address) -> list[str]:
    """Return the IP addresses that the endpoint's host name resolves to; [] for a Unix socket or an unknown name."""
    if where.uds:
        return []
    loop = asyncio.get_running_loop()
    try:
        infos = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter: no host has such a name
        return []
    return sorted({str(sockaddr[0]) for *_, sockaddr in infos})


async def before_the_first_byte(
    scenario: Scenario, where: Address, found: Sequence[str], *, ours: bool, agreed: Agreed
) -> list[str]:
    """Ask for consent to the secrets that an address is sent, if it is needed; return notes, or raise HarnessError.

    Consent is needed before a secret goes to a public host or to an address that only a file names, and before a
    resumed run goes to another machine that only its folder names. `found` are the endpoint's IP addresses; `ours`: it
    is the simulated endpoint of this process.
    """
    carried = [] if ours else scenarios.carried(scenario)
    # The socket transport cannot reach a name without addresses; the checks report that.
    public = is_foreign(where, found) and (bool(found) or scenario.target.transport == "httpx")
    here = ours or is_here(where, found)
    by_file = bool(agreed.named_by) and (bool(carried) or (agreed.resumed and not here))
    names = ", ".join(carried) or "no secret"
    if not by_file and not (public and carried):
        if public and not agreed.yes:
            must_be_possible(where.base)  # now, not after the checks
        return [f"{where.base} is sent {names}"] if carried else []
    fact = f"only {agreed.named_by} names it" if by_file else "it is a public host"
    plan = [f"{where.base}: {fact}; the requests carry {names}"]
    if agreed.yes:
        return plan
    way_out = f"add --yes, or --url {where.base}" if by_file and not public else _WAY_OUT
    fact = f"{fact}, the requests carry {names}" if by_file else fact
    await ask(plan, where.base, fact=fact, way_out=way_out)
    return []


def is_foreign(where: Address, found: Sequence[str]) -> bool:
    """Return whether the endpoint is not the operator's own: a public host, or a name that only a proxy can know."""
    return any(map(is_public, found)) or not (found or where.uds)


def is_here(where: Address, found: Sequence[str]) -> bool:
    """Return whether the endpoint is on this machine, by the IP addresses of its name."""
    return bool(where.uds) or (bool(found) and all(map(is_loopback, found)))


def is_loopback(address: str) -> bool:
    """Return whether an IP address is that of this machine alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def must_be_possible(place: str, fact: str = "it is a public host", way_out: str = _WAY_OUT) -> None:
    """Raise HarnessError if no terminal can show a plan and take the answer; `fact` is why one is needed."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):  # a closed stream is None
        raise HarnessError(f"{fact}, and there is no terminal to ask on", place=place, way_out=way_out)


async def ask(
    plan: Sequence[str],
    place: str,
    *,
    fact: str = "it is a public host",
    way_out: str = _WAY_OUT,
    question: str = "Send it?",
) -> None:
    """Show the plan and wait for a yes; any other answer ends the run before any load."""
    must_be_possible(place, fact, way_out)
    sys.stderr.write(
        "\n".join([*map(clean, plan), f"{question} [y/N] "])
    )  # a server's name cannot begin a line of its own
    sys.stderr.flush()
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ready.set)  # not a reading thread: Ctrl-C must end the wait
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise HarnessError("not confirmed: nothing was loaded", place=place, way_out=way_out)
