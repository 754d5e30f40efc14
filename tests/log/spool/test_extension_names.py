"""Fields that name an extension type are what it is stored in, to whoever reads them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pyarrow as pa
import pytest

from headwater.core.errors import Refused
from headwater.log import record_hashes
from headwater.log.spool import codec
from headwater.testing.disk import FaultyDisk
from tests.log.given import closing, contents, opened, wait


class Shape(pa.ExtensionType):  # type: ignore[misc]
    """A type that some process has registered, and another has not."""

    def __init__(self) -> None:
        super().__init__(pa.binary(), "shop.shape")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Shape:
        return cls()


@pytest.fixture
def shapes() -> Iterator[None]:
    pa.register_extension_type(Shape())
    yield
    pa.unregister_extension_type("shop.shape")


def named(kind: pa.DataType, extension: str, told: str = "") -> pa.Field:
    names = {"ARROW:extension:name": extension, "ARROW:extension:metadata": told}
    return pa.field("v", kind, metadata={**names, "said": "by somebody"})


UUIDS = named(pa.binary(2), "arrow.uuid")
NAMED: dict[str, tuple[pa.Field, object]] = {
    "uuid": (named(pa.binary(16), "arrow.uuid"), b"0" * 16),
    "json": (named(pa.string(), "arrow.json"), "{}"),
    "bool8": (named(pa.int8(), "arrow.bool8"), 1),
    "opaque": (named(pa.binary(), "arrow.opaque", '{"type_name":"a","vendor_name":"b"}'), b"x"),
    "unknown": (named(pa.binary(), "somebody.else"), b"x"),
    "registered": (named(pa.binary(), "shop.shape"), b"x"),
    "uuid of another storage": (named(pa.int64(), "arrow.uuid"), 1),
    "no shape": (named(pa.list_(pa.int8(), 2), "arrow.fixed_shape_tensor", "{"), [1, 2]),
    "in a struct": (pa.field("v", pa.struct([UUIDS])), {"v": b"ab"}),
    "in a list": (pa.field("v", pa.list_(UUIDS)), [b"ab"]),
    "in a large list": (pa.field("v", pa.large_list(UUIDS)), [b"ab"]),
    "in a fixed list": (pa.field("v", pa.list_(UUIDS, 1)), [b"ab"]),
    "in a map": (pa.field("v", pa.map_(pa.string(), UUIDS)), [("k", b"ab")]),
}  # fmt: skip


def records_of(name: str) -> pa.RecordBatch:
    field, value = NAMED[name]
    return pa.RecordBatch.from_arrays([pa.array([value], field.type)], schema=pa.schema([field]))


@pytest.mark.usefixtures("shapes")
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("is_old", [False, True], ids=["written without", "of an older log"])
def test_a_field_that_names_an_extension_type_is_what_it_is_stored_in(
    name: str, is_old: bool
) -> None:
    disk, records = FaultyDisk(), records_of(name)
    spool = opened(disk)
    if is_old:
        with mock.patch.object(codec, "_bare_schema", return_value=None):
            wait(spool.append(records, term=1))
    else:
        wait(spool.append(records, term=1))
    (tail,) = wait(spool.read_since(0))
    wait(spool.close())
    with closing(opened(disk)) as spool:
        (group,) = wait(spool.read_since(0))
    (file,) = (data for path, data in contents(disk).items() if path.endswith(".wal"))
    assert (b"ARROW:extension" in file) == is_old
    assert group.records.schema.equals(tail.records.schema, check_metadata=True)
    assert group.records.schema.field("v").type == records.schema.field("v").type
    assert b"ARROW:extension" not in group.records.schema.serialize().to_pybytes()
    assert group.records.to_pylist() == records.to_pylist()
    assert record_hashes(group) == record_hashes(tail)
    with closing(opened(FaultyDisk())) as copy:
        wait(copy.append(group.records, term=1))


def test_other_metadata_of_fields_stay() -> None:
    spool = opened(FaultyDisk())
    wait(spool.append(records_of("uuid"), term=1))
    (group,) = wait(spool.read_since(0))
    assert group.records.schema.field("v").metadata == {b"said": b"by somebody"}


def test_a_type_that_was_made_in_python_is_refused_by_its_name() -> None:
    spool = opened(FaultyDisk())
    column = pa.ExtensionArray.from_storage(Shape(), pa.array([b"x"]))
    with pytest.raises(Refused, match="column 'v' is extension"):
        wait(spool.append(pa.record_batch({"v": column}), term=1))
    assert wait(spool.append(pa.record_batch({"v": pa.array([b"x"])}), term=1)) == (1, 1)
