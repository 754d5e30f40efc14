"""The keys of a stream's objects below a store's root.

    streams/<stream>/stream.json                              what the stream is
    streams/<stream>/<partition>/ingest/<stream id>/…         the native queue and its batches
    streams/<stream>/<partition>/ingest/…                     the published v1 manifest and batches
    streams/<stream>/<partition>/dlq/<stream id>/…            batches that could not be read
    streams/<stream>/<partition>/groups/<stream id>/…         positions of groups
    streams/<stream>/<partition>/log/<stream id>/slots.json   replication slots
    streams/<stream>/<partition>/log/<stream id>/start.json   the oldest LSN that can be read
    streams/<stream>/<partition>/snapshots/<stream id>/…      images that replicas begin from
    streams/<stream>/<partition>/segments/<stream id>/…       segments of the tier
    streams/<stream>/groups/<stream id>/…                     groups: who reads, at which epoch
    streams/<stream>/txn/<stream id>/…                        transactions of sinks

Native paths contain the stream's id, so that a stalled writer of a deleted stream never writes into
a later stream of the same name. The published layout has no place for the id.
"""

from __future__ import annotations

import re
from typing import Final

from headwater.core.errors import Refused

STREAMS: Final = "streams"
STREAM_NAME_MAX: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_stream_name(name: object) -> bool:
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and len(name) <= STREAM_NAME_MAX


def check_stream_name(name: str) -> str:
    """The name itself; `Refused` if it is not valid."""
    return _checked_name("stream", name)


def check_group_name(group: str) -> str:
    """The name of a group itself; `Refused` if it is not valid."""
    return _checked_name("group", group)


def _checked_name(kind: str, name: str) -> str:
    if not is_stream_name(name):
        raise Refused(
            f"{name!r} is not a valid {kind} name: use letters, digits, '.', '_' and '-', "
            f"beginning with a letter or a digit, at most {STREAM_NAME_MAX} characters"
        )
    return name


def stream_prefix(name: str) -> str:
    """The folder of all streams of this name."""
    return f"{STREAMS}/{name}"


def stream_key(name: str) -> str:
    return f"{stream_prefix(name)}/stream.json"


def partition_prefix(name: str, partition: int) -> str:
    return f"{stream_prefix(name)}/{partition}"


def native_prefix(name: str, partition: int, stream_id: str) -> str:
    return f"{partition_prefix(name, partition)}/ingest/{stream_id}"


def v1_prefix(name: str, partition: int) -> str:
    return f"{partition_prefix(name, partition)}/ingest"


def dead_letter_prefix(name: str, partition: int, stream_id: str) -> str:
    return f"{partition_prefix(name, partition)}/dlq/{stream_id}"


def group_key(name: str, partition: int, stream_id: str, group: str) -> str:
    """The register with the position of a group in one partition."""
    return f"{partition_prefix(name, partition)}/groups/{stream_id}/{group}.json"


def group_records_prefix(name: str, stream_id: str) -> str:
    """The folder of the registers of a stream's groups."""
    return f"{stream_prefix(name)}/groups/{stream_id}"


def group_record_key(name: str, stream_id: str, group: str) -> str:
    """The register of a group: its epoch, its resets and who reads."""
    return f"{group_records_prefix(name, stream_id)}/{group}.json"


def slots_key(name: str, partition: int, stream_id: str) -> str:
    return f"{partition_prefix(name, partition)}/log/{stream_id}/slots.json"


def log_start_key(name: str, partition: int, stream_id: str) -> str:
    """The register with the oldest LSN of a partition that can be read."""
    return f"{partition_prefix(name, partition)}/log/{stream_id}/start.json"


def images_prefix(name: str, partition: int, stream_id: str) -> str:
    return f"{partition_prefix(name, partition)}/snapshots/{stream_id}"


def segments_prefix(name: str, partition: int, stream_id: str) -> str:
    return f"{partition_prefix(name, partition)}/segments/{stream_id}"


def transaction_prefix(name: str, stream_id: str) -> str:
    return f"{STREAMS}/{name}/txn/{stream_id}"


def holds_key(name: str, stream_id: str) -> str:
    """The register with the holds of open transactions."""
    return f"{transaction_prefix(name, stream_id)}/holds.json"


def application_key(name: str, stream_id: str, application: str) -> str:
    """The register with the last commit of an application."""
    return f"{transaction_prefix(name, stream_id)}/{application}.json"
