"""What a script gives is described in its own words, before anything is sent."""

from __future__ import annotations

import datetime as dt
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sentinel
from sentinel.client import Client
from sentinel.errors import ConfigError, NotRunningError, SentinelError


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
    (lambda client: client.pause({}), "gpus: {} names no GPU\nLeave it out, or give None"),
    (lambda client: client.pause(iter(())), "gpus: an object of the class tuple_iterator names"),
    (lambda client: client.gpu(fma), "gpu: the function fma names no GPU"),
    (lambda client: client.gpu(None), "gpu: None names no GPU"),
    (lambda client: client.available(fma), "gpu: the function fma names no GPU"),
    (lambda client: client.allocate("a", "1GiB", gpu=fma), "gpu: the function fma names no GPU"),
    (
        lambda client: client.reserve([], seconds=5),
        "gpus: [] names no GPU\nGive a number of GPUs, or their names.",
    ),
    (lambda client: client.reserve(None, seconds=5), "gpus: None names no GPU\nGive an index"),
    (lambda client: client.reserve(True, seconds=5), "gpus: True names no GPU"),
    (
        lambda client: client.reserve(0, seconds=5),
        "gpus: 0 is not a number of GPUs from 1 to 128\nAn index of a GPU is text here, such as",
    ),
    (lambda client: client.reserve(1, among=[]), "among: [] names no GPU"),
    (lambda client: client.start_session("a", None), "gpus: None names no GPU"),
    (lambda client: client.start_session("a", []), "gpus: [] names no GPU\nGive an index"),
    (lambda client: client.pause(wait="3s"), "wait: '3s' is not a number of seconds from 0 on"),
    (lambda client: client.stop(wait="x"), "wait: 'x' is not a number of seconds from 0 on"),
    *(
        (lambda client, wait=wait: client.restart(wait=wait), f"wait: {wait!r} is not a number")
        for wait in ("x", None, -1, float("nan"))
    ),
    (lambda _: sentinel.hold().wait_held("x"), "timeout: 'x' is not a number of seconds"),  # type: ignore[arg-type]
    (lambda client: client.reserve(1, wait=-1), "wait: -1 is not a number of seconds from 0 on"),
    (
        lambda client: client.pause(wait=0, seconds=dt.timedelta(seconds=3)),
        "seconds: an object of the class timedelta cannot be sent",
    ),
    (lambda client: client.start_burnin(fma), "plan: the function fma cannot be sent"),
    (lambda client: client.allocate("x", fma), "size: the function fma is not a size"),
    (lambda client: client.allocate("", "1GiB"), "id: it is empty"),
    (lambda client: client.gpu("a/b"), "gpu: 'a/b' has a slash, and nothing here is named so"),
    (lambda client: client.cancel_reservation(fma), "id: the function fma is not text"),
    (lambda client: client.history(0, since=fma), "since: the function fma is not text"),
    (lambda client: client.trend(0, fma), "minutes: the function fma is not a number of minutes"),
    (lambda client: client.trend(0, "5 "), "minutes: '5 ' is not a number of minutes from 1 on"),
    (lambda client: client.events(fma), "since: the function fma is not the number of an event"),
    (lambda client: client.events(3, fma), "daemon: the function fma is not text"),
    (lambda client: client.cancel_burnin(reason=fma), "reason: the function fma is not text"),
    (
        lambda _: sentinel.Monitor().history(minutes="x"),  # type: ignore[arg-type]
        "minutes: 'x' is not a number of minutes",
    ),
    (
        lambda client: client.set("memory=1GiB"),
        "settings: 'memory=1GiB' is not a mapping\nWrite one such as {'memory.target': '1GiB'}.",
    ),
    (lambda client: client.set([]), "settings: [] is not a mapping"),
    (lambda client: client.set({fma: 1}), "settings: the function fma is not text"),
    (lambda client: client.start_session("a", [0], ["x"]), "settings: an object of the class list"),
    *(
        (lambda _, of=of: of(flags="--util"), "flags: '--util' is not a list\nWrite one such as")
        for of in (sentinel.hold, sentinel.Monitor)
    ),
    (lambda _: sentinel.hold(flags=[fma]), "flags: the function fma is not text"),  # type: ignore[list-item]
    (lambda _: sentinel.Monitor(simulate=fma), "simulate: the function fma is not text"),  # type: ignore[arg-type]
    (
        lambda _: sentinel.Monitor().on(Burn(), fma),  # type: ignore[call-overload]
        "there is no callback name an object of the class Burn\nThe names are: state_change",
    ),
    (
        lambda _: sentinel.Monitor().on("throttle", 3),  # type: ignore[call-overload]
        "a callback for 'throttle' is a function, and 3 is none",
    ),
    (lambda _: sentinel.connect(timeout="x"), "timeout: 'x' is not a number of seconds"),  # type: ignore[arg-type]
    (lambda _: sentinel.connect(tcp=fma), "tcp: the function fma is not text"),  # type: ignore[arg-type]
    (lambda _: sentinel.connect(simulated=fma), "simulated: the function fma is not text"),  # type: ignore[arg-type]
    (
        lambda _: sentinel.connect(tcp="h:1", token=fma),  # type: ignore[arg-type]
        "token: the function fma is not text",
    ),
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


#: Values of the parameters that a method requires, by their names.
REQUIRED: dict[str, Any] = {
    **dict.fromkeys(("id", "name", "plan", "reason"), "throttle"),
    **dict.fromkeys(("gpu", "gpus", "selector"), 0),
    "settings": {},
    "size": "1GiB",
    "callback": lambda _gpu, _event: None,
}
ODD = (fma, Burn(), [fma], {"a": fma}, "x", -1, 10**30, math.nan, math.inf, None, True, b"x")
#: The verbs, without those that take the parts of a request.
VERBS = [
    (kind, name)
    for kind in (Client, sentinel.Monitor)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and name not in {"request", "fetch", "put"}
]


@pytest.mark.parametrize(("kind", "name"), VERBS)
def test_every_error_of_a_verb_is_one_of_sentinel_whatever_it_is_given(
    tmp_path: Path, kind: type, name: str
) -> None:
    owner = sentinel.connect(tmp_path / "s") if kind is Client else sentinel.Monitor(tmp_path / "s")
    taken = inspect.signature(getattr(owner, name)).parameters
    needed = {one: REQUIRED[one] for one, of in taken.items() if of.default is of.empty}
    said = []
    for parameter in taken:
        for value in ODD:
            try:
                getattr(owner, name)(**{**needed, parameter: value})
            except SentinelError as error:
                said.append(str(error))
    assert " at 0x" not in "\n".join(said)


@pytest.mark.parametrize(
    ("minutes", "since"), [(0, "1s"), (0.5, "30s"), (10, "600s"), (math.inf, "315360000s")]
)
def test_past_minutes_are_sent_as_a_duration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, minutes: float, since: str
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(Client, "history", lambda _, gpu, since: sent.append(since))
    sentinel.Monitor(tmp_path / "socket").history(minutes=minutes)
    assert sent == [since]


def test_numbers_and_paths_are_settings(client: Client) -> None:
    with pytest.raises(NotRunningError):
        client.set({"util.samples": 3, "goldens": Path("/x"), "power": None})
