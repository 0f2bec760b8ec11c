"""The client of a running platform: one method per request, answers as plain values.

    async with Client.connect() as platform:
        receipt = await platform.submit(Path("train-job.yaml").read_text())
        async for change in watch(platform, receipt["job"]): ...

Raises ``PlatformError`` when the platform says no, ``UnreachableError`` when nobody answers.
"""

import asyncio
import hashlib
import json
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lineshaft.adapters.bus import select
from lineshaft.adapters.bus.connection import knock
from lineshaft.adapters.bus.select import ClosableBus
from lineshaft.contracts import limits, subjects
from lineshaft.ports import BusUnavailable, NobodyAnswers, TokenRefused
from lineshaft.sdk import discovery, download
from lineshaft.sdk.discovery import Platform
from lineshaft.sdk.errors import PlatformError, UnreachableError

Answer = dict[str, Any]
PATIENCE_MS = 20_000
JOBS_READ_MAX = 20_000
_TRY_AGAIN_MS = 300
_BUS_RESTART_S = 10.0  # a platform that lives starts a bus that died again


class Client:
    """Requests to the four services of one platform."""

    def __init__(self, bus: ClosableBus, platform: Platform) -> None:
        self.bus = bus
        self.platform = platform

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str | None = None, *, platform: Platform | None = None
    ) -> AsyncIterator["Client"]:
        """Find the platform (``discovery.find``), connect, and close at the end.

        Raises ``UnreachableError`` at once when nobody listens there or the token is wrong.
        """
        found = platform or discovery.find(url)
        await _reach(found)
        try:
            bus = select.bus(found.bus_url, found.token)
        except ValueError as error:
            raise UnreachableError(f"{found.origin}: {error}") from None
        try:
            yield cls(bus, found)
        finally:
            await bus.aclose()

    async def request(
        self,
        service: str,
        verb: str,
        /,
        *,
        timeout_ms: int = limits.REQUEST_TIMEOUT_MS,
        **params: Any,
    ) -> Answer:
        """Ask ``service``; wait while it starts or changes its leader, ``PATIENCE_MS`` at most."""
        raw = json.dumps({k: v for k, v in params.items() if v is not None}).encode()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE_MS / 1000
        while True:
            try:
                reply = await self.bus.request(
                    subjects.rpc(service, verb), raw, timeout_ms=timeout_ms
                )
                return _result_of(reply)
            except NobodyAnswers:
                trouble: PlatformError = UnreachableError(
                    f"the {service} service does not answer", "lineshaft doctor"
                )
            except BusUnavailable as error:
                trouble = UnreachableError(f"the bus does not answer: {error}", "lineshaft doctor")
            except PlatformError as error:
                if error.code not in ("not_leader", "unavailable"):
                    raise
                trouble = error
            if loop.time() > deadline:
                raise trouble
            await asyncio.sleep(_TRY_AGAIN_MS / 1000)

    # Jobs: what admission answers.

    async def submit(
        self, job: str | Mapping[str, Any], *, key: str | None = None, team: str | None = None
    ) -> Answer:
        """Hand in a job file (text) or object; return its receipt.

        ``key`` makes a repeated submission harmless; without it a random one is used, and only
        this call's own repetitions are harmless. A refused job is an answer, not an exception.
        """
        return await self.request(
            "admission",
            "submit",
            job=job if isinstance(job, str) else dict(job),
            key=key or secrets.token_hex(16),
            team=team,
            timeout_ms=60_000,
        )

    async def plan(
        self, job: str | Mapping[str, Any], inventory: Mapping[str, Any] | None = None
    ) -> Answer:
        """Ask what a job would need and whether it can run, without submitting it."""
        body = job if isinstance(job, str) else dict(job)
        return await self.request(
            "admission", "plan", job=body, inventory=inventory, timeout_ms=60_000
        )

    async def command(
        self, verb: str, job: str, *, reason: str = "", actor: str = "user", **more: Any
    ) -> Answer:
        """Cancel, suspend, resume or re-prioritise a job; answers when it is recorded."""
        found = await self.job(job)
        key = more.pop("key", None) or secrets.token_hex(16)
        return await self.request(
            "admission",
            "command",
            verb=verb,
            job=found["job"],
            reason=reason,
            actor=actor,
            key=key,
            **more,
        )

    # Jobs: what the scheduler knows.

    async def jobs(self, **where: Any) -> list[Answer]:
        """Return a page of jobs by id; ``team``, ``state``, ``limit``, ``after`` narrow it."""
        return list((await self.request("scheduler", "jobs", **where))["jobs"])

    async def all_jobs(self, **where: Any) -> list[Answer]:
        """Return every job, newest first; ``team`` and ``state`` narrow them.

        Reads page by page, ``JOBS_READ_MAX`` jobs at most.
        """
        found: list[Answer] = []
        after = None
        while len(found) < JOBS_READ_MAX:
            page = await self.request("scheduler", "jobs", limit=1000, after=after, **where)
            found += page["jobs"]
            after = page.get("next")
            if not after:
                break
        return sorted(found, key=lambda job: (-(job.get("submitted_at") or 0), job["job"]))

    async def job(self, job: str, at_least: Mapping[str, Any] | None = None) -> Answer:
        """Return a job's state by id, unique beginning of the id, or name (the newest)."""
        return await self.request("scheduler", "job", job=job, at_least=at_least)

    async def wait_known(self, job: str, timeout_s: float = 15.0) -> Answer:
        """Return a just admitted job's state, once the scheduler has it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                return await self.job(job)
            except PlatformError as error:
                if error.code != "not_found" or loop.time() > deadline:
                    raise
            await asyncio.sleep(0.05)

    async def explain(self, job: str) -> Answer:
        """Say why a job is where it is."""
        return await self.request("scheduler", "explain", job=job)

    async def nodes(self) -> list[Answer]:
        """Return the nodes and what runs on them."""
        return list((await self.request("scheduler", "nodes"))["nodes"])

    async def queue(self) -> list[Answer]:
        """Return waiting jobs in order."""
        return list((await self.request("scheduler", "queue"))["jobs"])

    # Runs: what the monitor sees.

    async def run(self, job: str) -> Answer:
        """Return what runs now: nodes, ranks with process ids, last beats, diagnoses."""
        return await self.request("monitor", "run", job=job)

    async def curves(self, job: str, points: int = 400) -> Answer:
        """Return the curves of all attempts, metrics and throughput."""
        return await self.request("monitor", "curves", job=job, points=points)

    async def logs(self, job: str, **where: Any) -> Answer:
        """Return a page of log lines; ``attempt``, ``rank``, ``after``, ``limit`` choose."""
        return await self.request("monitor", "logs", job=job, **where)

    async def alerts(self, *, job: str | None = None, open_only: bool = False) -> list[Answer]:
        """Return alerts, newest first."""
        answer = await self.request("monitor", "alerts", job=job, open=open_only)
        return list(answer["alerts"])

    async def alert_command(
        self, verb: str, alert: str, *, actor: str = "user", reason: str = "", **more: Any
    ) -> Answer:
        """Acknowledge, resolve or silence an alert."""
        key = secrets.token_hex(16)
        return await self.request(
            "monitor", verb, alert=alert, actor=actor, reason=reason, key=key, **more
        )

    # Models: what the registry keeps.

    async def models(self) -> list[Answer]:
        """Return the registered models."""
        return list((await self.request("registry", "models"))["models"])

    async def model(self, name: str) -> Answer:
        """Return a model: versions, aliases with their history."""
        return await self.request("registry", "model", name=name)

    async def version_of(self, state: Mapping[str, Any]) -> Answer | None:
        """Return the version that a job's artefacts became, or None while there is none."""
        if not state.get("manifest") or state.get("state") != "Succeeded":
            return None
        name = (state.get("model") or {}).get("name") or state["name"]
        try:
            model = await self.model(str(name))
        except PlatformError as error:
            if error.code == "not_found":
                return None
            raise
        found = [v for v in model.get("versions", []) if v.get("job") == state["job"]]
        return {**found[-1], "name": name} if found else None

    async def resolve(self, ref: str) -> Answer:
        """Return the version that ``name@alias``, ``name:1.0.0`` or ``name@sha256:...`` means."""
        return await self.request("registry", "resolve", ref=ref)

    async def move_alias(self, verb: str, name: str, alias: str, **more: Any) -> Answer:
        """Promote a version to an alias, or roll an alias back."""
        key = secrets.token_hex(16)
        return await self.request("registry", verb, name=name, alias=alias, key=key, **more)

    async def pull(self, ref: str, target: Path, **options: Any) -> download.PullReport:
        """Download a version into ``target``, verified; see ``lineshaft.sdk.download``."""
        address = (await self.request("registry", "address"))["url"]
        return await download.pull(address, self.platform.token, ref, target, **options)

    async def health(self, service: str) -> Answer:
        """Return a service's own checks."""
        return await self.request(service, "health", timeout_ms=3_000)


