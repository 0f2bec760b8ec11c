"""Run admission as a process of its own: ``python -m services.admission``."""

from lineshaft.runtime.process import main
from services.admission.app import build

if __name__ == "__main__":
    main(build)
