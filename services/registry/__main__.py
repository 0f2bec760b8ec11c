"""Run the registry as a process of its own: ``python -m services.registry``."""

from lineshaft.runtime.process import main
from services.registry.app import build

if __name__ == "__main__":
    main(build)
