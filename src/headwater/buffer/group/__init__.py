"""Groups of readers: a group is a position, one LSN per partition.

    record                   what the registers of a group and of its positions hold
    register                 reads and changes them: epochs fence, resets count
    admin                    listing, describing, resetting and deleting groups, and their lag
    consumer, blocking       a member of a group of consumers, for async and for blocking code
    sharing                  where such a group begins, and its table of claims
    assignment, partition    the partitions of a member, and reading one of them

Always holds:

- a group owns nothing: any number of groups read a stream, and none of them holds its records;
- an epoch is given once, and only rises, also over a reset and a deletion of the group;
- an acknowledgement under an epoch never lands after a higher one took the partition;
- a position only moves forward within an epoch, except by an explicit seek;
- a reset is one conditional write: an acknowledgement from before it changes nothing;
- each partition is read by one member at a time, and a member that dies loses it after its timeout.
"""

from typing import TYPE_CHECKING

from headwater.lazy_exports import exports

if TYPE_CHECKING:
    from headwater.buffer.group.admin import (
        GroupDescription,
        GroupLag,
        GroupReset,
        GroupSummary,
        PartitionLag,
        delete_group,
        describe_group,
        group_lag,
        is_running,
        list_groups,
        reset_group,
    )
    from headwater.buffer.group.blocking import BlockingGroupConsumer
    from headwater.buffer.group.consumer import GroupConsumer
    from headwater.buffer.group.record import (
        GroupEpoch,
        GroupPosition,
        GroupRecord,
        OtherCheckpoint,
        OtherKind,
    )
    from headwater.buffer.group.register import GroupRegister

__all__ = [
    "BlockingGroupConsumer",
    "GroupConsumer",
    "GroupDescription",
    "GroupEpoch",
    "GroupLag",
    "GroupPosition",
    "GroupRecord",
    "GroupRegister",
    "GroupReset",
    "GroupSummary",
    "OtherCheckpoint",
    "OtherKind",
    "PartitionLag",
    "delete_group",
    "describe_group",
    "group_lag",
    "is_running",
    "list_groups",
    "reset_group",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "admin": "GroupDescription GroupLag GroupReset GroupSummary PartitionLag "
        "delete_group describe_group group_lag is_running list_groups reset_group",
        "blocking": "BlockingGroupConsumer",
        "consumer": "GroupConsumer",
        "record": "GroupEpoch GroupPosition GroupRecord OtherCheckpoint OtherKind",
        "register": "GroupRegister",
    },
)
