"""What every test shares: which ones wait to be asked for, and how hypothesis behaves on a busy machine."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from harness.load import receive

ROOT = Path(__file__).parent.parent
VLLM_BUILT = ROOT / ".live/vllm/.knee-installed"
ALONE = ("alone", "live", "gpu")  # markers of the tests that run by themselves

settings.register_profile("knee", deadline=None)  # a deadline would test the machine, not the claim
settings.load_profile("knee")


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or changes what is kept for this host."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True, scope="session")
def _signals_as_usual() -> None:
    """Take signals as usual: nohup ignores SIGHUP, a shell's background job SIGINT, and a test's children would too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["compiled", "pure"])
def receive_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each receive path in turn, in this process and in the workers that a test starts."""
    if request.param == "pure":
        monkeypatch.setattr(receive, "poller", None)
        monkeypatch.setenv("KNEE_RECEIVE", "pure")
    elif receive.poller is None:
        pytest.skip("the receive path is not compiled here")
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=("together", "alone"), help="the tests that may run side by side, or the others")


def names_alone(path: Path) -> bool:
    """Whether a file has a test that runs by itself."""
    return re.search(rf"\bmark\.({'|'.join(ALONE)})\b", path.read_text()) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import some 340 files for the tests of some 30."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.option.part == "alone" and is_test and not names_alone(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the part that was not asked for, begin with the longest, and skip live tests that are not to run."""
    chosen, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        alone = any(item.get_closest_marker(name) for name in ALONE)
        if alone and not names_alone(item.path):
            raise pytest.UsageError(
                f"{item.nodeid} runs alone, and its file does not name the marker: it would not run"
            )
        fits = config.option.part in (None, "alone" if alone else "together")
        (chosen if fits else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(chosen, key=lambda item: item.get_closest_marker("long") is None)
    skip_live(config, items)


def skip_live(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A live test runs where vLLM is built and `-m live` asks for it; elsewhere it says what it waits for."""
    if not VLLM_BUILT.exists():
        reason = "the CPU vLLM is not built: scripts/live/vllm --build-only"
    elif "live" not in config.option.markexpr:
        reason = "measures the CPU vLLM, a minute: scripts/test -m live"
    else:
        return
    for item in items:
        if item.get_closest_marker("live"):  # not a keyword, as the name of a folder above is
            item.add_marker(pytest.mark.skip(reason=reason))