async def _reach(platform: Platform) -> None:
    """Return when the platform's bus lets us in; say what is wrong when it does not."""
    if platform.bus_url.startswith("memory:"):
        return
    deadline = asyncio.get_running_loop().time() + _BUS_RESTART_S
    while True:
        try:
            await knock(platform.bus_url, platform.token)
            return
        except TokenRefused:
            raise UnreachableError(
                f"the bus at {platform.bus_url} refuses the token ({platform.origin})",
                "name it: nats://token@host:port, or LINESHAFT_TOKEN; "
                "it is `bus_token` in the platform's state.json",
            ) from None
        except BusUnavailable as error:
            if not discovery.is_alive(platform):
                raise UnreachableError(
                    f"the platform in {platform.state_dir} is not running: its process "
                    f"{platform.pid} is gone",
                    f"start it again: lineshaft up --state {shlex.quote(str(platform.state_dir))}",
                ) from None
            is_over = asyncio.get_running_loop().time() >= deadline
            if platform.pid is None or is_over:
                raise UnreachableError(
                    f"no bus answers: {error} ({platform.origin})",
                    "is the address right, and the platform up? lineshaft doctor looks",
                ) from None
        await asyncio.sleep(_TRY_AGAIN_MS / 1000)


def submission_key(job: str, salt: str = "") -> str:
    """Return a key that the same job file always has (``submit --once`` uses it)."""
    return hashlib.sha256(f"{salt}\n{job}".encode()).hexdigest()[:32]


def _result_of(reply: bytes) -> Answer:
    try:
        answer = json.loads(reply)
        if answer.get("ok"):
            return dict(answer.get("result") or {})
        error = answer["error"]
        raise PlatformError(
            str(error.get("code", "unavailable")),
            str(error.get("message", "the platform refused without a reason")),
            error.get("hint"),
            error.get("details"),
        )
    except (ValueError, KeyError, AttributeError, TypeError):
        raise PlatformError("unavailable", "the answer cannot be read") from None
