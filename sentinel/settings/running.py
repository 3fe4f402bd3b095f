"""How the daemon itself runs: how often it looks, how long it waits, who may ask."""

from __future__ import annotations

from sentinel.settings.setting import Setting
from sentinel.units import or_off, parse_address, parse_duration

__all__ = ["RUNNING"]

RUNNING: tuple[Setting, ...] = (
    Setting(
        key="poll",
        field="poll",
        flag="--poll",
        metavar="TIME",
        help="Read every GPU fully this often.",
        parse=parse_duration,
        default="1s",
        least="100ms",
        most="2s",
    ),
    Setting(
        key="watch_interval",
        field="watch_interval",
        flag="--watch-interval",
        metavar="TIME",
        help="Read a GPU that we hold this often.",
        parse=parse_duration,
        default="25ms",
        least="2ms",
        most="40ms",
    ),
    Setting(
        key="start_timeout",
        field="start_timeout",
        flag="--start-timeout",
        metavar="TIME",
        help="A stressor that is not ready after so long has failed.",
        parse=parse_duration,
        default="180s",
        least="1s",
        most="1h",
        per_gpu=True,
    ),
    Setting(
        key="hang_after",
        field="hang_after",
        flag="--hang-after",
        metavar="TIME",
        help="A stressor without progress for so long has failed.",
        parse=parse_duration,
        default="30s",
        least="3s",
        most="1h",
        per_gpu=True,
    ),
    Setting(
        key="grace",
        field="grace",
        flag="--grace",
        metavar="TIME",
        help="At an ordinary stop, kill what has not ended by itself after so long.",
        parse=parse_duration,
        default="5s",
        least="100ms",
        most="5m",
    ),
    Setting(
        key="status_every",
        field="status_every",
        flag="--status-every",
        metavar="TIME",
        help="Say each GPU's state and rate this often.",
        parse=parse_duration,
        default="1m",
        least="1s",
        most="1d",
    ),
    Setting(
        key="api.tcp",
        field="tcp",
        flag="--tcp",
        metavar="[HOST:]PORT|off",
        help="Answer clients that have the token at this address, too, such as 127.0.0.1:8765.",
        parse=or_off(parse_address),
    ),
    Setting(
        key="api.group",
        field="socket_group",
        flag="--socket-group",
        metavar="GROUP|off",
        help="Let this group use the socket, too.",
        parse=or_off(str),
    ),
    Setting(
        key="metrics.address",
        field="metrics",
        flag="--metrics",
        metavar="[HOST:]PORT|off",
        help="Show metrics to a Prometheus at this address, without a token, such as 8766.",
        parse=or_off(parse_address),
    ),
)
