"""The sink that writes alerts into the service's log."""

from lineshaft.contracts.alerts import Severity
from lineshaft.contracts.events import Fact
from lineshaft.runtime.observability import logger


class LogSink:
    """One line per alert event."""

    name = "log"

    def __init__(self) -> None:
        self._log = logger("monitor.alerts")

    async def deliver(self, notice: Fact) -> None:
        """Write the line: an error for what is critical, a warning otherwise; endings are calm."""
        alert = notice.data
        say = self._log.info
        if notice.kind == "alert.firing":
            say = self._log.error if alert["severity"] == Severity.CRITICAL else self._log.warning
        say(
            notice.kind,
            alert=alert["alert"],
            job=alert["job"],
            attempt=alert["attempt"],
            kind=alert["kind"],
            subject=alert["subject"],
            severity=alert["severity"],
            summary=alert["reason"] if notice.kind == "alert.resolved" else alert["summary"],
            runbook=alert["runbook"],
        )
