"""`python -m harness` is `knee`."""

from harness.cli import main

main()
