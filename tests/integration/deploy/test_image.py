"""The image of the Dockerfile, built by buildah upon Debian and run by crun."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.harness.gpu_environment import ROOT, TESTS
from tests.harness.programs import output_of, run_program, started_program
from tests.harness.timing import TEST_TIMEOUT_S
from tests.harness.wheels import INSTALL_TIMEOUT_S, TORCH, add_torch

_TOOLS = ("buildah", "crun", "debootstrap", "unshare")
_LACKING = [name for name in _TOOLS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3 * INSTALL_TIMEOUT_S + TEST_TIMEOUT_S),
    pytest.mark.skipif(bool(_LACKING), reason=f"needs {' '.join(_LACKING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="needs root, for debootstrap and the mounts"),
]

CONSTRAINTS = ROOT / "constraints.txt"
#: A Debian with pip and a stand-in for PyTorch, as a site's base image; it is kept for later runs.
BASE = f"localhost/sentinel-test-base:{TORCH.replace('+', '-')}"
#: The image without PyTorch added 24 MB to that base on 27 November 2026.
MOST_ADDED_BYTES = 30 * 10**6
#: What a careless build has in its context; none of it is in the image.
CANARY = "canary-5f1d0c2e"
SECRETS = (
    *(".env", ".git/config", ".netrc", "sentinel/.env", "docs/id_rsa", "deploy/slurm/.netrc"),
    "deploy/kubernetes/examples/site/secret.yaml",
)
#: Where tokens and keys are kept, and how a private key begins.
SECRET_NAMES = re.compile(r"\.(env|netrc|pypirc|git|git-credentials|ssh|aws|docker|kube)|id_\w+")
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
#: crun refuses the two versions of control groups at once; these containers need neither.
_ONE_VERSION = """\
if mountpoint -q /sys/fs/cgroup/unified; then
    umount -R -l /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
