"""What clients send and get, as types: the API's document is made of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

#: The longest wait and the longest time that may be asked for, in seconds: a day and a year.
_DAY = 86_400
_YEAR = 366 * _DAY

Selectors = Annotated[
    list[Annotated[str, Field(max_length=256)]],
    Field(
        min_length=1,
        max_length=128,
        description="GPUs by nvidia-smi's index, UUID or its unique beginning, or PCI address;"
        " `all` is all of them.",
    ),
]
WaitS = Annotated[
    float,
    Field(ge=0, le=_DAY, allow_inf_nan=False, description="Wait so many seconds at most."),
]
Seconds = Annotated[
    float, Field(gt=0, le=_YEAR, allow_inf_nan=False, description="For so many seconds.")
]


class RequestModel(BaseModel):
    """What a client sends: exactly what is declared, so that no misspelt wish is passed over."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ResponseModel(BaseModel):
    """What a client gets; within one schema_version, fields may be added and none goes away."""

    schema_version: Literal[1] = 1


# --- what clients send -----------------------------------------------------------------------


class EmptyRequest(RequestModel):
    """There is nothing to say."""


class StopRequest(RequestModel):
    """Let go of every GPU."""

    wait_s: WaitS = 30.0


class PauseRequest(RequestModel):
    """Keep off GPUs, for good where nothing else is said."""

    gpus: Selectors | None = None
    seconds: Seconds | None = None
    release: bool = Field(default=False, description="Let go of the driver, too; then for all.")
    wait_s: WaitS = 30.0


class ResumeRequest(RequestModel):
    """End a pause."""

    gpus: Selectors | None = None


class RestartRequest(RequestModel):
    """Take new settings, and occupy anew with them."""

    settings: dict[str, Annotated[str, Field(max_length=4096)]] | None = Field(
        default=None,
        max_length=256,
        description="What would be given as flags, by key; it takes the place of all flags.",
    )


class SettingsChange(RequestModel):
    """Give single settings other values, and leave all others as they are."""

    settings: dict[str, Annotated[str, Field(max_length=4096)] | None] = Field(
        min_length=1,
        max_length=256,
        description="What would be given as flags, by key; null takes a flag back.",
    )


