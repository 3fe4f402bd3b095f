"""Serve tools for agents over the Model Context Protocol, as a client of the daemon.

The tools can do no more than the command line. They wait for less than a minute: most agents then
abandon a call, the command goes on, and its response is lost.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

import anyio
from anyio import to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, ToolAnnotations
from pydantic import ConfigDict, Field, ValidationError

from sentinel.cli.display.output import to_json
from sentinel.client import Client, Outcome
from sentinel.config.invalid_fields import describe_fields
from sentinel.config.specs import known_workloads, parse_workload
from sentinel.errors import ConfigError, SentinelError
from sentinel.protocol import __version__
from sentinel.protocol.codec import repeated_key

_MAX_WAIT_S = 45
_MAX_DURATION_S = 7 * 86_400

_INSTRUCTIONS = """\
Sentinel keeps the idle NVIDIA GPUs of this host busy with stressors, and yields each one as soon as
a foreign process appears: a job needs no permission and can simply start. Reserve GPUs that must
stay free for a while, set CUDA_VISIBLE_DEVICES to the UUIDs in the response, and cancel the
reservation when done. Pause GPUs on which no stressor may run, for example during a measurement.
Start a session to give GPUs another workload or another share of their memory for a while."""

_SELECTED_BY = (
    "by nvidia-smi index or range such as 0-3, UUID or a unique prefix of it, or PCI address"
)

_Selector = str | int
_Selectors = Annotated[list[_Selector], Field(min_length=1, max_length=128)]
_Gpus = Annotated[
    _Selectors | None, Field(description=f"The GPUs, {_SELECTED_BY}; all by default.")
]
_Seconds = Annotated[float, Field(gt=0, le=_MAX_DURATION_S, allow_inf_nan=False)]
_Wait = Annotated[
    float,
    Field(
        ge=0,
        le=_MAX_WAIT_S,
        allow_inf_nan=False,
        description="Maximum wait for free memory, in seconds; 0 does not wait.",
    ),
]


def serve(client: Client) -> None:
    """Serve an agent over standard input and output until it closes them.

    Args:
        client: The client of the daemon. Without a daemon, each tool returns an error.
    """
    # What an agent misspells, or gives as another type, is refused, and never left out.
    ArgModelBase.model_config |= ConfigDict(extra="forbid", strict=True)
    # At INFO the library logs each call, which the agent logs itself.
    server = _Server(
        "sentinel", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    tools = _Tools(client)
    read_only = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    idempotent = ToolAnnotations(
        destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    additive = ToolAnnotations(destructive_hint=False, open_world_hint=False)
    destructive = ToolAnnotations(destructive_hint=True, open_world_hint=False)
    for tool, hints in (
        (tools.status, read_only),
        (tools.pause, idempotent),
        (tools.resume, idempotent),
        (tools.reserve, additive),
        (tools.cancel_reservation, destructive),
        (tools.sessions, read_only),
        (tools.start_session, idempotent),
        (tools.stop_session, destructive),
    ):
        server.add_tool(_abandoned_at_the_end(tool), annotations=hints)
    anyio.run(_serve, server)


class _Server(MCPServer[Any]):
    """A server that refuses arguments in the words of the API."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Call a tool; see the base class."""
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            schemas = {tool.name: tool.input_schema for tool in await self.list_tools()}
            wrong = list(_invalid_arguments(error.__cause__))
            raise ToolError(describe_fields(wrong, schemas[name]["properties"], {})) from None


def _invalid_arguments(error: ValidationError) -> Iterator[dict[str, Any]]:
    """Yield the errors of arguments; a selector of a GPU, text or a number, has one for each."""
    places = {one["loc"] for one in error.errors()}
    for one in error.errors():
        *where, last = one["loc"]
        if (*where, "int") not in places:
            yield {**one, "loc": ("arguments", *one["loc"])}
        elif last == "int":
            yield {**one, "loc": ("arguments", *where), "type": "selector_type"}


