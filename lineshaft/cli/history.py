"""Commands about what a job did and left: timeline, artifacts."""

from collections.abc import Mapping
from typing import Any

import typer

from lineshaft.cli import options, output
from lineshaft.cli.listing import place
from lineshaft.cli.output import Format
from lineshaft.contracts import records
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import PlatformError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(epilog="Example: lineshaft timeline domain-chat", no_args_is_help=True)(timeline)
    app.command(epilog="Example: lineshaft artifacts domain-chat -o json", no_args_is_help=True)(
        artifacts
    )


def timeline(
    job: options.Job, url: options.Url = None, form: options.Output = Format.TABLE
) -> None:
    """Tell a job's life in order: states with reasons, checkpoints, diagnoses, alerts."""

    async def work() -> None:
        async with Client.connect(url) as client:
            state = await client.job(job)
            run = await _or_none(client.run(state["job"]))
            alerts = await _or_none(client.alerts(job=state["job"]))
        rows = moments(state, run or {}, alerts or [])
        if form is Format.JSON:
            output.print_json({"job": state["job"], "timeline": rows})
            return
        output.print_line(f"{state['name']}  {state['job']}  {place(state)}")
        before = None
        for row in rows:
            took = f"+{output.span(row['at'] - before)}" if before is not None else ""
            attempt = f"#{row['attempt']}" if row.get("attempt") else ""
            output.print_line(f"{output.clock(row['at'])}  {took:>14}  {attempt:3} {row['text']}")
            before = row["at"]
        for name, known in (("diagnoses", run), ("alerts", alerts)):
            if known is None:
                output.print_line(f"not known now - {name}: the monitor does not answer")

    output.go(work, form)


async def _or_none(question: Any) -> Any:
    """Await an answer of the monitor; None when it is away, empty when it knows of nothing."""
    try:
        return await question
    except PlatformError as error:
        return {} if error.code == "not_found" else None


def moments(
    state: Mapping[str, Any], run: Mapping[str, Any], alerts: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return everything that happened to a job, in order: at, kind, attempt, text."""
    found = [
        _moment(line["at"], "state", line.get("attempt"), f"{place(line)}: {line['reason']}")
        for line in state.get("timeline", [])
    ]
    for one in state.get("checkpoints", []):
        text = f"checkpoint at step {one['step']} ({output.size(one['bytes'])})"
        found.append(_moment(one["at"], "checkpoint", one["attempt"], text))
    for attempt in run.get("attempts", []):
        found += [
            _moment(d["at"], "diagnosis", d.get("attempt"), f"diagnosis: {d['summary']}")
            for d in attempt.get("diagnoses", [])
            if d.get("summary")
        ]
    for alert in alerts:
        text = f"alert [{alert['severity']}] {alert['kind']}: {alert['summary']}"
        found.append(_moment(alert["opened_at"], "alert", alert.get("attempt"), text))
        if alert.get("status") == "resolved":
            ended = f"alert {alert['kind']} resolved"
            found.append(_moment(alert["changed_at"], "alert", alert.get("attempt"), ended))
    return sorted(found, key=lambda one: one["at"])


def _moment(at: int, kind: str, attempt: Any, text: str) -> dict[str, Any]:
    return {"at": at, "kind": kind, "attempt": attempt or None, "text": text}


def artifacts(
    job: options.Job, url: options.Url = None, form: options.Output = Format.TABLE
) -> None:
    """List what a job left: checkpoints, the version with its files, logs; sizes and places."""

    async def work() -> None:
        async with Client.connect(url) as client:
            state = await client.job(job)
            made = await left_by(client, state)
        if form is Format.JSON:
            output.print_json(made)
        else:
            _print(made)

    output.go(work, form)


async def left_by(client: Client, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's checkpoints, version, files and logs; ``missing`` names what is not known."""
    job, missing = state["job"], []
    version: dict[str, Any] | None = None
    try:
        found = await client.version_of(state)
        if found:
            ref = f"{found['name']}:{found['version']}"
            version = {"ref": ref, **await client.resolve(ref)}
    except PlatformError as error:
        missing.append(f"version: {error.message}")
    try:
        logs = await _logs(client, job)
    except PlatformError as error:
        logs = []
        missing.append(f"logs: {error.message}")
    objects = str(client.platform.state_dir / "objects") if client.platform.state_dir else None
    saved = ((state.get("resolved") or {}).get("output") or {}).get("save_path")
    return {
        "job": job,
        "name": state["name"],
        "checkpoints": list(state.get("checkpoints", [])),
        "version": version,
        "save_path": saved,
        "logs": logs,
        "logs_in": f"{objects}/{records.logs(job)}" if objects else records.logs(job),
        "missing": missing,
    }


async def _logs(client: Client, job: str) -> list[dict[str, Any]]:
    """Return, per attempt and rank, how many lines and bytes of text were logged."""
    counted: dict[tuple[int, int], list[int]] = {}
    after = None
    while True:
        page = await client.logs(job, after=after, limit=2_000)
        for line in page["lines"]:
            one = counted.setdefault((line["attempt"], line["rank"]), [0, 0])
            one[0] += 1
            one[1] += len(line["text"].encode()) + 1
        if page.get("next") in (None, after):
            break
        after = page["next"]
    return [
        {"attempt": attempt, "rank": rank, "lines": lines, "bytes": size}
        for (attempt, rank), (lines, size) in sorted(counted.items())
    ]


def _print(made: dict[str, Any]) -> None:
    output.print_line(f"{made['name']}  {made['job']}")
    rows = [
        (c["step"], c["attempt"], output.size(c["bytes"]), output.clock(c.get("at")), c["path"])
        for c in made["checkpoints"]
    ]
    titles = ("checkpoint", "attempt", "size", "at", "where")
    output.print_table(titles, rows, empty="no committed checkpoint")
    output.print_line("")
    version = made["version"]
    if version:
        output.print_line(
            f"version {version['ref']}  {version['kind']}, {output.size(version['bytes'])}; "
            f"lineshaft pull {version['ref']}"
        )
        files = [(f["path"], f["role"], output.size(f["size"])) for f in version["files"]]
        output.print_table(("file", "role", "size"), files, empty="no files")
    else:
        output.print_line("no version is registered")
    if made["save_path"]:
        output.print_line(f"saved to {made['save_path']}")
    output.print_line("")
    logs = [
        (
            entry["attempt"],
            "agent" if entry["rank"] < 0 else entry["rank"],
            entry["lines"],
            output.size(entry["bytes"]),
        )
        for entry in made["logs"]
    ]
    output.print_table(("log of attempt", "rank", "lines", "size"), logs, empty="no log lines")
    output.print_line(f"logs are in {made['logs_in']}; lineshaft logs {made['job']}")
    for text in made["missing"]:
        output.print_line(f"not known now - {text}")
