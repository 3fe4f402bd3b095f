"""An empty list of GPUs is no GPU, never all of them: at every place that takes GPUs."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import TypeAdapter, ValidationError

import sentinel
from sentinel.api import bodies
from sentinel.cli.main import run_command_line, sentinel_command
from sentinel.client import Client
from sentinel.errors import ConfigError

NONE: tuple[object, ...] = ([], (), "", " , ")
SIMULATED = ("--simulate", "1")

#: Values of the parameters that a method requires besides the GPUs, by their names.
REQUIRED = {"settings": {"util": "50%"}, "plan": "plan", "name": "mine", "reason": "repaired"}


def takes_gpus(owner: object) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, method in inspect.getmembers(owner, callable):
        if name.startswith("_"):
            continue
        try:
            parameters = inspect.signature(method).parameters
        except (TypeError, ValueError):
            continue
        if "gpus" in parameters:
            yield name, method


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Client:
    """Provide a client that fails when it sends anything."""

    def send(*_: object, **__: object) -> object:
        raise AssertionError("a request was sent")

    monkeypatch.setattr(Client, "fetch", send)
    monkeypatch.setattr(Client, "put", send)
    return sentinel.connect(tmp_path / "socket")


VERBS = sorted({name for name, _ in takes_gpus(Client)})


def test_the_verbs_that_take_gpus_are_found() -> None:
    assert {"pause", "resume", "set", "start_burnin", "acknowledge", "reserve"} <= set(VERBS)


@pytest.mark.parametrize("gpus", NONE, ids=repr)
@pytest.mark.parametrize("name", VERBS)
def test_the_client_refuses_it(client: Client, name: str, gpus: object) -> None:
    method = getattr(client, name)
    given = {
        parameter.name: REQUIRED[parameter.name]
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty and parameter.name != "gpus"
    }
    with pytest.raises(ConfigError, match="names no GPU"):
        method(**given, gpus=gpus)


@pytest.mark.parametrize("gpus", NONE, ids=repr)
def test_hold_refuses_it(gpus: Any) -> None:
    with pytest.raises(ConfigError, match="names no GPU"):
        sentinel.hold(gpus=gpus)


BODIES = [
    body
    for _, body in inspect.getmembers(bodies, inspect.isclass)
    if issubclass(body, bodies.RequestModel) and "gpus" in body.model_fields
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_http_refuses_it(body: type[bodies.RequestModel]) -> None:
    with pytest.raises(ValidationError) as caught:
        body.model_validate({"gpus": []})
    assert ("too_short", ("gpus",)) in [(one["type"], one["loc"]) for one in caught.value.errors()]


def test_an_agent_is_refused_it() -> None:
    pytest.importorskip("mcp")
    from sentinel.cli.mcp_server import _Tools  # mcp takes half a second

    tools = [tool for _, tool in takes_gpus(_Tools)]
    assert tools
    for tool in tools:
        taken = typing.get_type_hints(tool, include_extras=True)["gpus"]
        with pytest.raises(ValidationError, match="at least 1 item"):
            TypeAdapter(taken).validate_python([])


def options_for_gpus(command: click.Command) -> Iterator[tuple[click.Command, click.Parameter]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options_for_gpus(below)
    for parameter in command.params:
        if "--gpus" in parameter.opts or parameter.name == "gpus":
            yield command, parameter


COMMANDS = list(options_for_gpus(sentinel_command))


def test_the_commands_that_take_gpus_are_found() -> None:
    assert {"run", "start", "pause", "resume", "set", "reserve", "exec", "burnin", "check"} <= {
        command.name for command, _ in COMMANDS
    }


@pytest.mark.parametrize(
    ("command", "parameter"), COMMANDS, ids=lambda one: getattr(one, "name", None)
)
def test_the_command_line_refuses_it(
    command: click.Command, parameter: click.Parameter, capsys: pytest.CaptureFixture[str]
) -> None:
    if parameter.callback is None:  # a setting, which is read later
        offline = ["config", "show", "--offline"]
        words = offline if command.name == "show" else [f"{command.name}", *SIMULATED]
        assert run_command_line([*words, "--gpus", ""]) == 2
        assert "no GPU is named; write a list" in capsys.readouterr().err
        return
    empty = ("",) if parameter.multiple or parameter.nargs == -1 else ""
    with pytest.raises((ConfigError, click.UsageError)):
        parameter.process_value(click.Context(command), empty)
