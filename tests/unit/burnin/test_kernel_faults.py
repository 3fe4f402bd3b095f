"""Faults of the kernel's log without an XID: parsed, tied to a GPU or the node, and judged."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.burnin.checks.check import CheckResult, Severity, Status, Thresholds
from sentinel.burnin.checks.kernel_checks import KINDS, KernelEvidence, judge_faults, unpaired
from sentinel.burnin.checks.recorded_run import CHECKS
from sentinel.burnin.junit import junit_xml
from sentinel.burnin.kernel_faults import (
    SAME_S,
    KernelFault,
    distinct,
    find_address,
    foreign,
    is_of_device,
    parse_fault,
)
from sentinel.burnin.ocp import ocp_lines
from sentinel.burnin.report import Judged, judge_run, report_object
from sentinel.burnin.run_folder import read_object
from sentinel.burnin.since_boot import describe_unacknowledged, faults_since_boot
from sentinel.burnin.verdict import EXIT_CODES, verdict_summary
from sentinel.burnin.xids import LogParser, XidEvent, parse
from sentinel.cli.daemon.burnin import warn_at_start
from sentinel.diagnostics.kernel_log import KernelRecord
from sentinel.host.verified_store import (
    NAME,
    StoredWork,
    acknowledge,
    acknowledged_at,
    save,
)
from sentinel.protocol.counters import Counters
from sentinel.protocol.gpu_names import device_of, is_same_device
from sentinel.protocol.views import VerifiedCounts
from tests.harness.example_run import ExampleRun, judged
from tests.harness.narrowing import not_none
from tests.harness.parameters import mostly_long

SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): "
PORT = "pcieport 0000:3a:01.0: "
GPU = "nvidia 0000:3b:00.0: "
PROBE = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0\n"
    "NVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)
FIRMWARE = (
    "{{1}}[Hardware Error]: event severity: {}\n"
    "{{1}}[Hardware Error]:   section_type: PCIe error\n"
    "{{1}}[Hardware Error]:   device_id: 0000:01:00.0\n"
    "{{1}}[Hardware Error]:   vendor_id: 0x10de, device_id: 0x2330"
)
XID_79 = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off"

#: A line of the kernel's log, the kind of its fault and the device that has it.
LINES: list[tuple[str, tuple[str, str] | None]] = [
    (
        "DMAR: [DMA Write NO_PASID] Request device [3b:00.0] fault addr 0xfff00000",
        ("aer.refused", "3b:00.0"),
    ),
    ("mce: [Hardware Error]: Machine check events logged", ("host.machine_check", "")),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0", ("host.memory", "")),
    (
        "mlx5_core 0000:1a:00.0: pcie_event:(pid 9): Detected insufficient power on the PCIe slot",
        ("host.adapter", "0000:1a:00.0"),
    ),
    (
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
        ("host.adapter", "0000:5c:00.0"),
    ),
    (
        "mlx5_core 0000:41:00.1: temp_warn:170:(pid 0): High temperature on sensors with bit set",
        ("host.adapter", "0000:41:00.1"),
    ),
    ("mlx5_core 0000:1a:00.0: PCIe slot advertised sufficient power (27W).", None),
    ("mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged", None),
    # NVSwitch: the word in the line is the severity, the number is not.
    (f"{SWITCH}20034, Fatal, Link 30 LTSSM Fault Up", ("sxid.fatal", "0000:c1:00.0")),
    (f"{SWITCH}20034, Non-fatal, Link 30 LTSSM Fault Up", ("sxid.non_fatal", "0000:c1:00.0")),
    (f"{SWITCH}19084, Nonfatal, Link 3 AN1 (First)", ("sxid.non_fatal", "0000:c1:00.0")),
    (f"{SWITCH}12028, Correctable, Link 28", ("sxid.corrected", "0000:c1:00.0")),
    (f"{SWITCH}26006, Fatal, text, instance=0, chiplet=0", ("sxid.fatal", "0000:c1:00.0")),
    (f"[ 1.2] {SWITCH}11004, Non-fatal, Link 1", ("sxid.non_fatal", "0000:c1:00.0")),
    # A stored error, without its severity: no new event.
    (f"{SWITCH}20034, Severity 1 Engine instance 30 Sub-engine instance 00", None),
    (f"{SWITCH}20034, Data {{0x00000000, 0x00000001}}", None),
    # Free text: the number decides.
    (f"{SWITCH}10006, TSENSE OVERT Threshold reached", ("sxid.10006", "0000:c1:00.0")),
    (f"{SWITCH}10005, NVSWITCH Temperature 60C", ("sxid.10005", "0000:c1:00.0")),
    (f"{SWITCH}10003, it is not fatal", ("sxid.10003", "0000:c1:00.0")),
    # An address that cannot be read loses no fault.
    ("nvidia-nvswitch0: SXid (PCI:?): 20034, Fatal, Link 1", ("sxid.fatal", "")),
    ("nvidia-nvswitch0: SXid without anything", ("sxid.0", "")),
    ("NVRM: SXid (PCI:0000:c1:00.0): 12028, Non-fatal", None),
    # PCIe errors: the source counts if it is named, else the device that reports.
    (f"{PORT}AER: Corrected error received: 0000:3b:00.0", ("aer.corrected", "0000:3b:00.0")),
    (f"{PORT}AER: Uncorrected (Fatal) error received: 0000:3b:00.0", ("aer.fatal", "0000:3b:00.0")),
    (
        f"{PORT}AER: Multiple Uncorrected (Non-Fatal) error received: 0000:3b:00.0",
        ("aer.non_fatal", "0000:3b:00.0"),
    ),
    (
        f"{PORT}AER: Uncorrectable (Fatal) error message received from 0000:3b:00.0",
        ("aer.fatal", "0000:3b:00.0"),
    ),
    (
        f"{PORT}AER: Correctable error message received from 0000:3b:00.0",
        ("aer.corrected", "0000:3b:00.0"),
    ),
    (f"{PORT}AER: Uncorrected (Fatal) error received: id=3b00", ("aer.fatal", "0000:3b:00.0")),
    (
        "pcieport 0001:00:1c.0: AER: Corrected error received: id=00e4",
        ("aer.corrected", "0001:00:1c.4"),
    ),
    (f"{PORT}AER: Uncorrected (Fatal) error received: ?", ("aer.fatal", "0000:3a:01.0")),
    (
        f"{GPU}PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
        ("aer.fatal", "0000:3b:00.0"),
    ),
    (
        f"{GPU}AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Inaccessible",
        ("aer.non_fatal", "0000:3b:00.0"),
    ),
    (
        f"{GPU}PCIe Bus Error: severity=Corrected, type=Physical Layer",
        ("aer.corrected", "0000:3b:00.0"),
    ),
    (f"{GPU}AER: can't recover (no error_detected callback)", ("aer.unrecovered", "0000:3b:00.0")),
    (f"{PORT}AER: device recovery failed", ("aer.unrecovered", "0000:3a:01.0")),
    (f"{GPU}AER: aer_status: 0x00001000, aer_mask: 0x00002000", ("aer.corrected", "0000:3b:00.0")),
    (f"{GPU}AER: aer_uncor_severity: 0x00062030", ("aer.non_fatal", "0000:3b:00.0")),
    (
        f"{PORT}DPC: containment event, status:0x1f01 source:0x0000",
        ("aer.contained", "0000:3a:01.0"),
    ),
    # What belongs to an error, or is none.
    (f"{GPU}  device [10de:2330] error status/mask=00040000/00400000", None),
    (f"{GPU}   [18] MalfTLP                (First)", None),
    (f"{PORT}AER: device recovery successful", None),
    (f"{PORT}AER: enabled with IRQ 26", None),
    (f"{PORT}DPC: enabled with IRQ 26", None),
    # NVRM.
    ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", ("nvrm.off_bus", "0000:3b:00.0")),
    ("NVRM: GPU at 0000:3b:00.0 has fallen off the bus.", ("nvrm.off_bus", "0000:3b:00.0")),
    (
        "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2330) fell off the bus and is not",
        ("nvrm.off_bus", "0000:3b:00.0"),
    ),
    (PROBE, ("nvrm.off_bus", "0000:3b:00.0")),
    (PROBE.rpartition("\n")[2], ("nvrm.off_bus", "")),
    (
        (
            "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:3b:00 (printing 1 of"
            " every 30).  The GPU likely needs to be reset."
        ),
        ("nvrm.reset", "0000:3b:00"),
    ),
    (
        "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0x40:2404)",
        ("nvrm.init", "0000:3b:00.0"),
    ),
    ("NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor", ("nvrm.init", "0000:3b:00.0")),
    ("NVRM: GPU0 _kgsp: GSP RM heartbeat timed out", ("nvrm.gsp", "")),
    ("NVRM: _kgspRpcRecvPoll: timed out waiting for RPC response", ("nvrm.gsp", "")),
    ("NVRM: kgspHealthCheck_TU102: **** GSP-CRASHCAT Report ****", ("nvrm.gsp", "")),
    ("NVRM: kgspExtractVbiosFromRom_TU102: did not find valid ROM signature", None),
    (
        (
            "NVRM: nvCheckOkFailedNoLog: Check failed: GPU is lost from the bus"
            " [NV_ERR_GPU_IS_LOST] (0x0000000F) returned from rpcRmApiAlloc_GSP"
        ),
        ("nvrm.off_bus", ""),
    ),
    (
        (
            "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x63, requiring os"
            " reboot to recover."
        ),
        ("nvrm.reset", ""),
    ),
    (
        "nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        ("aer.inaccessible", "0000:3b:00.0"),
    ),
    (
        (
            "nvidia 0000:3b:00.0: can't change power state from D3cold to D0 (config space"
            " inaccessible)"
        ),
        ("aer.inaccessible", "0000:3b:00.0"),
    ),
    (f"{PORT}pciehp: Slot(16): Link Down", ("aer.link_down", "0000:3a:01.0")),
    (f"{PORT}pciehp: Slot(16-1): Card not present", ("aer.link_down", "0000:3a:01.0")),
    (f"{PORT}pciehp: Slot(16): Link Up", None),
    # Linux before 5.2, as of RHEL 7 and 8.
    ("pciehp 0000:3a:01.0:pcie004: Slot(16): Link Down", ("aer.link_down", "0000:3a:01.0")),
    ("pciehp 0000:02:05.0:pcie24: slot(6): Link Down event", ("aer.link_down", "0000:02:05.0")),
    ("pciehp 0000:3a:01.0:pcie004: Slot(16): Card not present", ("aer.link_down", "0000:3a:01.0")),
    ("pciehp 0000:3a:01.0:pcie004: Slot(16): Link Up", None),
    (
        "pciehp 0000:3a:01.0:pcie004: Slot(16): Link Down event ignored; already powering off",
        None,
    ),
    ("pciehp 0000:3a:01.0:pcie004: service driver pciehp loaded", None),
    (
        "dpc 0000:3a:01.0:pcie010: DPC containment event, status:0x1f01 source:0x0000",
        ("aer.contained", "0000:3a:01.0"),
    ),
    ("dpc 0000:3a:01.0:pcie010: DPC error containment capabilities: Int Msg #0, RPExt+", None),
    ("NVRM: _kgspIsHeartbeatTimedOut: Heartbeat timed out, diff 5200", ("nvrm.gsp", "")),
    ("NVRM: Timeout after 6s of waiting for RPC response from GPU0 GSP!", ("nvrm.gsp", "")),
    ("NVRM: The NVIDIA probe routine failed for 1 device(s).", ("nvrm.probe_failed", "")),
    ("NVRM: The NVIDIA probe routine was not called for 1 device(s).", ("nvrm.not_probed", "")),
    ("NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!", ("nvrm.watchdog", "")),
    (
        f"{PORT}broken device, retraining non-functional downstream link at 2.5GT/s",
        ("aer.retrained", "0000:3a:01.0"),
    ),
    ("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update", ("nvrm.nvlink", "")),
    (f"{GPU}probe with driver nvidia failed with error -1", ("nvrm.probe_failed", "0000:3b:00.0")),
    ("nvidia-gpu 0000:3b:00.3: probe with driver nvidia-gpu failed with error -110", None),
    (f"{GPU}not ready 65535ms after bus reset; giving up", ("aer.inaccessible", "0000:3b:00.0")),
    (f"{GPU}not ready 1023ms after bus reset; waiting", None),
    (
        "NVRM: GPU 0000:3b:00.0: GPU does not have the necessary power cables connected.",
        ("nvrm.power", "0000:3b:00.0"),
    ),
    ("NVRM: GPU at PCI:0000:3b:00: has fallen off the bus", ("nvrm.off_bus", "0000:3b:00")),
    # An XID whose number was cut off.
    ("NVRM: Xid (PCI:0000:3b:00):", ("nvrm.xid", "0000:3b:00")),
    ("NVRM: Xid (PCI:0000:3b", ("nvrm.xid", "")),
    ("[9.1] NVRM: Xid (PC", ("nvrm.xid", "")),
    ("NVRM: Xid (PCI:0000:3b:00): 7", None),
    ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06", None),
    ("NVRM: GPU 0000:3b:00.0: GPU serial number is 1652000000001.", None),
    ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", None),
    ("a rider fell off the bus", None),
    ("", None),
]


@pytest.mark.parametrize(("record", "expected"), LINES)
def test_a_record_has_the_fault_of_its_words(record: str, expected: tuple[str, str] | None) -> None:
    found = [one for one in LogParser().parse(record, 5.0) if isinstance(one, KernelFault)]
    assert [(one.kind, one.device) for one in found] == ([] if expected is None else [expected])
    assert all(one.at == 5.0 and one.text for one in found)


def test_a_message_of_three_records_names_its_gpu_once() -> None:
    parser = LogParser()
    found = [one for line in PROBE.split("\n") for one in parser.parse(line, 5.0)]
    found += parser.parse(PROBE.rpartition("\n")[2], 5.0)
    assert [one.device for one in found if isinstance(one, KernelFault)] == ["0000:3b:00.0", ""]
    assert [*parser.parse(PROBE.partition("\n")[0], 6.0)] == []
    (late,) = parser.parse(PROBE.rpartition("\n")[2], 6.1 + SAME_S)
    assert isinstance(late, KernelFault)
    assert late.device == "", "of another time"


@pytest.mark.parametrize(
    ("line", "number", "address"),
    [
        ("NVRM: Xid (PCI:????:3b:00): 79, GPU has fallen off the bus.", 79, ""),
        ("NVRM: Xid (): 48, pid=7", 48, ""),
        ("NVRM: Xid: 48, pid=7", 48, ""),
        ("NVRM: Xid (PCI:0000:3b:00: 48, pid=7", 48, "0000:3b:00"),
        ("NVRM: Xid (PCI:00000000:3B:00.0): 48", 48, "00000000:3B:00"),
    ],
)
def test_an_address_that_cannot_be_read_loses_no_xid(line: str, number: int, address: str) -> None:
    found = parse(line, 5.0)
    assert isinstance(found, XidEvent)
    assert (found.number, found.pci_bus_id) == (number, address)


#: What lines are made of.
PIECES = (
    *("NVRM: ", "Xid ", "SXid", "nvidia-nvswitch0: ", "(PCI:0000:3b:00.0)", ": ", "79", "AER: "),
    *("PCIe Bus Error: severity=", "Uncorrected (Fatal)", " error received: ", "0000:3b:00.0"),
    *("fallen off the bus", "GSP", "timed out", "knvlink", "id=00e4", "DPC: ", ", ", "Fatal", "a"),
    *(" ", "\n"),
)
WORDS = st.sampled_from(PIECES)


@given(st.one_of(st.text(max_size=300), st.lists(WORDS, max_size=40).map("".join)))
def test_junk_has_no_fault_or_one_of_the_table(text: str) -> None:
    for found in LogParser().parse(text, 5.0):
        assert found.at == 5.0
        if isinstance(found, KernelFault):
            assert found.kind in KINDS or found.kind.startswith("sxid.")
            assert not found.device or device_of(found.device) is not None


#: What a hostile record repeats.
REPEATED = (
    *PIECES,
    *("NVRM: Xid (PCI:", "NVRM: Xid: ", "nvidia-nvswitch0: SXid", "a ", "0000:3b:00.0: ", "0:"),
    *(
        "AER: a 00:00: ",
        "NVRM: GSP ",
        "knvlink: ",
        "nvidia 0000:3b:00.0: AER: ",
        "GSP timed NVRM: ",
        "mlx5_core 0000:1a:00.0: ",
        "Port module event[error]: a, ",
    ),
    f"DPC: {'a' * 40}",
)


@mostly_long("word", REPEATED, quick=4)
def test_the_largest_record_is_parsed_in_linear_time(word: str) -> None:
    def seconds(size: int) -> float:
        text = (f"NVRM: AER: {word}" + word * (size // len(word)))[:size]
        times = []
        for _ in range(3):
            began = time.thread_time()
            list(LogParser().parse(text, 5.0))
            times.append(time.thread_time() - began)
        return min(times)

    assert seconds(8192) <= 16 * seconds(1024) + 0.01
    assert seconds(8192) < 0.5


@pytest.mark.parametrize(
    "second", ["0000:3b:00", "00000000:3B:00.0", "PCI:0000:3b:00.0"[4:], "3b:00.1"]
)
def test_a_device_is_the_same_in_every_form(second: str) -> None:
    assert is_same_device("0000:3b:00.0", second)
    assert not is_same_device("0001:3b:00.0", second)
    assert not is_same_device("", second)
    assert not is_same_device("garbage", "garbage")


def test_the_number_of_a_model_is_no_address() -> None:
    assert find_address("NVRM: (PCI ID: 10de:2330) installed") is None


def fault(line: str, at: float = 100.0) -> KernelFault:
    return not_none(parse_fault(line, at))


def test_lines_of_one_event_are_counted_once() -> None:
    lines = [
        f"{SWITCH}20034, Fatal, Link 30 LTSSM Fault Up (First)",
        f"{SWITCH}20034, Fatal, Link 30 LTSSM Fault Up",
        f"{SWITCH}20034, Fatal, Link 31 LTSSM Fault Up",
        f"{SWITCH}20035, Fatal, Link 30 LTSSM Fault Up",
        # The port and the GPU report the same error.
        f"{PORT}AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
        f"{GPU}PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    ]
    found = [fault(line) for line in lines]
    assert [one.text[-2:] for one in distinct(found)] == ["t)", "Up", "Up", ".0"]
    again = [fault(lines[1], at) for at in (100.0, 104.0, 105.0, 105.1, 110.0)]
    assert [one.at for one in distinct(again)] == [100.0, 105.1]
    result = judge_faults([*found, *again])
    assert result.value == "SXid 20034 fatal (3 times), SXid 20035 fatal, aer.fatal"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_row_of_the_table_has_its_verdict(kind: str) -> None:
    row = KINDS[kind]
    assert row.name
    assert row.source
    assert row.bucket.replace("_", "").isupper()
    one = KernelFault(kind=kind, device="", at=1.0, text="words")
    found = judge_faults([one])
    assert found.status is row.meaning
    assert "words" in found.evidence
    assert (found.action or "").startswith(row.bucket if row.meaning is not Status.PASS else "")
    expected = {Status.FAIL: Status.WARN}.get(row.meaning, Status.PASS)
    assert judge_faults([one], {one}).status is expected


def test_every_kind_that_is_parsed_has_a_row() -> None:
    parsed = {kind for _, expected in LINES if expected is not None for kind in expected[:1]}
    assert KINDS.keys() - parsed == {
        *("sxid.other", "sxid.10004", "sxid.10007", "sxid.10008", "sxid.10009", "sxid.26006")
    }
    assert parsed - KINDS.keys() == {"sxid.0", "sxid.10003"}, "those of sxid.other"


def test_an_sxid_without_a_severity_that_is_unknown_is_a_warning() -> None:
    assert judge_faults([fault(f"{SWITCH}10003, unhandled")]).status is Status.WARN


def test_a_storm_hides_no_other_fault() -> None:
    storm = [
        fault(f"{PORT}AER: Corrected error received: 0000:3b:00.0", at) for at in range(0, 600, 6)
    ]
    assert judge_faults(storm).status is Status.WARN
    assert judge_faults(storm[:10]).status is Status.PASS
    fatal = fault("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", 300.0)
    found = judge_faults([*storm, fatal])
    assert (found.status, found.severity) == (Status.FAIL, Severity.ISOLATE)
    assert found.value == "nvrm.off_bus, aer.corrected (100 times)"
    assert (found.action or "").startswith("RESTART_BM")


def xid(number: int, at: float, address: str = "0000:3b:00") -> XidEvent:
    return XidEvent(number=number, pci_bus_id=address, at=at, pid=None, text="words")


@pytest.mark.parametrize(
    ("line", "event", "left"),
    [
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", xid(79, 101.0), 0),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", xid(79, 101.0, ""), 0),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", xid(79, 401.0), 1),
        (
            "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            xid(79, 101.0, "0000:3c:00"),
            1,
        ),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", xid(48, 101.0), 1),
        ("NVRM: GPU0 GSP RM heartbeat timed out", xid(120, 101.0), 0),
        ("NVRM: GPU0 GSP RM heartbeat timed out", xid(79, 101.0), 1),
    ],
)
def test_a_fault_that_has_an_xid_too_is_judged_once(line: str, event: XidEvent, left: int) -> None:
    assert list(unpaired([fault(line)], [event])) == [fault(line)] * left


def test_a_fault_is_of_a_device_or_of_a_port_above_it() -> None:
    bus, ports = "00000000:3B:00.0", ["0000:39:00.0", "0000:3a:01.0"]
    of_port = fault(f"{PORT}AER: device recovery failed")
    assert is_of_device(fault(f"{GPU}AER: can't recover (no callback)"), bus)
    assert is_of_device(of_port, bus, ports)
    assert not is_of_device(of_port, bus)
    assert not is_of_device(of_port, bus, ["0000:3a:01.1"]), "another port of that device"
    # The source counts, not the port that reports it.
    other = fault(f"{PORT}AER: Uncorrected (Fatal) error received: 0000:3c:00.0")
    assert not is_of_device(other, bus, ports)


NVME = "nvme 0000:81:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"
ABOVE_NVME = "pcieport 0000:80:01.0: AER: Uncorrected (Fatal) error received: 0000:81:00.0"
FATAL_SWITCH = f"{SWITCH}20034, Fatal, Link 30"


@pytest.mark.parametrize(
    ("lines", "paths", "expected"),
    [
        # Without the ports, the line of a port is the node's, whatever its source says itself.
        ([ABOVE_NVME, NVME, FATAL_SWITCH], None, [NVME]),
        ([ABOVE_NVME, FATAL_SWITCH], {"0000:3b:00.0": ["0000:3a:01.0"]}, [ABOVE_NVME]),
        ([ABOVE_NVME], {"0000:3b:00.0": [], "0000:c1:00.0": ["0000:81:00.0"]}, []),
    ],
)
def test_errors_of_other_devices_are_known_by_their_drivers_or_by_the_ports(
    lines: list[str], paths: dict[str, list[str]] | None, expected: list[str]
) -> None:
    found = [fault(line) for line in lines]
    assert [one.text for one in foreign(found, paths)] == expected


#: Lines of each kind, and of XIDs.
ANY = st.sampled_from(
    [line for line, expected in LINES if expected is not None]
    + [NVME, ABOVE_NVME, XID_79, "NVRM: Xid (?): 63, remap", "NVRM: Xid (?): 13, pid=7"]
)


@given(st.lists(st.tuples(ANY, st.integers(0, 400)), max_size=8), ANY, st.integers(0, 400))
def test_a_fault_that_is_added_never_makes_the_node_better(
    records: list[tuple[str, int]], line: str, at: int
) -> None:
    def status(given: list[tuple[str, int]]) -> Status:
        parser = LogParser()
        found = [event for text, at in given for event in parser.parse(text, float(at))]
        faults = [event for event in found if isinstance(event, KernelFault)]
        xids = [event for event in found if isinstance(event, XidEvent)]
        evidence = KernelEvidence(
            faults=faults, xids=xids, foreign=set(foreign(faults, None)), reported=xids
        )
        return CHECKS["node.kernel_faults"].run(evidence, Thresholds()).status

    order = [Status.PASS, Status.WARN, Status.FAIL]
    assert order.index(status([*records, (line, at)])) >= order.index(status(records))


# --- the folder of a run ---------------------------------------------------------------------

PATHS = {f"0000:0{bus}:00.0": ["0000:00:01.0", f"0000:0a:0{bus}.0"] for bus in (1, 2)}
OF_GPU = "nvidia 0000:02:00.0: AER: can't recover (no error_detected callback)"
#: The records of the kernel's log, the ports, and the verdicts of the GPUs 0 and 1 and the node.
RUNS: list[tuple[list[str], dict[str, Any], tuple[str, str, str]]] = [
    ([], {}, ("PASS", "PASS", "PASS")),
    ([FATAL_SWITCH], {}, ("PASS", "PASS", "FAIL")),
    ([f"{SWITCH}12028, Non-fatal, Link 32"], {}, ("PASS", "PASS", "WARN")),
    ([f"{SWITCH}12028, Correctable, Link 32"], {}, ("PASS", "PASS", "PASS")),
    ([OF_GPU], {}, ("PASS", "FAIL", "FAIL")),
    ([f"{PORT}AER: device recovery failed"], {}, ("PASS", "PASS", "FAIL")),
    (
        ["mlx5_core 0000:1a:00.0: Port module event[error]: module 0, Cable, High Temperature"],
        {},
        ("PASS", "PASS", "WARN"),
    ),
    (["pciehp 0000:0a:02.0:pcie004: Slot(2): Link Down"], PATHS, ("PASS", "FAIL", "FAIL")),
    (["pciehp 0000:80:01.0:pcie004: Slot(9): Link Down"], PATHS, ("PASS", "PASS", "WARN")),
    # A port: its GPU's if that is known, both GPUs' if both are below it, else the node's.
    (["pcieport 0000:0a:02.0: AER: device recovery failed"], {}, ("PASS", "PASS", "FAIL")),
    (["pcieport 0000:0a:02.0: AER: device recovery failed"], PATHS, ("PASS", "FAIL", "FAIL")),
    (["pcieport 0000:00:01.0: AER: device recovery failed"], PATHS, ("FAIL", "FAIL", "FAIL")),
    # Another device's errors warn, where the ports are known or its driver is named.
    ([ABOVE_NVME], PATHS, ("PASS", "PASS", "WARN")),
    ([NVME], {}, ("PASS", "PASS", "WARN")),
    ([ABOVE_NVME], {}, ("PASS", "PASS", "FAIL")),
    (["NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."], {}, ("FAIL", "PASS", "FAIL")),
    (["NVRM: Xid (PCI:????): 79, GPU has fallen off the bus."], {}, ("PASS", "PASS", "FAIL")),
    (["NVRM: Xid (PCI:0000:77:00): 63, Row Remapper"], {}, ("PASS", "PASS", "WARN")),
    (["NVRM: Xid (PCI:0000:77:00): 13, pid=7"], {}, ("PASS", "PASS", "PASS")),
]


@mostly_long("kernel, paths, expected", RUNS, quick=4)
def test_a_run_has_the_verdict_of_what_the_kernel_logged(
    kernel: list[str], paths: dict[str, Any], expected: tuple[str, str, str], tmp_path: Path
) -> None:
    run = judged(ExampleRun(kernel=tuple(kernel), pci_paths=paths), tmp_path / "run")
    found = (*(gpu.verdict.value for gpu in run.gpus), run.verdict.value)
    assert found == expected
    assert EXIT_CODES[run.verdict] == (1 if expected[-1] == "FAIL" else 0)


def check_of(run: Judged, name: str) -> CheckResult:
    (found,) = (one for one in run.node if one.id == name)
    return found


def test_a_fault_of_a_switch_is_in_every_format(tmp_path: Path) -> None:
    run = judged(ExampleRun(kernel=(FATAL_SWITCH,)), tmp_path / "run")
    found = check_of(run, "node.kernel_faults")
    assert (found.status, found.value) == (Status.FAIL, "SXid 20034 fatal")
    assert "NVSwitch 3: 20034, Fatal, Link 30" in found.evidence
    assert found.action.startswith("WORKFLOW_NVLINK_ERR")
    report = report_object(run)
    for text in (junit_xml(report), "\n".join(ocp_lines(report))):
        assert "node.kernel_faults" in text
        assert "Link 30" in text
    assert '"verdict":"FAIL"' in verdict_summary(report)


def test_an_xid_and_its_line_without_one_are_one_accusation(tmp_path: Path) -> None:
    line = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."
    run = judged(ExampleRun(kernel=(XID_79, line)), tmp_path / "run")
    results = {result.id: result for result in run.gpus[0].results}
    assert results["xid"].value == "79"
    assert results["gpu.kernel_faults"].status is Status.PASS


def test_a_watchdog_that_ends_in_an_xid_of_a_job_accuses_no_gpu(tmp_path: Path) -> None:
    watchdog = "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!"
    job = "NVRM: Xid (PCI:0000:01:00): 8, pid=7, name=job, channel 0x00000007"
    assert judged(ExampleRun(kernel=(watchdog, job)), tmp_path / "one").verdict == "PASS"
    assert judged(ExampleRun(kernel=(watchdog,)), tmp_path / "two").verdict == "WARN"


def test_equal_lines_of_an_xid_are_one_event(tmp_path: Path) -> None:
    run = judged(ExampleRun(kernel=(XID_79,) * 3), tmp_path / "run")
    assert {result.id: result for result in run.gpus[0].results}["xid"].value == "79"


def test_a_run_of_a_version_that_recorded_xids_only_says_so(tmp_path: Path) -> None:
    example = ExampleRun(pci_paths=None)  # type: ignore[arg-type]
    run = judged(example, tmp_path / "run")
    assert run.verdict.value == "PASS"
    for found in (check_of(run, "node.kernel_faults"), run.gpus[0].results[-1]):
        assert (found.status, found.evidence) == (Status.NOT_TESTED, "this run recorded XIDs only")


# --- since the boot --------------------------------------------------------------------------


def test_faults_since_the_boot_are_told_until_their_gpu_is_acknowledged() -> None:
    gpus = [
        Counters(uuid=f"G{index}", index=index, name="", at=0.0, pci_bus_id=f"00000000:{bus}:00.0")
        for index, bus in enumerate(("01", "02"))
    ]
    records = [
        KernelRecord(at=10.0, text=XID_79),
        KernelRecord(at=11.0, text="NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."),
        KernelRecord(at=20.0, text="NVRM: Xid (PCI:0000:02:00): 48, DBE"),
        KernelRecord(at=40.0, text="NVRM: Xid (PCI:0000:02:00): 48, DBE"),
        KernelRecord(at=50.0, text="NVRM: Xid (PCI:0000:02:00): 13, pid=7"),
        KernelRecord(at=60.0, text=f"{SWITCH}20034, Fatal, Link 30"),
        KernelRecord(at=61.0, text=f"{SWITCH}20034, Correctable, Link 30"),
        KernelRecord(at=70.0, text="NVRM: Xid (?): 63, Row Remapper"),
    ]

    def told(acknowledged: dict[str, float]) -> list[str]:
        found = describe_unacknowledged(records, gpus, acknowledged, 1000.0)
        return [text.partition(" (")[0] for text in found]

    switch = "no known GPU: fatal error of an NVSwitch: NVSwitch 3: 20034, Fatal, Link 30"
    everything = [
        "GPU 0: XID 79: GPU has fallen off the bus at 0000:01:00",
        "GPU 1: XID 48: double bit ECC error at 0000:02:00",
        switch,
        "no known GPU: XID 63: GPU memory remapping",
    ]
    assert told({}) == everything
    assert told({"G0": 1010.0}) == everything[1:]
    assert told({"G0": 1009.0, "G1": 1039.0}) == everything
    assert told({"G1": 1040.0}) == [everything[0], *everything[2:]]
    one, twice, *_ = describe_unacknowledged(records, gpus, {}, 1000.0)
    assert "times" not in one
    assert "(2 times, last " in twice


def test_a_log_that_cannot_be_read_or_has_lost_its_beginning_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[tuple[list[KernelRecord], str | None]] = [
        ([], "/dev/kmsg cannot be read: Permission denied"),
        ([KernelRecord(at=5000.0, text="a word")], None),
        ([KernelRecord(at=0.0, text="a word")], None),
    ]
    monkeypatch.setattr("sentinel.burnin.since_boot.read_past", lambda: answers.pop(0))
    (unread,) = faults_since_boot((), {})
    assert unread == "faults are unknown: /dev/kmsg cannot be read: Permission denied"
    (lost,) = faults_since_boot((), {})
    assert "the kernel's log begins then" in lost
    assert faults_since_boot((), {}) == []


def test_what_was_not_acknowledged_is_told_at_the_start_and_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ExampleRun().write(tmp_path / "run")
    warn_at_start(folder)
    assert capsys.readouterr().err == ""
    counters = read_object(folder.counters)
    folder.write(folder.counters, {**counters, "unacknowledged": ["GPU 0: XID 79"]})
    warn_at_start(folder)
    assert "warning: before this run, since the boot: GPU 0: XID 79" in capsys.readouterr().err
    found = check_of(judge_run(folder, Thresholds()), "node.kernel_faults")
    assert (found.status, found.value) == (Status.PASS, "none")
    assert "GPU 0: XID 79" in found.evidence


def test_the_time_of_an_acknowledgement_is_that_of_the_last_one(tmp_path: Path) -> None:
    assert acknowledged_at(tmp_path) == {}
    path = tmp_path / NAME
    work = StoredWork(index=0, name="", since=1.0, total=VerifiedCounts(errors=3))
    save(path, {"A": work, "B": work}, {})
    before = time.time()
    acknowledge(path, ["A"], "root", "the card was reseated")
    ((uuid, at),) = acknowledged_at(tmp_path).items()
    assert uuid == "A"
    assert at == pytest.approx(before, abs=60.0)
    path.write_text("{")
    assert acknowledged_at(tmp_path) == {}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("nvidia: probe of 0000:01:00.0 failed with error -1", "nvrm.probe_failed"),
        (
            "nvidia 0000:01:00.0: probe with driver nvidia failed with error -1",
            "nvrm.probe_failed",
        ),
        ("nvidia 0000:01:00.0: PCIe link lost, device now detached", "aer.inaccessible"),
    ],
)
def test_a_gpu_that_the_driver_cannot_use_or_has_lost_is_a_fault(line: str, kind: str) -> None:
    found = not_none(parse_fault(line, 1.0))
    assert (found.kind, found.device) == (kind, "0000:01:00.0")


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ("DMAR:[DMA Read] Request device [01:00.0] fault addr fff00000", "aer.refused"),
        (
            "nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0012]",
            "aer.refused",
        ),
        ("AMD-Vi: Event logged [IO_PAGE_FAULT device=01:00.0 domain=0x0012]", "aer.refused"),
        (FIRMWARE.format("fatal"), "aer.fatal"),
        (FIRMWARE.format("recoverable"), "aer.non_fatal"),
        (FIRMWARE.format("corrected"), "aer.corrected"),
    ],
)
def test_errors_that_iommu_or_firmware_report_are_of_their_device(lines: str, kind: str) -> None:
    (found,) = LogParser().parse(lines, 1.0)
    assert isinstance(found, KernelFault)
    assert found.kind == kind
    assert is_of_device(found, "00000000:01:00.0")


def test_a_device_without_the_severity_of_its_record_is_no_fault() -> None:
    assert not list(LogParser().parse("{2}[Hardware Error]:   device_id: 0000:01:00.0", 1.0))


MEMORY = (
    "{{1}}[Hardware Error]: event severity: {}\n{{1}}[Hardware Error]:   section_type: memory error"
)


@mostly_long(
    "lines, kind",
    [
        ("mce: [Hardware Error]: Machine check events logged", "host.machine_check"),
        (
            "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: bea0000000000108",
            "host.machine_check",
        ),
        ("mce: Uncorrected hardware memory error in user-access at 47aba1cdc0", "host.memory"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", "host.memory"),
        (MEMORY.format("recoverable"), "host.memory"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", None),
        (MEMORY.format("corrected"), None),
        ("mce: CPU supports 20 MCE banks", None),
        ("mce: CPU0: Thermal monitoring enabled (TM1)", None),
    ],
    quick=3,
)
def test_an_error_of_the_host_warns_of_the_node_and_accuses_no_gpu(
    lines: str, kind: str | None, tmp_path: Path
) -> None:
    judged = judge_run(ExampleRun(kernel=(lines,)).write(tmp_path / "run"), Thresholds())
    found = check_of(judged, "node.kernel_faults")
    assert found.value == (kind or "none")
    assert (found.status is Status.WARN) is (kind is not None)
    assert all(gpu.verdict == "PASS" for gpu in judged.gpus)


def test_a_line_of_an_adapter_is_the_same_whatever_thread_wrote_it() -> None:
    line = "mlx5_core 0000:41:00.1: temp_warn:170:(pid {}): High temperature on sensors"
    texts = {not_none(parse_fault(line.format(pid), 1.0)).text for pid in (0, 4711)}
    assert texts == {"mlx5_core 0000:41:00.1: High temperature on sensors"}
