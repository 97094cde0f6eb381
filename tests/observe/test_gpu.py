"""What is read of the GPUs, what is left out, and what a window makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.telemetry import THROTTLE, gpu_view
from harness.data.record import Sample
from harness.observe import gpu
from harness.observe.gpu import Gpus

H100 = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
OTHER = "GPU-1f2e3d4c-0000-4106-c12f-20bd9faed9f6"
SLICE = "MIG-6a4d2f10-2b1c-5f6e-8a55-0c1d2e3f4a5b"


class NVMLError(Exception):
    """The base of everything that pynvml raises; its kinds are named NVMLError_NotSupported and so on."""


KINDS = (
    "NotSupported", "FunctionNotFound", "NoPermission", "InvalidArgument", "GpuIsLost", "ResetRequired",
    "DriverNotLoaded", "Uninitialized", "LibraryNotFound", "NotFound", "Timeout",
)  # fmt: skip
ERRORS = {kind: type(f"NVMLError_{kind}", (NVMLError,), {}) for kind in KINDS}

# What an H100 says of itself, in NVML's own units; a figure that is an exception is raised.
CARD: dict[str, Any] = {
    "Name": "NVIDIA H100 80GB HBM3",
    "UUID": H100,
    "UtilizationRates": SimpleNamespace(gpu=97, memory=61),
    "MemoryInfo": SimpleNamespace(total=85_520_809_984, free=10_000_000_000, used=75_520_809_984),
    "PowerUsage": 652_300,  # mW
    "TotalEnergyConsumption": 123_456_789,  # mJ
    "ClockInfo": {1: 1755, 2: 2619},  # MHz
    "MaxClockInfo": {1: 1980, 2: 2619},
    "Temperature": {0: 61},
    "TemperatureV": {0: 61},
    "CurrentClocksEventReasons": 0x04 | 0x40,
    "CurrentClocksThrottleReasons": 0x04 | 0x40,
    "EnforcedPowerLimit": 700_000,
    "MigMode": [0, 0],
    "MaxPcieLinkGeneration": 5,
    "CurrPcieLinkWidth": 16,
    "NvLinkState": dict.fromkeys(range(18), 1),
    "Index": 0,
}


class Nvml:
    """A stand-in for the module pynvml with these cards and slices: same names, same units, same errors."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_DEVICE_MIG_ENABLE, NVML_NVLINK_MAX_LINKS = 1, 36

    def __init__(self, *cards: dict[str, Any], slices: dict[str, dict[str, Any]] | None = None, driver: bool = True):
        self.cards, self.slices, self.driver = cards, slices or {}, driver
        self.opened = 0
        self.calls: Counter[str] = Counter()
        self.NVMLError = NVMLError
        for error in ERRORS.values():
            setattr(self, error.__name__, error)
        for name in CARD:
            setattr(self, f"nvmlDeviceGet{name}", self._device_function(name))

    def _device_function(self, name: str) -> Callable[..., Any]:
        def function(handle: dict[str, Any], *arguments: Any) -> Any:
            self.calls[name] += 1
            if not self.opened:
                raise ERRORS["Uninitialized"]
            value = handle.get(name, ERRORS["NotSupported"])
            if isinstance(value, dict):
                value = value.get(arguments[0], ERRORS["InvalidArgument"])
            if isinstance(value, type):
                raise value
            return value

        return function

    def nvmlInit(self) -> None:
        if not self.driver:
            raise ERRORS["LibraryNotFound"]
        self.opened += 1

    def nvmlShutdown(self) -> None:
        if not self.opened:
            raise ERRORS["Uninitialized"]
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        card = self.cards[index]
        if "handle" in card:
            raise card["handle"]
        return card

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> dict[str, Any]:
        if uuid not in self.slices:
            raise ERRORS["NotFound"]
        return self.slices[uuid]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: dict[str, Any]) -> dict[str, Any]:
        return self.cards[handle["parent"]]