async def _serve(server: MCPServer[Any]) -> None:
    """Do what ``server.run("stdio")`` does, and answer the lines that this drops or half reads."""
    low = server._lowlevel_server  # noqa: SLF001 - no other part of the library takes streams

    async def read() -> AsyncIterator[str]:
        text = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="replace")
        async for line in anyio.wrap_file(text):
            key = repeated_key(line)
            if key is None:
                yield line
            else:
                wrong = f"{key} is twice in the message"
                await replies.send(_error(INVALID_REQUEST, wrong, json.loads(line)))

    given: Any = read()  # the library reads no more than the lines of its file
    async with stdio_server(given) as (lines, replies), anyio.create_task_group() as tasks:
        sender, messages = anyio.create_memory_object_stream[SessionMessage | Exception]()

        async def pass_on() -> None:
            async with sender:
                async for line in lines:
                    if isinstance(line, Exception):
                        await replies.send(_refusal(line))
                    else:
                        await sender.send(line)

        tasks.start_soon(pass_on)
        await low.run(messages, replies, low.create_initialization_options())
        tasks.cancel_scope.cancel()


def _refusal(error: Exception) -> SessionMessage:
    """Build the answer to a line that is no message, with its id as far as that is known."""
    found = error.errors() if isinstance(error, ValidationError) else []
    if not found or found[0]["type"] == "json_invalid":
        return _error(PARSE_ERROR, "not JSON, or too deep")
    # It lacks at least what only a response has.
    whole = next((one["input"] for one in found if one["type"] == "missing"), None)
    return _error(INVALID_REQUEST, "not a message of JSON-RPC 2.0", whole)


def _error(code: int, text: str, whole: Any = None) -> SessionMessage:
    """Build an error about a line, which is ``whole`` as far as it is JSON."""
    id_ = whole.get("id") if isinstance(whole, dict) else None
    told = ErrorData(code=code, message=text)
    known = id_ if type(id_) in {int, str} else None
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=known, error=told))


