"""Telemetry on the wire: blocks of fixed-dtype records behind a small JSON header, and beats.

A block is ``b"LST1"``, the header's length (u32), the header (UTF-8 JSON), then ``rows`` records
of ``RECORD`` each, all little-endian. Checked once per block: length, schema, bounds.
Standard library only: the agent imports this module; the monitor reads records with numpy by
``DTYPE``.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lineshaft.contracts import limits

MAGIC = b"LST1"
SCHEMA = 1

# One row per rank and optimiser step. Times in milliseconds, learning rate and loss as they are;
# NaN means "not reported"; a loss or gradient norm that was reported and is no finite number
# travels as an infinity (``reported``). ``compute_ms`` is the time outside collectives, data and
# checkpoint.
FIELDS: tuple[str, ...] = (
    "step",
    "rank",
    "loss",
    "grad_norm",
    "learning_rate",
    "samples",
    "tokens",
    "step_ms",
    "compute_ms",
    "collective_ms",
    "data_ms",
    "checkpoint_ms",
    "cpu_ms",
    "at",
)
RECORD = struct.Struct("<IIddddddddddd d".replace(" ", ""))
DTYPE: list[tuple[str, str]] = [
    (name, "<u4" if name in ("step", "rank") else "<f8") for name in FIELDS
]

# Node samples in a header: the latest of each, where the machine tells. Each device's own
# utilisation follows the mean as ``gpu_utilisation_<n>``, n in the order of the node's ranks.
NODE_FIELDS: tuple[str, ...] = (
    "gpu_utilisation",
    "gpu_power_w",
    "gpu_memory_bytes",
    "gpu_memory_total_bytes",
    "gpu_temperature_c",
    "host_memory_used_bytes",
    "host_memory_total_bytes",
    "shm_used_bytes",
    "shm_total_bytes",
    "disk_used_bytes",
    "disk_total_bytes",
    "cpu_percent",
)


def reported(value: float) -> float:
    """Return a reported value as it travels: NaN, which would mean "not reported", as infinity."""
    return value if value == value else float("inf")  # noqa: PLR0124 - the standard library's isnan


class TelemetryError(ValueError):
    """A block or beat that cannot be read."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A named value of a run: an evaluation result, or what a script reports beside a step."""

    name: str
    value: float
    step: int
    split: str | None = None
    subtask: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A decoded block. ``records`` is raw: use ``rows()``, or numpy with ``DTYPE``."""

    job: str
    attempt: int
    node: str
    records: bytes
    metrics: tuple[Metric, ...]
    sample: Mapping[str, float]
    dropped: int

    def rows(self) -> Iterable[dict[str, float]]:
        """Yield each record as a mapping by ``FIELDS``."""
        for values in RECORD.iter_unpack(self.records):
            yield dict(zip(FIELDS, values, strict=True))


def pack(
    run: tuple[str, int, str],
    rows: Sequence[Mapping[str, float]],
    *,
    metrics: Sequence[Metric] = (),
    sample: Mapping[str, float] | None = None,
    dropped: int = 0,
) -> bytes:
    """Make a block of ``rows`` (mappings by ``FIELDS``; absent ones become NaN)."""
    job, attempt, node = run
    header = json.dumps(
        {
            "schema": SCHEMA,
            "job": job,
            "attempt": attempt,
            "node": node,
            "rows": len(rows),
            "metrics": [[m.name, m.value, m.step, m.split, m.subtask] for m in metrics],
            "sample": dict(sample or {}),
            "dropped": dropped,
        },
        separators=(",", ":"),
    ).encode()
    nan = float("nan")
    body = b"".join(
        RECORD.pack(
            int(row["step"]), int(row.get("rank", 0)), *(row.get(f, nan) for f in FIELDS[2:])
        )
        for row in rows
    )
    return MAGIC + struct.pack("<I", len(header)) + header + body


def unpack(raw: bytes) -> Block:
    """Read a block, binary or in its JSON form. Raises ``TelemetryError``, never anything else."""
    if len(raw) > limits.TELEMETRY_BLOCK_BYTES_MAX:
        raise TelemetryError(f"a block of {len(raw)} bytes is too large")
    if raw[:1] == b"{":
        return _unpack_json(raw)
    if raw[:4] != MAGIC or len(raw) < 8:
        raise TelemetryError("not a telemetry block")
    end = 8 + int.from_bytes(raw[4:8], "little")
    if end > len(raw):
        raise TelemetryError("the header is longer than the block")
    header = _object(raw[8:end])
    if header.get("schema") != SCHEMA:
        raise TelemetryError(f"unknown schema {header.get('schema')!r}")
    records = raw[end:]
    if header.get("rows") != len(records) // RECORD.size or len(records) % RECORD.size:
        raise TelemetryError("the number of rows differs from the block's length")
    return _block(header, records)


def _unpack_json(raw: bytes) -> Block:
    body = _object(raw)
    rows = body.get("records")
    if not isinstance(rows, list):
        raise TelemetryError("'records' must be a list")
    nan = float("nan")
    try:
        packed = b"".join(
            RECORD.pack(
                int(row["step"]),
                int(row.get("rank", 0)),
                *(nan if row.get(f) is None else float(row[f]) for f in FIELDS[2:]),
            )
            for row in rows
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error) as error:
        raise TelemetryError(f"a record cannot be read: {error!r}") from None
    return _block(body, packed)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise TelemetryError(f"the header is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise TelemetryError("the header must be an object")
    return body


def _block(header: Mapping[str, Any], records: bytes) -> Block:
    try:
        metrics = tuple(
            Metric(str(name), float(value), int(step), split, subtask)
            for name, value, step, split, subtask in header.get("metrics", [])
        )
        sample = {str(k): float(v) for k, v in dict(header.get("sample", {})).items()}
        return Block(
            job=str(header["job"]),
            attempt=int(header["attempt"]),
            node=str(header["node"]),
            records=records,
            metrics=metrics,
            sample=sample,
            dropped=int(header.get("dropped", 0)),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TelemetryError(f"the header cannot be read: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Beat:
    """One node's sign of life. ``ranks`` holds, per rank: pid, state (as in /proc) and cpu_ms."""

    job: str
    attempt: int
    node: str
    at: int
    phase: str
    last_step: int
    last_step_age_ms: int
    dropped_blocks: int
    ranks: tuple[Mapping[str, Any], ...] = ()
    boot_id: str = ""


