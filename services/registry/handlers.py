"""What the registry answers and does: requests, the facts it takes, its background work."""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lineshaft.contracts import ids, limits
from lineshaft.contracts.events import Fact
from lineshaft.runtime import rpc
from lineshaft.runtime.decider import OutcomeKind
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from services.registry.catalogue import Catalogue
from services.registry.domain import commands
from services.registry.reconciling import Reconciler
from services.registry.registrar import Registrar

_KEY_CHARS_MAX = 200


def register(service: Service, catalogue: Catalogue) -> None:
    """Register requests, consumption and the registrar."""
    registrar = Registrar(service)
    service.consume("job", ["lineshaft.job.succeeded.>"])
    service.background("registrar", registrar.run)
    service.background("reconciler", Reconciler(service).run)
    service.rpc("models", partial(_models, catalogue), needs_leader=False)
    service.rpc("model", partial(_model, catalogue), needs_leader=False)
    service.rpc("resolve", partial(_resolve, catalogue), needs_leader=False)
    service.rpc("address", partial(_address, service), needs_leader=False)
    for verb, fields in _COMMANDS.items():
        service.rpc(verb, partial(_command, service, registrar, verb, fields))


async def _models(catalogue: Catalogue, params: Mapping[str, Any]) -> dict[str, Any]:
    """``{limit, after}`` -> ``{models: [...]}``; with ``name`` the one model."""
    limit = min(max(rpc.whole(params, "limit", 1000), 1), 1000)
    after = params.get("after") or ""
    if not isinstance(after, str):
        raise RpcError("usage", "the parameter 'after' must be a text")
    return {"models": await catalogue.models(limit, after)}


async def _model(catalogue: Catalogue, params: Mapping[str, Any]) -> dict[str, Any]:
    """``{name}`` -> versions, and aliases with their history; or ``{name, alias, at}``."""
    name = rpc.text(params, "name")
    if params.get("alias") is None:
        return await catalogue.model(name)
    at = None if params.get("at") is None else rpc.whole(params, "at")
    return await catalogue.alias_at(name, rpc.text(params, "alias"), at)


async def _resolve(catalogue: Catalogue, params: Mapping[str, Any]) -> dict[str, Any]:
    return await catalogue.resolve(rpc.text(params, "ref"))


async def _address(service: Service, _: Mapping[str, Any]) -> dict[str, Any]:
    url = service.addresses.get("http")
    if url is None:
        raise RpcError("unavailable", "the download API is not up yet", "try again in a moment")
    return {"url": url}


Read = Callable[[Mapping[str, Any]], Any]


def _name(params: Mapping[str, Any]) -> str:
    name = rpc.text(params, "name")
    if not ids.is_name(name):
        raise RpcError("usage", f"{name!r} is no model's name")
    return name


def _text(name: str, default: str | None = None, *, chars_max: int = 200) -> Read:
    def read(params: Mapping[str, Any]) -> str:
        given = {k: v for k, v in params.items() if v not in (None, "")}
        value = rpc.text(given, name, default)
        if len(value) > chars_max or not value.isprintable():
            raise RpcError("usage", f"'{name}' must be one line of at most {chars_max} characters")
        return value

    return read


def _optional(name: str) -> Read:
    def read(params: Mapping[str, Any]) -> str | None:
        return None if params.get(name) is None else str(_text(name)(params))

    return read


_ALL: dict[str, Read] = {
    "name": _name,
    "actor": _text("actor", "unknown"),
    "reason": _text("reason", "none given", chars_max=limits.REASON_CHARS_MAX),
}
_COMMANDS: dict[str, dict[str, Read]] = {
    "promote": {
        **_ALL,
        "version": _text("version"),
        "alias": _text("alias"),
        "expected_current": _optional("expected_current"),
    },
    "rollback": {
        **_ALL,
        "version": _optional("version"),
        "alias": _text("alias"),
        "expected_current": _optional("expected_current"),
    },
    "pin": {**_ALL, "version": _text("version"), "pin": _text("pin", "keep")},
    "unpin": {**_ALL, "version": _text("version"), "pin": _text("pin", "keep")},
    "delete": {**_ALL, "version": _text("version")},
}


async def _command(
    service: Service,
    registrar: Registrar,
    verb: str,
    fields: Mapping[str, Read],
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Settle a command under its key; the same key and content get the same answer."""
    key = _text("key", chars_max=_KEY_CHARS_MAX)(params)
    data = {name: read(params) for name, read in fields.items()}
    fingerprint = _fingerprint(verb, data)
    fact = Fact(
        id=f"command:{key}",
        kind=commands.PREFIX + verb,
        data={**data, "fingerprint": fingerprint},
        at=service.clock.now(),
        source="rpc",
        subject=data["name"],
    )
    outcome = await service.host.submit(fact)
    if outcome.kind is OutcomeKind.REFUSED:
        raise RpcError("refused", outcome.reason)
    settled = next(event.data for event in outcome.events if event.kind == commands.SETTLED)
    if settled["fingerprint"] != fingerprint:
        raise RpcError("conflict", f"the key {key!r} was used for another command", "use a new key")
    if settled["code"] != "ok":
        raise RpcError(settled["code"], settled["message"], settled["hint"])
    result = dict(settled["result"])
    for parent in result.pop("parents", []):
        await registrar.release(parent, result["manifest"])
    return {**result, "stream": outcome.stream, "seq": outcome.seq}


def _fingerprint(verb: str, data: Mapping[str, Any]) -> str:
    asked = json.dumps([verb, {k: v for k, v in data.items() if k != "reason"}], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()
