"""What is measured of this machine's own cores."""

import os

import pytest

from harness.base.errors import HarnessError
from harness.data.machines import Machine
from harness.observe import machine
from harness.observe.machine import measure


def known(**figures):
    usual = {
        "cpu": "EPYC", "cpus": (0, 1), "memory_bytes": 8e9, "read_bytes_per_s": 30e9, "copy_bytes_per_s": 20e9,
        "add_bytes_per_s": 25e9, "fp32_flops": 1e11,
    }  # fmt: skip
    return Machine(**{**usual, **figures})


def test_the_bandwidth_is_that_of_the_best_stream():
    assert known().bandwidth == 30e9
    assert known(copy_bytes_per_s=40e9).bandwidth == 40e9


@pytest.mark.parametrize(("extension", "bf16"), [("", 1e11), ("avx512_bf16", 2e11), ("amx_bf16", 16e11)])
def test_bf16_is_derived_from_what_was_measured_by_the_processors_instructions(extension, bf16):
    assert known(extension=extension).flops == {"fp32": 1e11, "bf16": bf16}


def test_the_source_says_what_was_measured_and_what_was_not():
    assert known(extension="avx512_bf16").source == (
        "bandwidth measured by streams, fp32 by matrix products on cores 0,1 of EPYC; "
        "bf16 is 2 × that by avx512_bf16, not measured"
    )
    assert known(cpus=(3,)).source.endswith(
        "on core 3 of EPYC; bf16 is the same, for want of bf16 instructions, not measured"
    )


@pytest.mark.alone
@pytest.mark.slow
def test_a_core_is_measured_and_the_process_that_asks_stays_where_it_is():
    allowed = os.sched_getaffinity(0)
    last = max(allowed)
    found = measure(cpus=[last], seconds=0.1)
    assert found.cpus == (last,)
    assert found.cpu
    assert 1e8 < found.bandwidth < 1e12  # bytes/s: slower than any DDR3, faster than any socket's HBM
    assert 1e8 < found.fp32_flops < 1e13
    assert found.memory_bytes > 1e8
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.slow
def test_without_cores_by_name_the_first_of_those_allowed_are_measured():
    allowed = sorted(os.sched_getaffinity(0))[:2]
    assert measure(len(allowed), seconds=0.05).cpus == tuple(allowed)


def test_cores_that_are_not_there_are_refused():
    with pytest.raises(HarnessError, match=r"--gpu host: no cores '100000' on this machine; they are numbered 0 to"):
        measure(cpus=[100_000])
    with pytest.raises(HarnessError, match=r"100000 cores cannot be measured; this process may use"):
        measure(100_000)
    with pytest.raises(HarnessError, match=r"0 cores cannot be measured"):
        measure(0)
    with pytest.raises(HarnessError, match=r"no cores ''"):
        measure(cpus=[])


@pytest.mark.slow
def test_a_core_that_the_system_withholds_is_refused_in_one_line():
    with pytest.raises(
        HarnessError, match=r"cores 100000 could not be measured \(OSError.*name cores that this process"
    ):
        machine._in_subprocess([100_000], 2**20, 0.01)


def test_the_last_level_cache_is_known_or_a_usual_one_stands_for_it():
    assert machine._cache(sorted(os.sched_getaffinity(0))) >= 2**18
    assert machine._cache([100_000]) == 32 * 2**20
