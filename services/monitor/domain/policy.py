"""The monitor's thresholds, as one frozen value; their grounds stand beside the rules.

Durations are in milliseconds unless the name says steps. Nothing here decides anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


class PolicyError(ValueError):
    """A policy value that is unknown or of the wrong type; the message names it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Every threshold of the monitor. The defaults are what was measured to hold."""

    # Every rule.
    warm_up_steps: int = 16
    cool_down_ms: int = 300_000

    # loss_spike
    spike_window: int = 128
    spike_window_min: int = 32
    spike_mads: float = 8.0
    spike_share: float = 0.15
    spike_hits: int = 3
    spike_of: int = 5
    spike_critical_factor: float = 5.0
    spike_blips: int = 10
    spike_blips_within_steps: int = 1000
    spike_recovered_factor: float = 1.05
    spike_recover_steps: int = 100
    spike_relearn_steps: int = 256
    spike_calm_steps: int = 20

    # non_finite
    zero_losses: int = 2
    frozen_norms: int = 5

    # grad_norm
    norm_window: int = 128
    norm_factor: float = 10.0
    norm_after_step: int = 200
    norm_hits: int = 2
    norm_of: int = 3

    # straggler
    straggler_notice: float = 1.10
    straggler_warning: float = 1.15
    straggler_critical: float = 1.5
    straggler_hits: int = 8
    straggler_of: int = 10
    straggler_peers_min: int = 4
    straggler_few_peers: float = 1.3
    straggler_imbalance_share: float = 0.25
    straggler_imbalance_ranks: int = 8
    straggler_clear_hits: int = 2

    # hang
    hang_floor_ms: int = 60_000
    hang_gap_factor: float = 5.0
    hang_gaps_kept: int = 100
    hang_confirm_factor: float = 1.2
    hang_first_step_ms: int = 20 * 60_000
    hang_checkpoint_ms: int = 30 * 60_000
    hang_evaluation_ms: int = 60 * 60_000
    hang_finish_ms: int = 60 * 60_000
    hang_idle_utilisation: float = 1.0
    beat_fresh_ms: int = 15_000

    # data_starvation
    starvation_window: int = 20
    starvation_warning: float = 0.20
    starvation_critical: float = 0.50
    starvation_above_baseline: float = 0.10

    # checkpoint_overdue
    overdue_warning: float = 1.5
    overdue_critical: float = 3.0
    overdue_default_ms: int = 10 * 60_000

    # checkpoint_failing
    failing_critical: int = 2

    # loss_not_falling
    trend_window: int = 1000
    trend_window_share: float = 0.05
    trend_flat: float = 0.995
    trend_buckets: int = 20
    trend_tail: float = 0.20
    trend_climb: float = 0.03
    trend_climb_steps: int = 200
    trend_climb_span: int = 100

    # job_slow
    slow_window: int = 20
    slow_share: float = 0.10
    slow_sigmas: float = 4.0
    slow_sigma_floor: float = 0.01
    # A difference below the scheduler's time slice says nothing about training.
    slow_ms_floor: float = 5.0

    # straggler, slow drifts
    drift_peers_min: int = 8
    drift_clip: float = 2.0
    drift_k: float = 1.0
    drift_h: float = 12.0
    drift_ratio: float = 1.03
    drift_sigma_floor: float = 0.01

    # out_of_memory_soon
    memory_warning: float = 0.92
    memory_critical: float = 0.97
    memory_cleared: float = 0.85
    memory_forecast_ms: int = 15 * 60_000
    memory_every_ms: int = 5_000
    memory_span_ms: int = 30_000
    memory_held_ms: int = 20_000
    memory_floor: float = 0.5
    shm_floor: float = 0.1

    # storage_filling
    storage_every_ms: int = 30_000
    storage_span_ms: int = 10 * 60_000
    storage_warning_ms: int = 24 * 3_600_000
    storage_warning_free: float = 0.40
    storage_critical_ms: int = 4 * 3_600_000
    storage_critical_free: float = 0.20
    storage_flat_warning: float = 0.05
    storage_flat_critical: float = 0.03

    # zero_utilisation and low_utilisation, in percent of use
    zero_utilisation: float = 1.0
    zero_peers_busy: float = 90.0
    zero_ms: int = 5 * 60_000
    low_utilisation: float = 80.0
    low_ms: int = 10 * 60_000
    low_step_ms: int = 60_000

    # below_plan
    plan_warning: float = 0.90
    plan_critical: float = 0.70
    plan_cleared: float = 0.95
    plan_ms: int = 10 * 60_000

    # resume_check
    resume_rate: float = 0.01
    resume_loss: float = 0.05

    # presence
    join_ms: int = 15 * 60_000
    unobserved_ms: int = 15_000
    lost_ms: int = 60_000
    own_path_ms: int = 15_000
    silent_nodes_min: int = 10
    silent_share: float = 0.20

    # log_signature
    same_signature_ms: int = 5_000
    signature_quiet_ms: int = 600_000

    # diagnosis
    host_memory_full: float = 0.97
    cascade_wait_ms: int = 1_500

    # restart_storm
    storm_attempts: int = 5
    storm_within_ms: int = 30 * 60_000
    storm_without_checkpoint: int = 3

    # curves and logs
    curve_points_max: int = 2_000
    curve_flush_ms: int = 60_000
    curve_flush_max_ms: int = 3_600_000
    log_ring_lines: int = 5_000

    # silence
    silence_ms: int = 24 * 3_600_000


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return the defaults with ``values`` in their place.

    Raises ``PolicyError`` for a name that is none, a value of another type, or one below zero.
    """
    known = {f.name: f.type for f in fields(Policy)}
    chosen: dict[str, int | float] = {}
    for name, value in values.items():
        if name not in known:
            raise PolicyError(f"the monitor's policy has no '{name}'")
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise PolicyError(f"'{name}' must be a number, zero or more")
        default = getattr(Policy, name, None)
        whole = known[name] in (int, "int") or isinstance(default, int)
        if whole and value != int(value):
            raise PolicyError(f"'{name}' must be a whole number")
        chosen[name] = int(value) if whole else float(value)
    return replace(Policy(), **chosen)  # type: ignore[arg-type]
