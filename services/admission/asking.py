"""What admission asks its neighbours: a model of the registry, the nodes of the scheduler.

Answers are kept for seconds. Requests go over the bus; no service is imported.
"""

import asyncio
import difflib
import json
from collections.abc import Mapping
from typing import Any, Final

from lineshaft.contracts import records, subjects
from lineshaft.ports import Bus, BusUnavailable, Clock, ObjectMissing, Objects
from lineshaft.runtime import rpc
from lineshaft.runtime.rpc import RpcError
from services.admission.findings import Problem

KEPT_MS: Final = 3_000
TIMEOUT_MS: Final = 5_000
CONFIG_BYTES_MAX: Final = 1 << 20
_KEPT_MAX: Final = 256


class Neighbours:
    """Asks the registry and the scheduler."""

    def __init__(self, bus: Bus, objects: Objects, clock: Clock) -> None:
        self._bus = bus
        self._objects = objects
        self._clock = clock
        self._kept: dict[str, tuple[int, dict[str, Any]]] = {}

    async def model(self, ref: str, team: str) -> dict[str, Any]:
        """Return {kind, name, version, manifest, config} of a registry reference.

        A bare name means its latest version. Raises ``Problem`` when the registry has none,
        ``BusUnavailable`` when it does not answer.
        """
        full = ref if "@" in ref or ":" in ref else f"{ref}@latest"
        try:
            found = await self._ask("registry", "resolve", {"ref": full, "team": team})
        except RpcError as error:
            if error.code in ("not_leader", "unavailable"):
                raise BusUnavailable(error.message) from None
            raise Problem(error.message, await self._names_hint(ref, error.hint)) from None
        return {
            "kind": "registry",
            "ref": ref,
            "name": found.get("name"),
            "version": found.get("version"),
            "manifest": found.get("manifest"),
            "config": await self._config(found),
        }

    async def nodes(self) -> dict[str, Any] | None:
        """Return the scheduler's ``nodes``, or None while it does not answer."""
        try:
            return await self._ask("scheduler", "nodes", {})
        except (RpcError, BusUnavailable):
            return None

    async def job_id(self, name: str) -> str:
        """Return the id of a job named by a beginning of its id or by its name."""
        raw = json.dumps({"job": name}).encode()
        subject = subjects.rpc("scheduler", "job")
        answer = await self._bus.request(subject, raw, timeout_ms=TIMEOUT_MS)
        return str(rpc.decode_reply(answer).get("job"))

    async def _names_hint(self, ref: str, otherwise: str | None) -> str | None:
        try:
            answer = await self._ask("registry", "models", {})
        except (RpcError, BusUnavailable):
            return otherwise
        rows = answer.get("models") or []
        names = sorted({str(r.get("name")) if isinstance(r, Mapping) else str(r) for r in rows})
        if not names:
            return "the registry holds no model yet; a folder inside a mount works too"
        name = ref.partition("@")[0].partition(":")[0]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        there = f"the registry holds {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        return f"did you mean {near[0]}? {there}" if near and near[0] != name else there

    async def _config(self, found: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the version's config.json out of Objects; None when it cannot be had."""
        for file in found.get("files") or ():
            if file.get("path") != "config.json" or int(file.get("size", 0)) > CONFIG_BYTES_MAX:
                continue
            try:
                async with asyncio.timeout(TIMEOUT_MS / 1000):
                    key = records.blob(str(file["digest"]))
                    raw = b"".join([chunk async for chunk in self._objects.open(key)])
                config = json.loads(raw)
            except (ObjectMissing, TimeoutError, ValueError):
                return None
            return config if isinstance(config, dict) else None
        return None

    async def _ask(self, service: str, verb: str, params: Mapping[str, Any]) -> dict[str, Any]:
        key = f"{service}.{verb} {json.dumps(params, sort_keys=True)}"
        kept = self._kept.get(key)
        if kept is not None and self._clock.monotonic() - kept[0] < KEPT_MS:
            return kept[1]
        raw = json.dumps(params).encode()
        subject = subjects.rpc(service, verb)
        answer = rpc.decode_reply(await self._bus.request(subject, raw, timeout_ms=TIMEOUT_MS))
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[key] = (self._clock.monotonic(), answer)
        return answer
