"""The system's disk alone: open files, file systems, and what its errors mean."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headwater.core import disk as disk_module
from headwater.core.disk import OsDisk, raise_for, raise_for_sync
from headwater.core.errors import (
    AlreadyExists,
    Bug,
    Denied,
    DiskFailed,
    HeadwaterError,
    LimitExceeded,
    NoSpace,
    NotFound,
    NotSupported,
    Unavailable,
)
from tests.core.places import MOMENT_S, WAIT_S


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
@pytest.mark.parametrize("call", ["sync", "truncate", "set_mtime_ns", "stat", "append", "read_at"])
def test_a_file_closed_during_a_call_keeps_its_number_until_the_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Else the rest of the call would reach whatever file is opened next."""
    names = {
        "sync": "fsync",
        "truncate": "ftruncate",
        "set_mtime_ns": "utime",
        "stat": "fstat",
        "append": "write",
        "read_at": "pread",
    }
    if call == "sync" and sys.platform == "darwin":
        pytest.skip("macOS syncs by another call")
    arguments = {"truncate": (0,), "set_mtime_ns": (5,), "append": (b"x",), "read_at": (0, 1)}
    file = OsDisk().create(str(tmp_path / "a"))
    system_call = getattr(os, names[call])
    inside, goes_on, reached = threading.Event(), threading.Event(), list[str]()

    def slowly(descriptor: int, *args: object, **kwargs: object) -> object:
        inside.set()
        assert goes_on.wait(WAIT_S)
        reached.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        return system_call(descriptor, *args, **kwargs)

    monkeypatch.setattr(os, names[call], slowly)
    caller = threading.Thread(target=getattr(file, call), args=arguments.get(call, ()))
    caller.start()
    assert inside.wait(WAIT_S)
    closer = threading.Thread(target=file.close)
    closer.start()
    closer.join(MOMENT_S)
    with OsDisk().create(str(tmp_path / "next")):
        goes_on.set()
        caller.join(WAIT_S)
    closer.join(WAIT_S)

    assert reached == ["a"]
    assert "a" not in {
        os.path.basename(os.path.realpath(p)) for p in Path("/proc/self/fd").iterdir()
    }


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_file_system_is_the_one_the_system_names(tmp_path: Path) -> None:
    names = {name.split()[-1] for name in Path("/proc/filesystems").read_text("utf-8").splitlines()}

    assert OsDisk().file_system("/proc") == "proc"
    assert OsDisk().file_system("/proc/self/status") == "proc"
    assert OsDisk().file_system(str(tmp_path)) in names


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("point", "spelt"),
    [("a b", rb"a\040b"), ("ä→b", "ä→b".encode()), ("\udcff", b"\xff"), (r"a\b", rb"a\134b")],
)
def test_a_mount_is_recognised_however_its_name_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, spelt: bytes
) -> None:
    (tmp_path / point).mkdir()
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    mounts = tmp_path / "mounts"
    mounts.write_bytes(
        b"1 0 0:1 / / rw - wrong none rw\n"
        b"2 1 "
        + number
        + b" / "
        + os.fsencode(tmp_path)
        + b"/"
        + spelt
        + b" rw - nfs4 host:/x rw\n"
        b"3 1 0:9 / " + os.fsencode(tmp_path) + b"/" + spelt + b"/hidden rw - wrong none rw\n"
    )
    system_open = open
    monkeypatch.setattr(
        disk_module, "open", lambda _, *args, **kw: system_open(mounts, *args, **kw), raising=False
    )
    (tmp_path / point / "hidden").mkdir()

    assert OsDisk().file_system(str(tmp_path / point / "hidden")) == "nfs4"


def test_a_mount_table_of_macos_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        f"//user@host/share on {tmp_path} (smbfs, nodev, nosuid)\n"
    )
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listing)
    )

    assert disk_module._macos_file_system(str(tmp_path)) == "smbfs"
    assert disk_module._macos_file_system("/") == "apfs"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named() -> None:
    with (
        OsDisk().open("/dev/full", write=True) as file,
        pytest.raises(NoSpace, match="free some space"),
    ):
        file.append(b"x")


def test_a_file_above_the_systems_limit_is_refused_and_may_hold_a_part(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from headwater.core.disk import OsDisk\n"
        "from headwater.core.errors import LimitExceeded\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "file = OsDisk().create(sys.argv[1])\n"
        "try: file.append(bytes(3000))\n"
        "except LimitExceeded as error: print(file.stat().size_bytes, error)\n"
    )
    source = str(Path(disk_module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a")],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )

    assert re.match(r"1000 .*ulimit -f", done.stdout)


def test_a_write_that_the_system_cuts_short_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_write = os.write
    monkeypatch.setattr(os, "write", lambda number, data: system_write(number, data[:7]))
    data = bytes(range(256))

    with OsDisk().create(str(tmp_path / "a")) as file:
        file.append(data)

    assert (tmp_path / "a").read_bytes() == data


def test_a_read_that_the_system_cuts_short_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)))
    system_pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda number, size, at: system_pread(number, min(size, 7), at)
    )

    with OsDisk().open(str(tmp_path / "a")) as file:
        assert file.read_at(1, 1000) == bytes(range(1, 256))
        assert file.read_at(1, 20) == bytes(range(1, 21))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, NotFound),
        (errno.ENOTDIR, NotFound),
        (errno.EEXIST, AlreadyExists),
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.EROFS, Denied),
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, LimitExceeded),
        (errno.EMFILE, Unavailable),
        (errno.EXDEV, NotSupported),
        (errno.EISDIR, NotSupported),
        (errno.EIO, DiskFailed),
        (errno.EBADF, Bug),
        (errno.EINVAL, Bug),
        (errno.EBUSY, Unavailable),
    ],
)
def test_an_error_of_the_system_says_what_to_do(number: int, kind: type[HeadwaterError]) -> None:
    cause = OSError(number, os.strerror(number))

    with pytest.raises(HeadwaterError, match="/some/path") as raised:
        raise_for(cause, "/some/path")

    assert raised.type is kind
    assert os.strerror(number) in str(raised.value)
    assert raised.value.__cause__ is cause


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_failed_sync_is_a_failed_disk_whatever_the_reason(number: int) -> None:
    """A full disk at a sync drops pages like a broken one: to try again would acknowledge them."""
    with pytest.raises(DiskFailed, match="second try would prove nothing"):
        raise_for_sync(OSError(number, os.strerror(number)), "/some/path")


def test_a_failed_sync_of_a_file_or_a_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr("fcntl.fcntl" if sys.platform == "darwin" else "os.fsync", fail)
    with OsDisk().create(str(tmp_path / "a")) as file, pytest.raises(DiskFailed):
        file.sync()
    with pytest.raises(DiskFailed):
        OsDisk().sync_dir(str(tmp_path))


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("the administrator may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(Denied, match="write access"):
        OsDisk().create(str(tmp_path / "a"))
    tmp_path.chmod(0o700)
