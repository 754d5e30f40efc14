"""Frames that are written and synced together, behind what the active segment holds.

Always holds: a run takes an append wholly or changes nothing, so what was refused leaves no trace
in what is written next; no column that a caller gave is ever dropped.
"""

from __future__ import annotations

import pyarrow as pa

from headwater.core.errors import Bug, Refused, Unavailable
from headwater.log.record.group import Group
from headwater.log.spool.body import Body
from headwater.log.spool.commit import Appended, Ticket
from headwater.log.spool.conform import filled, joined
from headwater.log.spool.draft import bodies_of


class Run:
    """Appends that were given their LSNs and their places, and are not written yet."""

    def __init__(
        self,
        *,
        next_lsn: int,
        size_bytes: int,
        term: int,
        schema: pa.Schema | None,
        begins: bool,
        synced_lsn: int,
        group_bytes: int,
    ) -> None:
        """`schema` is the active segment's; of one that `begins`, a wish."""
        self.next_lsn = next_lsn
        self.size_bytes = size_bytes
        self.term = term
        self.schema = schema
        self.tickets: list[tuple[Ticket, Appended]] = []
        self.groups: list[tuple[Group, int]] = []
        self.frames: list[bytearray] = []
        self._begins = begins
        self._synced_lsn = synced_lsn
        self._group_bytes = group_bytes

    @property
    def is_first(self) -> bool:
        """Whether nothing stands in the segment, nor will before what is taken next."""
        return self._begins and not self.tickets

    def fits(self, ticket: Ticket) -> bool:
        """Whether an append can go into the segment, with columns of its own or without."""
        return self.schema is None or self.schema_with(ticket) is not None

    def schema_with(self, ticket: Ticket) -> pa.Schema | None:
        """What a segment has that holds this append as well; None if there should be none."""
        given = ticket.given
        if given is None:
            return self.schema
        if self.schema is None or ticket.schema == self.schema:
            return self.schema or given
        nbytes = sum(body.records.nbytes for body in ticket.bodies)
        return joined(self.schema, given, rows=ticket.lsns, nbytes=nbytes)

    def take(self, ticket: Ticket) -> None:
        """Give each frame its LSNs and its place in the file."""
        schema = self.schema_with(ticket)
        if self.is_first:
            schema = schema or ticket.given
        elif self.schema is not None and schema is None:
            raise Bug(f"an append of {ticket.given} was to go into a segment of {self.schema}")
        bodies = ticket.bodies
        if ticket.given is not None and ticket.schema != schema:
            bodies = self._conformed(bodies, schema)
        first_lsn = self.next_lsn
        for body in bodies:
            group = body.place(
                term=ticket.term,
                first_lsn=self.next_lsn,
                timestamp_ms=ticket.timestamp_ms,
                synced_lsn=self._synced_lsn,
                offset=self.size_bytes,
            )
            self.groups.append((group, self.size_bytes))
            self.frames.append(body.frame)
            self.size_bytes += len(body.frame)
            self.next_lsn = group.last_lsn + 1
        self.tickets.append((ticket, Appended(first_lsn, self.next_lsn - 1)))
        self.term, self.schema = ticket.term, schema

    def _conformed(self, bodies: list[Body], schema: pa.Schema) -> list[Body]:
        """The same records with the columns of the segment."""
        try:
            return [part for body in bodies for part in self._parts(body, schema)]
        except MemoryError as error:
            raise Unavailable(
                "there is no memory to give these records the columns of their segment: append "
                f"them again, fewer at a time ({error})"
            ) from error
        except pa.ArrowException as error:
            raise Refused(
                f"these records do not take the columns that others have appended: {error}"
            ) from error

    def _parts(self, body: Body, schema: pa.Schema) -> list[Body]:
        if body.given is None:
            return [body]
        records = filled(body.records, schema, given=body.given)
        return bodies_of(records, given=body.given, group_bytes=self._group_bytes)
