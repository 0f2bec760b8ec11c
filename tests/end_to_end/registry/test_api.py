"""The HTTP API over a real socket: what a deployment team's own tools meet."""

from collections.abc import AsyncIterator

import httpx
import pytest

from lineshaft.adapters.objects.memory import MemoryObjects
from lineshaft.contracts import ids, manifest, records
from services.registry.api import make_app
from services.registry.catalogue import Catalogue
from services.registry.server import HttpServer
from tests.builders_registry import NAME, PureJournal, a_command, a_manifest, examined, publish

TOKEN = "a-token"
WEIGHTS = bytes(range(256)) * 1000
CONTENTS = {"model.safetensors": WEIGHTS, "sub/config.json": b"{}", "empty": b""}
DIGEST = ids.digest_of(WEIGHTS)
MADE = a_manifest(CONTENTS)
BLOB = f"/v1/blobs/{DIGEST}"


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A registry with domain-chat 1.0.0 in production, behind uvicorn."""
    objects, journal = MemoryObjects(), PureJournal()
    await publish(objects, MADE, CONTENTS)
    journal.hand_in(examined(MADE))
    journal.hand_in(a_command("promote", "1", alias="production", version="1.0.0"))
    catalogue = Catalogue(await journal.views(), objects)
    server = HttpServer(make_app(catalogue, objects, TOKEN), "127.0.0.1", 0)
    url = await server.start()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as made:
        yield made
    await server.stop()


async def test_the_token_is_needed_everywhere(client: httpx.AsyncClient) -> None:
    """Without it, with another, or in another scheme: 401 and nothing else is told."""
    for value in ("", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"):
        for path in ("/v1/models", BLOB, "/v1/openapi.json"):
            headers = {"Authorization": value.encode("latin-1")}
            answer = await client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["code"] == "refused"


async def test_models_versions_and_references(client: httpx.AsyncClient) -> None:
    """The same version by every way to name it."""
    [listed] = (await client.get("/v1/models")).json()["models"]
    assert (listed["name"], listed["latest"], listed["aliases"]) == (
        *(NAME, "1.0.0"),
        {"production": "1.0.0"},
    )
    shown = (await client.get(f"/v1/models/{NAME}")).json()
    assert shown["alias_history"][0]["actor"] == "ada"
    version = (await client.get(f"/v1/models/{NAME}/versions/v1.0.0")).json()
    assert version["content"] == MADE
    digest = manifest.digest(MADE)
    for ref in (NAME, f"{NAME}@production", f"{NAME}@latest", f"{NAME}:1.0.0", f"{NAME}@{digest}"):
        found = (await client.get("/v1/resolve", params={"ref": ref})).json()
        assert (found["version"], found["manifest"]) == ("1.0.0", digest)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/models/nobody", 404, "not_found"),
        ("/v1/models/..%2f..%2fetc", 404, "not_found"),
        (f"/v1/models/{NAME}/versions/1.0.9", 404, "not_found"),
        (f"/v1/models/{NAME}/versions/one", 400, "usage"),
        ("/v1/resolve?ref=%00", 400, "usage"),
        ("/v1/resolve", 400, "usage"),
        ("/v1/models?limit=0", 400, "usage"),
        ("/v1/blobs/sha256:abc", 400, "usage"),
        ("/v1/blobs/..%2F..%2Fruns", 404, "not_found"),
        (f"/v1/blobs/sha256:{'0' * 64}", 404, "not_found"),
        (f"/v1/models/{NAME}/versions/1.0.0/files/nothing", 404, "not_found"),
        (f"/v1/models/{NAME}/versions/1.0.0/files/..%2F..%2Fx", 404, "not_found"),
        (f"/v1/aliases/{NAME}/production?at=yesterday", 400, "usage"),
        (f"/v1/aliases/{NAME}/canary", 404, "not_found"),
        ("/v1/nothing", 404, "not_found"),
    ],
)
async def test_errors_are_told_in_one_form(
    client: httpx.AsyncClient, path: str, status: int, code: str
) -> None:
    """Status, code, message, hint; never a trace."""
    answer = await client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert set(answer.json()) == {"code", "message", "hint"}
    assert "Traceback" not in answer.text


async def test_content_comes_whole_with_a_strong_etag(client: httpx.AsyncClient) -> None:
    """By digest and by path; the ETag is the digest."""
    for path in (BLOB, f"/v1/models/{NAME}/versions/1.0.0/files/model.safetensors"):
        answer = await client.get(path)
        assert answer.status_code == 200
        assert answer.content == WEIGHTS
        assert answer.headers["etag"] == f'"{DIGEST}"'
        assert answer.headers["accept-ranges"] == "bytes"
        assert answer.headers["content-length"] == str(len(WEIGHTS))
    empty = await client.get(f"/v1/models/{NAME}/versions/1.0.0/files/empty")
    assert (empty.status_code, empty.content) == (200, b"")


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        ("bytes=255990-", 255_990, 256_000),
        ("bytes=-5", 255_995, 256_000),
        ("bytes=-999999", 0, 256_000),
        ("bytes=255999-999999999", 255_999, 256_000),
    ],
)
async def test_a_range_is_206(client: httpx.AsyncClient, asked: str, start: int, end: int) -> None:
    """With Content-Range and the length of the part."""
    answer = await client.get(BLOB, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.content == WEIGHTS[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/256000"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", ["bytes=256000-", "bytes=256001-256002", "bytes=-0"])
async def test_a_range_behind_the_end_is_416(client: httpx.AsyncClient, asked: str) -> None:
    """With the size, so that a client can ask again."""
    answer = await client.get(BLOB, headers={"Range": asked})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == "bytes */256000"


@pytest.mark.parametrize(
    "asked",
    ["bytes=0-1,5-6", "bytes=5-1", "bytes=-", "chunks=0-1", "bytes=a-b", "bytes=0-" + "9" * 40],
)
async def test_what_is_not_one_range_is_ignored(client: httpx.AsyncClient, asked: str) -> None:
    """The whole content, as the standard allows."""
    answer = await client.get(BLOB, headers={"Range": asked})
    assert (answer.status_code, len(answer.content)) == (200, 256_000)


async def test_conditions(client: httpx.AsyncClient) -> None:
    """If-None-Match gives 304; If-Range with another ETag gives the whole."""
    etag = f'"{DIGEST}"'
    for value in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        answer = await client.get(BLOB, headers={"If-None-Match": value})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == etag
    assert (await client.get(BLOB, headers={"If-None-Match": '"x"'})).status_code == 200
    ranged = {"Range": "bytes=0-9"}
    assert (await client.get(BLOB, headers=ranged | {"If-Range": etag})).status_code == 206
    assert (await client.get(BLOB, headers=ranged | {"If-Range": '"old"'})).status_code == 200


async def test_head_tells_the_same_without_content(client: httpx.AsyncClient) -> None:
    """Also for a range."""
    answer = await client.head(BLOB)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == "256000"
    ranged = await client.head(BLOB, headers={"Range": "bytes=0-9"})
    assert (ranged.status_code, ranged.headers["content-length"]) == (206, "10")


async def test_what_was_live_then(client: httpx.AsyncClient) -> None:
    """By milliseconds or RFC 3339; 404 before it began."""
    path = f"/v1/aliases/{NAME}/production"
    now = (await client.get(path)).json()
    assert (now["version"], now["actor"], now["reason"]) == ("1.0.0", "ada", "because")
    assert (await client.get(path, params={"at": now["since"]})).json() == now
    assert (await client.get(path, params={"at": "2030-01-01T00:00:00+08:00"})).json() == now
    assert (await client.get(f"{path}?at=2030-01-01T00:00:00+08:00")).json() == now
    assert (await client.get(path, params={"at": 1})).status_code == 404


async def test_only_reading_is_served(client: httpx.AsyncClient) -> None:
    """Nothing is changed over HTTP."""
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = await client.request(method, f"/v1/models/{NAME}")
        assert answer.status_code == 405


async def test_a_fault_of_ours_is_told_without_its_story() -> None:
    """A damaged store is "unavailable"; an exception is a 500 without a trace."""
    objects, journal = MemoryObjects(), PureJournal()
    journal.hand_in(examined(MADE))
    await objects.put(records.blob(manifest.digest(MADE)), b"damaged")
    catalogue = Catalogue(await journal.views(), objects)
    app = make_app(catalogue, objects, None)

    @app.get("/broken")
    async def broken() -> None:
        raise ZeroDivisionError("a secret detail")

    server = HttpServer(app, "127.0.0.1", 0)
    url = await server.start()
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.get("/v1/resolve", params={"ref": NAME})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        answer = await client.get("/broken")
        assert answer.status_code == 500
        assert "secret" not in answer.text
    await server.stop()
