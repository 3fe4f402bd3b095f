"""What agents are given over the Model Context Protocol: tools that ask the daemon, as a client.

Nothing here can do what the command line cannot. A tool waits for less than the minute after which
most agents give a call up: one that was given up goes on all the same, and its answer is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from sentinel.cli.json_output import to_json
from sentinel.client import Client, Outcome
from sentinel.errors import ConfigError, SentinelError
from sentinel.protocol.version import __version__

#: The longest that a tool may wait, and the longest that anything may be asked for, in seconds.
_LONGEST_WAIT = 45
_WEEK = 7 * 86_400

_INSTRUCTIONS = """\
Sentinel keeps the idle NVIDIA GPUs of this host busy with stressors and lets go of each as soon as
somebody else's process comes to it: a job needs no permission and may simply start. Reserve GPUs
where they must be free and stay so for a while, use what the answer names in CUDA_VISIBLE_DEVICES,
and unreserve them when done. Pause where nothing of sentinel's may run, as for a measurement."""

_NAMED = "by nvidia-smi's index, by UUID or its unique beginning, or by PCI address"

_Selector = str | int
_Selectors = Annotated[list[_Selector], Field(min_length=1, max_length=128)]
_Gpus = Annotated[
    _Selectors | None, Field(description=f"Which GPUs, {_NAMED}; left out, all of them.")
]
_Seconds = Annotated[float, Field(gt=0, le=_WEEK, allow_inf_nan=False)]
_Wait = Annotated[
    float,
    Field(
        ge=0,
        le=_LONGEST_WAIT,
        allow_inf_nan=False,
        description="Wait so many seconds at most until their memory is free; 0 does not wait.",
    ),
]


def serve(client: Client) -> None:
    """Answer the agent at standard input and output until it closes them.

    Args:
        client: Talks to the daemon; that need not run, and each tool says so if it does not.
    """
    # What the library tells at INFO, each call among it, is of no use beside the agent's own log.
    server: MCPServer[Any] = MCPServer(
        "sentinel", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    tools = _Tools(client)
    looks = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    orders = ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    takes = ToolAnnotations(destructive_hint=False, open_world_hint=False)
    ends = ToolAnnotations(destructive_hint=True, open_world_hint=False)
    server.add_tool(tools.status, annotations=looks)
    server.add_tool(tools.pause, annotations=orders)
    server.add_tool(tools.resume, annotations=orders)
    server.add_tool(tools.reserve, annotations=takes)
    server.add_tool(tools.unreserve, annotations=ends)
    server.run("stdio")


class _Tools:
    """The tools; agents read what their docstrings and fields say."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def status(
        self,
        gpu: Annotated[
            _Selector | None,
            Field(description=f"Only this one, {_NAMED}; left out, all of them and the daemon."),
        ] = None,
    ) -> dict[str, Any]:
        """Show the GPUs of this host: who uses each, what sentinel does there, and why.

        With all GPUs come the daemon and the reservations. Sizes are bytes, fields that end in _s
        seconds, shares of 1; null is not known.
        """
        with _as_tool_errors():
            if gpu is None:
                return dict(self._client.status().json)
            return {"gpus": [to_json(self._client.gpu(gpu))]}

    def pause(
        self,
        gpus: _Gpus = None,
        seconds: Annotated[
            _Seconds | None, Field(description="For so long; left out, until it is resumed.")
        ] = None,
        wait_s: _Wait = 30.0,
    ) -> dict[str, Any]:
        """Have sentinel let go of GPUs and keep off them, whoever uses them meanwhile.

        Returns once their memory is free. An error after wait_s says what is still held; the pause
        holds all the same. Say seconds where you can: nobody else ends a pause that was forgotten.
        """
        with _as_tool_errors():
            return _told(self._client.pause(gpus or (), seconds=seconds, wait=wait_s))

    def resume(self, gpus: _Gpus = None) -> dict[str, Any]:
        """End the pause of GPUs, whoever asked for it; sentinel occupies them when they are idle.

        It ends no reservation.
        """
        with _as_tool_errors():
            return _told(self._client.resume(gpus or ()))

    def reserve(
        self,
        seconds: Annotated[
            _Seconds, Field(description="For so long at most; unreserve gives them back earlier.")
        ],
        reason: Annotated[
            str, Field(min_length=1, max_length=200, description="What others are told it is for.")
        ],
        count: Annotated[
            int | None, Field(ge=1, le=128, description="So many GPUs, those had most easily.")
        ] = None,
        gpus: Annotated[
            _Selectors | None, Field(description=f"These GPUs, {_NAMED}, instead of a count.")
        ] = None,
        wait_s: _Wait = 30.0,
    ) -> dict[str, Any]:
        """Have GPUs kept free for you: say how many, or which.

        Returns once the memory of all of them is free, with the id that unreserve takes and their
        UUIDs, which go into CUDA_VISIBLE_DEVICES. After an error nothing is reserved.
        """
        with _as_tool_errors():
            if gpus is None and count is not None:
                wanted: int | list[_Selector] = count
            elif gpus is not None and count is None:
                wanted = gpus
            else:
                raise ConfigError("say how many GPUs, by count, or which, by gpus; not both")
            got = self._client.reserve(wanted, reason=reason, seconds=seconds, wait=wait_s)
            return dict(to_json(got))

    def unreserve(
        self,
        id: Annotated[  # noqa: A002 - as it is called everywhere
            str, Field(min_length=1, description="As reserve answered, or as status lists it.")
        ],
    ) -> dict[str, Any]:
        """End a reservation; sentinel occupies its GPUs again when they are idle.

        End your own only, unless you were told to end another's.
        """
        with _as_tool_errors():
            return _told(self._client.unreserve(id))


@contextlib.contextmanager
def _as_tool_errors() -> Iterator[None]:
    """Have the agent read our errors; of any other it is told nothing but that it happened."""
    try:
        yield
    except SentinelError as error:
        raise ToolError(str(error)) from error


def _told(outcome: Outcome) -> dict[str, Any]:
    return {"text": outcome.text, "gpus": list(outcome.gpus)}
