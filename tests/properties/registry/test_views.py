"""Properties of the registry's read models and of the answers about ranges."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.adapters.views.memory import MemoryViews
from lineshaft.contracts.events import Fact
from lineshaft.runtime.rpc import RpcError
from services.registry.blobs import Slice, Unsatisfiable, slice_of
from services.registry.catalogue import Catalogue
from services.registry.domain.models import Shelf
from services.registry.projector import RegistryProjector
from tests.builders_registry import PureJournal, a_command, a_job, a_manifest, examined

_ALIASES = ("production", "canary")


@st.composite
def _facts(draw: st.DrawFn) -> Fact:
    if draw(st.booleans()):
        number = draw(st.integers(0, 4))
        contents = {"model.safetensors": str(number).encode()}
        return examined(a_manifest(contents, job=a_job(str(number))))
    data = {
        "version": draw(st.sampled_from(("1.0.0", "1.1.0", "1.2.0"))),
        "alias": draw(st.sampled_from(_ALIASES)),
    }
    verb = draw(st.sampled_from(("promote", "promote", "rollback", "delete")))
    if verb == "rollback":
        data["version"] = draw(st.sampled_from((None, data["version"])))
    return a_command(verb, str(draw(st.integers(0, 10_000))), **data)


def _shown(shelf: Shelf) -> dict[str, dict[str, str]]:
    return {
        name: {alias: str(where.current) for alias, where in model.aliases.items()}
        for name, model in shelf.models.items()
    }


async def _check(facts: list[Fact]) -> None:
    journal = PureJournal()
    live: list[tuple[int, dict[str, dict[str, str]]]] = []
    for fact in facts:
        journal.hand_in(fact)
        for shelf in journal.states.values():
            live.append((journal.now, _shown(shelf)))
    catalogue = Catalogue(await journal.views(), MemoryObjects())
    for shelf in journal.states.values():
        for name, model in shelf.models.items():
            document = await catalogue.model(name)
            assert document["latest"] == (str(model.latest()) if model.latest() else None)
            assert len(document["versions"]) == len(model.releases)
    for at, shown in live:
        for name, aliases in shown.items():
            for alias in _ALIASES:
                try:
                    found = (await catalogue.alias_at(name, alias, at))["version"]
                except RpcError:
                    found = None
                assert found == aliases.get(alias)


@settings(max_examples=80, deadline=None)
@given(st.lists(_facts(), max_size=25))
def test_what_was_live_at_any_time_is_what_the_state_was_then(facts: list[Fact]) -> None:
    """The history's answer for every moment equals the state of that moment."""
    asyncio.run(_check(facts))


async def _twice(facts: list[Fact]) -> None:
    journal = PureJournal()
    journal.all(facts)
    once, twice, projector = await journal.views(), MemoryViews(), RegistryProjector()
    for entries in journal.entries.values():
        for position, entry in enumerate(entries):
            # A projection that was killed begins again a little before where it was.
            for again in entries[max(0, position - 2) : position + 1]:
                if again is entry or again.seq < entry.seq:
                    await twice.put(await projector.project(again, twice))
    for kind in ("model", "version", "alias_move", "candidate", "refusal"):
        assert await once.find(kind) == await twice.find(kind)


@settings(max_examples=80, deadline=None)
@given(st.lists(_facts(), max_size=25))
def test_projecting_entries_again_changes_nothing(facts: list[Fact]) -> None:
    """After a crash between the documents and the position."""
    asyncio.run(_twice(facts))


@given(
    st.none() | st.text(max_size=40) | st.from_regex(r"bytes=\d{0,20}-\d{0,20}"),
    st.integers(0, 999),
)
def test_a_range_is_inside_or_ignored_or_refused(header: str | None, size: int) -> None:
    """No header makes bytes of elsewhere."""
    try:
        part = slice_of(header, size)
    except Unsatisfiable:
        return
    assert part is None or 0 <= part.start < part.end <= size


@given(st.integers(1, 500), st.integers(0, 400), st.integers(0, 400))
def test_ranges_cut_what_they_say(size: int, first: int, length: int) -> None:
    """As slices of the content do."""
    if first < size:
        part = slice_of(f"bytes={first}-{first + length}", size)
        assert part == Slice(first, min(first + length + 1, size))
    if length:
        assert slice_of(f"bytes=-{length}", size) == Slice(max(0, size - length), size)
