"""The registry's HTTP API: what a deployment team reads and downloads. It changes nothing.

Every route needs the platform's token as a bearer token. Errors are ``{code, message, hint}``.
"""

import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lineshaft.contracts import manifest, times
from lineshaft.ports import Objects, StoreUnavailable
from lineshaft.runtime.rpc import RpcError
from services.registry import blobs
from services.registry.catalogue import Catalogue

STATUS_OF_CODE = {
    "usage": 400,
    "refused": 403,
    "not_found": 404,
    "conflict": 409,
    "not_leader": 503,
    "unavailable": 503,
}
_Given = HTTPAuthorizationCredentials | None
_CODE_OF_STATUS = {401: "refused", 404: "not_found", 405: "usage"}


def make_app(catalogue: Catalogue, objects: Objects, token: str | None) -> FastAPI:
    """Return the application. ``token`` None leaves it open (a loopback bus without a token)."""
    app = FastAPI(
        title="Lineshaft registry",
        version="1",
        summary="Models, their versions and aliases, and their files.",
        docs_url=None,  # the pages would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,
    )
    guard = [Depends(_guard(token))]
    app.include_router(_models(catalogue), prefix="/v1", dependencies=guard)
    app.include_router(_content(catalogue, objects), prefix="/v1", dependencies=guard)

    @app.get("/v1/openapi.json", dependencies=guard, include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return app.openapi()

    app.add_exception_handler(RpcError, _told)
    app.add_exception_handler(StoreUnavailable, _unavailable)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _fault)
    return app


def _guard(token: str | None) -> Callable[..., Awaitable[None]]:
    wanted = None if token is None else token.encode()
    bearer = HTTPBearer(auto_error=False, description="The platform's token.")

    async def guard(given: Annotated[_Given, Depends(bearer)]) -> None:
        if wanted is None:
            return
        # latin-1 is what headers are decoded with; this gives their bytes back.
        shown = b"" if given is None else given.credentials.encode("latin-1")
        if not hmac.compare_digest(shown, wanted):
            raise HTTPException(
                401, "the platform's token is needed", {"WWW-Authenticate": "Bearer"}
            )

    return guard


def _models(catalogue: Catalogue) -> APIRouter:
    router = APIRouter(tags=["models"])

    @router.get("/models")
    async def list_models(
        limit: Annotated[int, Query(ge=1, le=1000)] = 1000, after: str = ""
    ) -> dict[str, Any]:
        """List models by name; ``after`` continues behind a name."""
        return {"models": await catalogue.models(limit, after)}

    @router.get("/models/{name}")
    async def show_model(name: str) -> dict[str, Any]:
        """Show a model: its versions, and its aliases with their history."""
        return await catalogue.model(name)

    @router.get("/models/{name}/versions/{version}")
    async def show_version(name: str, version: str) -> dict[str, Any]:
        """Show a version with its manifest; also one that was deleted."""
        found = await catalogue.version(name, version)
        made = await catalogue.manifest(found["manifest"])
        return {**found, "content": made}

    @router.get("/resolve")
    async def resolve(ref: str) -> dict[str, Any]:
        """Say which version ``name``, ``name@alias``, ``name:1.2.0`` or ``name@sha256:...`` is."""
        return await catalogue.resolve(ref)

    @router.get("/aliases/{name}/{alias}")
    async def show_alias(name: str, alias: str, at: str | None = None) -> dict[str, Any]:
        """Say where an alias points, or pointed ``at`` a time (RFC 3339, or ms since the epoch)."""
        return await catalogue.alias_at(name, alias, _time(at))

    return router


def _time(text: str | None) -> int | None:
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        # In a query a bare "+" is a space.
        return times.milliseconds(text.replace(" ", "+"))
    except times.TimeError as error:
        raise RpcError("usage", f"'at': {error}", "such as 2026-01-31T12:00:00Z") from None


def _content(catalogue: Catalogue, objects: Objects) -> APIRouter:
    router = APIRouter(tags=["content"])
    answers: dict[int | str, dict[str, Any]] = {
        200: {"description": "All of it", "content": {"application/octet-stream": {}}},
        206: {"description": "The range that was asked for"},
        304: {"description": "The client has it (If-None-Match)"},
        416: {"description": "The range begins behind the end"},
    }

    async def _answer(request: Request, digest: str) -> Response:
        has_body = request.method != "HEAD"
        return await blobs.answer(objects, digest, request.headers, has_body=has_body)

    async def blob(digest: str, request: Request) -> Response:
        """Give content by its digest. Range, If-Range and If-None-Match are honoured."""
        if not manifest.is_digest(digest):
            raise RpcError("usage", "a digest is sha256: and 64 hex digits")
        return await _answer(request, digest)

    async def file(name: str, version: str, path: str, request: Request) -> Response:
        """Give one file of a version."""
        found = await catalogue.find(f"{name}:{version}")
        made = await catalogue.manifest(found["manifest"])
        for listed in made["files"]:
            if listed["path"] == path:
                return await _answer(request, listed["digest"])
        raise RpcError("not_found", f"{name}:{version} has no file {path!r}")

    for path, serve in (
        ("/blobs/{digest}", blob),
        ("/models/{name}/versions/{version}/files/{path:path}", file),
    ):
        for method in ("GET", "HEAD"):
            router.add_api_route(
                path,
                serve,
                methods=[method],
                response_class=Response,
                responses=answers,
                operation_id=f"{method.lower()}_{serve.__name__}",
            )
    return router


# -- errors ---------------------------------------------------------------------------------------


def _error(status: int, code: str, message: str, hint: str | None = None) -> JSONResponse:
    return JSONResponse({"code": code, "message": message, "hint": hint}, status)


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, RpcError)
    return _error(STATUS_OF_CODE[error.code], error.code, error.message, error.hint)


async def _unavailable(_: Request, __: Exception) -> Response:
    return _error(503, "unavailable", "a store does not answer now", "try again in a moment")


async def _malformed(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return _error(400, "usage", "; ".join(faults))


async def _http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODE_OF_STATUS.get(error.status_code, "usage")
    made = _error(error.status_code, code, str(error.detail))
    made.headers.update(error.headers or {})
    return made


async def _fault(_: Request, __: Exception) -> Response:
    return _error(500, "unavailable", "the registry failed to answer; its log says why")
