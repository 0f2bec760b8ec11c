"""A URL selects the adapter."""

from pathlib import Path

import pytest

from lineshaft.adapters.journal.memory import MemoryJournal
from lineshaft.adapters.journal.select import journal
from lineshaft.adapters.journal.sqlite import SqliteJournal
from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.adapters.objects.select import objects
from lineshaft.adapters.urls import folder_of
from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.adapters.views.select import views
from lineshaft.adapters.views.sqlite import SqliteViews
from lineshaft.ports import Document
from tests.builders_stores import all_of, an_entry


async def test_each_service_has_files_of_its_own(tmp_path):
    """A journal and its views are never in one file, nor are two services."""
    url = f"sqlite://{tmp_path}/state"
    one, two, seen = journal(url, "scheduler"), journal(url, "monitor"), views(url, "scheduler")
    assert isinstance(one, SqliteJournal)
    assert isinstance(seen, SqliteViews)
    assert not (tmp_path / "state").exists()
    await one.append([an_entry("a", 1)])
    await two.append([an_entry("a", 1)])
    await seen.put([Document("k", "d", 1, {})])
    names = {path.name for path in (tmp_path / "state").iterdir() if path.suffix == ".db"}
    assert names == {"scheduler.journal.db", "monitor.journal.db", "scheduler.views.db"}
    for store in (one, two, seen):
        await store.aclose()


async def test_a_named_memory_store_is_one_store():
    """In one process, by name and service; closing and selecting again is as a restart."""
    first = journal("memory://shared", "scheduler")
    assert isinstance(first, MemoryJournal)
    assert journal("memory://shared", "scheduler") is first
    assert journal("memory://shared", "monitor") is not first
    assert journal("memory://", "scheduler") is not journal("memory://", "scheduler")
    await first.append([an_entry("a", 1)])
    await first.aclose()
    again = journal("memory://shared", "scheduler")
    assert len(await all_of(again.read("a", 0))) == 1
    assert views("memory://shared", "x") is views("MEMORY://shared", "x")
    assert isinstance(views("memory://", "x"), MemoryViews)
    assert objects("memory://shared") is objects("memory://shared")
    assert isinstance(objects("memory://"), MemoryObjects)
    assert objects("memory://") is not objects("memory://")


async def test_a_folder_url_names_a_folder(tmp_path):
    """Nothing is made before the first put."""
    store = objects(f"file://{tmp_path}/o%20x")
    assert isinstance(store, FolderObjects)
    assert store.root == tmp_path / "o x"
    assert not store.root.exists()
    await store.aclose()


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("sqlite:///var/x", "/var/x"),
        ("sqlite:////var/x", "/var/x"),
        ("file:///a%20b/%E8%AE%AD", "/a b/训"),
        ("file:///x/", "/x"),
    ],
)
def test_the_folder_of_a_url(url, folder):
    """Three or four slashes name the same absolute folder."""
    assert folder_of(url) == Path(folder)


@pytest.mark.parametrize(
    "url", ["", "x", "mongodb://h/x", "postgres:///x", "sqlite:", "/var/x", "s3://bucket"]
)
def test_an_unknown_scheme_is_told_with_the_known_ones(url):
    """The error says what could have been meant."""
    for select in (lambda: journal(url, "x"), lambda: views(url, "x")):
        with pytest.raises(ValueError, match="memory://, sqlite:///folder"):
            select()
    with pytest.raises(ValueError, match="memory://, file:///folder"):
        objects(url)


@pytest.mark.parametrize("rest", ["", "/", "relative/x", "host/x", "/x?mode=1", "/x#y", "/a%00"])
def test_a_folder_that_is_none_is_refused(rest):
    """Relative folders, hosts and options are told."""
    for select in (lambda: journal(f"sqlite://{rest}", "x"), lambda: objects(f"file://{rest}")):
        with pytest.raises(ValueError, match="://"):
            select()


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 65])
def test_a_service_name_is_part_of_a_file_name(name):
    """It cannot lead elsewhere."""
    with pytest.raises(ValueError, match="named by"):
        journal("sqlite:///x", name)
    with pytest.raises(ValueError, match="named by"):
        views("memory://", name)
    if name:
        with pytest.raises(ValueError, match="named by"):
            objects(f"memory://{name}")
