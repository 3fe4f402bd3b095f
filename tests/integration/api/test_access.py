"""Levels of access: what other users, groups and holders of tokens may do and set."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sentinel.api.app import document, make_app
from sentinel.api.connections import LIMITS
from sentinel.api.event_streams import SUBSCRIBERS
from sentinel.config.sources import NAME as SAVED
from sentinel.host.lookups import look_up
from sentinel.protocol.commands import AccessPolicy, Configure, Level
from tests.harness.api_harness import UUIDS, ApiServer, ask, check_problem, over_tcp
from tests.harness.narrowing import not_none
from tests.harness.timing import TIMEOUT_S

#: A user and a group that own nothing here.
STRANGER, GROUP = 65534, 12345
ADMINISTER_ALL = AccessPolicy(
    users=Level.READ,
    gid=GROUP,
    group=Level.ADMINISTER,
    tcp=Level.ADMINISTER,
    workloads=("gemm", "hold"),
)

#: Becomes another user, sends requests, and prints the status and the body of each response.
AS_ANOTHER = """
import json, os, socket, sys
path, uid, groups, requests = json.loads(sys.argv[1])
os.setgroups(groups)
os.setgid(uid)
os.setuid(uid)
found = []
for method, target, body in requests:
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
    head += f"Content-Type: application/json\\r\\nContent-Length: {len(data)}\\r\\n\\r\\n"
    s.sendall(head.encode() + data)
    answer = b""
    while piece := s.recv(4096):
        answer += piece
    head, _, text = answer.partition(b"\\r\\n\\r\\n")
    found.append((int(head.split()[1]), text.decode()))
print(json.dumps(found))
"""

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide a folder that other users can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_another(
    api: ApiServer, groups: Sequence[int], *requests: tuple[str, str, Any], uid: int = STRANGER
) -> list[tuple[int, str]]:
    """Send requests as another user with these groups; return each status and body."""
    Path(api.path).chmod(0o666)
    given = json.dumps([api.path, uid, [*groups], requests])
    command = [sys.executable, "-c", AS_ANOTHER, given]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S)
    return [(status, body) for status, body in json.loads(done.stdout)]


def operations() -> Iterator[tuple[str, str, Level]]:
    """Yield every operation of the API with its level, as documented; streams never end."""
    for path, methods in json.loads(document(make_app()))["paths"].items():
        for method, operation in methods.items():
            if path not in {"/v1/events", "/v1/watch"}:
                target = path.format(id="none", selector="0", name="none")
                yield method.upper(), target, Level[operation["x-level"].upper()]


@needs_root
@pytest.mark.parametrize(
    "level",
    [
        Level.OPERATE,
        *(
            pytest.param(level, marks=pytest.mark.long)
            for level in (Level.NONE, Level.READ, Level.ADMINISTER)
        ),
    ],
)
def test_every_operation_needs_its_documented_level(folder: Path, level: Level) -> None:
    """Bodies are empty, so what is allowed is often refused as invalid, or done."""
    policy = AccessPolicy(users=Level.NONE, gid=GROUP, group=level)
    wanted = list(operations())
    assert {needed for *_, needed in wanted} == {Level.READ, Level.OPERATE, Level.ADMINISTER}
    # The daemon ends with a stop, so that comes last.
    wanted.sort(key=lambda one: one[1] == "/v1/stop")
    with ApiServer(folder, access=policy) as api:
        requests: list[tuple[str, str, Any]] = [(method, path, {}) for method, path, _ in wanted]
        replies = as_another(api, [GROUP], *requests)
    for (method, path, needed), (status, body) in zip(wanted, replies, strict=True):
        assert (status == 403) is (level < needed), (method, path, level, body)


@needs_root
def test_a_stranger_reads_by_default_and_is_told_which_settings_allow_more(folder: Path) -> None:
    with ApiServer(folder) as api:
        (read, _), (refused, body) = as_another(
            api, [], ("GET", "/v1/status", None), ("POST", "/v1/pause", {})
        )
        assert (read, refused) == (200, 403)
        detail = json.loads(body)["detail"]
        assert f"{look_up(65534) or 'user 65534'} may only look. Ask root, who runs" in detail
        assert "for `sentinel set --save access-users=operate` and `sentinel restart`" in detail
        assert api.commands == []


@needs_root
def test_a_member_of_the_group_operates_but_does_not_end_the_daemon(folder: Path) -> None:
    with ApiServer(folder, access=AccessPolicy(gid=GROUP)) as api:
        (paused, _), (ended, body) = as_another(
            api, [GROUP], ("POST", "/v1/pause", {}), ("POST", "/v1/stop", {})
        )
        assert (paused, ended) == (200, 403)
        assert "access-group=administer" in json.loads(body)["detail"]
        assert [type(command).__name__ for command in api.commands] == ["PauseGpus"]
        assert api.commands[0].by.level is Level.OPERATE


#: Opens this many connections as another user, and prints the response on the last one.
OPENS_MANY = """
import os, socket, sys
os.setgroups([])
os.setuid(65534)
many = [socket.socket(socket.AF_UNIX) for _ in range(int(sys.argv[2]))]
for one in many:
    one.connect(sys.argv[1])
