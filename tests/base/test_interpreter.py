import subprocess

import pytest

from harness.base import interpreter


@pytest.mark.parametrize("name", ["harness.sim", "harness.run.stacks.watchdog"])
@pytest.mark.parametrize("said", [b"", b'{"half": '], ids=["nothing", "half a line"])
def test_a_process_whose_starter_is_gone_before_it_is_told_anything_ends_without_a_word(name, said):
    done = subprocess.run(interpreter.module(name), input=said, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
