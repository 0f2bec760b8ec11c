"""``python -m lineshaft.cli`` is ``lineshaft``."""

from lineshaft.cli.main import run

run()
