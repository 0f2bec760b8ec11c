"""The AsyncAPI 3 document of the bus: commands that are taken, events that are published."""

import json
from importlib.metadata import version
from typing import Any

from docs.generate.events import address
from lineshaft.contracts import events, kinds

_JSON_TYPES = {
    str: "string",
    int: "integer",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}
_PARAMETERS = {
    "pool": "The pool's name, or - where it does not apply.",
    "team": "The team's name, or -.",
    "subject": "The job's id or the model's name, or -.",
    "attempt": "The attempt's number.",
}
_TRAITS = {
    "specversion": {"const": events.SPEC_VERSION},
    "id": {"type": "string", "description": "Identifies the fact; a repeated one changes nothing."},
    "source": {"type": "string"},
    "subject": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
    "pool": {"type": "string"},
    "team": {"type": "string"},
    "attempt": {"type": "integer"},
    "stream": {"type": "string"},
    "sequence": {"type": "integer"},
    "index": {"type": "integer"},
    "replay": {"type": "boolean"},
    "correlationid": {"type": "string"},
    "traceparent": {"type": "string"},
}
_REQUIRED = ("specversion", "id", "source", "type", "data")


def document() -> str:
    """Return the document: one channel and operation per public kind, from a client's side."""
    made = {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Lineshaft on the bus",
            "version": version("lineshaft"),
            "description": "Commands a platform takes and events it publishes, as CloudEvents 1.0.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": events.CONTENT_TYPE,
        "servers": {
            "local": {
                "host": "127.0.0.1:4222",
                "protocol": "nats",
                "description": "The address and the token are in state.json of the state folder.",
                "security": [{"$ref": "#/components/securitySchemes/token"}],
            }
        },
        "channels": {name: _channel(name) for name in kinds.KINDS},
        "operations": {_operation(name): _operated(name) for name in kinds.KINDS},
        "components": {
            "messages": {name: _message(name) for name in kinds.KINDS},
            "securitySchemes": {
                "token": {"type": "userPassword", "description": "A token, as NATS takes it."}
            },
        },
    }
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def _channel(name: str) -> dict[str, Any]:
    where = address(name)
    made: dict[str, Any] = {
        "address": where,
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
    }
    marks = {p: {"description": d} for p, d in _PARAMETERS.items() if "{" + p + "}" in where}
    return made | ({"parameters": marks} if marks else {})


def _operation(name: str) -> str:
    return ("send_" if name.startswith("in.") else "receive_") + name.replace(".", "_")


def _operated(name: str) -> dict[str, Any]:
    return {
        "action": "send" if name.startswith("in.") else "receive",
        "channel": {"$ref": f"#/channels/{name}"},
        "summary": kinds.KINDS[name].summary,
        "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
    }


def _message(name: str) -> dict[str, Any]:
    kind = kinds.KINDS[name]
    data = {field: {"type": _json_type(wanted)} for field, wanted in kind.fields.items()}
    payload = {
        "type": "object",
        "properties": {
            **_TRAITS,
            "type": {"const": events.TYPE_PREFIX + name},
            "data": {"type": "object", "properties": data, "required": list(data)},
        },
        "required": list(_REQUIRED),
    }
    return {
        "name": name,
        "title": kind.summary,
        "description": f"Published by {kind.publisher}.",
        "contentType": events.CONTENT_TYPE,
        "payload": payload,
    }


def _json_type(wanted: type | tuple[type, ...]) -> str | list[str]:
    if not isinstance(wanted, tuple):
        return _JSON_TYPES[wanted]
    return [_JSON_TYPES[one] for one in wanted]
