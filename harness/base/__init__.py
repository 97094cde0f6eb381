"""What every other room needs: errors, files, decoding, units, secrets and text for a terminal.

It imports no other room. An error here is a HarnessError: a fact, its place and the way out.
Left out: anything that names a request, a level or a server.
"""

__version__ = "0.1.0"  # of this program
