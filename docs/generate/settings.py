"""The page of settings: what ``lineshaft.toml`` and the variables may say, and the policies.

Keys and defaults are the code's; the meanings are written here. A setting without a meaning
stops the page from being made.
"""

import inspect
import os
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from docs.generate.text import notice, table
from lineshaft.runtime.settings import ENV_PREFIX, FILE_NAME, Settings, load
from services.admission.domain.policy import AdmissionPolicy
from services.monitor.domain.policy import Policy as MonitorPolicy
from services.scheduler.domain.policy import Policy as SchedulerPolicy

_HEAD = """\
# Settings

{notice}

Values come from the defaults, then `{file}` (in the working folder, or named by `--config` or
`{prefix}CONFIG`), then variables, then a command's options; the later wins. Relative
paths start from the file's folder. All faults are reported at once, with the nearest known name.
Lists of paths in a variable are separated as in `PATH`; tables and lists of tables are JSON there.

```toml
mounts = ["/data", "/models"]

[[nodes]]
name = "local"
gpu_type = "cpu"
slots = 4

[quotas]
research = 8

[policy.monitor]
hang_floor_ms = 120000
```

## Keys

"""
MEANINGS: dict[str, str] = {
    "state_dir": "the state folder: journals, views, objects, runs, the bus's own store, logs",
    "bus_url": "the bus; `lineshaft up` starts its own and fills this in",
    "bus_token": "the bus's token itself; never shown",
    "bus_token_file": "a file that holds the token",
    "store_url": "the journals, one file per service",
    "views_url": "the read models, which can be made again from the journals",
    "objects_url": "records of runs, logs, curves, and the content of versions",
    "checkpoint_root": "where runs write checkpoints, one folder per job and attempt",
    "cache_dir": "prepared data, by digest; may be deleted while nothing runs",
    "runs_dir": "the folder of each run on each node: order, lock, output of the ranks",
    "mounts": "folders that jobs may read from and write to; paths of job files lie inside one. "
    "`lineshaft up` takes the folder in which it was typed when none is named",
    "nodes": "the machines of the pool: name, gpu_type, slots, labels",
    "pool": "the pool's name",
    "quotas": "slots that a team may hold at a time; a team that is not named is not limited",
    "http_host": "where the download API listens",
    "http_port": "its port; 0 takes a free one",
    "health_host": "where the services' probes listen",
    "health_ports": "per service, the port of its readiness and liveness; absent: none",
    "replica": "this process's name in leases",
    "log_level": "debug, info, warning or error",
    "webhooks": "addresses that alerts are posted to: name, url, secret_file, severity "
    "(default warning); see [the how-to](../how-to/alerts.md)",
    "policies": "per service, the values listed below",
}
_FOR_CLIENTS = (
    ("LINESHAFT_CONFIG", "the settings file"),
    ("LINESHAFT_URL", "the bus, for commands: nats://host:port"),
    ("LINESHAFT_TOKEN", "the bus's token, for commands"),
    ("LINESHAFT_STATE_DIR", "the state folder, for the platform and for commands"),
)
_FOR_JOBS = (
    ("LINESHAFT_JOB, LINESHAFT_ATTEMPT, LINESHAFT_NODE, LINESHAFT_RANK", "who this process is"),
    ("LINESHAFT_OUTPUT_DIR", "what is written here becomes the version of a script job"),
    ("LINESHAFT_CHECKPOINT_DIR", "where a script keeps what it needs to go on"),
    ("LINESHAFT_RESUME_FROM", "the checkpoint to go on from; absent on a first start"),
    ("LINESHAFT_AGENT_SOCKET", "the line to the agent, which lineshaft.report() uses"),
)
_STATE = Path("/STATE")


def markdown() -> str:
    """Return the page: keys, variables, then the policy values of each service."""
    head = _HEAD.format(
        notice=notice("`lineshaft/runtime/settings.py` and the services' policies"),
        file=FILE_NAME,
        prefix=ENV_PREFIX,
    )
    defaults = load(Path(os.devnull), {}, {"state_dir": str(_STATE)})
    rows = [
        (f"`{_key(name)}`", f"`{ENV_PREFIX}{name.upper()}`", _default(defaults, name), meaning)
        for name, meaning in _meanings()
    ]
    text = head + table(("key", "variable", "default", "meaning"), rows)
    text += "\n## Variables besides\n\n" + table(("variable", "meaning"), _FOR_CLIENTS)
    text += "\nThe platform sets these for the processes of a job:\n\n"
    text += table(("variable", "meaning"), _FOR_JOBS)
    for service, policy in _POLICIES:
        text += f"\n## `[policy.{service}]`\n\n"
        text += table(("key", "default", "meaning"), _policy(policy))
    return text


def _meanings() -> Iterator[tuple[str, str]]:
    for one in fields(Settings):
        if not one.name.startswith("_"):
            if one.name not in MEANINGS:
                raise LookupError(f"say what the setting '{one.name}' means in {__file__}")
            yield one.name, MEANINGS[one.name]


def _key(name: str) -> str:
    return "policy.<service>" if name == "policies" else name


def _default(settings: Settings, name: str) -> str:
    if name == "state_dir":
        return "`.lineshaft` here"
    if name == "replica":
        return "the host's name"
    value = getattr(settings, name)
    if name == "nodes":
        return "one node `local` with a slot per processor"
    if value in (None, (), {}):
        return ""
    return f"`{str(value).replace(str(_STATE), '<state_dir>')}`"


_POLICIES: tuple[tuple[str, type[Any]], ...] = (
    ("admission", AdmissionPolicy),
    ("scheduler", SchedulerPolicy),
    ("monitor", MonitorPolicy),
)


def _policy(policy: type[Any]) -> list[tuple[str, str, str]]:
    hidden = {"quotas", "declared", "version"} if policy is SchedulerPolicy else set()
    said = _comments(policy)
    return [
        (f"`{one.name}`", _value(one), said.get(one.name, ""))
        for one in fields(policy)
        if one.name not in hidden
    ]


def _comments(policy: type[Any]) -> dict[str, str]:
    """Return what the source says above each field; a comment behind a blank line heads a group."""
    said: dict[str, str] = {}
    group, own, after_blank = "", "", True
    for raw in inspect.getsource(policy).splitlines():
        line = raw.strip()
        if line.startswith("#"):
            text = line.removeprefix("#").strip()
            if after_blank and not own:
                group, own = text, ""
            else:
                own = f"{own} {text}".strip()
            continue
        name, colon, _ = line.partition(":")
        if colon and name.isidentifier():
            said[name] = own or (f"a threshold of `{group}`" if group.isidentifier() else group)
            own = ""
        after_blank = not line
        if not line:
            group = ""
    return said


def _value(one: Any) -> str:
    made = one.default_factory() if one.default_factory is not MISSING else one.default
    if hasattr(made, "items"):
        return ", ".join(f"`{getattr(k, 'value', k)}`" for k in made)
    return f"`{str(made).lower() if isinstance(made, bool) else made}`"
