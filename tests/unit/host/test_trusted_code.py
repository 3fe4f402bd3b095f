"""Whose code a process may import."""

from __future__ import annotations

import os
import py_compile
import stat
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentinel.errors import ConfigError, WorkloadError
from sentinel.host import trusted_code
from sentinel.host.trusted_code import check_search_path, leave_out_untrusted
from sentinel.stressor import main
from sentinel.stressor.loader import load_workload
from tests.harness.access_lists import allow

OTHER = 4321
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


@pytest.fixture(autouse=True)
def own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what a test imports, and from where."""
    monkeypatch.setattr(trusted_code, "_left_out", [])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Provide a folder with a module and a package, all of this user's."""
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    for path in (code / "own.py", code / "package" / "__init__.py", code / "package" / "own.py"):
        path.write_text("def work(ctx):\n    pass\n")
    (code / "caller.py").write_text("from package.own import work\n")
    return code


def why_refused(folder: Path, module: str) -> str:
    """Import a workload, which must be refused; return why."""
    workload = f"{folder}/{module}:work"
    with pytest.raises(WorkloadError) as caught:
        load_workload(workload, "session a")
    user, _, why = caught.value.what.partition(
        f" does not import workload {workload} of session a: "
    )
    assert user == ("root" if os.getuid() == 0 else f"uid {os.getuid()}")
    assert "run stressors as the user" in caught.value.remedy
    assert module not in sys.modules
    return why


@pytest.mark.parametrize("module", ["own", "package.own", "caller"])
def test_code_of_this_user_may_be_imported(folder: Path, module: str) -> None:
    assert load_workload(f"{folder}/{module}:work").__name__ == "work"


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
        ("code/package/own.py", "caller"),
    ],
)
def test_code_that_another_user_owns_may_not(folder: Path, path: str, module: str) -> None:
    os.chown(folder.parent / path, OTHER, OTHER)
    assert why_refused(folder, module).endswith(f" belongs to uid {OTHER}")


@as_root
def test_compiled_code_of_another_user_may_not_be_imported(folder: Path) -> None:
    compiled = Path(str(py_compile.compile(str(folder / "own.py"), doraise=True)))
    os.chown(compiled, OTHER, OTHER)
    assert why_refused(folder, "own") == f"{compiled} belongs to uid {OTHER}"
    os.chown(compiled.parent, OTHER, OTHER)
    compiled.unlink()  # the other user may create it at any moment
    assert why_refused(folder, "own") == f"the folder {compiled.parent} belongs to uid {OTHER}"


def test_an_archive_of_this_user_may_be_imported_from(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.write(folder / "own.py", "own.py")
    assert load_workload(f"{tmp_path}/code.zip/own:work").__name__ == "work"
    (tmp_path / "code.zip").chmod(0o666)
    del sys.modules["own"]
    assert "all users may" in why_refused(tmp_path / "code.zip", "own")


@as_root
@pytest.mark.parametrize("inner", ["", "inner"])
def test_an_archive_of_another_user_is_imported_from_by_no_path(
    folder: Path, tmp_path: Path, inner: str
) -> None:
    """Trusted code extends the path of its package by an archive."""
    theirs = tmp_path / "theirs.zip"
    with zipfile.ZipFile(theirs, "w") as archive:
        archive.write(folder / "own.py", str(Path(inner, "stray.py")))
    (folder / "package" / "__init__.py").write_text(f"__path__.append('{theirs / inner}')\n")
    (folder / "caller.py").write_text("from package.stray import work\n")
    assert load_workload(f"{folder}/caller:work").__name__ == "work"
    for name in ("caller", "package", "package.stray"):
        del sys.modules[name]
    os.chown(theirs, OTHER, OTHER)
    assert why_refused(folder, "caller").endswith(f"{theirs} belongs to uid {OTHER}")
    assert "package.stray" not in sys.modules


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
        ("code/package/own.py", 0o666, "caller"),
    ],
)
def test_code_that_all_users_may_write_may_not(
    folder: Path, path: str, mode: int, module: str
) -> None:
    (folder.parent / path).chmod(mode)
    assert why_refused(folder, module).startswith("all users may ")


@pytest.mark.parametrize("path", ["code", "code/own.py"])
def test_code_that_an_access_list_lets_another_user_write_may_not(folder: Path, path: str) -> None:
    listed = folder.parent / path
    allow(listed, OTHER, permissions=6)
    assert why_refused(folder, "own") == (
        f"the access control list of {listed} lets uid {OTHER} write it"
    )


@pytest.mark.parametrize(
    ("uid", "permissions", "mask"), [(OTHER, 5, 7), (OTHER, 6, 5), (0, 6, 7), (os.getuid(), 6, 7)]
)
def test_code_that_no_other_user_may_write_by_its_access_list_may(
    folder: Path, uid: int, permissions: int, mask: int
) -> None:
    allow(folder / "own.py", uid, permissions=permissions, mask=mask)
    assert load_workload(f"{folder}/own:work").__name__ == "work"


def test_a_link_of_this_user_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert load_workload(f"{tmp_path}/link/own:work").__name__ == "work"


