"""Run the monitor as a process of its own: ``python -m services.monitor``."""

from lineshaft.runtime.process import main
from services.monitor.app import build

if __name__ == "__main__":
    main(build)
