"""The two threads of a SQLite file: one commits what arrived in groups, one reads.

A request is a function of a connection; nothing of any adapter's tables is known here.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lineshaft.adapters.sqlite.file import meaning, primary_code
from lineshaft.ports import StoreUnavailable

Answer = TypeVar("Answer")
Connect = Callable[[], sqlite3.Connection]
Work = Callable[[sqlite3.Connection], Answer]

COMMIT_REQUESTS_MAX = 1024
COMMIT_BYTES_MAX = 8 * 1024 * 1024


class CommitUnknown(StoreUnavailable):
    """The commit failed in a way that leaves open whether it happened.

    ``answer`` is what the request would have returned.
    """

    def __init__(self, text: str, answer: Any) -> None:
        super().__init__(text)
        self.answer = answer


@dataclass(slots=True, eq=False)
class _Request:
    work: Work[Any]
    weight: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    answer: Any = None

    def succeed(self) -> None:
        self._settle(lambda: self.future.set_result(self.answer))

    def fail(self, error: Exception) -> None:
        self._settle(lambda: self.future.set_exception(error))

    def _settle(self, settle: Callable[[], None]) -> None:
        def run() -> None:
            if not self.future.done():
                settle()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(run)


class WriterThread:
    """Runs requests in transactions; the next group is whatever arrived during the last commit.

    Each request sees what those before it wrote. A request that raises an error of its own
    fails alone; an error of the store fails the whole group, and nothing of it is kept.
    """

    def __init__(self, path: Path, connect: Connect) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def run(self, work: Work[Answer], weight: int = 0) -> Answer:
        """Return what ``work`` returns, once it is durable. ``weight`` is its size in bytes.

        Raises ``StoreUnavailable``, ``StorageFull`` or ``StoreCorrupt`` with nothing written,
        ``CommitUnknown`` when that is not known.
        """
        if self._is_closed:
            raise StoreUnavailable(f"{self._path}: closed")
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name=f"writer {self._path.name}", daemon=True
            )
            self._thread.start()
        loop = asyncio.get_running_loop()
        request = _Request(work, weight, loop, loop.create_future())
        self._requests.put(request)
        answer: Answer = await request.future
        return answer

    async def aclose(self) -> None:
        """Commit what was handed in, then close the file."""
        if self._is_closed:
            return
        self._is_closed = True
        self._requests.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        while (batch := self._take()) is not None:
            self._commit(batch)
        self._drop_connection()

    def _take(self) -> list[_Request] | None:
        request = self._requests.get()
        if request is None:
            return None
        batch, weight = [request], request.weight
        while len(batch) < COMMIT_REQUESTS_MAX and weight < COMMIT_BYTES_MAX:
            try:
                request = self._requests.get_nowait()
            except queue.Empty:
                break
            if request is None:
                self._requests.put(None)  # nothing comes behind the end
                break
            batch.append(request)
            weight += request.weight
        return batch

    def _commit(self, batch: list[_Request]) -> None:
        try:
            self._run_all(batch)
        except _OwnFault as fault:
            self._roll_back()
            if len(batch) == 1:
                batch[0].fail(fault.error)
                return
            for request in batch:
                self._commit([request])
        except Exception as error:
            self._drop_connection()
            for request in batch:
                request.fail(self._told(error, request))
        else:
            for request in batch:
                request.succeed()

    def _told(self, error: Exception, request: _Request) -> Exception:
        if isinstance(error, CommitUnknown):
            return CommitUnknown(str(error), request.answer)
        return meaning(error, self._path) if isinstance(error, sqlite3.Error) else error

    def _run_all(self, batch: list[_Request]) -> None:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        for request in batch:
            try:
                request.answer = request.work(connection)
            except sqlite3.Error:
                raise
            except Exception as error:
                raise _OwnFault(error) from error
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            # After a failed write or sync the commit may be whole in the log all the same.
            if primary_code(error) == sqlite3.SQLITE_IOERR:
                raise CommitUnknown(f"{self._path}: {error}", None) from error
            raise

    def _roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop_connection()

    def _drop_connection(self) -> None:
        """Close; what was open is rolled back, and the next use reads the file anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


class _OwnFault(Exception):
    """An error of one request, not of the store."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class ReaderThread:
    """Runs reads one after the other on a connection of its own."""

    def __init__(self, path: Path, connect: Connect) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"reader {path.name}")
        self._is_closed = False

    async def run(self, work: Work[Answer]) -> Answer:
        """Return what ``work`` returns. Raises as ``WriterThread.run`` does."""
        if self._is_closed:
            raise StoreUnavailable(f"{self._path}: closed")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._read, work)

    async def aclose(self) -> None:
        """Finish what was handed in, then close the file."""
        if self._is_closed:
            return
        self._is_closed = True
        self._executor.submit(self._drop_connection)
        await asyncio.to_thread(self._executor.shutdown)

    def _read(self, work: Work[Answer]) -> Answer:
        try:
            if self._connection is None:
                self._connection = self._connect()
            return work(self._connection)
        except sqlite3.Error as error:
            self._drop_connection()
            raise meaning(error, self._path) from error

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
