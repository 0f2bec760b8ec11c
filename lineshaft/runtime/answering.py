"""Answering requests: parameters in, one envelope out, whatever the handler does."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from structlog.typing import FilteringBoundLogger

from lineshaft.contracts import limits
from lineshaft.ports import BusUnavailable, Clock, Request, StoreUnavailable
from lineshaft.runtime import rpc
from lineshaft.runtime.decider import FactRefused
from lineshaft.runtime.host import DeciderHost, DecisionFailed, NotLeader
from lineshaft.runtime.rpc import RpcError

LEADING_LOOKS, LEADING_LOOK_MS = 20, 100
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing a service answers."""

    handler: Handler
    needs_leader: bool


class Shell(Protocol):
    """What answering needs of the service around it."""

    name: str
    clock: Clock
    host: DeciderHost
    log: FilteringBoundLogger

    def audit(self, kind: str, subject: str, status: str, summary: str) -> None:
        """Tell of a finding."""
        ...

    async def wait_for(self, stream: str, seq: int, timeout_ms: int) -> bool:
        """Wait until answers reflect ``seq`` of ``stream``."""
        ...


async def reply(shell: Shell, name: str, verb: Verb, request: Request) -> bytes:
    """Return the reply to ``request``; never raises but for cancellation."""
    try:
        result = await _answer(shell, verb, rpc.decode_request(request.data))
        epoch = max((lane.epoch for lane in shell.host.lanes.values()), default=0)
        return rpc.encode_result(result, epoch)
    except Exception as error:
        known = _known(error)
        if known is None:
            shell.log.exception("request_failed", verb=name, detail=repr(error))
            shell.audit("request_failed", name, "open", repr(error))
            problem = f"{shell.name} failed to answer '{name}'; its log has the story"
            known = RpcError("unavailable", problem)
        return rpc.encode_error(known)


def _known(error: Exception) -> RpcError | None:
    match error:
        case RpcError():
            return error
        case FactRefused():
            return RpcError("refused", str(error))
        case NotLeader():
            return RpcError("not_leader", str(error), "ask again in a moment")
        case StoreUnavailable() | BusUnavailable() | DecisionFailed():
            return RpcError("unavailable", str(error), "try again later, with the same key")
    return None


async def _answer(shell: Shell, verb: Verb, params: dict[str, Any]) -> dict[str, Any]:
    at_least = params.pop("at_least", None)
    if at_least is not None:
        if not isinstance(at_least, dict):
            raise RpcError("usage", "'at_least' must be {stream, seq}")
        stream, seq = rpc.text(at_least, "stream"), rpc.whole(at_least, "seq")
        is_there = await shell.wait_for(stream, seq, limits.READ_YOUR_WRITES_WAIT_MS)
        # What another service decided may never concern us: then it is answered as it is.
        if not is_there and stream in shell.host.lanes:
            raise RpcError("unavailable", f"{stream} has not reached {seq} yet", "ask again")
    if verb.needs_leader and not await _leads(shell):
        raise NotLeader(f"this process leads no stream of {shell.name}")
    return await verb.handler(params)


async def _leads(shell: Shell) -> bool:
    """Tell whether this process leads, waiting for a renewal that a busy machine held up."""
    for _ in range(LEADING_LOOKS):
        if shell.host.led_streams():
            return True
        await shell.clock.sleep(LEADING_LOOK_MS)
    return False
