"""Documents by kind and id, found by their fields: the same on every adapter."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.adapters.views.select import ClosableViews
from lineshaft.adapters.views.sqlite import SqliteViews
from lineshaft.ports import Document, StoreUnavailable
from tests.builders_stores import a_document


@pytest.fixture(params=["memory", "sqlite"])
async def views(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ClosableViews]:
    made = MemoryViews() if request.param == "memory" else SqliteViews(tmp_path / "x.views.db")
    yield made
    await made.aclose()


async def ids(views: ClosableViews, **how) -> list[str]:
    return [document.id for document in await views.find("job", **how)]


async def test_a_document_is_got_as_it_was_put(views):
    """Whatever JSON holds survives, also numbers that are none and broken Unicode."""
    document = a_document("j/1 训练", 7, text="\ud800\0é", deep={"a": [1, 2.5, None, True]})
    await views.put([document])
    assert await views.get("job", "j/1 训练") == document
    assert await views.get("job", "j/1") is None
    assert await views.get("alert", "j/1 训练") is None
    await views.put([a_document("nan", 1, loss=float("nan"))])
    found = await views.get("job", "nan")
    assert found is not None
    assert str(found.body["loss"]) == "nan"


async def test_an_older_version_changes_nothing(views):
    """A replayed or repeated entry leaves a newer document, and an equal one, as it is."""
    await views.put([a_document("d", 5, state="new")])
    await views.put([a_document("d", 4, state="old"), a_document("d", 5, state="again")])
    assert (await views.get("job", "d")).body == {"state": "new"}
    await views.put([a_document("d", 6, state="newer"), a_document("d", 7, state="newest")])
    assert (await views.get("job", "d")).body == {"state": "newest"}


async def test_versions_of_two_streams_do_not_compare(views):
    """A document that comes from another stream replaces."""
    await views.put([Document("job", "d", 50, {"at": "a"}, "pool/a")])
    await views.put([Document("job", "d", 2, {"at": "b"}, "pool/b")])
    await views.put([Document("job", "d", 1, {"at": "late"}, "pool/b")])
    assert await views.get("job", "d") == Document("job", "d", 2, {"at": "b"}, "pool/b")


async def test_documents_are_found_in_the_order_of_their_ids(views):
    """By code points; ``after`` and ``limit`` page through all of them, each once."""
    names = ["a", "B", "b", "a1", "a-1", "é", "训", "𝒳", "10", "9"]
    await views.put([a_document(name) for name in names])
    await views.put([a_document("other", kind="alert")])
    assert await ids(views) == sorted(names)
    pages, after = [], ""
    while page := await ids(views, limit=3, after=after):
        pages += page
        after = page[-1]
    assert pages == sorted(names)
    assert await ids(views, limit=0) == []


async def test_fields_are_equal_as_in_json(views):
    """``true`` is not 1, 1 is 1.0, text is not a number, null is an absent field."""
    values = [True, 1, 1.0, "1", "true", None, 0, False, "", [], {}, 0.1, 1 << 60, "é'\"\\", 0.5]
    await views.put([a_document(f"{n:02d}", x=value) for n, value in enumerate(values)])
    await views.put([a_document("99", y=1)])
    for where, wanted in [
        (True, ["00"]),
        (1, ["01", "02"]),
        (1.0, ["01", "02"]),
        ("1", ["03"]),
        (None, ["05", "99"]),
        (0, ["06"]),
        (False, ["07"]),
        ("", ["08"]),
        (0.1, ["11"]),
        (1 << 60, ["12"]),
        ("é'\"\\", ["13"]),
        ("[]", []),
    ]:
        assert await ids(views, where={"x": where}) == wanted, where


async def test_all_fields_must_be_equal(views):
    """Several fields narrow; with ``limit`` the first matches are given."""
    await views.put([a_document(f"{n}", team="ab"[n % 2], state="xyz"[n % 3]) for n in range(9)])
    assert await ids(views, where={"team": "a", "state": "x"}) == ["0", "6"]
    assert await ids(views, where={"team": "b"}, limit=2, after="1") == ["3", "5"]
    assert await ids(views, where={"team": "b", "owner": None}, limit=1) == ["1"]
    assert await ids(views, where={}) == [str(n) for n in range(9)]


@pytest.mark.parametrize(
    "where",
    [{"a.b": 1}, {"a'": 1}, {"": 1}, {"x": []}, {"x": {}}, {"x": float("nan")}, {"x": 1 << 80}],
    ids=str,
)
async def test_what_nothing_is_found_by_is_refused(views, where):
    """A name that is no field, and a value that is no scalar, are told at once."""
    with pytest.raises(ValueError, match=r"."):
        await views.find("job", where)


@pytest.mark.parametrize(
    "document",
    [
        a_document(""),
        a_document("x", kind=""),
        a_document("x", -1),
        a_document("x", 1 << 63),
        a_document("\ud800"),
        a_document("a\0"),
        a_document("x", thing=object()),
    ],
    ids=["no-id", "no-kind", "negative", "large", "surrogate", "nul", "no-json"],
)
async def test_what_no_store_can_hold_is_refused_whole(views, document):
    """Nothing of the put is stored."""
    with pytest.raises(ValueError, match=r"."):
        await views.put([a_document("good"), document])
    assert await ids(views) == []


async def test_deleting_what_is_absent_is_no_error(views):
    """A deleted document is gone, and may come again in any version."""
    await views.put([a_document("a", 9), a_document("b")])
    await views.delete("job", ["a", "zzz"])
    await views.delete("alert", ["b"])
    assert await ids(views) == ["b"]
    await views.put([a_document("a", 1)])
    assert await ids(views) == ["a", "b"]
    await views.delete("job", [])


async def test_what_a_reader_changes_changes_nothing_stored(views):
    """Documents that are given out are the reader's own; so are those that were handed in."""
    body = {"names": ["x"]}
    await views.put([Document("job", "d", 1, body)])
    body["names"].append("y")
    (await views.get("job", "d")).body["names"].append("z")
    assert (await views.find("job"))[0].body == {"names": ["x"]}


async def test_views_in_a_file_stay_and_say_when_they_are_closed(tmp_path):
    """Another process, or a later one, finds the documents."""
    one, other = SqliteViews(tmp_path), SqliteViews(tmp_path / "views.db")
    await one.put([a_document("d", 3)])
    assert await other.get("job", "d") == a_document("d", 3)
    await other.put([a_document("d", 2, late=True)])
    await one.aclose()
    await other.aclose()
    with pytest.raises(StoreUnavailable):
        await one.get("job", "d")
    with pytest.raises(StoreUnavailable):
        await one.put([a_document("d", 4)])
    again = SqliteViews(tmp_path)
    assert await again.get("job", "d") == a_document("d", 3)
    await again.aclose()
