"""`python -m harness` is `knee`. Where Python is too old, or a package is not installed, it says so in one line."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  # pip says the same by pyproject.toml; in a clone nobody else does
    found = f"{sys.version_info[0]}.{sys.version_info[1]}"
    sys.exit(f"error: this is Python {found}: Knee needs 3.11 or later; install it, then run scripts/demo")

try:
    from harness.cli import main
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("harness"):
        raise
    sys.exit(f"error: {error.name} is not installed for {sys.executable}; run {sys.executable} -m pip install .")

main()
