"""Build the JSON Schemas of the configuration file and of what a node must be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sentinel.config.expectation import GPU_FIELDS, MAX_GPUS, PORT_FIELDS, Kind
from sentinel.config.model import SETTINGS
from sentinel.config.setting import Scope, Setting

# --- the configuration file ------------------------------------------------------------------


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file.

    It knows keys, types and words; `sentinel config check` knows what a value may be.
    """
    schema = _table_of_settings(SETTINGS)
    single = _table_of_settings(setting for setting in SETTINGS if setting.scope is Scope.GPU)
    schema["properties"]["gpu"] = {
        "description": "Settings of single GPUs, by index or range of them, UUID, its unique"
        " prefix, or PCI address.",
        "type": "object",
        "additionalProperties": single,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The configuration file of sentinel",
        **schema,
    }


def _table_of_settings(settings: Iterable[Setting]) -> dict[str, Any]:
    """Return the schema of a table with these settings, those in nested tables included."""
    properties: dict[str, Any] = {}
    for setting in settings:
        place = properties
        *tables, name = setting.key.split(".")
        for table in tables:
            nested = place.setdefault(
                table, {"type": "object", "properties": {}, "additionalProperties": False}
            )
            place = nested["properties"]
        place[name] = dict(_value_of_setting(setting))
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value_of_setting(setting: Setting) -> Iterator[tuple[str, Any]]:
    """Yield the parts of the schema of one value."""
    limits = f" Allowed is {setting.limits}." if setting.limits else ""
    yield "description", f"{setting.help}{limits}"
    if setting.form.words:
        yield "enum", list(setting.form.words)
    elif setting.form.many:
        item = {"type": ["string", "number"]}
        yield "anyOf", [item, {"type": "array", "items": item}]
    else:
        yield "type", ["string", "number"]
    if setting.default:
        yield "default", setting.default
    yield "examples", [setting.default or setting.form.metavar]


# --- what a node must be ---------------------------------------------------------------------


#: What each field of a GPU or port is, and an example.
NODE_FIELDS = {
    "memory_mib": ("The memory, as `nvidia-smi` shows it.", "81559"),
    "driver": ("The driver.", '{min = "550.54.15"}'),
    "vbios": ("The VBIOS.", '["96.00.74.00.1A", "96.00.A5.00.01"]'),
    "power_limit_w": ("The enforced power limit, all the time.", "700"),
    "ecc": ("Whether ECC is on.", "true"),
    "mig": ("Whether MIG is on.", "false"),
    "persistence": ("Whether persistence mode is on.", "true"),
    "pcie_generation": ("What GPU and slot allow together; under load the link in use.", "5"),
    "pcie_width": ("As `pcie_generation`, in lanes.", "16"),
    "nvlinks": ("The active NVLinks.", "18"),
    "nvlink_speed_mbps": ("The speed of the slowest active NVLink.", "26562"),
    "state": ("The state; `ACTIVE` if it is not given.", '"ACTIVE"'),
    "rate_gbps": ("The rate in Gb/s.", "400"),
}


def node_schema() -> dict[str, Any]:
    """Build the JSON Schema (2020-12) of a file."""
    gpu = _table_of_fields(GPU_FIELDS)
    port = _table_of_fields(PORT_FIELDS)
    port["properties"] = {
        "port": {"type": "string", "description": "The port, such as `mlx5_0/1`."},
        **port["properties"],
    }
    port["required"] = ["port"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What a node must be",
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            "gpus": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_GPUS,
                "description": "The number of GPUs of the node.",
            },
            "serials": {
                "type": "array",
                "minItems": 1,
                "uniqueItems": True,
                "items": {"type": "string", "minLength": 1},
                "description": "The serial numbers of its GPUs, all of them.",
            },
            "all": {**gpu, "description": "What every GPU must be."},
            "model": {
                "type": "object",
                "additionalProperties": gpu,
                "description": "What GPUs of a model must be; no other model may be there then.",
            },
            "infiniband": {
                "type": "array",
                "items": port,
                "description": "The InfiniBand ports that must be there.",
            },
        },
    }


def _table_of_fields(fields: Mapping[str, Kind]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, kind in fields.items():
        value: dict[str, Any] = {"type": "string", "minLength": 1}
        if kind is Kind.FLAG:
            value = {"type": "boolean"}
        elif kind is Kind.NUMBER:
            value = {"type": "number", "minimum": 0}
        forms = [value, {"type": "array", "minItems": 1, "items": value}]
        if kind not in {Kind.FLAG, Kind.TEXT}:
            least = {"type": "object", "properties": {"min": value}, "required": ["min"]}
            forms.append({**least, "additionalProperties": False})
        properties[name] = {"description": NODE_FIELDS[name][0], "anyOf": forms}
    return {"type": "object", "properties": properties, "additionalProperties": False}
