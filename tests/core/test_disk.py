"""What every disk promises of files and names, on the system's disk and on the faulty one."""

from __future__ import annotations

import pytest

from headwater.core.errors import AlreadyExists, Bug, NotFound, NotSupported
from tests.core.places import Place

# Files.


def test_appended_data_are_read_back_at_any_offset(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"hello ")
        file.append(bytearray(b"wide "))
        file.append(memoryview(b"..world..")[2:7])

        assert file.read_at(0, 100) == b"hello wide world"
        assert file.read_at(6, 4) == b"wide"
        assert file.read_at(16, 1) == b""
        assert file.read_at(100, 1) == b""
        assert file.read_at(0, 0) == b""
        assert file.stat().size_bytes == 16


def test_an_opened_file_is_appended_to_at_its_end(place: Place) -> None:
    place.write("a", b"one")

    with place.disk.open(place.path("a"), write=True) as file:
        file.append(b"two")

    assert place.read("a") == b"onetwo"


def test_two_open_files_append_after_one_another(place: Place) -> None:
    place.write("a", b"")
    with (
        place.disk.open(place.path("a"), write=True) as first,
        place.disk.open(place.path("a"), write=True) as second,
    ):
        first.append(b"1")
        second.append(b"2")
        first.append(b"3")

    assert place.read("a") == b"123"


def test_a_truncated_file_continues_at_the_cut(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"hello world")
        file.truncate(5)
        file.append(b"!")

    assert place.read("a") == b"hello!"


def test_a_file_cut_beyond_its_end_gains_zeros(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"x")
        file.truncate(3)

    assert place.read("a") == b"x\0\0"


def test_a_new_name_must_be_free(place: Place) -> None:
    place.write("a", b"first")

    with pytest.raises(AlreadyExists):
        place.disk.create(place.path("a"))

    assert place.read("a") == b"first"


def test_a_file_opened_to_read_is_not_written(place: Place) -> None:
    place.write("a", b"kept")
    with place.disk.open(place.path("a")) as file:
        with pytest.raises(Bug):
            file.append(b"more")
        with pytest.raises(Bug):
            file.truncate(0)

    assert place.read("a") == b"kept"


def test_a_closed_file_reaches_no_other_file(place: Place) -> None:
    closed = place.disk.create(place.path("a"))
    closed.close()
    with place.disk.create(place.path("b")) as other:
        for use in (
            lambda: closed.append(b"stray"),
            lambda: closed.read_at(0, 1),
            lambda: closed.truncate(0),
            lambda: closed.stat(),
            lambda: closed.sync(),
            lambda: closed.set_mtime_ns(1),
        ):
            with pytest.raises(Bug):
                use()
        closed.close()
        other.append(b"whole")

    assert place.read("b") == b"whole"


