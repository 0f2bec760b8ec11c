"""Reading the file of signatures that ships beside this module."""

from importlib import resources

import yaml

from services.monitor.domain.signatures import Signatures, compile_signatures

FILE_NAME = "signatures.yaml"


def load() -> Signatures:
    """Return all signatures, compiled. Raises ``SignatureError`` for a damaged file."""
    text = resources.files("services.monitor").joinpath(FILE_NAME).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where the wheel has it
    return compile_signatures(yaml.load(text, Loader=loader))  # noqa: S506 - both are safe
