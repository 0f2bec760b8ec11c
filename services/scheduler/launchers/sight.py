"""What a launcher sees of one run on this machine, at a moment.

Reads run folders and the process table; changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.scheduler.launchers import processes
from services.scheduler.launchers.claims import Claim, RunFolder
from services.scheduler.launchers.processes import Identity


@dataclass(frozen=True, slots=True)
class Sight:
    """The nodes of a run by how their agents fare.

    ``living`` holds the lock; ``beginning`` was started by us and has not said who it is;
    ``unstarted`` has never been; ``stillborn`` was started by us and ended before it began;
    ``vanished`` lived and does so no more. ``left`` are living processes of nodes without agent.
    """

    living: tuple[str, ...]
    beginning: tuple[str, ...]
    unstarted: tuple[str, ...]
    stillborn: tuple[str, ...]
    vanished: tuple[str, ...]
    left: Mapping[str, tuple[Identity, ...]]

    @property
    def is_alive(self) -> bool:
        """Whether any agent lives or begins to."""
        return bool(self.living or self.beginning)


def see(folder: RunFolder, claim: Claim, children: Mapping[str, bool]) -> Sight:
    """Look at a run. ``children``: of the agents that we started, which still run."""
    found: dict[str, list[str]] = {
        name: [] for name in ("living", "beginning", "unstarted", "stillborn", "vanished")
    }
    for node in claim.nodes:
        found[_how(folder, node, children.get(node))].append(node)
    nodes = [*found["vanished"], *found["stillborn"], *found["unstarted"]]
    marked = processes.marked(folder.node(node).path for node in nodes if _was_there(folder, node))
    left = {}
    for node in nodes:
        at = folder.node(node)
        recorded = [process for process in at.recorded() if process.is_alive]
        left[node] = tuple({*marked.get(at.path, ()), *recorded})
    return Sight(**{name: tuple(names) for name, names in found.items()}, left=left)


def _was_there(folder: RunFolder, node: str) -> bool:
    return folder.node(node).path.is_dir()


def _how(folder: RunFolder, node: str, child: bool | None) -> str:
    at = folder.node(node)
    if at.is_held:
        return "living"
    if child:
        return "beginning"
    if at.agent is not None:
        return "vanished"
    return "unstarted" if child is None else "stillborn"
