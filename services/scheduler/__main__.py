"""Run the scheduler as a process of its own."""

from lineshaft.runtime.service import main
from services.scheduler.app import build

if __name__ == "__main__":
    main(build)
