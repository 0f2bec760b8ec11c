"""One real rank of a test: runs the loop with a line that writes what it is told to a file.

Switches (TRAINER_TEST, JSON): ``kill`` {rank, step}: SIGKILL right after that step; ``stop``
{rank, step}: a stop that reaches this rank alone; ``clock_ms`` per rank: an offset of its clock.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


class FileLink:
    """Writes every message at once: a kill must not take any along."""

    def __init__(self, folder: Path, rank: int, switches: dict[str, Any]) -> None:
        self._file = (folder / f"told-{rank}.jsonl").open("a", buffering=1)
        self._rank = rank
        self._switches = switches
        self._step = 0

    def _tell(self, op: str, **told: Any) -> None:
        self._file.write(json.dumps({"op": op, **told}) + "\n")

    def _is(self, switch: str) -> bool:
        wish = self._switches.get(switch)
        return bool(wish) and wish["rank"] == self._rank and self._step >= wish["step"]

    def step(self, step: int, **numbers: float) -> None:
        self._step = step
        self._tell("step", step=step, **numbers)
        if self._is("kill"):
            os.kill(os.getpid(), signal.SIGKILL)

    def metric(self, name: str, value: float, step: int, **more: Any) -> None:
        self._tell("metric", name=name, value=value, step=step, **more)

    def phase(self, name: str) -> None:
        self._tell("phase", name=name)

    def plan(self, **numbers: float) -> None:
        self._tell("plan", **numbers)

    def stop_requested(self) -> str | None:
        return "stop" if self._is("stop") else None

    def may_commit(self) -> bool:
        return True

    def committed(self, step: int, digest: str, size: int, path: str, metrics: Any) -> None:
        self._tell("committed", step=step, digest=digest, bytes=size, path=path)

    def finished(self, folder: str, step: int) -> None:
        self._tell("finished", folder=folder, step=step)


def main() -> None:
    """Run the order in the given folder."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    switches = json.loads(os.environ["TRAINER_TEST"])
    order = json.loads((folder / "order.json").read_text())
    from trainer import loop

    offset = switches.get("clock_ms", {}).get(str(rank), 0)
    own_clock = loop._now_ms
    loop._now_ms = lambda: own_clock() + offset
    loop.run(order, FileLink(folder, rank, switches))
    os._exit(0)


if __name__ == "__main__":
    main()
