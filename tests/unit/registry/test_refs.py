"""References to versions."""

import pytest

from services.registry.domain import refs
from services.registry.domain.refs import Ref, RefError

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("domain-chat", Ref("domain-chat", alias="latest")),
        ("domain-chat@latest", Ref("domain-chat", alias="latest")),
        ("domain-chat@production", Ref("domain-chat", alias="production")),
        ("domain-chat:1.2.0", Ref("domain-chat", version=(1, 2, 0))),
        ("domain-chat:v1.2.0", Ref("domain-chat", version=(1, 2, 0))),
        (f"domain-chat@{DIGEST}", Ref("domain-chat", manifest=DIGEST)),
    ],
)
def test_every_form_is_read(text: str, ref: Ref) -> None:
    """All documented forms."""
    assert refs.parse(text) == ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        " domain-chat",
        "domain-chat\n",
        "Domain-Chat",
        "../etc",
        "domain/chat",
        "-chat",
        "chat@",
        "chat:",
        "chat@Production",
        "chat@sha256",
        "chat@sha256:",
        f"chat@{DIGEST[:-1]}",
        f"chat@{DIGEST}0",
        f"chat@{DIGEST.upper()}",
        f"chat:{DIGEST}",
        "chat:1.2",
        "chat:1.2.0@production",
        "chat@production:1.2.0",
        "chat@a@b",
        "@production",
        ":1.0.0",
        "x" * 64,
        "x" * 10_000,
        "chat\x00",
        "чат",
    ],
)
def test_hostile_texts_are_refused_with_the_forms(text: str) -> None:
    """Nothing is trimmed, folded or guessed."""
    with pytest.raises(RefError):
        refs.parse(text)


def test_names_with_a_meaning_of_their_own_are_no_aliases() -> None:
    """``latest`` is computed; ``sha256`` begins a digest."""
    assert refs.is_alias("production")
    assert not any(refs.is_alias(text) for text in ("latest", "sha256", "", "A", "a\n"))