many[-1].sendall(b"GET /v1/health HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
try:
    print(many[-1].recv(4096).decode(), flush=True)
except ConnectionResetError:
    print("- closed", flush=True)
sys.stdin.read()
"""


@needs_root
@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(LIMITS["reader"].share, 200, marks=pytest.mark.long), (40, 503)],
)
def test_one_user_cannot_use_up_the_connections(folder: Path, number: int, status: int) -> None:
    with ApiServer(folder) as api:
        Path(api.path).chmod(0o666)
        command = [sys.executable, "-c", OPENS_MANY, api.path, str(number)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert not_none(process.stdout).readline().split()[1] == str(status).encode()
            assert ask(api, "GET", "/v1/health").status == 200
            process.communicate()


@needs_root
@pytest.mark.parametrize(
    ("groups", "number"),
    [
        ((), LIMITS["reader"].share * 3),
        pytest.param((GROUP,), LIMITS["operator"].share * 3, marks=pytest.mark.long),
    ],
)
def test_the_connections_of_one_user_keep_no_other_out(
    folder: Path, groups: tuple[int, ...], number: int
) -> None:
    """Not even more than twice its share, nor those of a user who may operate."""
    with ApiServer(folder, access=AccessPolicy(gid=GROUP)) as api:
        Path(api.path).chmod(0o666)
        script = OPENS_MANY.replace("setgroups([])", f"setgroups({[*groups]})")
        command = [sys.executable, "-c", script, api.path, str(number)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().split()[:1] in ([b"-"], [])  # beyond twice the share
            requests = [("GET", "/v1/status", None)]
            ((status, _),) = as_another(api, groups, *requests, uid=1234)
            assert status == 200
            assert ask(api, "GET", "/v1/health").status == 200
            process.communicate()


#: Becomes another user, follows events or watches many times, and prints the statuses.
FOLLOWS = """
import json, os, socket, sys
path, uid, groups, number = json.loads(sys.argv[1])
os.setgroups(groups)
os.setuid(uid)
found, many = [], [socket.socket(socket.AF_UNIX) for _ in range(number)]
for index, one in enumerate(many):
    one.connect(path)
    target = ("events", "watch")[index % 2]
    one.sendall(f"GET /v1/{target} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
    found.append(int(one.recv(12).split()[1]))
print(json.dumps(found), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def followers(api: ApiServer, uid: int, groups: Sequence[int], number: int) -> Iterator[list[int]]:
    """Follow as another user during the block, which gets the statuses."""
    given = json.dumps([api.path, uid, [*groups], number])
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOWS, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield json.loads(not_none(process.stdout).readline())
        process.communicate()


@needs_root
def test_users_and_tokens_have_a_share_of_the_followers_and_higher_levels_have_places(
    folder: Path,
) -> None:
    share = [200] * SUBSCRIBERS.share
    with (
        ApiServer(folder, access=replace(ADMINISTER_ALL, tcp=Level.READ), tcp=True) as api,
        contextlib.ExitStack() as stack,
    ):
        Path(api.path).chmod(0o666)
        for uid, number in ((STRANGER, 30), (1234, 30), (1235, SUBSCRIBERS.share)):
            found = stack.enter_context(followers(api, uid, [], number))
            assert found == share + [503] * (number - len(share))
        assert stack.enter_context(followers(api, 1236, [], 5)) == [200] * 4 + [503]
        assert stack.enter_context(followers(api, 1237, [], 2)) == [200, 503]
        taken = "48 of 64 places for further subscribers are taken, and 16 are kept for adm"
        for name in ("token", "token-read"):
            token = {"Authorization": f"Bearer {(folder / name).read_text().strip()}"}
            first = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
            stack.callback(first.close)
            first.request("GET", "/v1/watch", headers=token)
            assert first.getresponse().status == 200
            refused = over_tcp(api, "GET", "/v1/watch", name=name)
            check_problem(refused, 503, "unavailable", taken)
        found = stack.enter_context(followers(api, 1238, [GROUP], 10))
        assert found == [200] * 9 + [503]
        assert stack.enter_context(followers(api, 0, [], 10)) == [200] * 9 + [503]


def test_all_clients_with_a_token_share_its_followers(folder: Path) -> None:
    with ApiServer(folder, tcp=True) as api, contextlib.ExitStack() as stack:
        token = {"Authorization": f"Bearer {(folder / 'token').read_text().strip()}"}
        for _ in range(SUBSCRIBERS.share):
            connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
            stack.callback(connection.close)
            connection.request("GET", "/v1/watch", headers=token)
            assert connection.getresponse().status == 200
        check_problem(
            over_tcp(api, "GET", "/v1/watch"), 503, "unavailable", "token has 16 subscribers"
        )
        check_problem(over_tcp(api, "GET", "/v1/events"), 503, "unavailable")


def test_the_connections_with_one_token_keep_no_other_out(folder: Path) -> None:
    """All are kept alive, and ask again; one beyond the share is closed with its answer."""
    share = LIMITS["tcp"].share
    with ApiServer(folder, tcp=True) as api, contextlib.ExitStack() as stack:
        token = {"Authorization": f"Bearer {(folder / 'token-read').read_text().strip()}"}
        kept = []
        for _ in range(share):
            one = http.client.HTTPConnection("127.0.0.1", api.port, timeout=TIMEOUT_S)
            stack.callback(one.close)
            kept.append(one)

        def all_ask() -> list[int]:
            found = []
            for one in kept:
                one.request("GET", "/v1/health", headers=token)
                response = one.getresponse()
                response.read()
                found.append(response.status)
            return found

        assert all_ask() == [200] * share
        texts = (f"token-read has {share + 1} connections, and its share is {share} of", "close")
        for _ in range(3):
            refused = over_tcp(api, name="token-read")
            check_problem(refused, 503, "unavailable", *texts)
            assert refused.headers["connection"] == "close"
            assert over_tcp(api).status == 200
        assert all_ask() == [200] * share


def test_the_levels_of_the_tokens(folder: Path) -> None:
    with ApiServer(folder, tcp=True) as api:
        for name, pause in (("token", 200), ("token-read", 403)):
            assert over_tcp(api, "GET", "/v1/status", name=name).status == 200
            assert over_tcp(api, "POST", "/v1/pause", {}, name=name).status == pause
            refused = over_tcp(api, "POST", "/v1/stop", {}, name=name)
            assert refused.status == 403
            assert (
                "--access-tcp sets the level of the token in the file `token`, and of no"
                in (refused.body["detail"])
            )


#: Settings that name code or a file, and whether someone below ``Level.OWN`` may set them.
SETTINGS = [
    ({"workload": "memtest"}, False),  # registered, but not listed
    ({"workload": "gemm:seeds=10"}, True),
    ({"goldens": "off"}, False),
]


@pytest.fixture(scope="module")
def administered() -> Iterator[ApiServer]:
    """Provide a server where clients over TCP administer."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ApiServer(Path(folder), tcp=True, access=ADMINISTER_ALL) as api,
    ):
        yield api


@pytest.mark.parametrize(("change", "may"), SETTINGS)
def test_an_administrator_over_tcp_sets_neither_code_nor_a_file(
    administered: ApiServer, change: dict[str, Any], *, may: bool
) -> None:
    administered.commands.clear()
    reply = over_tcp(administered, "PATCH", "/v1/settings", {"settings": change})
    assert reply.status == (200 if may else 403), reply
    assert any(isinstance(command, Configure) for command in administered.commands) is may
    if not may:
        assert "only the daemon's own user and root" in reply.body["detail"]


@needs_root
def test_an_administrator_of_the_group_sets_no_code(folder: Path) -> None:
    change = {"settings": {"workload": "tmp.evil:run"}}
    with ApiServer(folder, access=ADMINISTER_ALL) as api:
        ((status, body),) = as_another(api, [GROUP], ("PATCH", "/v1/settings", change))
        assert status == 403
        assert "gemm, hold (--access-workloads)" in json.loads(body)["detail"]
        assert api.commands == []
        assert ask(api, "PATCH", "/v1/settings", change).status == 200  # as root


@needs_root
def test_an_administrator_of_the_group_keeps_no_right_for_the_next_daemon(folder: Path) -> None:
    """What is saved overrides the file in which the administrator takes that right away."""
    with ApiServer(folder, tcp=True, access=ADMINISTER_ALL) as api:
        for text in ("operate", None):  # that of this daemon, and what would remove a saved one
            settings: dict[str, str | None] = {"rearm": "3s", "access.group": text}
            body: dict[str, Any] = {"settings": settings, "save": True}
            ((status, reply),) = as_another(api, [GROUP], ("PATCH", "/v1/settings", body))
            assert status == over_tcp(api, "PATCH", "/v1/settings", body).status == 403
            assert "access.group is fixed at the start" in json.loads(reply)["detail"]
        assert api.commands == []
        assert not (Path(api.spec.state) / SAVED).exists()
        body["settings"] = {"rearm": "3s"}
        assert over_tcp(api, "PATCH", "/v1/settings", body).status == 200
        body["settings"] = {"access.group": "operate"}
        assert ask(api, "PATCH", "/v1/settings", body).status == 200  # as root


def test_every_command_has_the_level_of_its_caller(folder: Path) -> None:
    with ApiServer(folder, tcp=True) as api:
        body = {"gpus": [UUIDS[0]], "seconds": 5}
        assert ask(api, "POST", "/v1/pause", body).status == 200
        assert over_tcp(api, "POST", "/v1/pause", body).status == 200
        assert [command.by.level for command in api.commands] == [Level.OWN, Level.OPERATE]
