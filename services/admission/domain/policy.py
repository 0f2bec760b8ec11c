"""What an operator may set about admission: the pool, device facts, what is refused outright.

Values only; read from the settings' table ``[policy.admission]``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lineshaft.contracts import ids

GIB = 1 << 30

# Memory per device in bytes and sustained training FLOP/s per device: 40 % of the makers' dense
# bf16 peak (A100 312, H100 and H200 989, L40S 362, A10 125, RTX 4090 165, V100 125 in fp16,
# TFLOP/s; data sheets), the share that well-tuned dense training reaches (PaLM, arXiv 2204.02311,
# section 4.1, reports 46 %). A CPU slot: 20 GFLOP/s, measured on one core with a small model.
DEVICES: Mapping[str, tuple[int, float]] = {
    "a100-40g": (40 * GIB, 125e12),
    "a100-80g": (80 * GIB, 125e12),
    "h100-80g": (80 * GIB, 396e12),
    "h200-141g": (141 * GIB, 396e12),
    "l40s-48g": (48 * GIB, 145e12),
    "a10-24g": (24 * GIB, 50e12),
    "rtx4090-24g": (24 * GIB, 66e12),
    "v100-32g": (32 * GIB, 50e12),
    "cpu": (0, 20e9),
}


class PolicyError(ValueError):
    """A policy value that cannot be used; its message names it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device; ``memory_bytes`` 0 is "not known" (a CPU slot shares its machine's)."""

    memory_bytes: int
    flops: float


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The policy of admission; the defaults suit a laptop and a cluster alike."""

    pool: str = "default"
    team: str = "default"
    devices: Mapping[str, Device] = field(
        default_factory=lambda: {name: Device(*row) for name, row in DEVICES.items()}
    )
    # Share added to an estimate before it is compared with a device.
    headroom: float = 0.2
    # Refuse what cannot fit even by the low estimate.
    refuse_too_large: bool = True
    # Rehearse one and two layers in a process of its own (needs torch on this machine).
    dry_runs: bool = True
    # Declared bandwidths: between nodes (of one node), and between devices of a node (of one).
    node_gbit_s: float = 100.0
    slot_gbit_s: float = 200.0
    # Price of one device hour by type, in a currency of one's own.
    prices: Mapping[str, float] = field(default_factory=dict)
    # A folder with more preflight checks (files of the form of services/admission/checks).
    checks: str | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any], *, pool: str = "default") -> "AdmissionPolicy":
        """Read ``[policy.admission]``. Raises ``PolicyError`` that names the wrong value."""
        known = {each.name for each in fields(cls)}
        for name in values:
            if name not in known:
                raise PolicyError(f"policy.admission has no '{name}'; {', '.join(sorted(known))}")
        made = dict(values)
        made.setdefault("pool", pool)
        for name in ("pool", "team"):
            if name in made and not ids.is_name(str(made[name])):
                raise PolicyError(f"policy.admission.{name} must be a name")
        if not 0 <= float(made.get("headroom", 0.2)) <= 2:
            raise PolicyError("policy.admission.headroom must be from 0 to 2")
        _check_speeds_and_prices(made)
        devices = {name: Device(*row) for name, row in DEVICES.items()}
        for name, row in dict(made.get("devices", {})).items():
            devices[name] = _device(name, row)
        return cls(**{**made, "devices": devices})

    def device(self, gpu_type: str) -> Device | None:
        """Return what is known about a device type."""
        return self.devices.get(gpu_type)


def _check_speeds_and_prices(made: Mapping[str, Any]) -> None:
    for name in ("node_gbit_s", "slot_gbit_s"):
        if not _positive(made.get(name, 1)):
            raise PolicyError(f"policy.admission.{name} must be a number above 0")
    for name, price in dict(made.get("prices", {})).items():
        if not _positive(price):
            raise PolicyError(f"policy.admission.prices.{name} must be a number above 0")


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12


def _device(name: str, row: Any) -> Device:
    if not isinstance(row, Mapping) or not {"memory_gib", "tflops"} >= row.keys():
        raise PolicyError(f"policy.admission.devices.{name} takes memory_gib and tflops")
    memory, speed = row.get("memory_gib", 0), row.get("tflops", 0)
    if not isinstance(memory, int | float) or not isinstance(speed, int | float):
        raise PolicyError(f"policy.admission.devices.{name}: both are numbers")
    return Device(int(memory * GIB), float(speed) * 1e12)