def pack_beat(beat: Beat) -> bytes:
    """Return the JSON form of a beat."""
    body = {name: getattr(beat, name) for name in Beat.__slots__}
    body["ranks"] = [dict(rank) for rank in beat.ranks]
    return json.dumps(body, separators=(",", ":")).encode()


def unpack_beat(raw: bytes) -> Beat:
    """Read a beat. Raises ``TelemetryError``."""
    body = _object(raw[: limits.TELEMETRY_BLOCK_BYTES_MAX])
    try:
        ranks = tuple(dict(rank) for rank in body.get("ranks", [])[: limits.TELEMETRY_RANKS_MAX])
        whole = {
            name: int(body[name])
            for name in ("attempt", "at", "last_step", "last_step_age_ms", "dropped_blocks")
        }
        return Beat(
            job=str(body["job"]),
            node=str(body["node"]),
            phase=str(body["phase"]),
            ranks=ranks,
            boot_id=str(body.get("boot_id", "")),
            **whole,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TelemetryError(f"the beat cannot be read: {error!r}") from None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a rank's output. ``at`` is the agent's clock, milliseconds since the epoch."""

    at: int
    rank: int
    stream: str
    text: str


def pack_lines(lines: Sequence[LogLine]) -> bytes:
    """Return JSON lines, the form of the live stream and of a log segment alike."""
    return b"".join(
        json.dumps([ln.at, ln.rank, ln.stream, ln.text], ensure_ascii=False).encode() + b"\n"
        for ln in lines
    )


def unpack_lines(raw: bytes) -> list[LogLine]:
    """Read JSON lines; what cannot be read becomes a line that says so."""
    made = []
    for number, piece in enumerate(raw.splitlines()):
        try:
            at, rank, stream, text = json.loads(piece)
            made.append(LogLine(int(at), int(rank), str(stream), str(text)))
        except (ValueError, TypeError, RecursionError):
            made.append(LogLine(0, -1, "agent", f"[line {number} of this block cannot be read]"))
    return made
