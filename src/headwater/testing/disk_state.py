"""The files and names on a disk, what of it is durable, and what a power loss may leave.

Changes are stored in their order until they are durable. A power loss applies, in that order, some
of the changes that are not:

- of a file: each write survives, is lost, is cut at a byte, survives in some of its 512-byte
  sectors, or becomes zeros; each truncation survives or is lost; and the file may end with zeros up
  to any size that it was about to have. A later write may survive an earlier one, which is the only
  meaning of "out of order" for bytes; where two writes overlap, the later survivor wins;
- of names: each change survives or is lost as a whole, independently of the others. A rename is
  one change also between two folders, as in a journal: a sync of either folder makes it durable in
  both. A link followed by an unlink is two changes. A surviving rename keeps the change that set
  the old name, so a crash never adds a name to a file;
- everything below a folder whose own name was lost is lost.

With `journaled` name changes stay in order instead: a power loss keeps all changes up to some
moment, and a sync of any folder makes all of them durable.
"""

from __future__ import annotations

import copy
import errno
import heapq
import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, NoReturn

from headwater.core.disk import raise_for
from headwater.core.errors import Bug

SECTOR_BYTES: Final = 512
_NAME_MAX_BYTES: Final = 255
# The probability that an unsynced change survives; drawn for each file, so that all, none and a few
# of its changes survive often.
_KEEP_RATES: Final = (0.0, 0.2, 0.5, 0.8, 1.0)


class ChangeState(Enum):
    PENDING = "not synced"
    SAFE = "synced"
    SYNC_FAILED = "its sync failed: no later sync makes it safe, and a power loss loses it"


@dataclass(slots=True, eq=False)
class Write:
    offset: int
    data: bytes
    state: ChangeState = ChangeState.PENDING


@dataclass(slots=True, eq=False)
class Cut:
    size_bytes: int
    state: ChangeState = ChangeState.PENDING


@dataclass(slots=True, eq=False)
class FileNode:
    """A file without its names: its visible content, its durable content, and the changes since."""

    number: int
    mtime_ns: int
    live: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    safe_mtime_ns: int = 0
    changes: list[Write | Cut] = field(default_factory=list)
    names: int = 0
    handles: int = 0

    def append(self, data: bytes) -> None:
        self.changes.append(Write(len(self.live), data))
        self.live += data

    def cut(self, size_bytes: int) -> None:
        """Truncate or extend the file; new bytes are zeros."""
        self.changes.append(Cut(size_bytes))
        _resize(self.live, size_bytes)

    def make_safe(self) -> None:
        """A sync that succeeds."""
        self.safe_mtime_ns = self.mtime_ns
        for change in self.changes:
            if change.state is ChangeState.PENDING:
                change.state = ChangeState.SAFE
        while self.changes and self.changes[0].state is ChangeState.SAFE:
            _apply(self.safe, self.changes.pop(0))

    def fail_sync(self) -> None:
        """A sync that fails: the kernel marks the pages clean although they are not on the disk."""
        for change in self.changes:
            if change.state is ChangeState.PENDING:
                change.state = ChangeState.SYNC_FAILED

    def evict(self) -> None:
        """Drop the pages whose sync failed, so that reads show the disk's content."""
        self.live = bytearray(self.safe)
        self.changes = [c for c in self.changes if c.state is not ChangeState.SYNC_FAILED]
        for change in self.changes:
            _apply(self.live, change)

    def after_power_loss(self, random: Random) -> FileNode:
        content, reach = bytearray(self.safe), 0
        keep = random.choice(_KEEP_RATES)
        for change in self.changes:
            if change.state is ChangeState.SAFE:
                _apply(content, change)
                if isinstance(change, Cut):
                    reach = min(reach, change.size_bytes)
                continue
            if isinstance(change, Write):
                reach = max(reach, change.offset + len(change.data))
            if change.state is ChangeState.PENDING:
                _apply_some(content, change, keep, random)
        if reach > len(content) and random.random() < 0.25:
            _resize(content, random.randint(len(content), reach))
        mtime_ns = random.choice((self.safe_mtime_ns or self.mtime_ns, self.mtime_ns))
        return FileNode(self.number, mtime_ns, content, bytearray(content), mtime_ns)


@dataclass(slots=True, eq=False)
class FolderNode:
    """A folder: the names that are seen, and those that are safe."""

    number: int
    mtime_ns: int
    live: dict[str, Node] = field(default_factory=dict)
    safe: dict[str, Node] = field(default_factory=dict)


Node = FileNode | FolderNode
Slot = tuple[FolderNode, str]


