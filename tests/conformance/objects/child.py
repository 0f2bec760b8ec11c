"""A process that uses a folder of objects.

``child.py claim ROOT NAME COUNT`` tries to create COUNT keys and prints those it won.
``child.py pour ROOT NAME`` stores and prints keys until it is killed.
``child.py limited ROOT NAME BYTES`` stores one object under a limit of a file's size.
"""

import asyncio
import resource
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from lineshaft.adapters.objects.folder import FolderObjects
from lineshaft.ports import ObjectExists, StorageFull


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def claim(objects: FolderObjects, name: str, count: int) -> None:
    for n in range(count):
        try:
            await objects.put(f"claims/{n % 7}/{n}", name.encode())
            say(f"claims/{n % 7}/{n}")
        except ObjectExists:
            pass


async def pour(objects: FolderObjects, name: str) -> None:
    async def data(n: int) -> AsyncIterator[bytes]:
        for _ in range(20):
            yield f"{n:08d}".encode() * 1000

    for n in range(1_000_000):
        key = f"{name}/{n % 3}/{n}"
        await objects.put(key, data(n))
        say(key)


async def limited(objects: FolderObjects, size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        await objects.put("large", b"x" * (2 * size))
    except StorageFull:
        say("full")
    say(str(await objects.put("small", b"x" * (size // 2))))


async def main(mode: str, root: str, name: str, count: int = 0) -> None:
    objects = FolderObjects(Path(root))
    if mode == "claim":
        await claim(objects, name, count)
    elif mode == "limited":
        await limited(objects, count)
    else:
        await pour(objects, name)
    await objects.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], *map(int, sys.argv[4:])))
