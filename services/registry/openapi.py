"""The description of the HTTP API: ``python -m services.registry.openapi > FILE``.

``docs/reference/registry-api.json`` is what this prints; a test keeps it so.
"""

import json
import sys

from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.adapters.views.memory import MemoryViews
from services.registry.api import make_app
from services.registry.catalogue import Catalogue


def document() -> str:
    """Return the OpenAPI document as it is kept."""
    objects = MemoryObjects()
    app = make_app(Catalogue(MemoryViews(), objects), objects, token=None)
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())