@dataclass(slots=True, eq=False)
class NameChange:
    """Names that are set, or removed with None, as one change."""

    sets: tuple[tuple[FolderNode, str, Node | None], ...]
    needs: NameChange | None = None
    """For a rename, the change that set the old name."""
    state: ChangeState = ChangeState.PENDING

    def touches(self, folder: FolderNode) -> bool:
        return any(changed is folder for changed, _, _ in self.sets)

    def slots(self) -> set[tuple[int, str]]:
        return {(id(folder), name) for folder, name, _ in self.sets}

    def make_safe(self) -> None:
        change: NameChange | None = self
        while change is not None:
            change.state = ChangeState.SAFE
            change = change.needs


class Tree:
    """All nodes of a disk below its root, and the changes of names that are not yet safe."""

    def __init__(self, *, mtime_ns: int = 0, journaled: bool = False) -> None:
        self.journaled = journaled
        self.root = FolderNode(1, mtime_ns)
        self._changes: list[NameChange] = []
        self._free: list[int] = []
        self._next_number = 2

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in _names(path):
            node = node.live.get(name) if isinstance(node, FolderNode) else None
        return node

    def node(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            fail(errno.ENOENT, path)
        return node

    def file(self, path: str) -> FileNode:
        node = self.node(path)
        if isinstance(node, FolderNode):
            fail(errno.EISDIR, path)
        return node

    def slot(self, path: str) -> Slot:
        """The folder in which `path` is, or may become, a name."""
        *above, name = _names(path) or fail(errno.EISDIR, path)
        folder = self.find("/" + "/".join(above))
        if not isinstance(folder, FolderNode):
            fail(errno.ENOENT if folder is None else errno.ENOTDIR, path)
        if len(os.fsencode(name)) > _NAME_MAX_BYTES:
            fail(errno.ENAMETOOLONG, path)
        return folder, name

    def take_number(self) -> int:
        """The lowest free inode number, as in ext4: numbers are reused at once."""
        if self._free:
            return heapq.heappop(self._free)
        self._next_number += 1
        return self._next_number - 1

    def release(self, node: FileNode) -> None:
        if node.names == 0 and node.handles == 0:
            heapq.heappush(self._free, node.number)

    def add_handle(self, node: Node) -> None:
        if isinstance(node, FileNode):
            node.handles += 1

    def drop_handle(self, node: Node) -> None:
        if isinstance(node, FileNode):
            node.handles -= 1
            self.release(node)

    def set_name(self, folder: FolderNode, name: str, node: Node | None) -> None:
        self._set(NameChange(((folder, name, node),)))

    def move_name(self, source: Slot, target: Slot) -> None:
        node = source[0].live[source[1]]
        # The new name first: a file without a name would be released.
        self._set(NameChange(((*target, node), (*source, None)), self._last_change(source)))

    def make_safe(self, folder: FolderNode) -> None:
        for change in self._changes:
            if change.state is ChangeState.PENDING and (self.journaled or change.touches(folder)):
                change.make_safe()
        self._fold()

    def fail_sync(self, folder: FolderNode) -> None:
        for change in self._changes:
            if change.state is ChangeState.PENDING and change.touches(folder):
                change.state = ChangeState.SYNC_FAILED

    def files(self) -> Iterator[FileNode]:
        seen: set[int] = set()
        for node in _walk(self.root):
            if isinstance(node, FileNode) and id(node) not in seen:
                seen.add(id(node))
                yield node

    def after_power_loss(self, random: Random) -> Tree:
        """One of the states that a power loss may leave; all of it is durable then."""
        tree = Tree(mtime_ns=self.root.mtime_ns, journaled=self.journaled)
        survived = self._surviving_changes(random)
        names: dict[int, dict[str, Node]] = {}
        for change in survived:
            for folder, name, node in change.sets:
                here = names.setdefault(id(folder), dict(folder.safe))
                here.pop(name, None)
                if node is not None:
                    here[name] = node
        copies: dict[int, Node] = {id(self.root): tree.root}
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            twin = copies[id(folder)]
            assert isinstance(twin, FolderNode)
            for name, node in names.get(id(folder), folder.safe).items():
                if id(node) not in copies:
                    if isinstance(node, FolderNode):
                        copies[id(node)] = FolderNode(node.number, node.mtime_ns)
                        waiting.append(node)
                    else:
                        copies[id(node)] = node.after_power_loss(random)
                twin.live[name] = twin.safe[name] = copies[id(node)]
        tree._count(copies.values())
        return tree

    def after_process_kill(self, random: Random) -> Tree:
        """The state that another process finds: all changes, and no more durable than before."""
        tree = copy.deepcopy(self)
        for node in tree.files():
            node.handles = 0
            if (
                any(c.state is ChangeState.SYNC_FAILED for c in node.changes)
                and random.random() < 0.5
            ):
                node.evict()
        tree._count({id(node): node for node in _walk(tree.root)}.values())
        return tree

    def _set(self, change: NameChange) -> None:
        self._changes.append(change)
        for folder, name, node in change.sets:
            before = folder.live.pop(name, None)
            if node is not None:
                folder.live[name] = node
            if isinstance(node, FileNode):
                node.names += 1
            if isinstance(before, FileNode):
                before.names -= 1
                self.release(before)

    def _last_change(self, slot: Slot) -> NameChange | None:
        folder, name = slot
        for change in reversed(self._changes):
            for place, changed, node in change.sets:
                if place is folder and changed == name and node is not None:
                    return change
        return None

    def _fold(self) -> None:
        """Apply durable changes that no earlier change of the same name can undo."""
        waiting: list[NameChange] = []
        blocked: set[tuple[int, str]] = set()
        for change in self._changes:
            if change.state is ChangeState.SAFE and not blocked & change.slots():
                for folder, name, node in change.sets:
                    folder.safe.pop(name, None)
                    if node is not None:
                        folder.safe[name] = node
                change.needs = None
            else:
                waiting.append(change)
                blocked |= change.slots()
        self._changes = waiting

    def _surviving_changes(self, random: Random) -> list[NameChange]:
        if self.journaled:
            safe = [i for i, c in enumerate(self._changes) if c.state is ChangeState.SAFE]
            end = random.randint(safe[-1] + 1 if safe else 0, len(self._changes))
            changes = self._changes[:end]
            return [c for c in changes if c.state is not ChangeState.SYNC_FAILED]
        keep = random.choice(_KEEP_RATES)
        needed: set[int] = set()
        survived = []
        for change in reversed(self._changes):
            by_chance = change.state is ChangeState.PENDING and random.random() < keep
            if change.state is ChangeState.SAFE or by_chance or id(change) in needed:
                survived.append(change)
                needed.add(id(change.needs))
        return survived[::-1]

    def _count(self, nodes: Iterable[Node]) -> None:
        """Count names, and make numbers unique: an undone unlink may bring a reused number back."""
        taken: set[int] = set()
        again: list[Node] = []
        for node in nodes:
            if isinstance(node, FileNode):
                node.names = 0
            if node.number in taken:
                again.append(node)
            taken.add(node.number)
        for node in _walk(self.root):
            if isinstance(node, FileNode):
                node.names += 1
        for node in again:
            node.number = max(taken) + 1
            taken.add(node.number)
        self._next_number = max(taken) + 1
        self._free = [number for number in range(2, self._next_number) if number not in taken]


def fail(number: int, path: str) -> NoReturn:
    raise_for(OSError(number, os.strerror(number)), path)


def _names(path: str) -> list[str]:
    if not path.startswith("/"):
        raise Bug(f"{path!r} is not an absolute path")
    return [name for name in posixpath.normpath(path).split("/") if name]


def _walk(root: FolderNode) -> Iterator[Node]:
    """The root, and each node below it once for each of its names."""
    yield root
    waiting = [root]
    while waiting:
        for node in waiting.pop().live.values():
            yield node
            if isinstance(node, FolderNode):
                waiting.append(node)


def _resize(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


def _apply(content: bytearray, change: Write | Cut) -> None:
    if isinstance(change, Cut):
        _resize(content, change.size_bytes)
    else:
        _put(content, change.offset, change.data)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if data:
        _resize(content, max(len(content), offset + len(data)))
        content[offset : offset + len(data)] = data


def _apply_some(content: bytearray, change: Write | Cut, keep: float, random: Random) -> None:
    if random.random() < keep:
        _apply(content, change)
    elif isinstance(change, Write):
        offset, data = change.offset, change.data
        match random.randrange(4):
            case 0:
                pass
            case 1:
                _put(content, offset, data[: random.randint(0, len(data))])
            case 2:
                _put(content, offset, bytes(len(data)))
            case _:
                for start, end in _sectors(offset, len(data)):
                    if random.random() < 0.5:
                        _put(content, offset + start, data[start:end])


def _sectors(offset: int, length: int) -> Iterator[tuple[int, int]]:
    """The parts of a write in each sector, counted from the write's start."""
    start = 0
    while start < length:
        end = min(length, start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        yield start, end
        start = end
