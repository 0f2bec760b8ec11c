"""The life-cycle table: it answers for everything, and its page says what it says."""

from pathlib import Path

import pytest

from lineshaft.contracts import lifecycle
from lineshaft.contracts.lifecycle import Happening, Ignore, Impossible, Place, Transition

ENDS = (Happening.GONE, Happening.LAUNCH_FAILED)  # either proves that nothing lives
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "lifecycle.md"


@pytest.mark.parametrize("place", Place)
def test_the_table_is_total(place):
    """Every place answers for everything that can happen."""
    assert set(lifecycle.TABLE[place]) == set(Happening)
    for happening in Happening:
        answer = lifecycle.rule(place, happening)
        assert isinstance(answer, Transition | Ignore | Impossible)
        if isinstance(answer, Transition):
            assert answer.to
            assert len(set(answer.to)) == len(answer.to)


@pytest.mark.parametrize("place", [place for place in Place if place.is_terminal])
def test_terminal_absorbs(place):
    """Nothing leads out of an end."""
    answers = lifecycle.TABLE[place].values()
    assert not any(isinstance(answer, Transition) for answer in answers)


def test_every_place_but_the_reserved_can_be_reached():
    """``Pending/preparing`` is reserved for data preparation; all others lie on some way."""
    reached, new = set(), {Place.PENDING}
    while new:
        reached |= new
        answers = (answer for place in new for answer in lifecycle.TABLE[place].values())
        new = {to for answer in answers if isinstance(answer, Transition) for to in answer.to}
        new -= reached
    assert reached == set(Place) - {Place.PREPARING}


def test_only_waiting_jobs_are_placed():
    """A gang for a job that waits for none can never be."""
    placed = {
        place for place in Place if isinstance(lifecycle.rule(place, Happening.PLACED), Transition)
    }
    assert placed == {Place.PENDING, Place.BACKING_OFF}


def test_success_needs_the_completion_record():
    """Only the record leads to Succeeded, or to the place from which the end of all does."""
    for place in Place:
        for happening in Happening:
            answer = lifecycle.rule(place, happening)
            if isinstance(answer, Transition) and Place.SUCCEEDED in answer.to:
                is_end = place is Place.FINISHING and happening in ENDS
                assert is_end or happening is Happening.COMPLETED
            if isinstance(answer, Transition) and Place.FINISHING in answer.to:
                assert place is Place.FINISHING or happening is Happening.COMPLETED


def test_places_have_names():
    """A place is its state and sub-state."""
    assert Place.DRAINING.state == "Running"
    assert Place.DRAINING.substate == "draining"
    assert Place.SUSPENDED.substate is None
    for place in Place:
        assert lifecycle.place_of(place.state, place.substate) is place


def test_the_page_is_made_from_the_table():
    """``docs/reference/lifecycle.md`` is what ``markdown()`` gives."""
    assert PAGE.read_text(encoding="utf-8") == lifecycle.markdown()


def test_the_figure_names_every_move():
    """Each pair of different places that some rule joins has its arrow."""
    figure = lifecycle.mermaid()
    for place, row in lifecycle.TABLE.items():
        for answer in row.values():
            for to in answer.to if isinstance(answer, Transition) else ():
                assert to == place or f"{place.name.lower()} --> {to.name.lower()}:" in figure
