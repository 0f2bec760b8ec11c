"""Fetching content by HTTP: parts in parallel, resumed, retried, hashed while they come.

``Partial`` is one content on disk, with a byte per part that says whether it is here; ``Fetcher``
fills partials. Folders and publication are ``placing``'s.
"""

import asyncio
import hashlib
import ipaddress
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from lineshaft.contracts import limits
from lineshaft.sdk.errors import PlatformError

_TRIES_WITHOUT_PROGRESS = 9
_BACKOFF_MS_MIN = 100
_BACKOFF_MS_MAX = 5_000
_WRITE_BYTES = 1024 * 1024
_TIMEOUT = httpx.Timeout(30.0, connect=10.0, pool=None)

Count = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class Content:
    """A content to fetch: its digest, its size in bytes, and a path that has it (for people)."""

    digest: str
    size: int
    path: str


class Partial:
    """One content on disk: the data, and ``<name>.parts`` with one byte per part that is here.

    No file stays open between calls: a version may have thousands of files.
    """

    def __init__(self, folder: Path, content: Content) -> None:
        self.content = content
        self.data = folder / self.name_of(content.digest)
        self._marks = self.data.with_suffix(".parts")
        self._here = self._read_marks(-(-content.size // limits.PART_BYTES))
        self._hashed = 0
        self._sha = hashlib.sha256()
        self._turn = asyncio.Lock()

    def _read_marks(self, count: int) -> list[bool]:
        """Return which parts are here; start anew when the files do not fit the content."""
        for path in (self.data, self._marks):
            if path.is_symlink():
                path.unlink()
        if self.data.exists() and self._marks.exists():
            marks = self._marks.read_bytes()
            if len(marks) == count and self.data.stat().st_size == self.content.size:
                return [mark == 1 for mark in marks]
        self._marks.write_bytes(b"\0" * count)
        with self.data.open("wb") as file:
            file.truncate(self.content.size)
        return [False] * count

    @staticmethod
    def name_of(digest: str) -> str:
        """Return the name of a content's data in the partial folder."""
        return digest.partition(":")[2]

    def range_of(self, part: int) -> tuple[int, int]:
        """Return where ``part`` begins and ends (exclusive)."""
        start = part * limits.PART_BYTES
        return start, min(start + limits.PART_BYTES, self.content.size)

    def missing(self) -> list[int]:
        """Return the parts that are not here."""
        return [part for part, is_here in enumerate(self._here) if not is_here]

    def bytes_here(self) -> int:
        """Return the size of the parts that are here."""
        ranges = (self.range_of(part) for part, is_here in enumerate(self._here) if is_here)
        return sum(end - start for start, end in ranges)

    def write(self, data: bytes | bytearray, at: int) -> None:
        """Write ``data`` at an offset. Blocks; parts may be written at once."""
        with self.data.open("rb+") as file:
            file.seek(at)
            file.write(data)

    def keep(self, part: int) -> None:
        """Note that ``part`` is here."""
        self._here[part] = True
        with self._marks.open("rb+") as file:
            file.seek(part)
            file.write(b"\1")

    async def advance(self) -> None:
        """Hash what is here and follows on what was hashed, while other parts still come."""
        async with self._turn:
            while self._hashed < len(self._here) and self._here[self._hashed]:
                await asyncio.to_thread(self._hash, *self.range_of(self._hashed))
                self._hashed += 1

    def _hash(self, start: int, end: int) -> None:
        with self.data.open("rb") as file:
            file.seek(start)
            while start < end:
                chunk = file.read(min(_WRITE_BYTES, end - start))
                if not chunk:
                    return  # shorter than it was: the digest will differ
                self._sha.update(chunk)
                start += len(chunk)

    async def is_right(self) -> bool:
        """Tell whether the whole content has its digest; all parts must be here."""
        await self.advance()
        return f"sha256:{self._sha.hexdigest()}" == self.content.digest

    def forget(self) -> None:
        """Start anew: what came was wrong."""
        self._here = [False] * len(self._here)
        self._marks.write_bytes(b"\0" * len(self._here))
        self._hashed, self._sha = 0, hashlib.sha256()


class Fetcher:
    """A connection to the download API of one registry."""

    def __init__(self, address: str, token: str | None, parallel: int) -> None:
        headers = {"Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._parallel = parallel
        self._client = httpx.AsyncClient(
            base_url=address,
            headers=headers,
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=parallel + 1),
            trust_env=not _is_loopback(address),  # no proxy stands between us and ourselves
        )

    async def __aenter__(self) -> "Fetcher":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def resolve(self, ref: str) -> dict[str, Any]:
        """Return what the registry says ``ref`` is."""
        answer = (await self._get("/v1/resolve", {"ref": ref})).json()
        try:
            return {name: str(answer[name]) for name in ("name", "version", "manifest")}
        except (KeyError, TypeError):
            raise PlatformError("unavailable", "the registry's answer cannot be read") from None

    async def whole(self, digest: str, bytes_max: int) -> bytes:
        """Return a small content. The caller checks its digest."""
        raw = (await self._get(f"/v1/blobs/{digest}")).content
        if len(raw) > bytes_max:
            raise PlatformError("refused", f"{digest} is larger than {bytes_max} bytes")
        return raw

    async def _get(self, path: str, params: dict[str, str] | None = None) -> httpx.Response:
        tries = _Tries()
        while True:
            try:
                answer = await self._client.get(path, params=params)
                if answer.status_code == 200:
                    return answer
                raise _error_of(answer)
            except (httpx.TransportError, PlatformError) as error:
                await tries.failed(error)

    async def fetch(self, partials: Sequence[Partial], count: Count) -> int:
        """Fill all ``partials`` and check their digests; return how many bytes came."""
        came = 0
        for again in (False, True):
            jobs = [(partial, part) for partial in partials for part in partial.missing()]
            came += await self._fetch_parts(jobs, count)
            wrong = [partial for partial in partials if not await partial.is_right()]
            if not wrong:
                return came
            for partial in wrong:
                count(-partial.content.size, partial.content.path)
                partial.forget()
            if again:
                paths = ", ".join(partial.content.path for partial in wrong[:3])
                text = f"what came of {paths} is not what the manifest says, twice"
                raise PlatformError("refused", text, "the registry's copy may be damaged")
        raise AssertionError("unreachable")

    async def _fetch_parts(self, jobs: list[tuple[Partial, int]], count: Count) -> int:
        jobs.reverse()
        came = 0

        async def work() -> None:
            nonlocal came
            while jobs:
                partial, part = jobs.pop()
                moved = await self._fetch_part(partial, part, count)
                came += moved  # after the await: others count meanwhile
                await partial.advance()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._parallel, len(jobs))):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise _first(errors) from None
        return came

    async def _fetch_part(self, partial: Partial, part: int, count: Count) -> int:
        """Fetch one part, going on within it after an interruption."""
        start, end = partial.range_of(part)
        at, tries = start, _Tries()
        while at < end:
            before = at
            try:
                async for chunk in self._chunks(partial.content, at, end):
                    await asyncio.to_thread(partial.write, chunk, at)
                    at += len(chunk)
                    count(len(chunk), partial.content.path)
                if at < end:
                    raise httpx.ReadError("the answer ended early")
            except (httpx.TransportError, PlatformError) as error:
                if at > before:
                    tries = _Tries()
                await tries.failed(error)
        partial.keep(part)
        return end - start

    async def _chunks(self, content: Content, at: int, end: int) -> Any:
        """Yield the bytes from ``at`` to ``end`` in pieces worth a disk write."""
        headers = {"Range": f"bytes={at}-{end - 1}", "If-Range": f'"{content.digest}"'}
        path = f"/v1/blobs/{content.digest}"
        held = bytearray()
        async with self._client.stream("GET", path, headers=headers) as answer:
            await _check_part(answer, at, is_whole=(at, end) == (0, content.size))
            left = end - at
            async for chunk in answer.aiter_raw():
                held += chunk[: left - len(held)]
                if len(held) >= _WRITE_BYTES:
                    yield held
                    left -= len(held)
                    held = bytearray()
        if held:
            yield held


