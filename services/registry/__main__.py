"""Run the registry as a process of its own."""

from lineshaft.runtime.service import main
from services.registry.app import build

main(build)
