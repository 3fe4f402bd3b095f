"""Notifications reach a webhook and a program, or are counted and reported as lost."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sentinel.api import recipients
from sentinel.api.event_streams import LoggedEvent
from sentinel.api.notifier import MAX_WAITING, Recipient, Send
from sentinel.api.recipients import CommandHook, DeliveryError, Webhook
from sentinel.protocol.commands import NotifySpec
from tests.harness.api_harness import UUIDS, ApiServer, ask
from tests.harness.metrics_harness import get_metrics
from tests.harness.sentinel_process import eventually
from tests.harness.timing import TIMEOUT_S
from tests.harness.webhook_server import WebhookServer

BODY = b'{"event": {"event": "gpu.idle"}, "host": "node7", "count": 1}'


def send(hook: Webhook | CommandHook) -> None:
    asyncio.run(hook.send("gpu.idle", "d1", BODY))


def why(hook: Webhook | CommandHook) -> tuple[str, bool]:
    """Send to a hook that does not accept; return why, and whether that is final."""
    with pytest.raises(DeliveryError) as caught:
        send(hook)
    return str(caught.value), caught.value.final


# --- the webhook -----------------------------------------------------------------------------


def test_a_webhook_gets_the_event_signed_and_with_its_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    (tmp_path / "key").write_text("a key\n")
    with WebhookServer() as server:
        (tmp_path / "url").write_text(f"{server.url}\n")
        paths = (str(tmp_path / name) for name in ("url", "token", "key"))
        send(Webhook(*paths))
        (one,) = server.received
    assert (one.method, one.path, one.body) == ("POST", "/hook?team=gpu", BODY)
    assert one.headers["content-type"] == "application/json"
    assert one.headers["authorization"] == "Bearer t0ken"
    assert (one.headers["x-sentinel-event"], one.headers["x-sentinel-delivery"]) == (
        *("gpu.idle", "d1"),
    )
    digest = hmac.new(b"a key", BODY, hashlib.sha256).hexdigest()
    assert one.headers["x-sentinel-signature-256"] == f"sha256={digest}"


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (500, ("it answers with status 500", False)),
        (429, ("it answers with status 429", False)),
        (404, ("it answers with status 404", True)),
        (302, ("it answers with status 302: redirects are not followed", True)),
        ("reset", ("the connection failed: ", False)),
        ("silent", ("the connection failed: ", False)),
        ("garbage", ("it does not answer with HTTP", False)),
    ],
)
def test_a_response_without_success_is_an_error(
    behaviour: int | str, expected: tuple[str, bool]
) -> None:
    with WebhookServer() as server:
        server.behaviours = [behaviour]
        text, final = why(Webhook(server.url, None, None))
        assert text.startswith(expected[0])
        assert final is expected[1]
        assert server.connections == 1
        server.behaviours = ["announce"]
        send(Webhook(server.url, None, None))


@pytest.mark.parametrize("behaviour", ["hang", "trickle"])
def test_an_attempt_ends_in_time(monkeypatch: pytest.MonkeyPatch, behaviour: str) -> None:
    monkeypatch.setattr(recipients, "WEBHOOK_TIMEOUT_S", 0.3)
    with WebhookServer() as server:
        server.behaviours = [behaviour]
        began = time.monotonic()
        assert why(Webhook(server.url, None, None)) == ("no response within 0.3 s", False)
        assert time.monotonic() - began < TIMEOUT_S


def test_a_server_that_does_not_listen_is_an_error() -> None:
    with socket.socket() as taken:  # no other program listens at this port meanwhile
        taken.bind(("127.0.0.1", 0))
        url = f"http://localhost:{taken.getsockname()[1]}/"
        assert why(Webhook(url, None, None))[0].startswith("the connection failed: ")


def test_a_file_that_cannot_be_read_is_an_error_without_its_content(tmp_path: Path) -> None:
    assert "No such file" in why(Webhook(str(tmp_path / "none"), None, None))[0]
    secret = tmp_path / "url"
    secret.write_text("ftp://secret")
    assert why(Webhook(str(secret), None, None))[0] == f"there is no URL in {secret}"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_certificate_of_a_webhook_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with WebhookServer(context) as server:
        text, final = why(Webhook(server.url, None, None))
        assert text.startswith("its certificate is not valid: self")
        assert not final
        assert server.received == []
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        send(Webhook(server.url, None, None))
        assert why(Webhook(server.url.replace("localhost", "127.0.0.1"), None, None))[0].startswith(
            "its certificate is not valid: IP address mismatch"
        )
        assert len(server.received) == 1


# --- the program -----------------------------------------------------------------------------


def script(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "hook.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


@pytest.fixture
def safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept programs in folders that other users could change, as those of tests."""
    monkeypatch.setattr(recipients, "why_unsafe", lambda _: None)