def test_a_folder_opens_and_cannot_be_read_as_a_file(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    with place.disk.open(place.path("d")) as folder:
        assert folder.stat().is_dir
        with pytest.raises(NotSupported):
            folder.read_at(0, 1)
        with pytest.raises(Bug):
            folder.append(b"x")
    with pytest.raises(NotSupported):
        place.disk.open(place.path("d"), write=True)


def test_an_open_file_outlives_its_name(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"still ")
        place.disk.unlink(place.path("a"))
        file.append(b"here")

        assert file.read_at(0, 100) == b"still here"
    with pytest.raises(NotFound):
        place.disk.open(place.path("a"))


def test_the_modification_time_can_be_set_to_the_nanosecond(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"x")
        file.set_mtime_ns(1_700_000_000_123_456_789)
        file.sync()

        assert file.stat().mtime_ns == 1_700_000_000_123_456_789
    assert place.disk.stat(place.path("a")).mtime_ns == 1_700_000_000_123_456_789


# Names.


def test_what_is_not_there_is_not_found(place: Place) -> None:
    missing, other = place.path("missing"), place.path("other")
    for use in (
        lambda: place.disk.open(missing),
        lambda: place.disk.stat(missing),
        lambda: place.disk.rename(missing, other),
        lambda: place.disk.link(missing, other),
        lambda: place.disk.sync_dir(missing),
        lambda: place.disk.create(f"{missing}/below"),
        lambda: place.disk.make_dir(f"{missing}/below"),
        lambda: place.disk.file_system(missing),
    ):
        with pytest.raises(NotFound):
            use()
    assert place.disk.unlink(missing) is False
    assert place.disk.list_dir(missing) == []


def test_nothing_is_below_a_file(place: Place) -> None:
    below = place.write("a", b"") + "/below"

    with pytest.raises(NotFound):
        place.disk.create(below)
    with pytest.raises(NotFound):
        place.disk.stat(below)
    assert place.disk.unlink(below) is False
    assert place.disk.list_dir(place.path("a")) == []


def test_a_folder_is_made_once(place: Place) -> None:
    assert place.disk.make_dir(place.path("d")) is True
    assert place.disk.make_dir(place.path("d")) is False
    place.write("d/a", b"")

    assert place.disk.stat(place.path("d")).is_dir
    assert not place.disk.stat(place.path("d/a")).is_dir
    assert place.disk.make_dir(place.path("d/a")) is False
    assert sorted(place.disk.list_dir(place.root)) == [("d", True)]
    assert sorted(place.disk.list_dir(place.path("d"))) == [("a", False)]


def test_a_rename_replaces_the_file_at_the_target(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    inode = place.disk.stat(place.write("a", b"new")).inode
    place.write("d/b", b"old")

    place.disk.rename(place.path("a"), place.path("d/b"))

    assert place.read("d/b") == b"new"
    assert place.disk.stat(place.path("d/b")).inode == inode
    assert place.disk.list_dir(place.root) == [("d", True)]


def test_a_rename_between_two_names_of_one_file_leaves_both(place: Place) -> None:
    place.disk.link(place.write("a", b"x"), place.path("b"))

    place.disk.rename(place.path("a"), place.path("b"))

    assert (place.read("a"), place.read("b")) == (b"x", b"x")


def test_a_file_is_not_moved_over_a_folder(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    place.write("a", b"kept")

    with pytest.raises(NotSupported):
        place.disk.rename(place.path("a"), place.path("d"))
    assert place.read("a") == b"kept"


def test_a_link_is_a_second_name_and_never_replaces(place: Place) -> None:
    place.write("a", b"one")
    place.write("taken", b"other")

    assert place.disk.link(place.path("a"), place.path("b")) is True
    assert place.disk.link(place.path("a"), place.path("taken")) is False
    with place.disk.open(place.path("a"), write=True) as file:
        file.append(b" file")
    place.disk.unlink(place.path("a"))

    assert place.read("b") == b"one file"
    assert place.read("taken") == b"other"


def test_unlink_returns_whether_the_name_existed(place: Place) -> None:
    place.write("a", b"")

    assert place.disk.unlink(place.path("a")) is True
    assert place.disk.unlink(place.path("a")) is False


def test_unlink_leaves_a_folder(place: Place) -> None:
    place.disk.make_dir(place.path("d"))

    assert place.disk.unlink(place.path("d")) is False
    assert place.disk.stat(place.path("d")).is_dir


def test_a_replaced_file_differs_from_the_one_before(place: Place) -> None:
    before = place.disk.stat(place.write("a", b"x"))
    with place.disk.create(place.path("next")) as file:
        file.append(b"y")
        file.set_mtime_ns(before.mtime_ns + 1)
    place.disk.rename(place.path("next"), place.path("a"))

    assert place.disk.stat(place.path("a")) != before


def test_a_name_may_be_long_but_not_too_long(place: Place) -> None:
    place.write("n" * 255, b"")

    with pytest.raises(NotSupported):
        place.disk.create(place.path("n" * 256))


def test_syncs_of_existing_files_and_folders_return(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"x")
        file.sync()
    place.disk.sync_dir(place.root)
