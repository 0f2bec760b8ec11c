"""The agent can be put into any image: what it imports is the standard library and little else."""

import json
import subprocess
import sys

ALLOWED = {"lineshaft", "trainer", "nats", "msgpack", "nkeys"}
CODE = """
import json, sys
before = set(sys.modules)
import trainer.agent.__main__, trainer.rank, lineshaft.report
print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))
"""


def test_the_agent_imports_no_heavy_package() -> None:
    """No pydantic, numpy, torch or structlog is needed where only an agent runs."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    tops = set(json.loads(done.stdout.splitlines()[-1]))
    foreign = {t for t in tops if t not in sys.stdlib_module_names and not t.startswith("_")}
    assert foreign - ALLOWED == set()
