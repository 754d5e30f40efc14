"""What stands on a disk, what of it is safe, and what a power loss may leave.

Every change is kept in the order in which it was made until it is safe. A power loss applies
to the safe state, in that order, some of the changes that are not safe:

- of a file: each write is kept, lost, cut at a byte, kept in some of its 512-byte sectors, or
  turned into zeros; each cut is kept or lost; and the file may end with zeros up to any size
  it was about to have. A later write may survive an earlier one, which is all that "out of
  order" can mean for bytes; where two writes overlap, the later survivor wins;
- of names: each change is kept or lost by itself, but happens wholly or not at all. A rename
  is one change also between two folders, as in a journal: syncing either folder makes it safe
  in both. A link followed by an unlink is two. A rename that is kept keeps whatever gave its
  file the name that it moved, so a file never gains a name by a crash;
- what lies below a folder whose own name was lost is lost.

With `journaled` names are kept in order instead: a power loss keeps the changes up to some
moment, and syncing any folder makes all of them safe.
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
# How likely a change that is not safe is kept; drawn anew for every file, so that all, none and
# a few of them are each met often.
_KEEP_RATES: Final = (0.0, 0.2, 0.5, 0.8, 1.0)


class ChangeState(Enum):
    """How far a change has come."""

    PENDING = "not synced"
    SAFE = "synced"
    GIVEN_UP = "its sync failed: no later sync makes it safe, and a power loss loses it"


@dataclass(slots=True, eq=False)
class Write:
    """Bytes written to a file."""

    offset: int
    data: bytes
    standing: ChangeState = ChangeState.PENDING


@dataclass(slots=True, eq=False)
class Cut:
    """A file brought to a size."""

    size_bytes: int
    standing: ChangeState = ChangeState.PENDING


@dataclass(slots=True, eq=False)
class FileNode:
    """A file, whatever its names: what is read from it, what is safe, and all between."""

    number: int
    mtime_ns: int
    live: bytearray = field(default_factory=bytearray)
    safe: bytearray = field(default_factory=bytearray)
    safe_mtime_ns: int = 0
    changes: list[Write | Cut] = field(default_factory=list)
    names: int = 0
    handles: int = 0

    def append(self, data: bytes) -> None:
        """Add bytes at the end."""
        self.changes.append(Write(len(self.live), data))
        self.live += data

    def cut(self, size_bytes: int) -> None:
        """Bring the file to a size; bytes that it gains are zeros."""
        self.changes.append(Cut(size_bytes))
        _resize(self.live, size_bytes)

    def make_safe(self) -> None:
        """What a sync does that tells the truth."""
        self.safe_mtime_ns = self.mtime_ns
        for change in self.changes:
            if change.standing is ChangeState.PENDING:
                change.standing = ChangeState.SAFE
        while self.changes and self.changes[0].standing is ChangeState.SAFE:
            _apply(self.safe, self.changes.pop(0))

    def give_up(self) -> None:
        """What a sync does that fails: the pages are taken for clean, and are not on the disk."""
        for change in self.changes:
            if change.standing is ChangeState.PENDING:
                change.standing = ChangeState.GIVEN_UP

    def evict(self) -> None:
        """Read from the disk again what only the memory held, and was taken for clean."""
        self.live = bytearray(self.safe)
        self.changes = [c for c in self.changes if c.standing is not ChangeState.GIVEN_UP]
        for change in self.changes:
            _apply(self.live, change)

    def survivor(self, random: Random) -> FileNode:
        """The same file after a power loss."""
        content, reach = bytearray(self.safe), 0
        keep = random.choice(_KEEP_RATES)
        for change in self.changes:
            if change.standing is ChangeState.SAFE:
                _apply(content, change)
                if isinstance(change, Cut):
                    reach = min(reach, change.size_bytes)
                continue
            if isinstance(change, Write):
                reach = max(reach, change.offset + len(change.data))
            if change.standing is ChangeState.PENDING:
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
    """Names that are set (or with None removed) together."""

    sets: tuple[tuple[FolderNode, str, Node | None], ...]
    needs: NameChange | None = None
    """For a rename, the change that gave the file the name from which it moves."""
    standing: ChangeState = ChangeState.PENDING

    def touches(self, folder: FolderNode) -> bool:
        """Whether a name in this folder is among them."""
        return any(place is folder for place, _, _ in self.sets)

    def slots(self) -> set[tuple[int, str]]:
        """The names concerned."""
        return {(id(folder), name) for folder, name, _ in self.sets}

    def make_safe(self) -> None:
        """This change will survive, and so will what it needs."""
        change: NameChange | None = self
        while change is not None:
            change.standing = ChangeState.SAFE
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
        """What is seen at `path`."""
        node: Node | None = self.root
        for name in _names(path):
            node = node.live.get(name) if isinstance(node, FolderNode) else None
        return node

    def node(self, path: str) -> Node:
        """What is seen at `path`; an error if nothing is."""
        node = self.find(path)
        if node is None:
            fail(errno.ENOENT, path)
        return node

    def file(self, path: str) -> FileNode:
        """The file at `path`; an error if it is a folder or is not there."""
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
        """The lowest inode number that is free, as ext4 takes it: numbers come back at once."""
        if self._free:
            return heapq.heappop(self._free)
        self._next_number += 1
        return self._next_number - 1

    def release(self, node: FileNode) -> None:
        """Give the number of a file back that has no name and is not open."""
        if node.names == 0 and node.handles == 0:
            heapq.heappush(self._free, node.number)

    def hold(self, node: Node) -> None:
        """Keep the number of a file taken that is open, as a locked one is."""
        if isinstance(node, FileNode):
            node.handles += 1

    def let_go(self, node: Node) -> None:
        """Hold it no more."""
        if isinstance(node, FileNode):
            node.handles -= 1
            self.release(node)

    def set_name(self, folder: FolderNode, name: str, node: Node | None) -> None:
        """Give a node a name, or with None take the name away."""
        self._set(NameChange(((folder, name, node),)))

    def move_name(self, source: Slot, target: Slot) -> None:
        """Take one name from a node and give it another, as one change."""
        node = source[0].live[source[1]]
        # The name that is gained comes first: a file without any would be given up.
        self._set(NameChange(((*target, node), (*source, None)), self._last_change(source)))

    def make_safe(self, folder: FolderNode) -> None:
        """What a folder's sync does that tells the truth."""
        for change in self._changes:
            if change.standing is ChangeState.PENDING and (
                self.journaled or change.touches(folder)
            ):
                change.make_safe()
        self._fold()

    def give_up(self, folder: FolderNode) -> None:
        """What a folder's sync does that fails."""
        for change in self._changes:
            if change.standing is ChangeState.PENDING and change.touches(folder):
                change.standing = ChangeState.GIVEN_UP

    def files(self) -> Iterator[FileNode]:
        """Every file that has a name, once."""
        seen: set[int] = set()
        for node in _walk(self.root):
            if isinstance(node, FileNode) and id(node) not in seen:
                seen.add(id(node))
                yield node

    def after_power_loss(self, random: Random) -> Tree:
        """One of the states that a power loss may leave; all of it is then safe."""
        tree = Tree(mtime_ns=self.root.mtime_ns, journaled=self.journaled)
        kept = self._kept(random)
        names: dict[int, dict[str, Node]] = {}
        for change in kept:
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
                        copies[id(node)] = node.survivor(random)
                twin.live[name] = twin.safe[name] = copies[id(node)]
        tree._count(copies.values())
        return tree

    def after_process_kill(self, random: Random) -> Tree:
        """What another process finds: all of it, and no safer than before."""
        tree = copy.deepcopy(self)
        for node in tree.files():
            node.handles = 0
            if (
                any(c.standing is ChangeState.GIVEN_UP for c in node.changes)
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
        """Forget safe changes that no earlier, unsafe change of the same name can undo."""
        waiting: list[NameChange] = []
        held: set[tuple[int, str]] = set()
        for change in self._changes:
            if change.standing is ChangeState.SAFE and not held & change.slots():
                for folder, name, node in change.sets:
                    folder.safe.pop(name, None)
                    if node is not None:
                        folder.safe[name] = node
                change.needs = None
            else:
                waiting.append(change)
                held |= change.slots()
        self._changes = waiting

    def _kept(self, random: Random) -> list[NameChange]:
        if self.journaled:
            safe = [i for i, c in enumerate(self._changes) if c.standing is ChangeState.SAFE]
            end = random.randint(safe[-1] + 1 if safe else 0, len(self._changes))
            changes = self._changes[:end]
            return [c for c in changes if c.standing is not ChangeState.GIVEN_UP]
        keep = random.choice(_KEEP_RATES)
        needed: set[int] = set()
        kept = []
        for change in reversed(self._changes):
            by_chance = change.standing is ChangeState.PENDING and random.random() < keep
            if change.standing is ChangeState.SAFE or by_chance or id(change) in needed:
                kept.append(change)
                needed.add(id(change.needs))
        return kept[::-1]

    def _count(self, nodes: Iterable[Node]) -> None:
        """Count names, and give each node a number of its own: an undone unlink brings one back."""
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
    """Raise what the system's disk raises for this errno."""
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
    """What a power loss leaves of one change."""
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
    """The parts of a write that lie in one sector each, counted from the write's start."""
    start = 0
    while start < length:
        end = min(length, start + SECTOR_BYTES - (offset + start) % SECTOR_BYTES)
        yield start, end
        start = end
