"""Run admission as a process of its own."""

from lineshaft.runtime.service import main
from services.admission.app import build

if __name__ == "__main__":
    main(build)
