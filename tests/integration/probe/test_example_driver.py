"""The example of a driver package, on copies of the files that the kernel has for AMD GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sentinel.drivers import DriverGoneError, GpuLostError, GpuProcess, Memory, ReadError
from sentinel.probe.package_driver import CheckedDriver
from tests.harness.gpu_environment import SimulatedHost
from tests.harness.programs import run_program

EXAMPLE = Path(__file__).parents[3] / "examples" / "sentinel-driver-amdgpu"
GIB = 2**30
#: The number that the kernel gives each GPU, by its PCI address.
NUMBERS = {"0000:c1:00.0": "30381", "0000:03:00.0": "51140"}


def put(file: Path, text: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Write the files of two AMD GPUs, of a CPU and of the display controller of a server."""
    root = tmp_path / "class"
    nodes = root / "kfd/kfd/topology/nodes"
    (root / "kfd/kfd/proc").mkdir(parents=True)
    put(nodes / "0/gpu_id", 0)
    put(nodes / "0/properties", "cpu_cores_count 64\nlocation_id 0")
    for place, (address, number) in enumerate(NUMBERS.items(), 1):
        bus = int(address.split(":")[1], 16)
        put(nodes / f"{place}/gpu_id", number)
        put(nodes / f"{place}/properties", f"simd_count 416\nlocation_id {bus << 8}\ndomain 0")
        device = tmp_path / "devices" / address
        put(device / "unique_id", f"{place:016x}")
        put(device / "product_name", "AMD Instinct MI250X")
        put(device / "mem_info_vram_total", 64 * GIB)
        put(device / "mem_info_vram_used", place * GIB)
        put(device / "gpu_busy_percent", 37)
        put(device / "hwmon/hwmon3/temp1_input", 41000)
        put(device / "hwmon/hwmon3/power1_average", 93_500_000)
        put(device / "hwmon/hwmon3/freq1_input", 1_700_000_000)
        (root / f"drm/card{place}").mkdir(parents=True)
        (root / f"drm/card{place}/device").symlink_to(device)
    (root / "drm/card0").mkdir()
    (root / "drm/card0/device").symlink_to(tmp_path / "devices")
    return root


def run_on(sysfs: Path, pid: int, **used: int) -> Path:
    """Add a process with its memory on each GPU."""
    folder = sysfs / "kfd/kfd/proc" / str(pid)
    for number in NUMBERS.values():
        put(folder / f"vram_{number}", used.get(f"on_{number}", 0))
    return folder


@pytest.fixture
def driver(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckedDriver]:
    """Load the driver of the example, as a probe wraps it."""
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["sentinel.drivers"]["amdgpu"].partition(":")
    created: Any = getattr(import_module(module), name)(sysfs=str(sysfs))
    driver = CheckedDriver("amdgpu", created)
    driver.open()
    yield driver
    sys.modules.pop(module, None)


def test_the_gpus_are_in_the_order_of_the_bus_with_the_names_of_torch(
    driver: CheckedDriver,
) -> None:
    gpus = driver.gpus(())
    assert [gpu.pci_bus_id for gpu in gpus] == ["0000:03:00.0", "0000:c1:00.0"]
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert gpus[0].uuid == "GPU-0000000000000002"
    assert (gpus[0].name, gpus[0].memory_total) == ("AMD Instinct MI250X", 64 * GIB)
    assert driver.version() == "amdgpu of the kernel"


def test_figures_are_in_the_units_of_sentinel(driver: CheckedDriver) -> None:
    uuid = driver.gpus(())[0].uuid
    assert driver.memory(uuid) == Memory(total=64 * GIB, used=2 * GIB, free=62 * GIB)
    assert driver.utilization(uuid) == pytest.approx(0.37)
    assert (driver.temperature(uuid), driver.power(uuid), driver.sm_clock(uuid)) == (41, 93.5, 1700)
    assert driver.telemetry(uuid).power_w == pytest.approx(93.5)


def test_a_process_is_on_the_gpus_where_it_has_memory(driver: CheckedDriver, sysfs: Path) -> None:
    first, second = (gpu.uuid for gpu in driver.gpus(()))
    assert driver.processes(first) == ()
    run_on(sysfs, 4711, on_51140=GIB)
    run_on(sysfs, 4712, on_30381=1, on_51140=2)
    two = (GpuProcess(pid=4711, memory=GIB), GpuProcess(pid=4712, memory=2))
    assert driver.processes(first) == two
    assert driver.processes(second) == (GpuProcess(pid=4712, memory=1),)


def test_a_process_that_has_just_ended_is_none(driver: CheckedDriver, sysfs: Path) -> None:
    uuid = driver.gpus(())[0].uuid
    (run_on(sysfs, 4711, on_51140=GIB) / "vram_51140").unlink()
    assert driver.processes(uuid) == ()


def test_a_list_of_processes_that_cannot_be_read_is_not_empty(
    driver: CheckedDriver, sysfs: Path
) -> None:
    uuid = driver.gpus(())[0].uuid
    put(run_on(sysfs, 4711) / "vram_51140", "garbage")
    with pytest.raises(ReadError, match=r"driver amdgpu: processes\(\) raised ValueError"):
        driver.processes(uuid)
    shutil.rmtree(sysfs / "kfd/kfd/proc")
    with pytest.raises(ReadError, match="the processes cannot be read"):
        driver.processes(uuid)


def test_a_gpu_that_left_the_bus_is_lost(driver: CheckedDriver, sysfs: Path) -> None:
    uuid = driver.gpus(())[0].uuid
    (sysfs / "drm/card2/device").unlink()
    with pytest.raises(GpuLostError):
        driver.memory(uuid)


def test_a_gpu_without_a_sensor_has_no_such_figure(driver: CheckedDriver, sysfs: Path) -> None:
    uuid = driver.gpus(())[0].uuid
    (sysfs / "drm/card2/device/hwmon/hwmon3/power1_average").unlink()
    assert driver.power(uuid) is None


def test_without_the_kernels_driver_there_is_none(driver: CheckedDriver, sysfs: Path) -> None:
    shutil.rmtree(sysfs / "kfd")
    with pytest.raises(DriverGoneError, match="amdgpu is not loaded"):
        driver.open()


@pytest.mark.long
def test_the_installed_example_is_selected_by_its_name(
    simulated: SimulatedHost, sysfs: Path, tmp_path: Path
) -> None:
    source = shutil.copytree(EXAMPLE, tmp_path / "source")  # the build writes into its folder
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-build-isolation", "--target", str(installed)]
    subprocess.run([*pip, *offline, str(source)], check=True)
    run_on(sysfs, os.getpid(), on_30381=GIB)
    environment = simulated.environment()
    del environment["SENTINEL_SIM_DIR"]  # it would mean simulated GPUs
    words = [sys.executable, "-m", "sentinel", "run", "--once", "--driver", f"amdgpu:sysfs={sysfs}"]
    done = run_program(*words, env={**environment, "PYTHONPATH": str(installed)})
    assert done.returncode == 0, done.stderr
    assert "AMD Instinct MI250X" in done.stdout
    assert str(os.getpid()) in done.stdout
