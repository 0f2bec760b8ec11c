"""Questions about models: what there is, what a reference means, what was live when.

Reads the registry's documents and the manifests' blobs; writes nothing. Requests and the HTTP
API both answer from here. Raises ``RpcError``.
"""

from collections import OrderedDict
from typing import Any

from lineshaft.contracts import ids, limits, manifest, records
from lineshaft.ports import Document, ObjectMissing, Objects, Views
from lineshaft.runtime.rpc import RpcError
from services.registry.domain import history, refs, versions

_MANIFESTS_KEPT_MAX = 32
_PAGE = 1000


class Catalogue:
    """Answers questions about models."""

    def __init__(self, views: Views, objects: Objects) -> None:
        self._views = views
        self._objects = objects
        self._manifests: OrderedDict[str, dict[str, Any]] = OrderedDict()

    async def models(self, limit: int = 1000, after: str = "") -> list[dict[str, Any]]:
        """Return the models by name: team, latest, aliases, how many versions."""
        found = await self._views.find("model", limit=limit, after=after)
        return [_in_short(document.body) for document in found]

    async def model(self, name: str) -> dict[str, Any]:
        """Return one model: versions, aliases, every move of them (oldest first), refusals."""
        body = dict((await self._model(name)).body)
        moves = [move for alias in body["aliases"] for move in await self.moves(name, alias)]
        moves.sort(key=lambda move: move["at"])
        return {**body, "alias_history": moves, "refused": await self._refusals(name)}

    async def version(self, name: str, number: str) -> dict[str, Any]:
        """Return one version by its number; also one that was deleted."""
        parsed = versions.parse(number)
        if parsed is None:
            raise RpcError("usage", f"{number!r} is no version", "write it as 1.2.0")
        document = await self._views.get("version", f"{name}:{parsed}")
        if document is None:
            await self._model(name)
            raise RpcError("not_found", f"{name} has no version {parsed}")
        return dict(document.body)

    async def resolve(self, text: str) -> dict[str, Any]:
        """Return the version that a reference means, with its files."""
        found = await self.find(text)
        made = await self.manifest(found["manifest"])
        return {
            **{key: found[key] for key in ("name", "version", "manifest", "kind", "team")},
            "bytes": found["bytes"],
            "metrics": made["metrics"],
            "lineage": made["lineage"],
            "model": made["model"],
            "files": made["files"],
        }

    async def find(self, text: str) -> dict[str, Any]:
        """Return the document of the version that a reference means. Deleted ones are not found."""
        try:
            ref = refs.parse(text)
        except refs.RefError as error:
            raise RpcError("usage", str(error)) from None
        if ref.manifest is not None:
            found = await self._by_manifest(ref.name, ref.manifest)
        else:
            number = str(ref.version) if ref.version else await self._aliased(ref.name, ref.alias)
            found = await self.version(ref.name, number)
        if found["deleted"] is not None:
            gone = found["deleted"]
            raise RpcError(
                "not_found",
                f"{found['name']}:{found['version']} was deleted by {gone['actor']}",
                f"reason: {gone['reason']}",
            )
        return found

    async def moves(self, name: str, alias: str) -> list[dict[str, Any]]:
        """Return every move of an alias, oldest first."""
        after, found = f"{name}@{alias}/", list[dict[str, Any]]()
        while True:
            page = await self._views.find(
                "alias_move", {"name": name, "alias": alias}, limit=_PAGE, after=after
            )
            found += [dict(document.body) for document in page]
            if len(page) < _PAGE:
                return found
            after = page[-1].id

    async def alias_at(self, name: str, alias: str, at: int | None) -> dict[str, Any]:
        """Return where an alias pointed at ``at`` (ms since the epoch; None: now), and since when.

        ``{name, alias, version, since, actor, reason, kind, from}``.
        """
        moves = await self.moves(name, alias)
        if not moves:
            await self._model(name)
            raise RpcError("not_found", f"there is no {name}@{alias}")
        found = moves[-1] if at is None else history.at(moves, at)
        if found is None:
            since = moves[0]["at"]
            raise RpcError(
                "not_found", f"{name}@{alias} did not exist then", f"it began at {since}"
            )
        kept = {key: found[key] for key in ("name", "alias", "actor", "reason", "kind", "from")}
        return {**kept, "version": found["to"], "since": found["at"]}

    async def manifest(self, digest: str) -> dict[str, Any]:
        """Return a published manifest, read again and checked."""
        if digest in self._manifests:
            self._manifests.move_to_end(digest)
            return self._manifests[digest]
        raw = b""
        try:
            async for chunk in self._objects.open(records.blob(digest)):
                raw += chunk
        except ObjectMissing:
            raise RpcError("unavailable", f"the manifest {digest} is not in the store") from None
        if len(raw) > limits.MANIFEST_BYTES_MAX or ids.digest_of(raw) != digest:
            raise RpcError("unavailable", f"the manifest {digest} is damaged in the store")
        made = manifest.decode(raw)
        self._manifests[digest] = made
        while len(self._manifests) > _MANIFESTS_KEPT_MAX:
            self._manifests.popitem(last=False)
        return made

    async def _model(self, name: str) -> Document:
        document = await self._views.get("model", name) if ids.is_name(name) else None
        if document is None:
            raise RpcError(
                "not_found", f"there is no model {name!r}", "lineshaft models lists them"
            )
        return document

    async def _aliased(self, name: str, alias: str | None) -> str:
        body = (await self._model(name)).body
        if alias == refs.LATEST:
            if body["latest"] is None:
                raise RpcError("not_found", f"{name} has no version that is not deleted")
            return str(body["latest"])
        if alias not in body["aliases"]:
            known = ", ".join(sorted(body["aliases"])) or "none"
            raise RpcError("not_found", f"there is no {name}@{alias}", f"its aliases: {known}")
        return str(body["aliases"][alias]["version"])

    async def _by_manifest(self, name: str, digest: str) -> dict[str, Any]:
        found = await self._views.find("version", {"name": name, "manifest": digest}, limit=1)
        if not found:
            await self._model(name)
            raise RpcError("not_found", f"{name} has no version with the manifest {digest}")
        return dict(found[0].body)

    async def _refusals(self, name: str) -> list[dict[str, Any]]:
        found = await self._views.find("refusal", {"name": name}, limit=100)
        return [dict(document.body) for document in found]


def _in_short(body: dict[str, Any]) -> dict[str, Any]:
    aliases = {alias: now["version"] for alias, now in body["aliases"].items()}
    kept = {key: body[key] for key in ("name", "team", "latest")}
    count = sum(not one["is_deleted"] for one in body["versions"])
    return {**kept, "aliases": aliases, "versions_count": count}
