"""Whose code a process may import."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest

from sentinel.errors import ConfigError, WorkloadError
from sentinel.host import trusted_code
from sentinel.host.trusted_code import (
    check_search_path,
    leave_out_untrusted,
    why_untrusted_code,
)
from sentinel.stressor import main
from sentinel.stressor.loader import load_workload

OTHER = 4321
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_code, "_left_out", [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Provide a folder with a module and a package, all of this user's."""
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    for path in (code / "own.py", code / "package" / "__init__.py", code / "package" / "own.py"):
        path.write_text("def work(ctx):\n    pass\n")
    return code


@pytest.mark.parametrize("module", ["own", "package.own", "missing"])
def test_code_of_this_user_may_be_imported(folder: Path, module: str) -> None:
    assert why_untrusted_code(folder, module) is None


@as_root
@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("code", "own"),
        ("", "own"),
        ("code/own.py", "own"),
        ("code/package", "package.own"),
        ("code/package/__init__.py", "package.own"),
        ("code/package/own.py", "package.own"),
    ],
)
def test_code_that_another_user_owns_may_not(folder: Path, path: str, module: str) -> None:
    os.chown(folder.parent / path, OTHER, OTHER)
    why = why_untrusted_code(folder, module)
    assert why is not None
    assert f"belongs to uid {OTHER}" in why
    named = f"workload {folder}/{module}:work"
    with pytest.raises(WorkloadError, match=f"belongs to uid {OTHER}") as caught:
        load_workload(f"{folder}/{module}:work")
    assert caught.value.what == f"root does not import {named}: {why}"
    with pytest.raises(WorkloadError, match=f"import {named} of session a: {why}"):
        load_workload(f"{folder}/{module}:work", "session a")
    assert "run stressors as the user" in caught.value.remedy


@as_root
def test_compiled_code_of_another_user_may_not_be_imported(folder: Path) -> None:
    compiled = Path(str(py_compile.compile(str(folder / "own.py"), doraise=True)))
    assert why_untrusted_code(folder, "own") is None
    os.chown(compiled, OTHER, OTHER)
    assert why_untrusted_code(folder, "own") == f"{compiled} belongs to uid {OTHER}"
    os.chown(compiled, 0, 0)
    os.chown(compiled.parent, OTHER, OTHER)
    assert why_untrusted_code(folder, "own") == f"{compiled.parent} belongs to uid {OTHER}"


def test_torch_is_not_imported_from_a_folder_that_others_can_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    searched: list[bool] = []
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(main, "import_torch", lambda: searched.append(str(tmp_path) in sys.path))
    main.load_torch()
    assert searched == [False]


@pytest.mark.parametrize(
    ("path", "mode", "module"),
    [
        ("code", 0o777, "own"),
        ("code", 0o1777, "own"),
        ("code/own.py", 0o666, "own"),
        ("code/package", 0o1777, "package.own"),
        ("code/package/own.py", 0o666, "package.own"),
    ],
)
def test_code_that_all_users_may_write_may_not(
    folder: Path, path: str, mode: int, module: str
) -> None:
    (folder.parent / path).chmod(mode)
    why = why_untrusted_code(folder, module)
    assert why is not None
    assert "all users may" in why


def test_a_link_of_this_user_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert why_untrusted_code(tmp_path / "link", "own") is None


def test_folders_that_others_can_fill_are_not_searched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    before = [entry for entry in sys.path if entry]
    monkeypatch.setattr(sys, "path", [str(shared), str(folder), *before])
    reasons = leave_out_untrusted()
    assert reasons == [
        f"{shared} is not searched: all users may create files in the folder {shared}"
    ]
    assert sys.path[0] == str(folder)
    assert {*before} >= {*sys.path[1:]}


def test_root_alone_refuses_such_a_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    check = check_search_path.__wrapped__  # which is done once in a process
    monkeypatch.setattr(os, "getuid", lambda: OTHER)
    check()
    monkeypatch.setattr(os, "getuid", lambda: 0)
    with pytest.raises(ConfigError, match=f"searches {tmp_path} .*all users may") as caught:
        check()
    assert "PYTHONPATH" in caught.value.remedy


def test_the_folder_of_this_program_stays_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted_code, "why_untrusted_code", lambda _: "anything")
    monkeypatch.setattr(sys, "path", [str(trusted_code._OWN), sys.prefix, "/anywhere"])
    assert leave_out_untrusted() == ["/anywhere is not searched: anything"]
    assert sys.path == [str(trusted_code._OWN), sys.prefix]


def test_a_module_that_is_not_found_names_what_was_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "shared_workload.py").write_text("raise SystemExit\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(WorkloadError, match="shared_workload") as caught:
        load_workload("shared_workload:work")
    assert f"{tmp_path} is not searched" in caught.value.remedy