def test_the_stand_in_has_no_name_that_the_real_module_lacks() -> None:
    real = pytest.importorskip("pynvml")
    nvml = Nvml()
    names = {name for name in (*dir(nvml), *vars(nvml)) if name.lower().startswith("nvml")}
    assert len(names) > 30
    assert [name for name in names if not hasattr(real, name)] == []
    assert all(issubclass(getattr(real, error.__name__), real.NVMLError) for error in ERRORS.values())
    for name in ("NVML_CLOCK_SM", "NVML_CLOCK_MEM", "NVML_TEMPERATURE_GPU", "NVML_DEVICE_MIG_ENABLE"):
        assert getattr(real, name) == getattr(Nvml, name)
    reasons = ("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert [getattr(real, f"nvmlClocksEventReason{name}") for name in reasons] == list(THROTTLE.values())


def opened(nvml: Nvml, visible: str | None = None) -> Gpus:
    found = gpu.opened(nvml, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert found is not None
    return found


def read(gpus: Gpus) -> dict[str, float]:
    samples = gpus.samples(7.0)
    assert {(s.time_s, s.source) for s in samples} <= {(7.0, "gpu")}
    return {s.metric: s.value for s in samples}


def test_every_figure_comes_in_base_units() -> None:
    assert read(opened(Nvml(CARD))) == {
        "0/utilization": 0.97,
        "0/memory_used_bytes": 75_520_809_984.0,
        "0/power_w": 652.3,
        "0/energy_j": 123_456.789,
        "0/sm_clock_hz": 1.755e9,
        "0/memory_clock_hz": 2.619e9,
        "0/temperature_c": 61.0,
        "0/throttle_reasons": 68.0,
    }


def test_a_machine_without_a_driver_or_a_gpu_has_none_and_keeps_nothing_open() -> None:
    empty = Nvml()
    assert gpu.opened(Nvml(CARD, driver=False), {}) is None
    assert gpu.opened(empty, {}) is None
    assert empty.opened == 0


def test_a_figure_that_the_card_lacks_is_left_out() -> None:
    nvml = Nvml(CARD | {"TotalEnergyConsumption": ERRORS["NotSupported"], "UtilizationRates": ERRORS["NoPermission"]})
    gpus = opened(nvml)
    for _ in range(3):
        assert {"0/energy_j", "0/utilization"} & read(gpus).keys() == set()


def test_a_figure_under_its_other_name_is_found() -> None:
    old = ERRORS["FunctionNotFound"]
    got = read(opened(Nvml(CARD | {"CurrentClocksEventReasons": old, "Temperature": old})))
    assert (got["0/throttle_reasons"], got["0/temperature_c"]) == (68.0, 61.0)


def test_a_reading_that_fails_once_is_tried_again() -> None:
    card = CARD | {"PowerUsage": ERRORS["Timeout"]}
    gpus = opened(Nvml(card))
    assert "0/power_w" not in read(gpus)
    card["PowerUsage"] = 400_000
    assert read(gpus)["0/power_w"] == 400.0


@pytest.mark.parametrize("error", ["GpuIsLost", "ResetRequired", "DriverNotLoaded"])
def test_a_gpu_that_vanishes_ends_with_what_was_read_and_the_others_go_on(error: str) -> None:
    card = dict(CARD)
    nvml = Nvml(card, CARD | {"UUID": OTHER})
    gpus = opened(nvml)
    assert len(read(gpus)) == 16
    card.update(dict.fromkeys(card, ERRORS[error]))
    assert {name.split("/")[0] for name in read(gpus)} == {"1"}


def test_a_sample_asks_each_gpu_no_more_than_eight_questions() -> None:
    nvml = Nvml(*({**CARD, "UUID": f"GPU-{i}"} for i in range(8)))
    gpus = opened(nvml)
    before = nvml.calls.total()
    gpus.samples(0.0)
    assert nvml.calls.total() - before == 8 * 8


def test_after_closing_there_is_nothing_to_read_and_nothing_is_open() -> None:
    nvml = Nvml(CARD)
    gpus = opened(nvml)
    gpus.close()
    assert gpus.samples(1.0) == []
    assert nvml.opened == 0


def test_a_driver_that_went_first_does_not_stop_the_closing() -> None:
    nvml = Nvml(CARD)
    gpus = opened(nvml)
    nvml.opened = 0
    assert gpus.samples(1.0) == []
    gpus.close()


def test_a_gpu_that_may_not_be_opened_is_not_there() -> None:
    gpus = opened(Nvml({"handle": ERRORS["NoPermission"]()}, CARD))
    assert {name.split("/")[0] for name in read(gpus)} == {"1"}


@pytest.mark.parametrize(
    ("setting", "seen"),
    [
        ("1", {"1"}),
        ("1, 0", {"0", "1"}),
        (H100, {"0"}),
        ("GPU-1f2e", {"1"}),
        ("GPU-", None),  # both of them: CUDA takes neither
        ("1,2,0", {"1"}),  # it ends at the first that is not there
        ("-1", None),
        ("", None),
        (SLICE, {"0.3"}),
        ("MIG-unknown", None),
    ],
)
def test_only_the_visible_gpus_are_read(setting: str, seen: set[str] | None) -> None:
    memory = SimpleNamespace(total=10, free=4, used=6)
    nvml = Nvml(CARD, CARD | {"UUID": OTHER}, slices={SLICE: {"parent": 0, "Index": 3, "MemoryInfo": memory}})
    gpus = gpu.opened(nvml, {"CUDA_VISIBLE_DEVICES": setting})
    assert seen == (gpus and {name.split("/")[0] for name in read(gpus)})
    assert nvml.opened == bool(gpus)


def test_of_a_mig_slice_only_what_it_has_is_read() -> None:
    memory = SimpleNamespace(total=10, free=4, used=6)
    nvml = Nvml(CARD, slices={SLICE: {"parent": 0, "Index": 3, "MemoryInfo": memory}})
    assert read(opened(nvml, SLICE)) == {"0.3/memory_used_bytes": 6.0}


@given(st.text("0123456789,-GPUMIGabcdef ", max_size=30))
def test_any_setting_names_gpus_that_are_there_each_once(setting: str) -> None:
    found = gpu.visible(setting, {0: "GPU-aa", 1: "GPU-ab", 2: "GPU-b"})
    assert len(found) == len(set(found))
    assert all(entry in (0, 1, 2) or str(entry).startswith("MIG-") for entry in found)


def test_facts_hold_what_two_runs_may_differ_by_and_no_serial_number() -> None:
    (facts,) = opened(Nvml(CARD)).facts()
    assert msgspec.to_builtins(facts) == {
        "index": "0",
        "name": "NVIDIA H100 80GB HBM3",
        "id": "438d39801c79",
        "memory_bytes": 85_520_809_984,
        "driver": "580.159.04",
        "cuda": "13.0",
        "power_limit_w": 700.0,
        "sm_clock_max_hz": 1.98e9,
        "memory_clock_max_hz": 2.619e9,
        "mig": False,
        "pcie_generation": 5,
        "pcie_width": 16,
        "nvlinks": 18,
    }
    assert H100 not in str(facts)


def test_facts_that_a_card_keeps_to_itself_are_none() -> None:
    (facts,) = opened(Nvml({"UUID": H100})).facts()
    assert {name for name, value in msgspec.to_builtins(facts).items() if value is not None} == {
        "index",
        "id",
        "driver",
        "cuda",
    }


# A window


def series(metric: str, *points: tuple[float, float]) -> list[Sample]:
    return [Sample(t, "gpu", metric, v) for t, v in points]


def each_second(metric: str, *values: float, start: float = 0.0) -> list[Sample]:
    return series(metric, *((start + i, value) for i, value in enumerate(values)))


BUSY = each_second("0/utilization", *[1.0] * 11)


def test_means_and_extremes_are_those_of_the_window() -> None:
    samples = [
        *each_second("0/utilization", 0.0, 0.9, 1.0, 0.0),
        *each_second("0/power_w", 100.0, 600.0, 700.0, 100.0),
        *each_second("0/sm_clock_hz", 3e8, 1.7e9, 1.5e9, 3e8),
        *each_second("0/memory_used_bytes", 9e9, 7e9, 8e9, 9e9),
        *each_second("0/temperature_c", 90.0, 60.0, 61.0, 90.0),
    ]
    got = gpu_view(samples, (0.5, 2.5))
    assert got is not None
    assert (got.gpus, got.utilization, got.power_w) == (1, pytest.approx(0.95), 650.0)
    assert (got.sm_clock_hz, got.sm_clock_min_hz) == (1.6e9, 1.5e9)
    assert (got.memory_used_bytes, got.temperature_max_c) == (8e9, 61.0)
    assert got.throttle is got.throttled_fraction is got.joules_per_output_token is None


def test_energy_is_the_counter_s_growth_between_the_window_s_edges() -> None:
    # 500 J in the first second, 700 in each later one; from 0.5 s to 3.5 s that is 250 + 700 + 700 + 350.
    counter = each_second("0/energy_j", 1e6, 1e6 + 500, 1e6 + 1200, 1e6 + 1900, 1e6 + 2600)
    misleading = each_second("0/power_w", *[1.0] * 5)
    got = gpu_view(BUSY + counter + misleading, (0.5, 3.5))
    assert got is not None
    assert got.energy_j == pytest.approx(2000.0)


def test_without_a_counter_energy_is_power_over_time() -> None:
    # Trapezoids: 600 J in each second from 1 to 3, halves of 500 and 500 at the edges.
    power = each_second("0/power_w", 400.0, 600.0, 600.0, 600.0, 400.0)
    got = gpu_view(BUSY + power, (0.5, 3.5))
    assert got is not None
    assert got.energy_j == pytest.approx(250 + 600 + 600 + 250)


def test_a_counter_that_was_reset_gives_way_to_the_power() -> None:
    counter = each_second("0/energy_j", 5000.0, 5500.0, 10.0, 500.0)
    power = each_second("0/power_w", *[500.0] * 4)
    got = gpu_view(BUSY + counter + power, (0.0, 3.0))
    assert got is not None
    assert got.energy_j == pytest.approx(1500.0)
    alone = gpu_view(BUSY + counter, (0.0, 3.0))
    assert alone is not None
    assert alone.energy_j is None


@pytest.mark.parametrize(("last", "energy"), [(10.0, 5000.0), (6.0, 5000.0), (5.0, 5000.0), (4.9, None)])
def test_a_gpu_that_vanished_counts_in_proportion_from_half_the_window_on(last: float, energy: float | None) -> None:
    counter = series("0/energy_j", (0.0, 0.0), (last, 500.0 * last))
    got = gpu_view(BUSY + counter, (0.0, 10.0))
    assert got is not None
    assert got.energy_j == (energy if energy is None else pytest.approx(energy))


@given(
    st.lists(st.floats(0.1, 2.0), min_size=4, max_size=30),
    st.floats(10.0, 1000.0),
    st.floats(0.0, 0.4),
    st.floats(0.6, 1.0),
)
def test_constant_power_times_the_window_is_the_energy_however_it_was_sampled(
    steps: list[float], watts: float, low: float, high: float
) -> None:
    times = [sum(steps[:i]) for i in range(len(steps) + 1)]
    window = (low * times[-1], high * times[-1])
    for metric in ("0/energy_j", "0/power_w"):
        points = [(t, watts * t if metric == "0/energy_j" else watts) for t in times]
        got = gpu_view([Sample(sum(window) / 2, "gpu", "0/utilization", 1.0), *series(metric, *points)], window)
        assert got is not None
        # Beyond 5 s outside the window samples are not looked at: what lies between is in proportion.
        assert got.energy_j == pytest.approx(watts * (window[1] - window[0]), rel=1e-9)


def test_several_gpus_add_their_power_and_the_worst_gives_the_throttling() -> None:
    samples = [
        *BUSY,
        *each_second("1/utilization", *[0.5] * 11),
        *each_second("0/power_w", *[600.0] * 11),
        *each_second("1/power_w", *[500.0] * 11),
        *each_second("0/throttle_reasons", *[4.0] * 10),
        *each_second("1/throttle_reasons", *[0.0] * 6, 0x40, 0x48, 0x20, 0x24),
    ]
    got = gpu_view(samples, (0.0, 9.0))
    assert got is not None
    assert (got.gpus, got.power_w, got.utilization) == (2, 1100.0, 0.75)
    assert got.energy_j == pytest.approx(1100.0 * 9)
    assert got.throttle == {"sw_power_cap": 1.0, "hw_slowdown": 0.1, "sw_thermal": 0.2, "hw_thermal": 0.2}
    assert got.throttled_fraction == pytest.approx(0.4), "of any reason but the power cap, each sample once"


def test_a_sum_over_some_of_the_gpus_is_none() -> None:
    samples = BUSY + each_second("1/utilization", *[1.0] * 11) + each_second("0/power_w", *[600.0] * 11)
    got = gpu_view(samples, (0.0, 9.0))
    assert got is not None
    assert (got.gpus, got.power_w, got.energy_j) == (2, None, None)


def test_a_gpu_that_idled_through_the_window_is_not_in_it() -> None:
    idle = each_second("1/utilization", *[0.0] * 11) + each_second("1/power_w", *[70.0] * 11)
    got = gpu_view(BUSY + each_second("0/power_w", *[600.0] * 11) + idle, (0.0, 9.0))
    assert got is not None
    assert (got.gpus, got.power_w) == (1, 600.0)
    assert gpu_view(idle, (0.0, 9.0)) is None
    assert gpu_view([], (0.0, 9.0)) is None


def test_a_gpu_that_does_not_say_how_busy_it_is_counts() -> None:
    got = gpu_view(each_second("0.3/memory_used_bytes", 5e9, 6e9), (0.0, 9.0))
    assert got is not None
    assert (got.gpus, got.memory_used_bytes, got.utilization, got.power_w) == (1, 6e9, None, None)


def test_reasons_that_never_occurred_are_an_empty_table_and_not_an_unknown_one() -> None:
    got = gpu_view(BUSY + each_second("0/throttle_reasons", 0.0, 1.0, 2.0), (0.0, 9.0))
    assert got is not None
    assert (got.throttle, got.throttled_fraction) == ({}, 0.0)


def test_the_samples_of_others_are_not_read() -> None:
    others = [Sample(s.time_s, "host", s.metric, s.value) for s in BUSY]
    assert gpu_view(others, (0.0, 9.0)) is None


@pytest.mark.gpu
def test_a_real_gpu_says_what_it_is_and_what_it_draws() -> None:
    gpus = gpu.opened()
    if gpus is None:
        pytest.skip("no GPU that NVML can open here: it needs an NVIDIA driver")
    try:
        facts, samples = gpus.facts(), gpus.samples(0.0) + gpus.samples(1.0)
    finally:
        gpus.close()
    assert facts
    assert all(card["name"] and card["driver"] and card["id"] for card in facts)
    found = {s.metric: s.value for s in samples}
    for card in facts:
        used = found.get(f"{card['index']}/memory_used_bytes", 0.0)
        assert 0 <= used <= (card["memory_bytes"] or 0)
        assert 0 <= found.get(f"{card['index']}/utilization", 0.0) <= 1
        if card["power_limit_w"] is not None:
            assert 0 < found[f"{card['index']}/power_w"] < 2 * card["power_limit_w"]
