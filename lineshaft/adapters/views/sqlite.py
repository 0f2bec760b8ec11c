"""Views in one SQLite file, which may be deleted while nobody uses it.

Nothing is kept here that cannot be made again from a journal.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lineshaft.adapters.sqlite.file import FileKind, open_file
from lineshaft.adapters.sqlite.threads import ReaderThread, WriterThread
from lineshaft.adapters.views import matching
from lineshaft.ports import Document

FILE_NAME = "views.db"

_KIND = FileKind(
    name="views",
    application_id=0x4C535631,  # "LSV1"
    version=1,
    tables=(
        """CREATE TABLE documents (
            kind TEXT NOT NULL, id TEXT NOT NULL, version INTEGER NOT NULL, stream TEXT NOT NULL,
            tokens TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, id))""",
    ),
)
_PUT = """
INSERT INTO documents (kind, id, version, stream, tokens, body) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, stream = excluded.stream,
    tokens = excluded.tokens, body = excluded.body
WHERE documents.stream != excluded.stream OR documents.version < excluded.version"""

_GET = "SELECT kind, id, version, body, stream FROM documents"


class SqliteViews:
    """Documents in ``place``: a file, or a folder that then holds ``views.db``.

    Nothing is opened before the first use. Errors are those of the SQLite journal.
    """

    def __init__(self, place: Path | str) -> None:
        path = Path(place)
        self.path = path / FILE_NAME if path.is_dir() or not path.suffix else path
        self._writer = WriterThread(self.path, self._open)
        self._reader = ReaderThread(self.path, self._open)

    async def put(self, documents: Sequence[Document]) -> None:
        """Store each document unless one of its stream is stored in this or a higher version.

        A document from another stream replaces: versions of two streams do not compare.
        All or none are stored. Raises ``ValueError``, ``StorageFull``, ``StoreUnavailable``.
        """
        rows = [
            (
                document.kind,
                document.id,
                document.version,
                document.stream,
                json.dumps(matching.tokens(document.body)),
                body,
            )
            for document in documents
            if (body := matching.stored(document))
        ]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_PUT, rows)

        if rows:
            await self._writer.run(work, sum(len(row[-1]) for row in rows))

    async def get(self, kind: str, id: str) -> Document | None:
        """Return one document."""
        found = await self._documents(f"{_GET} WHERE kind = ? AND id = ?", (kind, id))
        return found[0] if found else None

    async def find(
        self,
        kind: str,
        where: Mapping[str, Any] | None = None,
        *,
        limit: int = 1000,
        after: str = "",
    ) -> list[Document]:
        """Return documents by id, higher than ``after``, whose top-level fields equal ``where``.

        A search without a match reads the tokens of the whole kind. Raises ``ValueError`` for
        a field or a value that nothing is found by.
        """
        conditions = ["kind = ?", "id > ?"]
        values: list[Any] = [kind, after]
        for name, token in matching.wanted(where).items():
            conditions.append("json_extract(tokens, ?) IS ?")
            values += [f"$.{name}", token]
        statement = f"{_GET} WHERE {' AND '.join(conditions)} ORDER BY id LIMIT ?"
        return await self._documents(statement, (*values, max(limit, 0)))

    async def delete(self, kind: str, ids: Sequence[str]) -> None:
        """Forget documents; those that are absent are no error."""
        rows = [(kind, id) for id in ids]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany("DELETE FROM documents WHERE kind = ? AND id = ?", rows)

        if rows:
            await self._writer.run(work)

    async def aclose(self) -> None:
        """Commit what was handed in and close the file."""
        await self._writer.aclose()
        await self._reader.aclose()

    async def _documents(self, statement: str, values: Sequence[Any]) -> list[Document]:
        def work(connection: sqlite3.Connection) -> list[tuple[str, str, int, str, str]]:
            return connection.execute(statement, values).fetchall()

        return [
            Document(kind, id, version, json.loads(body), stream)
            for kind, id, version, body, stream in await self._reader.run(work)
        ]

    def _open(self) -> sqlite3.Connection:
        return open_file(self.path, _KIND)
