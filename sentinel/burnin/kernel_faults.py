"""Faults in the kernel's log that have no XID: NVSwitch SXids, PCIe errors, lines of NVRM. Pure.

Each pattern, here and in fault_lines.toml, matches one line, and its repetitions have bounds: a
hostile line takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sentinel.protocol.gpu_names import ADDRESS, device_of, parse_address
from sentinel.protocol.shipped_tables import shipped_table

#: Equal events of one device within so many seconds are one: Sentinel's own number. Two sources
#: report one XID within that time, too: NVML delivers it milliseconds after the kernel's record,
#: and repeats later.
SAME_S = 5.0
#: The driver reports one fault with and without an XID within so many seconds
#: (NVIDIA/NVSentinel, pull request 195).
PAIRED_S = 300.0
#: More of a text is not kept.
MAX_TEXT = 200

# --- addresses -------------------------------------------------------------------------------

#: An address after ``PCI:`` or a space; ``10de:2330`` is the number of a model.
_PLACE = re.compile(rf"(?:\bPCI:|(?<![\w:.-]))({ADDRESS})")

_SXID = re.compile(
    r"nvidia-nvswitch(?P<switch>\d{0,4}): SXid(?P<place>[^:]{0,20}(?::[^:\s]{0,12}){0,5})"
    r":\s{1,4}(?P<number>\d{3,6})(?:,\s{0,4}|\s{1,4})(?P<tail>.*)"
)
#: What repeats an error that was stored before, without its severity.
_REPEATED = re.compile(r"Severity \d{1,9} Engine instance|Data \{")
_WORD = re.compile(r"\s{0,4}(Fatal|Non-?fatal|Correctable|Corrected)\b", re.IGNORECASE)
_WORDS = {"fatal": "fatal", "nonfatal": "non_fatal"}

#: Linux before 5.2 names the service of a port behind its address.
_SERVICE = r"(?::pcie[0-9a-f]{1,4})?"
_DEVICE = rf"(?:(?P<driver>[\w.+-]{{1,40}}) )?(?P<subject>{ADDRESS}){_SERVICE}: {{1,4}}"
_SEVERITY = r"(?P<severity>(?:Un)?correct(?:ed|able)(?: {0,2}\((?:Non-?)?fatal\))?|(?:Non-?)?fatal)"
_SOURCE = rf"(?:[: ]{{1,3}}(?:from )?(?:(?P<source>{ADDRESS})|id=(?P<id>[0-9a-f]{{4}})))?"

#: The words and patterns of lines.
_LINES = shipped_table("sentinel.burnin", "fault_lines.toml")

#: The kernel's own line, of version 6.7 and older, and of newer ones.
_NOT_PROBED = re.compile(
    rf"nvidia(?:: probe of)? ({ADDRESS})(?: failed|: probe with driver nvidia failed)"
    r" with error -\d{1,3}"
)
#: A memory access that the IOMMU refused, in the words of Intel's and of AMD's driver.
_REFUSED = re.compile(
    rf"(?:DMAR: ?\[[^\]]{{1,40}}\] Request device \[|AMD-Vi: Event logged \[\w{{1,40}} device=)"
    rf"(?P<device>{ADDRESS})"
    rf"|(?P<driver>[\w.+-]{{1,40}}) (?P<subject>{ADDRESS}): AMD-Vi: Event logged \["
)
#: A machine check of a processor, an uncorrected error of the host's memory, and a network adapter
#: that has too little power or is too hot.
_HOST = (
    (
        "host.machine_check",
        re.compile(r"\bmce: \[Hardware Error\]: (?:Machine check events logged|CPU \d{1,5}: )"),
    ),
    ("host.memory", re.compile(r"\bEDAC \w{1,20}: \d{1,9} UE |\bmce: Uncorrected hardware memory")),
    (
        "host.adapter",
        re.compile(
            rf"\bmlx5_core (?P<device>{ADDRESS}): (?:[\w:() ]{{1,60}}: )?"
            r"(?:Detected insufficient power on the PCIe slot|High temperature on sensors"
            r"|Port module event\[error\]: [\w ]{1,40}(?:, [\w ]{1,40})?, High Temperature)"
        ),
    ),
)
#: Where in a driver a line comes from: the same line comes again with another PID.
_THREAD = re.compile(r"\b\w{1,60}:(?:\d{1,6}:)?\(pid \d{1,10}\): ")
#: Of a record of errors that the firmware has handled: the severity, and a PCIe device or memory.
_FIRMWARE = re.compile(
    r"\{(?P<record>\d{1,9})\}\[Hardware Error\]: {1,8}"
    rf"(?:event severity: (?P<severity>[\w-]{{1,20}})|device_id: (?P<device>{ADDRESS})"
    r"|section_type: (?P<memory>memory error))"
)
_FIRMWARE_KINDS = {"fatal": "aer.fatal", "recoverable": "aer.non_fatal"}
#: The beginning of a message of three lines, whose last one has no address.
_PROBE = re.compile(r"NVRM: The NVIDIA GPU ")

#: The drivers of GPUs, NVSwitches and ports; ``pci`` is a device without one.
_OWN_DRIVERS = ("nvidia", "pcieport", "pciehp", "dpc", "pci", "vfio-pci", "")


def _patterns(table: str, before: str = "") -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Compile a table of fault_lines.toml: kinds, each with what its lines match."""
    parts = {"{severity}": _SEVERITY, "{source}": _SOURCE}
    found = []
    for row in _LINES[table]:
        text = f"{before}(?:{'|'.join(row['any'])})"
        for name, part in parts.items():
            text = text.replace(name, part)
        found.append((row["kind"], re.compile(text, re.IGNORECASE)))
    return tuple(found)


