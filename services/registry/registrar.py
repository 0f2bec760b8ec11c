"""The registry's doer: examines open candidates, publishes their files, reports what it saw.

It decides nothing and keeps nothing: what is open stands in the journal, so a crash at any point
is followed by the same work again, and every step of it is done at most once in effect. A failure
of the infrastructure is a finding and a later try, never the job's.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lineshaft.contracts import limits, manifest
from lineshaft.contracts.events import Event, Fact
from lineshaft.ports import Clock, Objects, StoreUnavailable
from lineshaft.runtime import observability
from lineshaft.runtime.decider import OutcomeKind
from lineshaft.runtime.host import DeciderHost, NotLeader
from services.registry.domain import models, registering
from services.registry.domain.decider import stream_of
from services.registry.examination import Candidate, Examiner, NotFit, registration, unread

AUDIT_KIND = "registration"
_LOOK_EVERY_MS = 200
_TOGETHER_MAX = 4


@dataclass(frozen=True, slots=True)
class _Wait:
    """What a failed try left: how many failed in a row, and when to try again (monotonic ms)."""

    failures: int
    until: int


class Shell(Protocol):
    """What the registrar uses of its service."""

    @property
    def clock(self) -> Clock:
        """The clock."""
        ...

    @property
    def objects(self) -> Objects:
        """Where candidates and content lie."""
        ...

    @property
    def host(self) -> DeciderHost:
        """The host of the registry's decider."""
        ...

    def audit(self, kind: str, subject: str, status: str, summary: str) -> None:
        """Publish a finding, open or closed."""
        ...


