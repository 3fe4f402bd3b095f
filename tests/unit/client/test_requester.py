"""What a script gives is described in its own words, before anything is sent."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sentinel
from sentinel.client import Client
from sentinel.errors import ConfigError, NotRunningError


def fma(context: Any) -> None:
    """Stand for a workload that a script gives as an object."""


class Burn:
    """Stand for a workload that is a class."""


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return sentinel.connect(tmp_path / "socket")


CALLS: list[tuple[Callable[[Any], object], str]] = [
    (
        lambda client: client.set({"workload": fma}),
        f"workload: the function fma is not text\nWrite it as text: {__name__}:fma",
    ),
    (
        lambda client: client.start_session("a", 0, {"workload": Burn}),
        f"workload: the class Burn is not text\nWrite it as text: {__name__}:Burn",
    ),
    (lambda _: sentinel.hold(workload=fma), "workload: the function fma is not text"),  # type: ignore[arg-type]
    (lambda _: sentinel.hold(memory=Burn()), "memory: an object of the class Burn is not text"),  # type: ignore[arg-type]
    (lambda _: sentinel.hold(gpus=fma), "gpus: the function fma names no GPU"),  # type: ignore[arg-type]
    (lambda client: client.set({"standby": True}), "standby: True is not text"),
    (lambda client: client.pause(0.5), "gpus: 0.5 names no GPU"),
    (lambda client: client.pause([True]), "gpus: True names no GPU"),
    (lambda client: client.gpu(fma), "gpus: the function fma names no GPU"),
    (lambda client: client.available(fma), "gpus: the function fma names no GPU"),
    (lambda client: client.pause(wait="3s"), "wait: '3s' is not a number of seconds from 0 on"),
    (lambda client: client.reserve(1, wait=-1), "wait: -1 is not a number of seconds from 0 on"),
    (
        lambda client: client.pause(wait=0, seconds=dt.timedelta(seconds=3)),
        "seconds: an object of the class timedelta cannot be sent",
    ),
    (lambda client: client.start_burnin(fma), "plan: the function fma cannot be sent"),
    (lambda client: client.allocate("x", fma), "size: the function fma is not a size"),
    (lambda client: client.allocate("", "1GiB"), "id: it is empty"),
    (lambda client: client.cancel_reservation(fma), "id: the function fma is not text"),
    (lambda client: client.history(0, since=fma), "since: the function fma is not text"),
    (lambda _: sentinel.connect(timeout="x"), "timeout: 'x' is not a number of seconds"),  # type: ignore[arg-type]
    (lambda _: sentinel.connect(fma), "socket: the function fma is not text"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), CALLS, ids=[words for _, words in CALLS])
def test_what_cannot_be_sent_is_named_with_its_argument(
    client: Client, call: Callable[[Client], object], words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        call(client)
    assert str(refused.value).startswith(words)
    assert " at 0x" not in str(refused.value)


def test_numbers_and_paths_are_settings(client: Client) -> None:
    with pytest.raises(NotRunningError):
        client.set({"util.samples": 3, "goldens": Path("/x"), "power": None})