#: PCIe errors after their device, and lines of NVIDIA's driver, by kind.
_PCIE = _patterns("pcie", rf"(?<![\w.+-]){_DEVICE}")
_NVRM = _patterns("nvrm")


def find_address(text: str) -> str | None:
    """Find the first PCI address in a text, or None."""
    match = _PLACE.search(text)
    return None if match is None else match[1]


# --- lines -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KernelFault:
    """One fault line of the kernel's log."""

    #: Its row in the table of faults.
    kind: str
    #: The device that has the fault, as the line names it; empty if it names none.
    device: str
    #: The device that reported it, such as the port above; empty if that is the same.
    reporter: str = ""
    #: The driver of the device that reported it; empty if the line does not name it.
    driver: str = ""
    #: When, by the monotonic clock.
    at: float
    text: str
    #: The number of an SXid, or None.
    number: int | None = None

    @property
    def same(self) -> tuple[object, ...]:
        """What equal events have in common; a PCIe error is reported in several lines."""
        text = (
            ""
            if self.kind.startswith(("aer.", "nvrm.", "host."))
            else self.text.removesuffix(" (First)")
        )
        device = device_of(self.device) or device_of(self.reporter)
        return self.kind, device, self.number, text


def parse_fault(line: str, at: float) -> KernelFault | None:
    """Parse one line of the kernel's log; None if it has no fault, or an XID."""
    if "SXid" in line:
        return _switch_fault(line, at)
    if (match := _NOT_PROBED.match(line)) is not None:
        return KernelFault(
            kind="nvrm.probe_failed", device=match[1], driver="nvidia", at=at, text=match[0]
        )
    if (match := _REFUSED.search(line)) is not None:
        return KernelFault(
            kind="aer.refused",
            device=match["device"] or match["subject"],
            driver=match["driver"] or "",
            at=at,
            text=line[match.start() :][:MAX_TEXT].strip(),
        )
    if any(word in line for word in _LINES["pcie_words"]):
        return _pcie_fault(line, at)
    for kind, pattern in _HOST:
        if (match := pattern.search(line)) is not None:
            text = _THREAD.sub("", line[match.start() :])[:MAX_TEXT].strip()
            device = match.groupdict().get("device") or ""
            return KernelFault(kind=kind, device=device, at=at, text=text)
    where = line.find("NVRM: ")
    if where < 0 or line.startswith("NVRM: Xid", where):
        return None
    text = line[where + len("NVRM: ") :][:1000]
    for kind, pattern in _NVRM:
        if pattern.search(text):
            return KernelFault(
                kind=kind, device=find_address(text) or "", at=at, text=text[:MAX_TEXT].strip()
            )
    return None


def _switch_fault(line: str, at: float) -> KernelFault | None:
    """Parse an SXid: the word in the line is its severity; its number differs by generation."""
    match = _SXID.search(line)
    if match is None:
        if "nvidia-nvswitch" not in line:
            return None
        device = find_address(line) or ""
        return KernelFault(kind="sxid.0", device=device, at=at, text=line[:MAX_TEXT])
    if _REPEATED.match(match["tail"]):
        return None
    number = int(match["number"])
    word = _WORD.match(match["tail"])
    if word is None:
        kind = f"sxid.{number}"
    else:
        kind = f"sxid.{_WORDS.get(word[1].lower().replace('-', ''), 'corrected')}"
    text = f"NVSwitch {match['switch']}: {match['number']}, {match['tail']}"
    return KernelFault(
        kind=kind,
        device=find_address(match["place"].strip(" ()")) or "",
        driver="nvidia-nvswitch",
        at=at,
        text=text[:MAX_TEXT].strip(),
        number=number,
    )


