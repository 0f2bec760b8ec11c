"""One platform for all tests of a module: starting one takes seconds."""

from collections.abc import Iterator

import pytest

from tests.builders_line import Line, a_line


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """Give a running platform in a folder of its own."""
    with a_line(tmp_path_factory.mktemp("line")) as made:
        yield made


@pytest.fixture(scope="module", params=["one process", "processes"])
def any_line(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Line]:
    """Give both forms of a platform in turn: what holds for one has to hold for the other."""
    if request.param == "one process":
        yield request.getfixturevalue("line")
        return
    with a_line(tmp_path_factory.mktemp("processes"), processes=True) as made:
        yield made
