"""Keys of everything the platform keeps in Objects.

One function per record; nobody else builds a key. Records under ``runs/`` are created once
and never changed: they are what a fact of the agent or the launcher restates.
"""

from lineshaft.contracts.ids import digest_of


def runs_of(job: str) -> str:
    """Prefix of all records of a job's runs."""
    return f"runs/{job}/"


def run(job: str, attempt: int) -> str:
    """Prefix of one run's records."""
    return f"runs/{job}/{attempt}/"


def fence(job: str, attempt: int) -> str:
    """The fence that must stand before ``attempt`` is launched."""
    return f"runs/{job}/fence/{attempt:06d}"


def fences(job: str) -> str:
    """Prefix of a job's fences."""
    return f"runs/{job}/fence/"


def started(job: str, attempt: int, node: str) -> str:
    """The agent of ``node`` started its ranks."""
    return f"runs/{job}/{attempt}/started-{node}"


def rank_exit(job: str, attempt: int, rank: int) -> str:
    """Rank ``rank`` ended."""
    return f"runs/{job}/{attempt}/rank-exit-{rank}"


def ended(job: str, attempt: int, node: str) -> str:
    """The agent of ``node`` and all its ranks are done."""
    return f"runs/{job}/{attempt}/ended-{node}"


def complete(job: str, attempt: int) -> str:
    """The run's completion record, written by rank 0's agent."""
    return f"runs/{job}/{attempt}/complete"


def checkpoint(job: str, attempt: int, step: int) -> str:
    """The commit record of the checkpoint at ``step``."""
    return f"runs/{job}/{attempt}/checkpoints/{step:09d}"


def checkpoints(job: str, attempt: int) -> str:
    """Prefix of a run's checkpoint commit records."""
    return f"runs/{job}/{attempt}/checkpoints/"


def stacks(job: str, attempt: int, node: str, number: int) -> str:
    """Stacks of a node's ranks."""
    return f"runs/{job}/{attempt}/stacks/{node}-{number}"


def log_segment(job: str, attempt: int, node: str, number: int) -> str:
    """One segment of a node's log."""
    return f"logs/{job}/{attempt}/{node}/{number:06d}"


def logs(job: str, attempt: int | None = None) -> str:
    """Prefix of a job's log segments, or of one attempt's."""
    return f"logs/{job}/" if attempt is None else f"logs/{job}/{attempt}/"


def curve(job: str, attempt: int, part: int) -> str:
    """One part of an attempt's downsampled curves."""
    return f"curves/{job}/{attempt}/{part:06d}"


def curves(job: str) -> str:
    """Prefix of a job's curves."""
    return f"curves/{job}/"


def blob(digest: str) -> str:
    """Content by its digest (``sha256:<hex>``)."""
    algorithm, _, value = digest.partition(":")
    return f"blobs/{algorithm}/{value[:2]}/{value}"


def staging(session: str, path: str = "") -> str:
    """A file of an upload session, or the session's prefix."""
    return f"staging/{session}/{path}"


def snapshot(service: str, stream: str, seq: int, part: int) -> str:
    """One part of a state snapshot."""
    return f"snapshots/{service}/{stream}/{seq:012d}/{part:06d}"


def staged_name(path: str) -> str:
    """The flat name under which a staged file of any path is kept."""
    return digest_of(path.encode()).partition(":")[2][:32]
