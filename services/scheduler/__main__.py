"""Run the scheduler as a process of its own: ``python -m services.scheduler``."""

from lineshaft.runtime.process import main
from services.scheduler.app import build

if __name__ == "__main__":
    main(build)
