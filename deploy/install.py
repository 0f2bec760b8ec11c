"""Create the environment of this clone: ``python deploy/install.py .venv``.

Standard library only, so that it runs before anything is installed. It says what it will take
before it takes it, and a second run does nothing when nothing changed.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTHON_MIN = (3, 11)
DOWNLOAD_GB = 3.1  # measured: torch 2.15 from the ordinary index brings its CUDA libraries
INSTALLED_GB = 5.8
CPU_DOWNLOAD_GB = 0.5
CPU_INSTALLED_GB = 1.8
SPARE_GB = 1.0
INDEX_VARIABLE = "LINESHAFT_TORCH_INDEX"
TRIES = 3


def say(text: str) -> None:
    """Print one line for the person who waits."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fail(text: str) -> None:
    """End with a message that says what is missing and what to do."""
    sys.stderr.write(f"install: {text}\n")
    raise SystemExit(2)


def fingerprint(root: Path) -> str:
    """Return what the environment depends on, as one hash."""
    made = hashlib.sha256()
    for name in ("constraints.txt", "pyproject.toml"):
        made.update((root / name).read_bytes())
    made.update(sys.version.encode())
    made.update(os.environ.get(INDEX_VARIABLE, "").encode())
    made.update(str(root).encode())
    return made.hexdigest()


def check_machine(venv: Path, wanted_gb: float, download_gb: float) -> None:
    """Stop before the download when Python, its parts or the disk do not suffice."""
    if sys.version_info < PYTHON_MIN:
        found = ".".join(str(part) for part in sys.version_info[:3])
        fail(f"Python {found} found, 3.11 or newer needed: try `make install PYTHON=python3.12`")
    if sys.platform == "win32":
        fail("the platform runs on Linux (and, best effort, macOS)")
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"Python lacks {', '.join(missing)}: on Debian, `apt-get install python3-venv`")
    for place, need in ((venv.parent, wanted_gb), (Path(tempfile.gettempdir()), download_gb)):
        free = shutil.disk_usage(place).free / 1e9
        if free < need + SPARE_GB:
            fail(
                f"{place} has {free:.1f} GB free, {need + SPARE_GB:.1f} GB are needed. Free some, "
                f"set TMPDIR, or set {INDEX_VARIABLE} to an index with a CPU build of torch"
            )


def pip(venv: Path, *arguments: str) -> None:
    """Run the environment's pip, again after a passing fault of the network."""
    command = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    for attempt in range(1, TRIES + 1):
        done = subprocess.run([*command, *arguments], check=False)
        if done.returncode == 0:
            return
        if attempt < TRIES:
            say(f"  pip ended with {done.returncode}; once more ({attempt + 1} of {TRIES})")
            time.sleep(3 * attempt)
    fail("pip could not install everything; its messages are above. Nothing needs cleaning up.")


def install(root: Path, venv: Path) -> None:
    """Make the environment and put the project and its extras into it."""
    index = os.environ.get(INDEX_VARIABLE)
    if not (venv / "bin" / "python").exists():
        say(f"[1/3] creating {venv}")
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    constraints = str(root / "constraints.txt")
    quiet = ("--quiet", "--progress-bar", "on" if sys.stdout.isatty() else "off")
    say("[2/3] torch, deepspeed, transformers (the long part)")
    if index:
        pinned = Path(constraints).read_text().splitlines()
        wanted = next(line for line in pinned if line.startswith("torch=="))
        pip(venv, "install", *quiet, "--index-url", index, wanted)
    say("[3/3] everything else, and Lineshaft itself")
    extras = f"{root}[server,trainer,dev]"
    pip(venv, "install", *quiet, "-c", constraints, "-e", extras)


def check_imports(root: Path, venv: Path) -> None:
    """Make sure that the packages that will be imported are ours."""
    code = "import lineshaft, services, trainer; print(services.__path__[0])"
    done = subprocess.run(
        [str(venv / "bin" / "python"), "-c", code],
        check=False,
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
    )
    found = Path(done.stdout.strip() or "/nonexistent").resolve()
    if done.returncode or found != (root / "services").resolve():
        fail(f"'services' is imported from {found}, not from this clone: remove what ships it")


def main() -> None:
    """Install unless the stamp says that nothing changed."""
    root = Path(__file__).resolve().parent.parent
    venv = (root / sys.argv[1]).absolute() if len(sys.argv) > 1 else root / ".venv"
    stamp = venv / ".stamp"
    mark = fingerprint(root)
    if stamp.exists() and stamp.read_text() == mark:
        stamp.touch()
        return
    small = bool(os.environ.get(INDEX_VARIABLE))
    download = CPU_DOWNLOAD_GB if small else DOWNLOAD_GB
    size = CPU_INSTALLED_GB if small else INSTALLED_GB
    torch_there = any(venv.glob("lib/python*/site-packages/torch/version.py"))
    check_machine(venv, SPARE_GB if torch_there else size, 0.0 if torch_there else download)
    if not torch_there:
        say(f"Installing into {venv}: about {download:.1f} GB to download, {size:.1f} GB on disk.")
        if not small:
            say(f"(A CPU build of torch is smaller: {INDEX_VARIABLE} may name an index with one.)")
    started = time.monotonic()
    install(root, venv)
    check_imports(root, venv)
    stamp.write_text(mark)
    say(f"Installed in {time.monotonic() - started:.0f} s. Next: make demo, or make test")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("\ninstall: interrupted; run it again to go on\n")
        raise SystemExit(130) from None
