"""What every other room needs: exit statuses, errors, files, decoding, units, secrets and text for a terminal.

It imports no other room. An error here is a HarnessError: a fact, its place and the way out.
Left out: anything that names a request, a level or a server.
"""

from enum import IntEnum

__version__ = "0.1.0"


class ExitStatus(IntEnum):
    """How a command ended (docs/definitions.md, Exit statuses); a signal's is SIGNALLED + its number."""

    DONE = 0
    MISTAKE = 1  # in what was asked, or a server that cannot be measured: a HarnessError
    USAGE = 2
    UNSETTLED = 3  # the answer rests on an invalid level, or is not decided, or not all that was asked for is measured
    BUG = 70
    MISSED = 99  # an SLO or a threshold
    SIGNALLED = 128
    INTERRUPTED = 130  # Ctrl-C: SIGINT is 2
