"""Serving content by HTTP: strong ETags, one range, conditions (RFC 9110, 13 and 14).

Knows Objects and requests' headers; knows nothing of models.
"""

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from starlette.responses import Response, StreamingResponse

from lineshaft.contracts import records
from lineshaft.ports import Objects
from lineshaft.runtime.rpc import RpcError

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes from ``start`` up to but without ``end``."""

    start: int
    end: int


class Unsatisfiable(Exception):
    """A range that begins behind the end."""


def slice_of(header: str | None, size: int) -> Slice | None:
    """Return the range that a ``Range`` header asks for; None: all of it.

    What is not one well-formed range of bytes is ignored, as the standard allows. Raises
    ``Unsatisfiable``.
    """
    match = _RANGE.fullmatch(header.replace(" ", "")) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    if first == "":
        length = min(int(last), size)
        if length == 0:
            raise Unsatisfiable
        return Slice(size - length, size)
    start = int(first)
    if last != "" and int(last) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return Slice(start, size if last == "" else min(int(last) + 1, size))


def is_listed(header: str | None, etag: str) -> bool:
    """Tell whether an ``If-None-Match`` header lists ``etag`` (by weak comparison) or ``*``."""
    if header is None:
        return False
    if header.strip() == "*":
        return True
    return any(part.strip().removeprefix("W/") == etag for part in header.split(","))


async def answer(
    objects: Objects, digest: str, request: Mapping[str, str], *, has_body: bool
) -> Response:
    """Answer a GET (or, without a body, a HEAD) of the blob ``digest``; headers in lower case.

    200, 206, 304 or 416; raises ``RpcError`` (not_found). The content is streamed.
    """
    found = await objects.stat(records.blob(digest))
    if found is None:
        raise RpcError("not_found", f"there is no content {digest}")
    etag = f'"{digest}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
    }
    if is_listed(request.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    asked = request.get("range")
    if "if-range" in request and request["if-range"].strip() != etag:
        asked = None
    try:
        part = slice_of(asked, found.size)
    except Unsatisfiable:
        return Response(
            status_code=416, headers=headers | {"Content-Range": f"bytes */{found.size}"}
        )
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{found.size}"
    status = 200 if part is None else 206
    part = part or Slice(0, found.size)
    headers |= {
        "Content-Length": str(part.end - part.start),
        "Content-Type": "application/octet-stream",
    }
    if not has_body:
        return Response(status_code=status, headers=headers)
    return StreamingResponse(_content(objects, digest, part), status_code=status, headers=headers)


async def _content(objects: Objects, digest: str, part: Slice) -> AsyncIterator[bytes]:
    if part.start == part.end:
        return
    async for chunk in objects.open(records.blob(digest), part.start, part.end):
        yield chunk
