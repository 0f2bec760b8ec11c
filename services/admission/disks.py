"""What the disks of a job's results have: free bytes, and the speed of a small write.

Blocking; runs in a thread of preflight. Whether that is enough is said with the estimate.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from services.admission.findings import Seen

PROBE_BYTES: Final = 4 << 20
_SAVE_PATH: Final = "spec.output.modelSavePath"


def look(seen: Seen, checkpoint_root: Path | None) -> None:
    """Record the disks below the checkpoints and below the place of the model."""
    places = {"checkpoints": checkpoint_root}
    if _SAVE_PATH in seen.paths:
        places["output"] = Path(seen.paths[_SAVE_PATH])
    for name, path in places.items():
        measured = None if path is None else measure(path)
        if measured is not None:
            seen.disks[name] = measured


def measure(path: Path) -> dict[str, Any] | None:
    """Return {path, device, free_bytes, bytes_per_s} of the nearest folder that exists.

    Free is what an ordinary user may still write; a user's quota is not in it. The speed is
    that of four mebibytes written and synced. None where nothing can be written.
    """
    there = path
    while not there.is_dir():
        if there.parent == there:
            return None
        there = there.parent
    try:
        room = os.statvfs(there)
        return {
            "path": str(there),
            "device": there.stat().st_dev,
            "free_bytes": room.f_bavail * room.f_frsize,
            "bytes_per_s": _speed(there, min(PROBE_BYTES, room.f_bavail * room.f_frsize // 4)),
        }
    except OSError:
        return None


def _speed(folder: Path, size: int) -> int | None:
    if size < PROBE_BYTES:
        return None
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder) as probe:
        began = time.monotonic_ns()
        for _ in range(size >> 20):
            probe.write(block)
        probe.flush()
        os.fsync(probe.fileno())
        return int(size * 1e9 / max(1, time.monotonic_ns() - began))
