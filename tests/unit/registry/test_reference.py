"""The description of the HTTP API is kept and true."""

import json
from pathlib import Path

from services.registry.openapi import document

KEPT = Path(__file__).parents[3] / "docs" / "reference" / "registry-api.json"


def test_the_kept_description_is_what_the_code_gives() -> None:
    """``python -m services.registry.openapi > docs/reference/registry-api.json`` writes it."""
    assert json.loads(KEPT.read_text(encoding="utf-8")) == json.loads(document())
