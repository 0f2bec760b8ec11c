"""Identifiers and names: how they are made, what they may contain.

Everything here is a pure function of its arguments; nothing reads a clock or draws at random.
Names that people choose are labels; only the identifiers made here are keys.
"""

import base64
import hashlib
import re

from lineshaft.contracts import limits

NAME = re.compile(r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")
_SLUG_REPLACED = re.compile(r"[^a-z0-9-]+")
_JOB_ID = re.compile(r"^j-[a-z2-7]{16}$")


def digest_of(data: bytes) -> str:
    """Return ``sha256:<64 hex digits>`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def job_id(team: str, key: str) -> str:
    """Derive a job's id from the team and the submission's idempotency key.

    The same submission, delivered twice or to two replicas, names the same job.
    """
    raw = hashlib.sha256(f"{team}\n{key}".encode()).digest()
    return "j-" + base64.b32encode(raw[:10]).decode().lower()


def is_job_id(text: str) -> bool:
    """Tell whether ``text`` has the form of a job id."""
    return _JOB_ID.fullmatch(text) is not None


def run_name(job: str, attempt: int) -> str:
    """Return the name of the run (job, attempt), used for folders, locks and objects."""
    return f"{job}-{attempt}"


def is_name(text: str) -> bool:
    """Tell whether ``text`` is a name: 1-63 of a-z, 0-9 and ``-``, not at either end."""
    return NAME.fullmatch(text) is not None


def slug(text: str) -> str:
    """Make a name out of any text; empty input gives ``-``, the token for "does not apply"."""
    made = _SLUG_REPLACED.sub("-", text.lower()).strip("-")[: limits.NAME_CHARS_MAX].strip("-")
    return made or "-"


def _bucket(key: str, count: int) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % count


def shard(key: str) -> int:
    """Return the shard (0 to SHARDS - 1) of a job id or model name."""
    return _bucket(key, limits.SHARDS)


def partition(job: str) -> int:
    """Return the monitor's partition of a job; all nodes of its runs meet there."""
    return _bucket(job, limits.PARTITIONS)
