"""Where the files of tables stand: locations as Iceberg writes them down, keys as a store has them.

A location is an address without options (`s3://bucket/warehouse/db/orders/data/….parquet`), so that
any engine can read it. The address of the store may name options (an endpoint, a profile); these
stay with whoever opens it, and no credential is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode, urlsplit

from headwater.core.errors import Refused
from headwater.spark.stores import store_at
from headwater.store import Store
from headwater.store.address import parse_address

_SAME: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Other engines' names for what we call otherwise."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store by its address, and the location of its root. It travels: no secret is in it."""

    url: str
    base: str

    @classmethod
    def at(cls, url: str, **options: str) -> Place:
        """The store at an address, whose options may stand in it or beside."""
        address = parse_address(url, options)
        merged = urlencode({**address.options})
        plain = url.partition("?")[0].rstrip("/")
        if address.scheme == "file":
            base = f"file://{address.path}"
        else:
            base = "/".join(filter(None, (address.place, address.path)))
        return cls(f"{plain}?{merged}" if merged else plain, base)

    @classmethod
    def of_table(cls, location: str, **options: str) -> Place:
        """The folder of a table that another catalog has placed."""
        scheme, colon, rest = location.partition(":")
        url = f"{_SAME.get(scheme, scheme)}:{rest}" if colon else f"file://{location}"
        return cls(cls.at(url, **options).url, location.rstrip("/"))

    def key(self, location: str) -> str:
        """The key of a location in this store."""
        if not location.startswith(f"{self.base}/"):
            plain = urlsplit(location)._replace(query="", fragment="").geturl()
            raise Refused(f"{plain} does not stand below {self.base}: it belongs to another store")
        return location[len(self.base) + 1 :]

    def location(self, key: str) -> str:
        """What Iceberg writes down for a key."""
        return f"{self.base}/{key}"

    def store(self) -> Store:
        """The store, opened once in each process."""
        return store_at(self.url)