def _pcie_fault(line: str, at: float) -> KernelFault | None:
    """Parse a PCIe error of the kernel's AER or DPC driver, in its old or new words."""
    for kind, pattern in _PCIE:
        match = pattern.search(line)
        if match is None:
            continue
        found = match.groupdict()
        source = found.get("source") or _requester(found["subject"], found.get("id"))
        return KernelFault(
            kind=kind or f"aer.{_severity(found['severity'])}",
            device=source or found["subject"],
            reporter=found["subject"] if source else "",
            driver=found["driver"] or "",
            at=at,
            text=line[match.start() :][:MAX_TEXT].strip(),
        )
    return None


def _severity(words: str) -> str:
    """Name a severity: an uncorrected error is fatal only if it is called so."""
    lower = words.lower()
    if re.search(r"non-?fatal", lower):
        return "non_fatal"
    if "fatal" in lower:
        return "fatal"
    return "non_fatal" if lower.startswith("un") else "corrected"


def _requester(port: str, number: str | None) -> str | None:
    """Build the address of a requester id, which has the domain of the port that reports it."""
    device = device_of(port)
    if number is None or device is None:
        return None
    bus, rest = divmod(int(number, 16), 256)
    return f"{device[0]:04x}:{bus:02x}:{rest // 8:02x}.{rest % 8}"


class MessageJoiner:
    """Names the device in a message of several lines, which are one record or several.

    The last one of NVRM's about a lost GPU has no address, and that of the firmware with the
    address of a device has no severity.
    """

    def __init__(self) -> None:
        self._address = ""
        self._at = 0.0
        #: The number of the firmware's last record, and its severity.
        self._record = ("", "")

    def join(self, line: str, at: float) -> KernelFault | None:
        """Parse a line with what the lines before it say."""
        if (match := _FIRMWARE.search(line)) is not None:
            return self._join_firmware(match, at)
        fault = parse_fault(line, at)
        if fault is None:
            if _PROBE.search(line):
                self._address, self._at = find_address(line) or "", at
            return None
        if fault.kind != "nvrm.off_bus" or fault.device or at - self._at > SAME_S:
            return fault
        device, self._address = self._address, ""
        return KernelFault(**{**vars(fault), "device": device})

    def _join_firmware(self, match: re.Match[str], at: float) -> KernelFault | None:
        if match["severity"]:
            self._record = (match["record"], match["severity"].lower())
        record, severity = self._record
        if match["severity"] or record != match["record"]:
            return None
        if match["memory"]:
            if severity not in _FIRMWARE_KINDS:
                return None  # EDAC counts it
            text = f"firmware: {severity} error of the memory"
            return KernelFault(kind="host.memory", device="", at=at, text=text)
        kind = _FIRMWARE_KINDS.get(severity, "aer.corrected")
        text = f"firmware: {severity} error of the PCIe device {match['device']}"
        return KernelFault(kind=kind, device=match["device"], at=at, text=text)


# --- events ----------------------------------------------------------------------------------


class _Event(Protocol):
    @property
    def at(self) -> float: ...

    @property
    def same(self) -> tuple[object, ...]: ...


E = TypeVar("E", bound=_Event)


class Distinct:
    """Tells new events from lines that repeat one: equal and within SAME_S of it."""

    def __init__(self) -> None:
        self._counted: dict[tuple[object, ...], float] = {}

    def is_new(self, event: _Event) -> bool:
        """Check whether an event is counted; events come in their order."""
        last = self._counted.get(event.same)
        if last is not None and abs(event.at - last) <= SAME_S:
            return False
        self._counted[event.same] = event.at
        return True


def distinct(events: Iterable[E]) -> Iterator[E]:
    """Yield the events that are not lines of the one before, by time."""
    seen = Distinct()
    return (event for event in sorted(events, key=lambda one: one.at) if seen.is_new(event))


# --- devices ---------------------------------------------------------------------------------


def is_of_device(fault: KernelFault, address: str, ports: Sequence[str] = ()) -> bool:
    """Check whether a fault is of a device, or of a port above it.

    Args:
        fault: The fault.
        address: The device, in any form.
        ports: The ports above it.
    """
    where = fault.device or fault.reporter
    device = device_of(where)
    if device is None:
        return False
    if device == device_of(address):
        return True
    return parse_address(where) in map(parse_address, ports)


def foreign(
    faults: Sequence[KernelFault], paths: Mapping[str, Sequence[str]] | None
) -> Iterator[KernelFault]:
    """Yield the PCIe errors of devices that are no GPU, no NVSwitch and no port above one.

    Args:
        faults: All faults of a run.
        paths: The ports above each device of NVIDIA by its address; None if they are not known.
    """
    for fault in faults:
        if fault.kind.startswith("aer."):
            is_known = paths is None or any(is_of_device(fault, *path) for path in paths.items())
            if not is_known or not _is_own(fault.driver):
                yield fault


def _is_own(driver: str) -> bool:
    return driver in _OWN_DRIVERS or driver.startswith("nvidia")
