"""A ledger service as a process of its own: ``child.py STATE BUS_URL TOKEN``."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from lineshaft.runtime.process import run_until_signal
from tests.builders_runtime import a_ledger_service

if __name__ == "__main__":
    state, url, token = sys.argv[1:]
    asyncio.run(run_until_signal(a_ledger_service(Path(state), url, token)))