class ReservationRequest(RequestModel):
    """Keep GPUs free for somebody: these, or so many."""

    gpus: Selectors | None = None
    count: int | None = Field(default=None, ge=1, le=128)
    seconds: Seconds | None = None
    reason: str = Field(default="", max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")
    wait_s: WaitS = 30.0
    bound: bool = Field(
        default=False, description="End it with the process that asks; Unix socket only."
    )


# --- what clients get ------------------------------------------------------------------------


class Problem(ResponseModel):
    """Why something was not done, as RFC 9457 has it; `code` is for programs."""

    type: str
    title: str
    status: int
    detail: str
    code: Literal[
        "no_such_gpu",
        "not_found",
        "invalid",
        "conflict",
        "ending",
        "unauthorized",
        "forbidden",
        "timeout",
        "unavailable",
        "too_large",
        "internal",
    ]


class CommandResponse(ResponseModel):
    """What will happen, in a sentence, and the UUIDs of the GPUs that it is about."""

    text: str
    gpus: list[str]


class Configured(ResponseModel):
    """Which settings hold from now on, in a sentence."""

    text: str


class SettingValue(BaseModel):
    """One setting as it was given, and where; without a source it is the default."""

    text: str
    source: str | None


class Settings(ResponseModel):
    """All settings by key, and what is set for single GPUs instead, by selector."""

    settings: dict[str, SettingValue]
    gpus: dict[str, dict[str, SettingValue]]


class Health(ResponseModel):
    """The daemon gets on: what it showed is `age_s` seconds old."""

    phase: str
    age_s: float


class Process(BaseModel):
    """One process on a GPU; what nobody says is null."""

    pid: int
    kind: str
    memory: int | None
    name: str | None
    user: str | None


class Telemetry(BaseModel):
    """What a GPU told of itself `age_s` seconds ago; null is what it does not have or tell.

    Memory is bytes, shares are of 1, `_c` is degrees Celsius, `_w` watts, `_j` joules and `_total`
    counts since the driver was loaded.
    """

    age_s: float
    memory_reserved: int | None
    utilization: float | None
    memory_utilization: float | None
    temperature_c: int | None
    memory_temperature_c: int | None
    temperature_margin_c: int | None
    slowdown_c: int | None
    maximum_c: int | None
    shutdown_c: int | None
    memory_maximum_c: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    reasons: list[str] | None
    power_throttled_s: float | None
    thermal_throttled_s: float | None
    pcie_generation: int | None
    pcie_width: int | None
    pcie_replays_total: int | None
    nvlink_tx_bytes_total: int | None
    nvlink_rx_bytes_total: int | None
    ecc_corrected_total: int | None
    ecc_uncorrected_total: int | None
    remapped_corrected_total: int | None
    remapped_uncorrected_total: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    fan_share: float | None
    performance_state: int | None


class Handover(BaseModel):
    """The last hand-over of a GPU: `ago_s` is the first evidence, the rest follows it."""

    ago_s: float
    evidence: str
    exit: float
    kill: float | None
    memory_back: float | None


class GpuState(BaseModel):
    """One GPU. Times ending in `_s` are seconds, memory is bytes, null is not known."""

    gpu: str = Field(description="The beginning of the UUID, as people write it.")
    uuid: str
    index: int
    name: str
    pci_bus_id: str
    memory_total: int
    occupancy: str
    stressor: str
    admin: str
    rule: str
    reason: str
    findings: int
    since_s: float | None
    read_s: float | None
    until_s: float | None
    reservation: str | None
    processes: list[Process]
    pid: int | None
    memory_used: int | None
    held: int | None
    utilization: float | None
    temperature_c: int | None
    power_w: float | None
    sm_clock_mhz: int | None
    workload: str | None
    note: str | None
    share: float | None
    iterations_per_s: float | None
    flops_per_s: float | None
    bytes_per_s: float | None
    checks: int | None
    errors: int | None
    handover: Handover | None
    last_finding: str | None
    health: Literal["optimal", "normal", "throttled", "critical"] | None
    health_since_s: float | None
    multiplier: float = Field(
        description="The share of its speed that the GPU's health leaves to whoever works there."
    )
    memory_foreign: int | None = Field(description="What is used and not our stressor's.")
    budget: int = Field(description="How much memory may be promised in all.")
    allocated_processes: list[Process] = Field(
        description="Processes of those to whom memory was promised."
    )
    yields: int
    starts: int
    telemetry: Telemetry | None


class SingleGpu(GpuState, ResponseModel):
    """The GPU that was asked for."""


class Holder(BaseModel):
    """Who has a reservation, as far as the socket told."""

    uid: int | None
    pid: int | None
    name: str | None


class Reservation(BaseModel):
    """GPUs that are kept free for somebody; `indices` are nvidia-smi's."""

    id: str
    gpus: list[str]
    indices: list[int]
    reason: str
    since: datetime
    until: datetime | None
    bound: bool
    holder: Holder


class Reserved(ResponseModel):
    """A new reservation: the memory of its GPUs is free."""

    reservation: Reservation


class Reservations(ResponseModel):
    """All reservations."""

    reservations: list[Reservation]


class Allocation(BaseModel):
    """Memory of a GPU that was promised to a process and its children."""

    id: str
    gpu: str
    index: int | None
    size: int
    since: datetime
    holder: Holder


class Daemon(BaseModel):
    """The daemon as a whole; what is shown of it is `age_s` seconds old.

    `host` is the name of its host, `tcp` the address that it listens on besides its socket, and
    `token` the file with the secret for that.
    """

    pid: int
    host: str
    version: str
    phase: str
    since: datetime
    driver: str
    simulated: bool
    workload: str
    socket: str
    tcp: str | None
    token: str | None
    log: str | None
    age_s: float
    ending: str | None


class Status(ResponseModel):
    """All there is to see."""

    daemon: Daemon
    gpus: list[GpuState]
    reservations: list[Reservation]
    allocations: list[Allocation]


class Changes(ResponseModel):
    """What is not as it was a second before; null is what has not changed.

    `age_s` is how old is what the daemon shows. A GPU that is not among `gpus` has not changed.
    """

    age_s: float
    daemon: Daemon | None
    gpus: list[GpuState]
    reservations: list[Reservation] | None
    allocations: list[Allocation] | None
