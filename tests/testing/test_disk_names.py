"""What of its names a faulty disk keeps through a power loss."""

from __future__ import annotations

from random import Random

import pytest

from headwater.testing.disk import FaultyDisk
from tests.testing.disk_files import contents, read, safe_file, states, write


def test_a_rename_shows_the_old_or_the_new_never_neither() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/old", b"x")
    disk.rename("/old", "/new")

    assert contents(disk, "/old", "/new") == {(b"x", None), (None, b"x")}


def test_a_rename_over_a_file_shows_one_of_the_two() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"before")
    safe_file(disk, "/tmp", b"after")
    disk.rename("/tmp", "/a")

    assert contents(disk, "/a", "/tmp") == {(b"before", b"after"), (b"after", None)}


def test_a_rename_of_a_file_that_was_never_synced_may_show_an_empty_file() -> None:
    """The classic mistake: rename before sync."""
    disk = FaultyDisk()
    safe_file(disk, "/a", b"before")
    write(disk, "/tmp", b"after")
    disk.rename("/tmp", "/a")

    assert (b"",) in contents(disk, "/a")


@pytest.mark.parametrize("synced", ["/one", "/two"])
def test_a_rename_between_folders_is_one_change(synced: str) -> None:
    disk = FaultyDisk()
    for folder in ("/one", "/two"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    safe_file(disk, "/one/a", b"x")
    disk.rename("/one/a", "/two/b")

    assert contents(disk, "/one/a", "/two/b") == {(b"x", None), (None, b"x")}
    disk.sync_dir(synced)
    assert contents(disk, "/one/a", "/two/b") == {(None, b"x")}


def test_a_safe_rename_is_not_undone_by_the_unsafe_creation_before_it() -> None:
    disk = FaultyDisk()
    for folder in ("/tmp", "/data"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    write(disk, "/tmp/a", b"x", sync=True)
    disk.rename("/tmp/a", "/data/a")
    disk.sync_dir("/data")

    assert contents(disk, "/tmp/a", "/data/a") == {(None, b"x")}


def test_a_safe_rename_is_not_undone_by_what_its_old_name_once_was() -> None:
    disk = FaultyDisk()
    for folder in ("/tmp", "/data"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    safe_file(disk, "/data/other", b"other")
    disk.link("/data/other", "/tmp/a")
    disk.unlink("/tmp/a")
    write(disk, "/tmp/a", b"x", sync=True)
    disk.rename("/tmp/a", "/data/a")
    disk.sync_dir("/data")

    assert contents(disk, "/tmp/a", "/data/a") == {(None, b"x")}


def test_a_durable_change_is_not_stored_as_a_change() -> None:
    """Else a long run with its unfinished files in a folder nobody syncs gets ever slower."""
    disk = FaultyDisk()
    for folder in ("/tmp", "/data"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    for _ in range(10):
        write(disk, "/tmp/a", b"x", sync=True)
        disk.rename("/tmp/a", "/data/a")
        disk.sync_dir("/data")

    assert disk._tree._changes == []


def test_a_chain_of_renames_never_leaves_two_names() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.rename("/a", "/b")
    disk.rename("/b", "/c")

    assert contents(disk, "/a", "/b", "/c") == {
        (b"x", None, None),
        (None, b"x", None),
        (None, None, b"x"),
    }


def test_two_renames_onto_one_name_keep_their_order() -> None:
    disk = FaultyDisk()
    for name in ("/a", "/first", "/second"):
        safe_file(disk, name, name.encode())
    disk.rename("/first", "/a")
    disk.rename("/second", "/a")

    assert contents(disk, "/a", "/first", "/second") == {
        (b"/a", b"/first", b"/second"),
        (b"/first", None, b"/second"),
        (b"/second", b"/first", None),
        (b"/second", None, None),
    }


def test_a_link_and_an_unlink_are_two_changes() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/tmp", b"x")
    disk.link("/tmp", "/a")
    disk.unlink("/tmp")

    assert contents(disk, "/tmp", "/a") == {
        (b"x", None),
        (b"x", b"x"),
        (None, b"x"),
        (None, None),
    }


def test_two_names_of_a_file_that_survive_are_still_one_file() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.link("/a", "/b")
    disk.sync_dir("/")
    after = disk.after_crash(Random(0))
    with after.open("/a", write=True) as file:
        file.append(b"y")

    assert read(after, "/b") == b"xy"
    assert after.stat("/a").inode == after.stat("/b").inode


def test_an_unlink_may_come_undone_until_its_folder_is_synced() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.unlink("/a")

    assert contents(disk, "/a") == {(b"x",), (None,)}
    disk.sync_dir("/")
    assert contents(disk, "/a") == {(None,)}


def test_what_lies_in_a_folder_is_lost_with_the_folders_name() -> None:
    disk = FaultyDisk()
    disk.make_dir("/d")
    safe_file(disk, "/d/a", b"x")

    assert contents(disk, "/d/a") == {(b"x",), (None,)}
    disk.sync_dir("/")
    assert contents(disk, "/d/a") == {(b"x",)}


def test_a_journal_keeps_names_in_their_order() -> None:
    disk = FaultyDisk(journaled=True)
    disk.make_dir("/d")
    disk.sync_dir("/")
    for name in ("/a", "/d/b", "/c"):
        write(disk, name, b"x", sync=True)

    assert contents(disk, "/a", "/d/b", "/c") == {
        (None, None, None),
        (b"x", None, None),
        (b"x", b"x", None),
        (b"x", b"x", b"x"),
    }
    disk.sync_dir("/d")
    assert contents(disk, "/a", "/d/b", "/c") == {(b"x", b"x", b"x")}


def test_inode_numbers_come_back_at_once() -> None:
    disk = FaultyDisk(clock_ns=lambda: 10**18)
    write(disk, "/a", b"1")
    before = disk.stat("/a")
    disk.unlink("/a")
    write(disk, "/a", b"2")

    assert disk.stat("/a") == before


def test_the_number_of_a_file_still_open_is_not_taken() -> None:
    disk = FaultyDisk()
    with disk.create("/a") as file:
        disk.unlink("/a")
        write(disk, "/b", b"")
        assert disk.stat("/b").inode != file.stat().inode


def test_a_file_that_an_undone_unlink_brings_back_shares_its_number_with_no_other() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.unlink("/a")
    write(disk, "/b", b"y")

    both = 0
    for after in states(disk):
        if read(after, "/a") is not None and read(after, "/b") is not None:
            both += 1
            assert after.stat("/a").inode != after.stat("/b").inode
            write(after, "/c", b"")
            inodes = {after.stat(path).inode for path in ("/a", "/b", "/c")}
            assert len(inodes) == 3
    assert both > 0


def test_a_listing_has_no_order() -> None:
    disk = FaultyDisk()
    for name in "abcdef":
        write(disk, f"/{name}", b"")

    listings = [tuple(disk.list_dir("/")) for _ in range(20)]

    assert len(set(listings)) > 1
    assert len({frozenset(listing) for listing in listings}) == 1