async def _check_part(answer: httpx.Response, at: int, *, is_whole: bool) -> None:
    """Raise unless ``answer`` holds the bytes from ``at`` on."""
    if answer.status_code == 206:
        if answer.headers.get("content-range", "").startswith(f"bytes {at}-"):
            return
        raise PlatformError("unavailable", "another range came than was asked for")
    if answer.status_code != 200:
        await answer.aread()
        raise _error_of(answer)
    if not is_whole:
        raise PlatformError("refused", "what answers does not honour ranges", "is it a proxy?")


class _Tries:
    """Waits between tries, longer each time, and gives up in the end."""

    def __init__(self) -> None:
        self._count = 0

    async def failed(self, error: Exception) -> None:
        """Wait before the next try; raise when the error will not pass or has lasted."""
        if isinstance(error, PlatformError) and error.code != "unavailable":
            raise error
        self._count += 1
        if self._count >= _TRIES_WITHOUT_PROGRESS:
            if isinstance(error, PlatformError):
                raise error
            text = f"the registry does not answer: {type(error).__name__} {error}".rstrip()
            raise PlatformError("unavailable", text, "what came is kept; pull again") from None
        longest = min(_BACKOFF_MS_MIN << self._count, _BACKOFF_MS_MAX)
        await asyncio.sleep((longest // 2 + secrets.randbelow(longest // 2)) / 1000)


def _error_of(answer: httpx.Response) -> PlatformError:
    try:
        body = answer.json()
        code, message, hint = str(body["code"]), str(body["message"]), body.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, hint = "unavailable", f"the registry answered {answer.status_code}", None
    if answer.status_code >= 500 or answer.status_code == 429:
        code = "unavailable"
    elif code == "unavailable":
        code = "refused"
    return PlatformError(code, message, hint)


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    first: Exception = errors
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
