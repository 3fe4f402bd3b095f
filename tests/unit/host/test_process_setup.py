"""The available memory is the least of the host's and of each control group's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from sentinel.host.process_setup import _clean_mappings, _left_in_groups, available_bytes
from tests.harness.programs import run_program

MIB = 2**20


def group(folder: Path, limit: str, current: int, inactive: int) -> None:
    """Create the files of a control group."""
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nactive_file 0\n")


def test_each_group_with_a_limit_counts_and_pages_of_files_are_free(tmp_path: Path) -> None:
    group(tmp_path / "jobs", str(100 * MIB), 60 * MIB, 10 * MIB)
    group(tmp_path / "jobs" / "mine", "max", 60 * MIB, 0)
    group(tmp_path / "jobs" / "mine" / "step", str(40 * MIB), 35 * MIB, 5 * MIB)
    left = _left_in_groups(tmp_path, "12:pids:/x\n0::/jobs/mine/step\n")
    assert left == [10 * MIB, 50 * MIB]


def test_a_host_without_control_groups_has_no_such_limit(tmp_path: Path) -> None:
    assert _left_in_groups(tmp_path, "0::/missing\n") == []
    assert _left_in_groups(tmp_path, "4:memory:/x\n") == []


def test_this_host_has_some() -> None:
    available = available_bytes()
    assert available is not None
    assert available > MIB


SMAPS = """\
00400000-00452000 r-xp 00000000 08:02 173521 /usr/bin/program
Rss:                 328 kB
Anonymous:             0 kB
Swap:                  0 kB
00651000-00652000 r--p 00051000 08:02 173521 /usr/bin/program
Anonymous:             0 kB
Swap:                  0 kB
00651000-00652000 r--p 00051000 08:02 173521 /usr/bin/relocated
Anonymous:             4 kB
Swap:                  0 kB
00652000-00655000 rw-p 00052000 08:02 173521 /usr/bin/program
Anonymous:            12 kB
Swap:                  0 kB
7f0000000000-7f0000100000 r-xp 00000000 08:02 9 /usr/lib/patched.so
Anonymous:             4 kB
Swap:                  0 kB
7f0000200000-7f0000300000 r-xp 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
7f0000350000-7f0000360000 r-xp 00000000 08:02 9 /usr/lib/swapped.so
Anonymous:             0 kB
Swap:                  4 kB
7f0000400000-7f0000500000 r-xp 00000000 08:02 10 /usr/lib/a name.so (deleted)
Anonymous:             0 kB
Swap:                  0 kB
"""


def test_only_unmodified_pages_of_files_are_dropped() -> None:
    found = [(hex(start), size) for start, size in _clean_mappings(SMAPS)]
    assert found == [("0x400000", 0x52000), ("0x651000", 0x1000), ("0x7f0000400000", 0x100000)]


def test_a_mapped_file_may_have_any_name(tmp_path: Path) -> None:
    """The bytes of a path need not be text."""
    path = os.fsencode(tmp_path) + b"/M\xfcller"
    script = """
import mmap, os, sys
from sentinel.host.process_setup import give_back
file = os.open(os.fsencode(sys.argv[1]), os.O_RDONLY)
mapped = mmap.mmap(file, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
give_back()
print(mapped[:4].decode())
"""
    Path(os.fsdecode(path)).write_bytes(b"code" * 1024)
    arguments = [sys.executable, "-c", script, os.fsdecode(path)]
    assert subprocess.check_output(arguments) == b"code\n"


def test_a_process_gets_smaller_and_works_on() -> None:
    """The measured process is another one: this one has dirty pages of other tests."""
    script = """
import json, math, ssl, sqlite3
from pathlib import Path
from sentinel.host.process_setup import give_back
from sentinel.host.procfs import read_usage
before = read_usage('self').resident
give_back()
after = read_usage('self').resident
print(json.dumps([before, after, math.sqrt(16.0), ssl.OPENSSL_VERSION_INFO[0] > 0]))
"""
    done = run_program(sys.executable, "-c", script, check=True)
    before, after, root, works = json.loads(done.stdout)
    assert after < before
    assert root == 4.0
    assert works