@pytest.mark.usefixtures("safe")
def test_a_program_gets_the_event_on_its_input_and_in_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    out = tmp_path / "out"
    path = script(tmp_path, f'cat > {out}; env >> {out}; echo "$1" >> {out}')
    event = {"event": "gpu.busy", "gpu": UUIDS[0], "index": 0, "reason": "$(reboot)\n`id`"}
    body = {"event": event, "host": "node7", "count": 3}
    hook = CommandHook((path, "; touch /tmp/injected"))
    asyncio.run(hook.send("gpu.busy", "d1", json.dumps(body).encode()))
    text = out.read_text()
    assert text.startswith(json.dumps(body))
    for line in ("NAME=gpu.busy", f"GPU={UUIDS[0]}", "INDEX=0", "COUNT=3", "HOST=node7"):
        assert f"SENTINEL_EVENT_{line}\n" in text
    assert "SENTINEL_EVENT_REASON=$(reboot)\n`id`\n" in text
    assert "NOTIFY_SOCKET" not in text
    assert text.endswith("; touch /tmp/injected\n")


@pytest.mark.long
@pytest.mark.usefixtures("safe")
def test_a_program_that_fails_or_does_not_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why(CommandHook((script(tmp_path, "exit 3"),)))[0].endswith("exited with code 3")
    assert "cannot be run: No such file" in why(CommandHook(("/none",)))[0]
    path, pid = script(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600 & wait"), tmp_path / "pid"
    for seconds in (0.3, 3, 30):  # until the program has come so far
        monkeypatch.setattr(recipients, "COMMAND_TIMEOUT_S", seconds)
        assert why(CommandHook((path,)))[0].endswith(f"did not end within {seconds} s")
        if pid.exists() and pid.read_text():
            break
    group = int(pid.read_text())

    def is_gone() -> bool:
        with suppress(ProcessLookupError):
            os.killpg(group, 0)
            return False
        return True

    eventually(is_gone)


@pytest.mark.skipif(os.getuid() != 0, reason="only root is so careful")
def test_root_runs_no_program_that_another_user_can_change(tmp_path: Path) -> None:
    path = script(tmp_path, f"touch {tmp_path}/ran", 0o777)
    assert why(CommandHook((path,))) == (
        f"{path} is not run: users other than root can change {Path(path).resolve()}",
        True,
    )
    Path(path).chmod(0o755)
    os.chown(path, 65534, 65534)
    assert "users other than root can change" in why(CommandHook((path,)))[0]
    assert not (tmp_path / "ran").exists()
    assert recipients.why_unsafe("/bin/sh") is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root is so careful")
def test_root_follows_no_link_that_another_user_can_turn(tmp_path: Path) -> None:
    own, theirs, loop = (tmp_path / name for name in ("own", "theirs", "loop"))
    for link in (own, theirs):
        link.symlink_to("/bin/true")
    loop.symlink_to(loop)
    assert recipients.why_unsafe(str(own)) is None
    os.chown(theirs, 65534, 65534, follow_symlinks=False)
    (tmp_path / "to-theirs").symlink_to("../" + tmp_path.name + "/theirs")
    for path in (theirs, tmp_path / "to-theirs"):
        assert recipients.why_unsafe(str(path)) == f"users other than root can change {theirs}"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to("/bin/true")
    folder.chmod(0o777)
    assert "can change" in str(recipients.why_unsafe(str(folder / "link")))
    assert recipients.why_unsafe(str(loop)) == os.strerror(errno.ELOOP)


# --- a recipient -----------------------------------------------------------------------------


class Attempts:
    """Records attempts, and fails those for which an error is left."""

    def __init__(self, *errors: DeliveryError | None) -> None:
        self.errors = list(errors)
        self.bodies: list[Any] = []
        self.blocked = asyncio.Event()
        self.blocked.set()

    async def __call__(self, name: str, id_: str, body: bytes) -> None:
        parsed = json.loads(body)
        assert (name, id_) == (parsed["event"]["event"], parsed["id"])
        self.bodies.append(parsed)
        await self.blocked.wait()
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error


def logged(number: int, name: str = "gpu.idle", **fields: Any) -> LoggedEvent:
    event = {"event": name, "time": f"t{number}", "number": number, **fields}
    return LoggedEvent(number=number, fields=event, text=json.dumps(event))


def deliver(
    attempts: Send, steps: Callable[[Recipient], Any], every: float = 0.01
) -> tuple[Recipient, list[str]]:
    """Run a recipient with short pauses while ``steps`` adds events; drain it."""
    warnings: list[str] = []

    async def run() -> Recipient:
        recipient = Recipient("webhook", attempts, every, warnings.append, (0.01, 0.02))
        task = asyncio.create_task(recipient.run())
        await steps(recipient)
        async with asyncio.timeout(TIMEOUT_S):
            await recipient.drain()
        task.cancel()
        return recipient

    return asyncio.run(run()), warnings


def test_a_failed_attempt_is_repeated_with_the_same_id() -> None:
    attempts = Attempts(DeliveryError("down"), DeliveryError("down"))

    async def steps(recipient: Recipient) -> None:
        recipient.add(logged(1))

    recipient, warnings = deliver(attempts, steps)
    assert len({body["id"] for body in attempts.bodies}) == 1
    assert len(attempts.bodies) == 3
    assert recipient.results == {"sent": 1}
    assert warnings == []


def test_a_loss_is_counted_and_reported_once_and_told_with_the_next() -> None:
    down = [DeliveryError("down")] * 3
    attempts = Attempts(*down, DeliveryError("gone", final=True))

    async def steps(recipient: Recipient) -> None:
        for number, name in enumerate(("gpu.idle", "gpu.xid", "gpu.busy")):
            recipient.add(logged(number, name))

    recipient, warnings = deliver(attempts, steps)
    assert recipient.results == {"failed": 2, "sent": 1}
    assert warnings == ["webhook: a notification is lost: gpu.idle: down; others are counted"]
    assert [body["lost"] for body in attempts.bodies] == [0, 0, 0, 1, 2]


def test_events_are_joined_while_a_recipient_hangs_and_none_blocks() -> None:
    async def run() -> None:
        attempts = Attempts()
        attempts.blocked.clear()
        warnings: list[str] = []
        recipient = Recipient("webhook", attempts, 0.01, warnings.append, ())
        task = asyncio.create_task(recipient.run())
        recipient.add(logged(0))
        await asyncio.sleep(0)
        began = time.monotonic()
        for number in range(1, 2001):
            recipient.add(logged(number))
        for number in range(MAX_WAITING + 10):
            recipient.add(logged(number, gpu=f"GPU-{number}"))
        assert time.monotonic() - began < TIMEOUT_S, "the recipient hangs until the end"
        assert recipient.results["dropped"] == 11
        (warning,) = warnings
        assert "more than 256 notifications wait" in warning
        attempts.blocked.set()
        async with asyncio.timeout(TIMEOUT_S):
            while len(attempts.bodies) < 2 or recipient.waiting:  # noqa: ASYNC110 - no event is set
                await asyncio.sleep(0.01)
        task.cancel()
        (joined,) = [body for body in attempts.bodies if body["count"] > 1]
        assert (joined["count"], joined["since"], joined["event"]["number"]) == (2000, "t1", 2000)

    asyncio.run(run())


# --- the API process -------------------------------------------------------------------------


@pytest.mark.long
def test_the_api_process_sends_selected_events_and_answers_meanwhile(tmp_path: Path) -> None:
    with WebhookServer() as server:
        server.behaviours = ["hang"]
        spec = NotifySpec(webhook=server.url, events=("gpu.*", "service.warning"), gpus=("0",))
        with ApiServer(tmp_path, metrics=True, notify=spec) as api:
            eventually(lambda: ask(api, "GET", "/v1/health").status == 200)
            api.publish("stressor.ready", gpu=UUIDS[0])
            api.publish("gpu.idle", gpu=UUIDS[1], index=1)
            api.publish("gpu.busy", gpu=UUIDS[0], index=0)
            eventually(lambda: len(server.received) == 1)
            api.publish("gpu.idle", gpu=UUIDS[0], index=0)
            api.publish("service.warning", about="notify", text="not about itself")
            began = time.monotonic()
            assert ask(api, "GET", "/v1/status").status == 200
            assert time.monotonic() - began < recipients.WEBHOOK_TIMEOUT_S / 2
            # The attempt that hangs ends, and is repeated.
            eventually(lambda: len(server.received) == 3)
            names = [one.json["event"]["event"] for one in server.received]
            assert names == ["gpu.busy", "gpu.busy", "gpu.idle"]
            assert server.received[2].json["event"]["gpu"] == UUIDS[0]

            def counted() -> bool:
                text = get_metrics(api)[2].decode()
                line = 'sentinel_notifications_total{recipient="webhook",result="sent"} 2.0'
                return line in text

            eventually(counted)


def test_a_webhook_that_refuses_is_reported_in_the_log(tmp_path: Path) -> None:
    with WebhookServer() as server:
        server.behaviours = [410, 410]
        with ApiServer(tmp_path, notify=NotifySpec(webhook=server.url)) as api:
            api.publish("gpu.idle", gpu=UUIDS[0])
            api.publish("gpu.busy", gpu=UUIDS[0])
            api.wait_for(lambda: bool(api.warnings))
            eventually(lambda: len(server.received) == 2)
            (warning,) = api.warnings
            assert warning.about == "notify"
            assert "gpu.idle: it answers with status 410" in warning.text
