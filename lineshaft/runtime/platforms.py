"""The user's list of running platforms, so that a client finds the only one by itself.

``$XDG_STATE_HOME/lineshaft/platforms.json`` (``~/.local/state`` by default): {"platforms":
[{"state_dir", "pid"}]}. It is a hint: whoever reads it looks whether the process is there. It is
never needed, so nothing that goes wrong with it stops a platform.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def list_path() -> Path:
    """Return where the list is kept."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "lineshaft" / "platforms.json"


def add(state: Path, pid: int) -> None:
    """Put a platform on the list."""
    row = {"state_dir": str(state), "pid": pid}
    _change(lambda rows: [r for r in rows if r.get("state_dir") != str(state)] + [row])


def remove(state: Path) -> None:
    """Take a platform off the list."""
    _change(lambda rows: [r for r in rows if r.get("state_dir") != str(state)])


def _change(change: Callable[[Rows], Rows]) -> None:
    path = list_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.with_suffix(".lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            rows = [row for row in change(_read(path)) if _is_alive(row)]
            draft = path.with_suffix(".new")
            draft.write_text(json.dumps({"platforms": rows}, indent=1) + "\n", encoding="utf-8")
            draft.replace(path)


def _read(path: Path) -> Rows:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["platforms"]
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_alive(row: dict[str, Any]) -> bool:
    pid = row.get("pid")
    if isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
