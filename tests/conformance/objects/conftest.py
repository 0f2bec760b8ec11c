"""The object stores under test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.adapters.objects.select import ClosableObjects


@pytest.fixture(params=["memory", "folder"])
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ClosableObjects]:
    made = MemoryObjects() if request.param == "memory" else FolderObjects(tmp_path / "objects")
    yield made
    await made.aclose()


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[FolderObjects]:
    made = FolderObjects(tmp_path / "objects")
    yield made
    await made.aclose()
