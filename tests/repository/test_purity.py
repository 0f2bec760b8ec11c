"""The pure rooms stay pure: no clock, no chance, no I/O, no vendor."""

import sys
from pathlib import Path

import pytest

from tests.repository import source

IMPURE = {
    "asyncio", "time", "random", "uuid", "os", "logging", "socket", "subprocess", "threading",
    "pathlib", "tempfile", "shutil", "secrets", "multiprocessing", "urllib", "http", "signal",
}  # fmt: skip
CALLS = ("datetime.now", "datetime.utcnow", "time.time", "date.today")
OURS = ("lineshaft.contracts", "lineshaft.ports", "lineshaft.runtime.decider", "services.")
ALLOWED_VENDORS = {"numpy", "numba", "msgspec"}


def pure_files() -> list[Path]:
    rooms = ["lineshaft/contracts"]
    rooms += [
        f"services/{name}/domain" for name in ("admission", "scheduler", "monitor", "registry")
    ]
    return [*source.files(*rooms), source.ROOT / "trainer" / "pacing.py"]


@pytest.mark.parametrize("file", pure_files(), ids=source.name_of)
def test_a_pure_module_imports_nothing_that_acts(file: Path) -> None:
    """A decision depends on its arguments alone, so it can be replayed and simulated."""
    vendors = set(ALLOWED_VENDORS)
    if "contracts" in file.parts:
        vendors = {"pydantic", "yaml"} if file.stem.startswith(("job", "wire")) else set()
    bad = []
    for module, line in source.imports(file):
        top = module.partition(".")[0]
        if top in ("lineshaft", "services", "trainer"):
            if not module.startswith((*OURS, "trainer.pacing")) and module != "lineshaft":
                bad.append(f"{line}: {module}")
        elif top in IMPURE or (top not in sys.stdlib_module_names and top not in vendors):
            bad.append(f"{line}: {module}")
    assert not bad, f"{source.name_of(file)} imports {bad}"


@pytest.mark.parametrize("file", pure_files(), ids=source.name_of)
def test_a_pure_module_reads_no_clock(file: Path) -> None:
    """``now`` is an argument."""
    text = file.read_text()
    assert not [call for call in CALLS if call + "(" in text]
