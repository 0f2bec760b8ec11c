"""The end of the demo: timeline, curves, evaluation, where things are, what to try next."""

from pathlib import Path
from typing import Any

from lineshaft.cli.demo.plot import plot
from lineshaft.cli.output import clock, span
from lineshaft.cli.watching import lines_of
from lineshaft.sdk.watch import Change


def lines(report: dict[str, Any]) -> list[str]:
    """Return the summary of a finished demo."""
    job = report["job"]
    made = ["", "Summary", "", "Timeline of the fine-tuning job (state, reason)"]
    made += [
        "  " + text for line in job["timeline"] for text in lines_of(Change("state", line, job))
    ]
    made.append("")
    made += ["Alerts"]
    made += [
        f"  {clock(alert.get('opened_at'))}  {alert['status']} [{alert['severity']}] "
        f"{alert['kind']}: {alert['summary']}"
        for alert in report["alerts"]
    ] or ["  none"]
    made.append("")
    resumed = job.get("resume_from") or {}
    marks = [int(resumed["step"])] if resumed.get("step") else []
    series = report["curves"].get("series", {})
    made += ["  " + line for line in plot("loss", series.get("loss", []), marks)]
    made += ["", *evaluation_lines(report["evaluation"])]
    return made


def value(evaluation: dict[str, Any], when: str, task: str, metric: str) -> float | None:
    """Return one number of an evaluation report, or None."""
    found = ((evaluation.get(when) or {}).get(task) or {}).get(metric)
    if isinstance(found, dict):
        found = found.get("value")
    return float(found) if isinstance(found, int | float) else None


def evaluation_lines(evaluation: dict[str, Any]) -> list[str]:
    """Return before and after, per sub-task and metric, beside the majority baseline."""
    made = ["Evaluation on the held-out split", f"  {'':24}{'before':>10}{'after':>10}"]
    after = evaluation.get("after") or {}
    for task in sorted(after):
        for metric in ("exactMatch", "perplexity", "tokenAccuracy"):
            new = value(evaluation, "after", task, metric)
            if new is None:
                continue
            old = value(evaluation, "before", task, metric)
            before = f"{old:10.3f}" if old is not None else f"{'-':>10}"
            made.append(
                f"  {task + ' ' + metric:24}{before}{new:10.3f}{_aside(after[task], metric)}"
            )
    return made


def _aside(task: dict[str, Any], metric: str) -> str:
    found = task.get(metric)
    text = ""
    if isinstance(found, dict) and "low" in found and "high" in found:
        text = f"   95 % interval {found['low']:.3f} to {found['high']:.3f}"
    majority = task.get("majority")
    if metric == "exactMatch" and isinstance(majority, int | float):
        text += f", majority class {majority:.3f}"
    return text


def next_steps(folder: Path, report: dict[str, Any], *, keep: bool) -> list[str]:
    """Return where the files are and what to try next."""
    reopen = f"lineshaft up --detach --state {folder} --config {folder}/lineshaft.toml"
    made = [
        "",
        f"The whole demo took {span(report['seconds'] * 1000)}.",
        "Where things are",
        f"  the model           {report['pulled']}",
        f"  job files           {folder}/demo/*.yaml",
        f"  this, for programs  {folder}/demo-report.json",
        "Try next (the command is .venv/bin/lineshaft, or `source .venv/bin/activate`)",
    ]
    if not keep:
        made.append(f"  {reopen}")
    made += [
        f"  export LINESHAFT_STATE_DIR={folder}",
        "  lineshaft jobs; lineshaft status domain-chat-finetune-v1; lineshaft alerts",
        "  lineshaft promote domain-chat 1.0.0 --alias production",
        "  lineshaft submit examples/script.yaml --watch",
        "  lineshaft down",
    ]
    return made