def _abandoned_at_the_end(
    tool: Callable[..., dict[str, Any]],
) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Call a tool in a thread that the end of the agent's requests does not wait for.

    What the agent of a reservation does not get would last without an owner.
    """

    @functools.wraps(tool)
    async def call(**arguments: Any) -> dict[str, Any]:
        function = functools.partial(tool, **arguments)
        return await to_thread.run_sync(function, abandon_on_cancel=True)

    return call


class _Tools:
    """The tools; agents see their docstrings and the descriptions of their fields."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def status(
        self,
        gpu: Annotated[
            _Selector | None,
            Field(description=f"One GPU, {_SELECTED_BY}; all GPUs and the daemon by default."),
        ] = None,
    ) -> dict[str, Any]:
        """Show the GPUs of this host: their processes, the state of sentinel there, and the reason.

        For all GPUs, the daemon and the reservations are included. Sizes are in bytes, fields that
        end in _s in seconds, shares from 0 to 1; null is unknown.
        """
        with _as_tool_errors():
            if gpu is None:
                return dict(self._client.status().json)
            return {"gpus": [to_json(self._client.gpu(gpu))]}

    def pause(
        self,
        gpus: _Gpus = None,
        seconds: Annotated[
            _Seconds | None, Field(description="The duration; until resume by default.")
        ] = None,
        wait_s: _Wait = 30.0,
    ) -> dict[str, Any]:
        """Release GPUs, and do not occupy them until the pause ends.

        Returns when their memory is free. An error after wait_s names the GPUs that are still held;
        the pause is in force nevertheless. Set seconds if possible: a forgotten pause never ends.
        """
        with _as_tool_errors():
            return _outcome(self._client.pause(gpus, seconds=seconds, wait=wait_s))

    def resume(self, gpus: _Gpus = None) -> dict[str, Any]:
        """End the pause of GPUs, by any user; sentinel occupies them when they are idle.

        Reservations are not affected.
        """
        with _as_tool_errors():
            return _outcome(self._client.resume(gpus))

    def reserve(
        self,
        seconds: Annotated[
            _Seconds, Field(description="The maximum duration; cancel_reservation ends it earlier.")
        ],
        reason: Annotated[
            str,
            Field(min_length=1, max_length=200, description="The purpose, shown to other users."),
        ],
        count: Annotated[
            int | None,
            Field(ge=1, le=128, description="The number, of all or of gpus, whichever are free."),
        ] = None,
        gpus: Annotated[_Selectors | None, Field(description=f"The GPUs, {_SELECTED_BY}.")] = None,
        wait_s: _Wait = 30.0,
    ) -> dict[str, Any]:
        """Reserve GPUs, by count, by name, or a count of those named.

        If the server was started with CUDA_VISIBLE_DEVICES, only GPUs that it shows are reserved.
        Returns when the memory of all of them is free, with the id for cancel_reservation and the
        UUIDs for CUDA_VISIBLE_DEVICES. After an error nothing is reserved.
        """
        with _as_tool_errors():
            named = tuple(map(str, gpus or ()))
            if count is None and not named:
                raise ConfigError("give the number of GPUs, or their names", "Set count or gpus.")
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            if visible is not None and not self._client.address.host:
                from sentinel.cli.daemon.visible import restrict  # slow to import

                count, named, _ = restrict(self._client.status(), visible, count, named)
            wanted, among = (named, None) if count is None else (count, named or None)
            got = self._client.reserve(
                wanted, among=among, reason=reason, seconds=seconds, wait=wait_s
            )
            return dict(to_json(got))

    def cancel_reservation(
        self,
        id: Annotated[  # noqa: A002 - the public name
            str, Field(min_length=1, description="The id that reserve returned or status lists.")
        ],
    ) -> dict[str, Any]:
        """End a reservation; sentinel occupies its GPUs again when they are idle.

        End only your own reservations, unless you were asked to end another one.
        """
        with _as_tool_errors():
            return _outcome(self._client.cancel_reservation(id))

    def sessions(self) -> dict[str, Any]:
        """List the sessions: GPUs that have settings of their own under a name."""
        with _as_tool_errors():
            return {"sessions": to_json(self._client.sessions())}

    def start_session(
        self,
        name: Annotated[
            str, Field(max_length=64, description="A new name: letters, digits and ._:-")
        ],
        gpus: Annotated[_Selectors, Field(description=f"The GPUs, {_SELECTED_BY}.")],
        settings: Annotated[
            dict[str, str],
            Field(
                max_length=256,
                description="Settings by key, as a single GPU may have them, such as"
                ' {"workload": "hold", "memory.target": "20GiB"}; all others stay as they are.',
            ),
        ],
        seconds: Annotated[
            _Seconds | None, Field(description="The duration; until stop_session by default.")
        ] = None,
    ) -> dict[str, Any]:
        """Give GPUs settings of their own under a name, such as another workload or less memory.

        Stressors with other settings start again. A GPU is in one session at most; an error names
        the other. Set seconds if possible: a session outlives the agent and the daemon.
        """
        with _as_tool_errors():
            _check_registered(settings)
            got = self._client.start_session(name, gpus, settings, seconds=seconds)
            return dict(to_json(got))

    def stop_session(
        self,
        name: Annotated[
            str, Field(min_length=1, max_length=64, description="The name, as sessions lists it.")
        ],
    ) -> dict[str, Any]:
        """End a session; its GPUs have the daemon's settings again.

        End only your own sessions, unless you were asked to end another one.
        """
        with _as_tool_errors():
            return _outcome(self._client.stop_session(name))


def _check_registered(settings: dict[str, str]) -> None:
    """Check that no code is named by its place: what an agent reads may tell it to run some.

    Raises:
        ConfigError: A workload is named so.
    """
    for key, text in settings.items():
        if key.rpartition(".")[2] == "workload" and ":" in parse_workload(text)[0]:
            known = ", ".join(known_workloads())
            what = f"{key}: {text!r} names code by module and attribute"
            raise ConfigError(what, f"An agent can choose registered workloads: {known}.")


@contextlib.contextmanager
def _as_tool_errors() -> Iterator[None]:
    """Pass errors of sentinel to the agent; the library hides the text of all others."""
    try:
        yield
    except SentinelError as error:
        raise ToolError(str(error)) from error


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {"text": outcome.text, "gpus": list(outcome.gpus)}
