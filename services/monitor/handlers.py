"""What the monitor answers and does: its consumption, its requests, its background work."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from lineshaft.contracts.alerts import partition_of
from lineshaft.contracts.events import Fact
from lineshaft.runtime import rpc
from lineshaft.runtime.decider import OutcomeKind
from lineshaft.runtime.rpc import RpcError
from lineshaft.runtime.service import Service
from services.monitor import signature_file
from services.monitor.curve_store import CurveStore
from services.monitor.domain import commands
from services.monitor.domain.policy import Policy
from services.monitor.domain.raising import partition_stream
from services.monitor.ingest import Ingest
from services.monitor.log_store import LIMIT_DEFAULT, LogStore, Wanted
from services.monitor.queries import Queries, job_of
from services.monitor.sinks.delivery import Delivery
from services.monitor.sinks.log import LogSink
from services.monitor.sinks.webhook import WebhookSink, webhooks
from services.monitor.watching import Watching

FAMILIES = ("telemetry", "beat", "logs")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the monitor is made of, for those who look into it."""

    watching: Watching
    ingest: Ingest
    curves: CurveStore


def register(service: Service, policy: Policy) -> Parts:
    """Wire the monitor's parts to its service and return them."""
    watching = Watching(service, policy, signature_file.load())
    ingest = Ingest(service, watching, policy)
    store = CurveStore(service, watching.runs, policy)
    queries = Queries(service, watching.runs, store)
    logs = LogStore(service.objects, watching.runs)
    hooks = [WebhookSink(hook, service.clock.now) for hook in webhooks(service.settings.webhooks)]
    delivery = Delivery(service, [LogSink(), *hooks])

    for stream in ("job", "run"):
        service.consume(stream, [f"lineshaft.{stream}.>"], observe=watching.look)
    service.consume("audit", ["lineshaft.audit.>"])

    service.rpc("run", queries.run)
    service.rpc("curves", queries.curves)
    service.rpc("logs", partial(read_logs, logs))
    service.rpc("alerts", queries.alerts)
    service.rpc("acknowledge", partial(command, service, commands.ACKNOWLEDGE))
    service.rpc("resolve", partial(command, service, commands.RESOLVE))
    service.rpc("silence", partial(command, service, commands.SILENCE))

    for family in FAMILIES:
        service.background(f"take-{family}", partial(ingest.take_forever, family))
    service.background("canary", ingest.canary_forever)
    service.background("ticks", watching.tick_forever)
    service.background("observations", watching.report_forever)
    service.background("curves", store.flush_forever)
    service.background("notices", delivery.run)
    service.on_stop(partial(store.flush, is_final=True))
    for hook in hooks:
        service.on_stop(hook.aclose)
    return Parts(watching, ingest, store)


async def read_logs(logs: LogStore, params: dict[str, Any]) -> dict[str, Any]:
    """Answer ``logs``: job, attempt, rank, after, limit."""
    numbers = {name: params.get(name) for name in ("attempt", "rank")}
    for name, value in numbers.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise RpcError("usage", f"'{name}' must be a whole number")
    after = params.get("after")
    if after is not None and not isinstance(after, str):
        raise RpcError("usage", "'after' is not a page's 'next'")
    limit = params.get("limit")
    wanted = Wanted(
        job_of(params),
        numbers["attempt"],
        numbers["rank"],
        after,
        LIMIT_DEFAULT if limit is None else rpc.whole(params, "limit"),
    )
    return await logs.page(wanted)


async def command(service: Service, kind: str, params: dict[str, Any]) -> dict[str, Any]:
    """Answer ``acknowledge``, ``resolve``, ``silence``: alert, actor, reason, key (for_ms)."""
    alert = rpc.text(params, "alert")
    partition = partition_of(alert)
    if partition is None:
        raise RpcError("not_found", f"'{alert}' is no alert's id", "`lineshaft alerts` lists them")
    data: dict[str, Any] = {
        "alert": alert,
        "actor": rpc.text(params, "actor"),
        "reason": params.get("reason") or "",
    }
    if kind == commands.SILENCE and params.get("for_ms") is not None:
        data["for_ms"] = rpc.whole(params, "for_ms")
    fact = Fact(
        id=rpc.text(params, "key"), kind=kind, data=data, at=service.clock.now(), source="rpc"
    )
    if not service.host.is_leader(partition_stream(partition)):
        raise RpcError("not_leader", "another process watches this alert's job")
    outcome = await service.host.submit(fact)
    if outcome.kind is OutcomeKind.REFUSED:
        raise RpcError("not_found", outcome.reason)
    return {"alert": alert, "stream": outcome.stream, "seq": outcome.seq}