@as_root
@pytest.mark.parametrize("linked", ["package", "caller.py"])
def test_a_link_in_the_interpreter_s_folder_leads_to_no_code_of_another_user(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: str
) -> None:
    own = tmp_path / "prefix"
    own.mkdir()
    (own / linked).symlink_to(folder / linked)
    os.chown(folder, OTHER, OTHER)
    monkeypatch.setattr(trusted_code, "_TRUSTED", (f"{own}/",))
    why = why_refused(own, linked.removesuffix(".py"))
    assert why.endswith(f"{folder} belongs to uid {OTHER}")


@as_root
def test_code_of_who_owns_the_interpreter_may_be_imported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spack and conda link a package from where it was installed."""
    own = tmp_path / "prefix"
    own.mkdir()
    (own / "own.py").symlink_to(folder / "own.py")
    for path in (own, folder, folder / "own.py"):
        os.chown(path, OTHER, OTHER)
    monkeypatch.setattr(trusted_code, "_TRUSTED", (f"{own}/",))
    assert load_workload(f"{own}/own:work").__name__ == "work"


@as_root
def test_a_path_from_the_interpreter_s_folder_upwards_leads_out_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(folder, OTHER, OTHER)
    (tmp_path / "prefix").mkdir()
    monkeypatch.setattr(trusted_code, "_TRUSTED", (f"{tmp_path}/prefix/",))
    monkeypatch.setattr(sys, "path", [f"{tmp_path}/prefix/../code", *sys.path])
    assert any(f"belongs to uid {OTHER}" in why for why in leave_out_untrusted())


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


@pytest.fixture(params=["missing", "missing/inner", "link", "lib/../missing"])
def missing(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Provide a path that does not exist in a folder of this user's."""
    shared = tmp_path / "shared"
    (shared / "lib").mkdir(parents=True)
    (tmp_path / "link").symlink_to("shared/missing")
    return (tmp_path if request.param == "link" else shared) / str(request.param)


@pytest.mark.parametrize("permissions", ["mode", "list", "list of a sticky folder"])
def test_a_folder_that_others_can_create_is_not_searched(
    missing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, permissions: str
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setattr(sys, "path", [str(missing), *sys.path])
    assert leave_out_untrusted() == []
    if permissions == "mode":
        shared.chmod(0o1777)
    else:
        allow(shared, OTHER, permissions=7)
    if permissions == "list of a sticky folder":
        shared.chmod(shared.stat().st_mode | stat.S_ISVTX)
    (why,) = leave_out_untrusted()
    assert why.startswith(f"{missing.absolute()} is not searched: ")
    assert str(missing) not in sys.path
    with pytest.raises(ConfigError, match=str(shared)):
        as_root_searches([str(missing)], monkeypatch)


def test_a_sticky_folder_that_an_access_list_lets_another_user_fill_is_not_searched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(folder, OTHER, permissions=7)
    folder.chmod(folder.stat().st_mode | stat.S_ISVTX)
    why = f"the access control list of {folder} lets uid {OTHER} write it"
    assert why_refused(folder, "own") == why
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    assert leave_out_untrusted() == [f"{folder} is not searched: {why}"]


def test_no_compiled_modules_are_taken_from_a_folder_that_others_can_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "compiled"))
    assert leave_out_untrusted() == []
    tmp_path.chmod(0o1777)
    with pytest.raises(ConfigError, match="PYTHONPYCACHEPREFIX"):
        as_root_searches([], monkeypatch)
    (why,) = leave_out_untrusted()
    assert why.startswith(f"{tmp_path}/compiled is not searched: ")
    assert sys.pycache_prefix is None


def as_root_searches(first: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check what root's children would search."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*first, *sys.path])
        patch.setattr(os, "getuid", lambda: 0)
        check_search_path.__wrapped__()  # which is done once in a process


@as_root
@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("sitecustomize.py", 0o644),
        ("sitecustomize.py", 0o666),
        ("random.py", 0o644),
        ("encodings/__init__.py", 0o644),
        ("__pycache__", 0o777),
    ],
)
def test_root_s_interpreters_take_no_module_of_another_user_before_it_can_be_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, path: str, mode: int
) -> None:
    (folder / "test").mkdir()  # a folder without a module is no package of the library
    os.chown(folder / "test", OTHER, OTHER)
    (folder / "usercustomize.py").touch()
    as_root_searches([str(folder)], monkeypatch)
    file = folder / path
    file.parent.mkdir(exist_ok=True)
    if path == "__pycache__":
        file.mkdir()
    else:
        file.touch()
    file.chmod(mode)
    if mode == 0o644:
        os.chown(file, OTHER, OTHER)
    with pytest.raises(ConfigError, match=rf"root starts no process that searches {folder} "):
        as_root_searches([str(folder)], monkeypatch)


def test_what_nobody_can_create_is_no_danger(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as archive:
        archive.write(folder / "own.py", "inner/own.py")
    monkeypatch.setattr(sys, "pycache_prefix", os.devnull)
    entries = [str(tmp_path / "code.zip" / "inner"), str(folder / "own.py" / "x")]
    as_root_searches(entries, monkeypatch)
    monkeypatch.setattr(sys, "path", [*entries, *sys.path])
    assert leave_out_untrusted() == []


def test_root_alone_refuses_such_a_search_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    check = check_search_path.__wrapped__
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
