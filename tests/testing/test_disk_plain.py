"""Without crashes the faulty disk is a plain one."""

from __future__ import annotations

import contextlib
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import NotFound
from headwater.testing.disk import CrashKind, FaultyDisk
from tests.testing.disk_files import read, safe_file, seen, write

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("abc"), st.binary(max_size=20)),
        st.tuples(st.just("truncate"), st.sampled_from("abc"), st.integers(0, 30)),
        st.tuples(st.just("rename"), st.sampled_from("abc"), st.sampled_from("abc")),
        st.tuples(st.just("link"), st.sampled_from("abc"), st.sampled_from("abc")),
        st.tuples(st.just("unlink"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("sync"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("sync_dir"), st.none(), st.none()),
    ),
    max_size=40,
)


class Model:
    """Names and bytes: what a disk is when nothing goes wrong."""

    def __init__(self) -> None:
        self.names: dict[str, bytearray] = {}

    def step(self, what: str, name: str, value: object) -> None:
        match what:
            case "append":
                assert isinstance(value, bytes)
                self.names.setdefault(name, bytearray()).extend(value)
            case "truncate" if name in self.names:
                assert isinstance(value, int)
                content = self.names[name]
                content[:] = content[:value].ljust(value, b"\0")
            case "rename" if name in self.names:
                if self.names.get(str(value)) is not self.names[name]:
                    self.names[str(value)] = self.names.pop(name)
            case "link" if name in self.names:
                self.names.setdefault(str(value), self.names[name])
            case "unlink":
                self.names.pop(name, None)


def act(disk: FaultyDisk, what: str, name: str, value: object) -> None:
    path = f"/{name}"
    if what == "sync_dir":
        disk.sync_dir("/")
    elif what == "append" and (f"{name}", False) not in disk.list_dir("/"):
        assert isinstance(value, bytes)
        write(disk, path, value)
    elif what in ("append", "truncate", "sync"):
        with contextlib.suppress(NotFound), disk.open(path, write=True) as file:
            if isinstance(value, bytes):
                file.append(value)
            elif isinstance(value, int):
                file.truncate(value)
            else:
                file.sync()
    elif what == "unlink":
        disk.unlink(path)
    else:
        with contextlib.suppress(NotFound):
            (disk.rename if what == "rename" else disk.link)(path, f"/{value}")


@given(steps=STEPS)
def test_without_a_crash_it_is_a_plain_disk(
    steps: list[tuple[str, str, object]],
) -> None:
    disk, model = FaultyDisk(), Model()
    for step in steps:
        act(disk, *step)
        model.step(*step)

        assert seen(disk) == {name: bytes(content) for name, content in model.names.items()}
    killed = disk.after_crash(Random(0), CrashKind.PROCESS_KILL)
    assert seen(killed) == seen(disk)
    inodes = {name: disk.stat(f"/{name}").inode for name in model.names}
    assert all(
        (inodes[one] == inodes[two]) is (model.names[one] is model.names[two])
        for one in inodes
        for two in inodes
    )


@given(steps=STEPS, seed=st.integers(0, 1000))
def test_what_was_all_synced_is_all_there(steps: list[tuple[str, str, object]], seed: int) -> None:
    disk = FaultyDisk()
    for step in steps:
        act(disk, *step)
    for name, _ in disk.list_dir("/"):
        act(disk, "sync", name, None)
    disk.sync_dir("/")

    assert seen(disk.after_crash(Random(seed))) == seen(disk)


@given(steps=STEPS, seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_a_file_of_its_own_loses_nothing_to_what_others_do(
    steps: list[tuple[str, str, object]], seed: int
) -> None:
    disk = FaultyDisk()
    safe_file(disk, "/mine", b"safe")
    for step in steps:
        act(disk, *step)

    assert read(disk.after_crash(Random(seed)), "/mine") == b"safe"
