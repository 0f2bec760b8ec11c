"""The list of generated pages: file name below ``docs/reference/`` and what makes its text."""

import json
from collections.abc import Callable
from pathlib import Path

from docs.generate import alerts, asyncapi, cli, events, settings, signatures
from lineshaft.contracts import job, job_page, lifecycle
from services.registry import openapi

FOLDER = Path(__file__).resolve().parents[1] / "reference"

_INDEX = """\
# Reference

Every page here is made from the code that it describes: `make docs` writes them, a test compares.

| page | what it lists |
|---|---|
"""
_SUBJECT_OF: dict[str, str] = {
    "cli.md": "every command: arguments, options, examples, exit codes",
    "job-file.md": "every field of a job file: honoured, or known and refused",
    "job-file.schema.json": "the JSON Schema of a job file, for editors (`lineshaft schema`)",
    "lifecycle.md": "the states of a job and what moves it from one to another",
    "settings.md": "every setting of a platform: key, variable, default, meaning; the policies",
    "events.md": "every public kind of event, its fields and subject; streams; requests",
    "asyncapi.json": "the events and commands on the bus as an AsyncAPI 3 document",
    "registry-api.json": "the download API of the registry as an OpenAPI document",
    "alerts.md": "every kind of alert: severity, what it means, its runbook",
    "signatures.md": "the log lines that are recognised as known faults",
}


def made() -> dict[str, Callable[[], str]]:
    """Return, per page, the function that makes its text."""
    return {
        "README.md": index,
        "cli.md": cli.markdown,
        "job-file.md": job_page.markdown,
        "job-file.schema.json": _schema,
        "lifecycle.md": lifecycle.markdown,
        "settings.md": settings.markdown,
        "events.md": events.markdown,
        "asyncapi.json": asyncapi.document,
        "registry-api.json": openapi.document,
        "alerts.md": alerts.markdown,
        "signatures.md": signatures.markdown,
    }


def index() -> str:
    """Return the page that lists the others; a page without a line here is a ``KeyError``."""
    rows = [f"| [{name}]({name}) | {_SUBJECT_OF[name]} |" for name in made() if name != "README.md"]
    return _INDEX + "\n".join(rows) + "\n"


def _schema() -> str:
    return json.dumps(job.json_schema(), indent=1, ensure_ascii=False) + "\n"