fi
exec crun --cgroup-manager=disabled run --bundle "$1" "$2"
"""


def _files(root: Path) -> dict[str, int]:
    """List the files below a folder with their sizes; links count as empty."""
    return {
        str(path.relative_to(root)): 0 if path.is_symlink() else path.stat().st_size
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def _buildah(*words: str | Path, **options: Any) -> str:
    """Run buildah; return its output. The test is skipped if there is no package index."""
    done = run_program("buildah", *words, timeout=INSTALL_TIMEOUT_S, **options)
    output = done.stdout + done.stderr
    if re.search("Temporary failure|Failed to establish", output):
        pytest.skip(f"there is no package index: {output[-300:]}")
    assert done.returncode == 0, output[-4000:]
    return done.stdout.strip()


def _make_base(folder: Path) -> None:
    """Make the base image from Debian's packages."""
    words = ("--variant=minbase", "--include=python3-pip,ca-certificates", "bookworm", folder)
    done = run_program("debootstrap", *words, timeout=INSTALL_TIMEOUT_S)
    if "download" in done.stderr.lower():
        pytest.skip(f"there is no mirror of Debian: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout[-3000:]
    add_torch(folder / "usr/lib/python3/dist-packages", "pip")
    container = _buildah("from", "scratch")
    _buildah("add", container, folder, "/")
    _buildah("commit", "--rm", container, BASE)


class Image:
    """A built image and a container of it.

    Args:
        container: The name of the container.
        folder: For the bundles that crun runs.
    """

    def __init__(self, container: str, folder: Path) -> None:
        self.root = Path(_buildah("mount", container))
        self._folder = folder
        self.inspected: dict[str, Any] = json.loads(_buildah("inspect", container))
        self.config: Mapping[str, Any] = self.inspected["Docker"]["config"]

    def started(
        self, *words: str, entry: tuple[str, ...] = (), **given: Any
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """Start a command with the rights that the pod of the daemon has."""
        file = self._folder / "config.json"
        file.unlink(missing_ok=True)
        run_program("crun", "spec", cwd=self._folder, check=True)
        spec = json.loads(file.read_text())
        user, group = map(int, self.config["User"].split(":"))
        spec["root"] = {"path": str(self.root), "readonly": True}
        spec["process"] |= {
            "terminal": False,
            "user": {"uid": user, "gid": group},
            "args": [*(entry or self.config["Entrypoint"]), *words],
            "env": [*self.config["Env"], "PYTHONPATH=/media", "SENTINEL_WORKLOAD=hold"],
            "capabilities": {},
        }
        # Simulated GPUs, whose memory is in the folder for temporary files, need no real torch
        # to hold it.
        torch = {"destination": "/media/torch.py", "source": str(TESTS / "fake_torch.py")}
        spec["mounts"] = [
            *(one for one in spec["mounts"] if one["type"] != "cgroup"),
            {**torch, "type": "bind", "options": ["bind", "ro"]},
        ]
        for target in ("/tmp", "/run/sentinel", "/var/lib/sentinel", "/run/lock/sentinel"):  # noqa: S108
            mode = "mode=1777" if target in {"/tmp", "/run/lock/sentinel"} else "mode=700"  # noqa: S108
            options = [mode, f"uid={user}", f"gid={group}"]
            made = {"destination": target, "type": "tmpfs", "source": "tmpfs", "options": options}
            spec["mounts"].append(made)
        del spec["linux"]["resources"]
        file.write_text(json.dumps(spec))
        # As a runtime does, at niceness 0.
        private = ("nice", f"-n{-os.nice(0)}", "unshare", "--mount", "--propagation", "private")
        script = ("sh", "-euc", _ONE_VERSION, "crun", self._folder, f"sentinel-{uuid4().hex}")
        return started_program(*private, *script, stderr=subprocess.PIPE, **given)

    def run(self, *words: str, entry: tuple[str, ...] = (), stdin: Any = subprocess.DEVNULL) -> str:
        """Run a command, by default of sentinel, which must succeed; return its output."""
        with self.started(*words, entry=entry, stdin=stdin) as process:
            return output_of(process, 0)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    folder = tmp_path_factory.mktemp("image")
    if run_program("buildah", "inspect", "--type", "image", BASE).returncode:
        _make_base(folder / "base")
    context = folder / "context"
    ignored = shutil.ignore_patterns("__pycache__", "pictures")
    for name in ("sentinel", "docs", "deploy"):
        shutil.copytree(ROOT / name, context / name, ignore=ignored)
    for name in ("LICENSE", "README.md", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, context)
    for name in SECRETS:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).write_text(CANARY)
    name = f"localhost/sentinel-test:{os.getpid()}"
    # What this machine needs for its package index is mounted, and so in no layer.
    needed = [path for path in ("/etc/pip.conf", "/etc/ssl/certs") if Path(path).exists()]
    docker = context / "deploy" / "docker"
    try:
        _buildah(
            *("build", "--isolation", "chroot", "--format", "docker", "--layers=false"),
            *("--file", docker / "Dockerfile"),
            *("--ignorefile", docker / "Dockerfile.dockerignore"),
            *("--build-arg", f"BASE={BASE}", "--build-arg", "TORCH=", "--tag", name),
            *(f"--volume={path}:{path}:ro" for path in needed),
            context,
            env={**os.environ, "TWINE_PASSWORD": CANARY},
        )
        yield Image(_buildah("from", "--pull-never", name), folder)
    finally:
        made = json.loads(_buildah("containers", "--json") or "null") or []
        for one in made:
            if one["imagename"] == name:
                _buildah("rm", one["id"])
        run_program("buildah", "rmi", name)


@pytest.fixture(scope="module")
def added(image: Image, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """List the files that the image has and its base has not, with their sizes."""
    base = _buildah("from", "--pull-never", BASE)
    before = _files(Path(_buildah("mount", base)))
    _buildah("rm", base)
    return {name: size for name, size in _files(image.root).items() if before.get(name) != size}


def test_the_user_is_not_root(image: Image) -> None:
    assert image.run("-u", entry=("id",)) == "10001\n"


def test_the_program_by_which_the_acceptance_leaves_root_is_there(image: Image) -> None:
    assert "util-linux" in image.run("--version", entry=("setpriv",))


def test_no_secret_of_the_build_is_in_the_image(image: Image, added: dict[str, int]) -> None:
    assert CANARY not in json.dumps(image.inspected)
    assert not re.search("TOKEN|SECRET|PASSW|CREDENTIAL", str(image.config["Env"]))
    for name in added:
        assert not any(SECRET_NAMES.fullmatch(part) for part in Path(name).parts), name
        path = image.root / name
        data = b"" if path.is_symlink() else path.read_bytes()
        assert CANARY.encode() not in data, name
        assert not PRIVATE_KEY.search(data), name


def test_the_image_without_torch_is_small(added: dict[str, int]) -> None:
    size = sum(added.values())
    sys.stdout.write(f"the image adds {size / 1e6:.1f} MB to its base\n")
    assert size < MOST_ADDED_BYTES


def test_doctor_and_demo_work_on_a_read_only_root(image: Image) -> None:
    for folder in ("/", "/usr/local/bin", "/etc", "/nonexistent"):
        with image.started("-c", f"touch {folder}/new", entry=("sh",)) as process:
            output_of(process, 1)
    sys.stdout.write(image.run("doctor", "--simulate", "2"))
    sys.stdout.write(image.run("demo"))


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def test_the_bill_of_materials_lists_what_is_installed(image: Image) -> None:
    with (ROOT / "deploy" / "docker" / "sbom.py").open() as script:
        bill = json.loads(image.run("-", entry=("python3",), stdin=script))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {one["purl"] for one in bill["components"]}
    assert len(listed) == len(bill["components"])
    pip = ("python3", "-m", "pip", "list", "--format=json")
    installed = {_normal(one["name"]): one["version"] for one in json.loads(image.run(entry=pip))}
    for name, version in installed.items():
        assert f"pkg:pypi/{name}@{version.replace('+', '%2B')}" in listed
    lines = re.findall(r"^([\w-]+)==(\S+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    pinned = {_normal(name): version for name, version in lines}
    others = {name for name in installed.keys() & pinned if installed[name] != pinned[name]}
    assert others <= {"setuptools", "torch"}, "those of the base"
    assert {"click", "fastapi", "pydantic-core", "structlog"} <= installed.keys() & pinned
    assert any(one.startswith("pkg:deb/debian/tini@") for one in listed)
