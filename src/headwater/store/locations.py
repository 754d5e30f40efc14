"""Files of a store under the locations that other engines use, and the stores of a process.

Iceberg metadata names a file by its location: an address without options
(`s3://bucket/warehouse/db/orders/data/….parquet`), so that any engine can read it. The address of
the store may have options (an endpoint, a profile); they stay with the process that opens it, and
no credential is among them.

Spark's Python workers run many tasks, so a process opens the store of an address once and uses it
through the shared portal (`core.portal.shared`), because a store serves one event loop. A forked
child opens its own: the connections belong to the parent.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode, urlsplit

from headwater.core.errors import Refused
from headwater.store import Store, open_store
from headwater.store.address import parse_address

_SCHEMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Other engines' schemes, and ours for the same stores."""


@dataclass(frozen=True, slots=True)
class FileRoot:
    """The address of a store and the location of its root. Safe to send: it has no secret."""

    url: str
    base: str

    @classmethod
    def at(cls, url: str, **options: str) -> FileRoot:
        """The store at an address, whose options are in it or are keywords."""
        address = parse_address(url, options)
        merged = urlencode({**address.options})
        plain = url.partition("?")[0].rstrip("/")
        if address.scheme == "file":
            base = f"file://{address.path}"
        else:
            base = "/".join(filter(None, (address.place, address.path)))
        return cls(f"{plain}?{merged}" if merged else plain, base)

    @classmethod
    def of_table(cls, location: str, **options: str) -> FileRoot:
        """The folder of a table whose location another catalog chose."""
        scheme, colon, rest = location.partition(":")
        url = f"{_SCHEMES.get(scheme, scheme)}:{rest}" if colon else f"file://{location}"
        return cls(cls.at(url, **options).url, location.rstrip("/"))

    def key(self, location: str) -> str:
        """The key of a location in this store; `Refused` if it is outside of it."""
        if not location.startswith(f"{self.base}/"):
            plain = urlsplit(location)._replace(query="", fragment="").geturl()
            raise Refused(f"{plain} is not below {self.base}: it belongs to another store")
        return location[len(self.base) + 1 :]

    def location(self, key: str) -> str:
        """The location of a key, as Iceberg metadata has it."""
        return f"{self.base}/{key}"

    def store(self) -> Store:
        return shared_store(self.url)


_open: dict[str, Store] = {}
_opening = threading.Lock()


def shared_store(url: str) -> Store:
    """The store at an address, opened once in each process. Sends no request."""
    with _opening:
        store = _open.get(url)
        if store is None:
            store = _open[url] = open_store(url)
        return store


def _forget_in_child() -> None:
    # A thread of the parent may have held the lock, and it does not run in the child.
    global _open, _opening
    _open, _opening = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