class Registrar:
    """Works off the open candidates of the streams that this process leads."""

    def __init__(self, service: Shell) -> None:
        self._service = service
        self._examiner = Examiner(service.objects)
        self._waits: dict[str, _Wait] = {}
        self._log = observability.logger("registry")

    async def run(self) -> None:
        """Look for open candidates for ever."""
        while True:
            due = self._due()
            await asyncio.gather(*(self._attempt(candidate) for candidate in due[:_TOGETHER_MAX]))
            if not due:
                await self._service.clock.sleep(_LOOK_EVERY_MS)

    def _due(self) -> list[Candidate]:
        host, now = self._service.host, self._service.clock.monotonic()
        found = []
        for stream in host.led_streams():
            found += [Candidate(**open_) for open_ in host.state(stream).candidates.values()]
        due = [
            c for c in found if c.session not in self._waits or self._waits[c.session].until <= now
        ]
        return sorted(due, key=lambda candidate: candidate.session)

    async def _attempt(self, candidate: Candidate) -> None:
        """Register one candidate; a failure that may pass is noted and tried again later."""
        try:
            await self.register(candidate)
        except NotLeader:  # whoever leads next finds the candidate open
            until = self._service.clock.monotonic() + limits.LEASE_RENEW_MS
            self._waits[candidate.session] = _Wait(0, until)
        except Exception as error:
            self._postpone(candidate, error)
        else:
            if self._waits.pop(candidate.session, _Wait(0, 0)).failures:
                summary = "the registration went through"
                self._service.audit(AUDIT_KIND, candidate.session, "closed", summary)

    def _postpone(self, candidate: Candidate, error: Exception) -> None:
        failures = self._waits.get(candidate.session, _Wait(0, 0)).failures + 1
        delay = min(limits.NACK_DELAY_MS_MIN << min(failures, 16), limits.NACK_DELAY_MS_MAX)
        self._waits[candidate.session] = _Wait(failures, self._service.clock.monotonic() + delay)
        expected = isinstance(error, StoreUnavailable)
        self._log.warning(
            "registration postponed",
            session=candidate.session,
            failures=failures,
            next_ms=delay,
            error=f"{type(error).__name__}: {error}",
            exc_info=None if expected else error,
        )
        summary = f"the registration of {candidate.session} waits: {type(error).__name__}: {error}"
        self._service.audit(
            AUDIT_KIND, candidate.session, "open", summary[: limits.REASON_CHARS_MAX]
        )

    async def register(self, candidate: Candidate) -> None:
        """Carry one candidate to its end. Raises ``StoreUnavailable`` or ``NotLeader``."""
        seen, made = await self._examined(candidate)
        if seen["refused"] is None and made is not None:
            try:
                await self._examiner.publish(candidate, made)
            except NotFit as error:
                seen["refused"] = str(error)
        verdict = await self._submit(
            registering.EXAMINED, f"examined:{candidate.session}", candidate, seen
        )
        outcome = self._outcome(verdict, seen)
        if outcome["status"] == "refused":
            for parent in seen["parents"]:
                await self.release(parent, candidate.manifest)
        else:
            await self._examiner.clean(candidate.session)
        concluded = {"session": candidate.session, **outcome}
        await self._submit(
            registering.CONCLUDED, f"concluded:{candidate.session}", candidate, concluded
        )
        self._log.info("candidate concluded", **concluded)

    async def _examined(
        self, candidate: Candidate
    ) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
        try:
            made = await self._examiner.read(candidate)
            seen = registration(candidate, made)
        except NotFit as error:
            return {**unread(candidate), "refused": str(error)}, None
        links = {role: made["lineage"].get(role) for role in manifest.PARENTS}
        seen["parents"] = [
            await self._hold(role, link, candidate)
            for role, link in links.items()
            if link is not None
        ]
        return seen, made

    async def _hold(self, role: str, link: Mapping[str, Any], child: Candidate) -> dict[str, Any]:
        """Take a hold on a parent, so that it cannot be deleted under its child."""
        seen: dict[str, Any] = {
            "role": role,
            "name": link.get("name"),
            "manifest": link.get("manifest"),
            "external": link.get("manifest") is None,
            "refused": None,
            "kind": None,
            "base": None,
            "depth": 0,
        }
        if seen["external"]:
            return seen
        wish = {
            "name": seen["name"],
            "manifest": seen["manifest"],
            "version": link.get("version"),
            "holder": child.manifest,
        }
        id = f"hold:{child.session}:{role}"
        answer = (await self._submit(registering.HOLD, id, child, wish))[-1]
        if answer.kind == models.HELD:
            return seen | {key: answer.data[key] for key in ("kind", "base", "depth")}
        return seen | {"refused": answer.data["reason"]}

    async def release(self, parent: Mapping[str, Any], holder: str) -> None:
        """Give a hold back: ``holder`` was refused or deleted. Without a hold it does nothing."""
        if parent.get("manifest") is None:
            return
        wish = {"name": parent["name"], "manifest": parent["manifest"], "holder": holder}
        fact = Fact(
            id=f"release:{holder}:{parent['manifest']}",
            kind=registering.RELEASE,
            data=wish,
            at=self._service.clock.now(),
            source="registry",
        )
        await self._decided(fact)

    async def _submit(
        self, kind: str, id: str, candidate: Candidate, data: dict[str, Any]
    ) -> tuple[Event, ...]:
        fact = Fact(
            id=id,
            kind=kind,
            data=data,
            at=self._service.clock.now(),
            source="registry",
            subject=candidate.job,
            attempt=candidate.attempt,
            team=candidate.team,
        )
        return await self._decided(fact)

    async def _decided(self, fact: Fact) -> tuple[Event, ...]:
        outcome = await self._service.host.submit(fact)
        if outcome.kind is OutcomeKind.REFUSED:
            raise RuntimeError(f"{fact.kind} was not decided: {outcome.reason}")
        return outcome.events

    def _outcome(self, verdict: tuple[Event, ...], seen: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the decision made of a candidate, for its document."""
        named = {"name": seen["name"], "version": None, "reason": None}
        for event in verdict:
            if event.kind == "model.registered":
                return named | {"status": "registered", "version": event.data["version"]}
            if event.kind == "model.refused":
                return named | {"status": "refused", "reason": event.data["reason"]}
        shelf = self._service.host.state(stream_of(seen["name"]))
        number = shelf.models[seen["name"]].numbers[seen["manifest"]]
        return named | {"status": "registered", "version": str(number)}
