"""The XIDs of NVIDIA's driver as data: what each means, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

CATALOG = "NVIDIA, Analyzing Xid Errors with the Xid Catalog"


class XidMeaning(StrEnum):
    """What an XID says about the hardware."""

    FAIL = "fail"
    WARN = "warn"
    #: Of the application: no evidence, unless it repeats in a process of Sentinel's own.
    APPLICATION = "application"
    #: No evidence at all.
    PASS = "pass"  # noqa: S105 - not a password


@dataclass(frozen=True, kw_only=True)
class Xid:
    """One XID."""

    number: int
    name: str
    #: NVIDIA's bucket of immediate actions.
    bucket: str
    meaning: XidMeaning
    source: str = CATALOG


def _rows(
    meaning: XidMeaning, *rows: tuple[int, str, str], source: str = CATALOG
) -> tuple[Xid, ...]:
    return tuple(
        Xid(number=number, name=name, bucket=bucket, meaning=meaning, source=source)
        for number, name, bucket in rows
    )


_ENGINES = (
    *((number, f"copy engine {number - 39}") for number in (39, 40, 41)),
    *((number, f"copy engine {number - 67}") for number in (70, 71, 72)),
    *((number, f"copy engine {number - 69}") for number in (75, 76, 77)),
    (82, "NVJPG 0"),
    (83, "NVDEC 1"),
    (84, "NVDEC 2"),
    (85, "copy engine 9"),
    (86, "OFA"),
    (88, "NVDEC 3"),
    (89, "NVDEC 4"),
    *((number, f"NVDEC {number - 91}") for number in (96, 97, 98)),
    *((number, f"NVJPG {number - 98}") for number in range(99, 106)),
    *((number, f"copy engine {number - 116}") for number in range(126, 136)),
    (139, "OFA 1"),
)

_TABLE: tuple[Xid, ...] = (
    *_rows(
        XidMeaning.FAIL,
        (46, "GPU stopped processing", "RESET_GPU"),
        (48, "double bit ECC error", "WORKFLOW_XID_48"),
        (54, "auxiliary power is not connected", "CHECK_MECHANICALS"),
        (62, "internal micro-controller halt", "RESET_GPU"),
        (64, "GPU memory remapping failure", "RESET_GPU"),
        (74, "NVLink error", "WORKFLOW_NVLINK_ERR"),
        (79, "GPU has fallen off the bus", "RESTART_BM"),
        (95, "uncontained memory error", "RESET_GPU"),
        (109, "context switch timeout", "RESET_GPU"),
        (110, "security fault", "RESET_GPU"),
        (119, "GSP RPC timeout", "RESET_GPU"),
        (120, "GSP error", "RESET_GPU"),
        (136, "link training failed", "RESET_GPU"),
        (140, "unrecovered ECC error", "RESET_GPU"),
        (143, "GPU initialization error", "RESET_GPU"),
        (155, "NVLink: software-defined error", "RESET_GPU"),
        (156, "resource retirement", "RESET_GPU"),
        (158, "GPU fatal timeout", "RESET_GPU"),
    ),
    *_rows(
        XidMeaning.FAIL,
        (94, "contained memory error", "RESTART_APP"),
        source=f"{CATALOG}; it always carries a new uncorrectable error",
    ),
    *_rows(
        XidMeaning.FAIL,
        (157, "resource retirement failure: no repair is possible", "CONTACT_SUPPORT"),
        (167, "PCIe fatal timeout", "CONTACT_SUPPORT"),
        (168, "reduced memory capacity", "CONTACT_SUPPORT"),
        (169, "SEC2 halt", "CONTACT_SUPPORT"),
        (171, "uncorrectable DRAM error", "WORKFLOW_XID_48"),
        (172, "uncorrectable SRAM error", "WORKFLOW_XID_48"),
        source=f"{CATALOG}; bucket and verdict: Sentinel",
    ),
    # The words of these decide: see judge_xids.
    *_rows(
        XidMeaning.WARN,
        *((number, "NVLink 5 error", "WORKFLOW_NVLINK5_ERR") for number in range(144, 151)),
    ),
    *_rows(
        XidMeaning.WARN,
        (63, "GPU memory remapping", "IGNORE"),
        (92, "high rate of single-bit errors", "IGNORE"),
        source=f"{CATALOG}; verdict: Sentinel, since it announces wear",
    ),
    *_rows(
        XidMeaning.WARN,
        (78, "vGPU start error", "UPDATE_SWFW"),
        (142, "NVENC 3", "CONTACT_SUPPORT"),
        (151, "key rotation error", "RESTART_VM"),
        (159, "CHI non-data error", "CHECK_UVM"),
    ),
    *_rows(
        XidMeaning.WARN,
        (163, "power smoothing disengaged", "CONTACT_SUPPORT"),
        (164, "power smoothing: low lifetime", "CONTACT_SUPPORT"),
        (165, "power smoothing: lifetime exhausted", "CONTACT_SUPPORT"),
        source=f"{CATALOG}; bucket and verdict: Sentinel",
    ),
    *_rows(
        XidMeaning.APPLICATION,
        (8, "GPU stopped processing", "RESTART_APP"),
        (11, "invalid push buffer", "RESTART_APP"),
        (13, "graphics engine exception", "RESTART_APP"),
        (25, "invalid push buffer", "RESTART_APP"),
        (31, "GPU memory page fault", "RESTART_APP"),
        (32, "invalid push buffer", "RESTART_APP"),
        (60, "video processor exception", "RESTART_APP"),
        (68, "NVDEC 0 exception", "RESTART_APP"),
        (69, "graphics engine class error", "RESTART_APP"),
        (80, "corrupted data sent to the GPU", "RESTART_APP"),
        *((number, f"exception of {engine}", "RESTART_APP") for number, engine in _ENGINES),
    ),
    *_rows(
        XidMeaning.APPLICATION,
        (43, "GPU stopped processing", "IGNORE"),
        (45, "preemptive cleanup", "WORKFLOW_XID_45"),
    ),
    *_rows(
        XidMeaning.PASS,
        (14, "injected error", "IGNORE"),
        (37, "driver firmware error", "IGNORE"),
        (38, "driver firmware error", "IGNORE"),
        (44, "fault during a context switch", "IGNORE"),
        (66, "illegal access by the driver", "IGNORE"),
        (67, "illegal access by the driver", "IGNORE"),
        (93, "InfoROM wear limit", "IGNORE"),
        (106, "SMBPBI test message", "IGNORE"),
        (107, "SMBPBI test message", "IGNORE"),
        (108, "unused", "IGNORE"),
        (121, "corrected C2C error", "IGNORE"),
        (137, "NVLink privilege error", "IGNORE"),
        (141, "CUDA fast path error", "IGNORE"),
        (152, "DLA SMMU error", "IGNORE"),
        (153, "DLA timeout", "IGNORE"),
        (160, "channel retirement", "IGNORE"),
        (161, "channel retirement failure", "IGNORE"),
    ),
    *_rows(
        XidMeaning.PASS,
        (162, "power smoothing engaged", "IGNORE"),
        (166, "NVLink encryption", "IGNORE"),
        (170, "NVLink encryption", "IGNORE"),
        source=f"{CATALOG}; bucket and verdict: Sentinel",
    ),
    *_rows(
        XidMeaning.PASS,
        (154, "GPU recovery action changed", "XID_154"),
        source=f"{CATALOG}; its text is the driver's own action, which wins over this table",
    ),
)

#: All XIDs by number.
XIDS = {xid.number: xid for xid in sorted(_TABLE, key=lambda xid: xid.number)}
