"""Credentials travel by name: found where they are used, shown and shipped nowhere."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import socket
import traceback
from pathlib import Path

import pytest

from headwater.core.errors import Denied, HeadwaterError, Refused
from headwater.core.retry import RetryPolicy
from headwater.core.settings import Secret
from headwater.store import Store, open_store
from headwater.store.address import read_profile

MARKER = "wJalrXUtnFEMImarker"
KEY_ID, TOKEN = "AKIAmarkerKEYID", "FwoGZmarkerTOKEN"
MARKERS = (MARKER, KEY_ID, TOKEN)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def _write(tmp_path: Path, *, credentials: str = "", config: str = "") -> None:
    (tmp_path / "credentials").write_text(credentials)
    (tmp_path / "config").write_text(config)


def _keys(section: str, *, token: bool = False) -> str:
    lines = [f"[{section}]", f"aws_access_key_id = {KEY_ID}", f"aws_secret_access_key={MARKER}%/+"]
    return "\n".join([*lines, *([f"aws_session_token = {TOKEN}"] if token else [])]) + "\n"


# Where they are found


def test_a_profile_has_static_keys(tmp_path: Path) -> None:
    _write(tmp_path, credentials=_keys("other") + _keys("mine"))
    found = read_profile("mine")
    assert found.access_key_id.reveal() == KEY_ID
    assert found.secret_access_key.reveal() == f"{MARKER}%/+"
    assert found.session_token is None
    assert (found.region, found.endpoint) == (None, None)


def test_a_profile_may_have_a_session_token_region_and_endpoint(tmp_path: Path) -> None:
    _write(
        tmp_path,
        credentials=_keys("mine", token=True),
        config="[profile mine]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:1\n",
    )
    found = read_profile("mine")
    assert found.session_token == Secret(TOKEN)
    assert (found.region, found.endpoint) == ("eu-west-1", "http://127.0.0.1:1")


def test_keys_may_be_in_the_config_file(tmp_path: Path) -> None:
    _write(tmp_path, config=_keys("profile mine") + _keys("default"))
    assert read_profile("mine").access_key_id == Secret(KEY_ID)
    assert read_profile("default").access_key_id == Secret(KEY_ID)


def test_the_home_directory_is_the_default(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(_keys("mine"))
    assert read_profile("mine", {"HOME": str(tmp_path)}).access_key_id == Secret(KEY_ID)


def test_a_missing_profile_says_where_it_was_looked_for(tmp_path: Path) -> None:
    _write(tmp_path, credentials=_keys("other"))
    with pytest.raises(Refused, match="no profile 'mine'") as refused:
        read_profile("mine")
    assert str(tmp_path / "credentials") in str(refused.value)
    with pytest.raises(Refused, match="no profile 'mine'"):
        open_store("s3://bucket", profile="mine")


def test_a_profile_without_keys_says_how_to_get_them(tmp_path: Path) -> None:
    _write(tmp_path, config="[profile sso]\nsso_session = x\n")
    with pytest.raises(Denied, match="export-credentials --profile sso"):
        read_profile("sso")


def test_a_broken_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    for broken in (f"{MARKER} = x\n".encode(), b"[a]\n" + MARKER.encode() + b"\n", b"\xff\xfe" * 9):
        (tmp_path / "credentials").write_bytes(broken)
        with pytest.raises(Refused, match="credentials cannot be read") as refused:
            read_profile("mine")
        assert MARKER not in _traceback(refused.value)


# Which ones are used


def _in_use(store: Store) -> dict[str, object]:
    config = store._backend._store.config  # type: ignore[attr-defined]
    return {name.removeprefix("aws_"): value for name, value in config.items()}


def test_a_named_profile_wins_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, credentials=_keys("mine", token=True))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-environment")
    used = _in_use(open_store("s3://bucket", profile="mine"))
    assert (used["access_key_id"], used["session_token"]) == (KEY_ID, TOKEN)


def test_keys_in_the_environment_win_over_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, credentials=_keys("mine"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert _in_use(open_store("s3://bucket"))["access_key_id"] == KEY_ID
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-environment")
    assert "access_key_id" not in _in_use(open_store("s3://bucket"))


def test_anonymous_reads_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    open_store("s3://bucket", anonymous=True)
    with pytest.raises(Refused, match="not-there"):
        open_store("s3://bucket")


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_endpoint_that_was_asked_for_wins_over_the_environment(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    asked, other = (f"http://127.0.0.1:{port}" for port in _closed_ports(2))
    monkeypatch.setenv(variable, other)
    once = RetryPolicy(attempts=1)
    with pytest.raises(HeadwaterError) as failed:
        asyncio.run(open_store("s3://bucket", policy=once, endpoint=asked).head("a"))
    assert asked in str(failed.value)
    with pytest.raises(HeadwaterError) as failed:
        asyncio.run(open_store("s3://bucket", policy=once).head("a"))
    assert other in str(failed.value)


def _closed_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


# Where they never are


@pytest.mark.parametrize(
    "name",
    [
        "access_key_id",
        "secret_access_key",
        "session_token",
        "AWS_SECRET_ACCESS_KEY",
        "account_key",
        "sas_token",
        "token",
        "password",
    ],
)
def test_a_secret_among_the_options_is_refused_unread(name: str) -> None:
    for scheme in ("s3://bucket", "az://bucket", "s3a://bucket", "file:///x"):
        for url, options in (
            (scheme, {name: MARKER}),
            (f"{scheme}?{name}={MARKER}", {}),
            (f"{scheme}?{name}={MARKER}#x", {}),
        ):
            with pytest.raises(Refused, match="environment") as refused:
                open_store(url, **options)  # type: ignore[arg-type]
            assert MARKER not in str(refused.value)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "nonsense", "file"])
def test_a_password_in_the_address_is_refused_unread(scheme: str) -> None:
    with pytest.raises(Refused, match="no user and no password") as refused:
        open_store(f"{scheme}://{KEY_ID}:{MARKER}@bucket/prefix")
    assert MARKER not in str(refused.value)


def test_a_password_in_an_endpoint_is_refused_unread() -> None:
    with pytest.raises(Refused, match="password") as refused:
        open_store("s3://bucket", endpoint=f"http://{KEY_ID}:{MARKER}@127.0.0.1")
    assert MARKER not in str(refused.value)


@pytest.fixture
def opened(tmp_path: Path) -> Store:
    _write(tmp_path, credentials=_keys("mine", token=True))
    port = _closed_ports(1)[0]
    return open_store(
        "s3://bucket",
        profile="mine",
        endpoint=f"http://127.0.0.1:{port}",
        policy=RetryPolicy(attempts=1),
    )


def test_no_text_of_a_store_holds_a_secret(opened: Store) -> None:
    backend = vars(opened)["_backend"]
    texts = [repr(opened), str(opened), f"{opened}", f"{opened!r:>20}", repr(vars(opened))]
    texts += [repr(backend), repr(vars(backend)), repr(opened.stats), opened.url]
    for text in texts:
        assert not [marker for marker in MARKERS if marker in text]


def test_a_pickled_store_holds_the_name_and_not_the_secret(opened: Store) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(opened, protocol)
        assert not [marker for marker in MARKERS if marker.encode() in data]
        assert b"mine" in data
    assert _in_use(pickle.loads(pickle.dumps(opened)))["access_key_id"] == KEY_ID


def test_what_holds_the_secret_does_not_travel(opened: Store) -> None:
    with pytest.raises(TypeError, match="is not pickled"):
        pickle.dumps(opened._backend)
    with pytest.raises(TypeError, match="is not pickled"):
        copy.copy(opened._backend)


def test_no_traceback_holds_a_secret(opened: Store) -> None:
    with pytest.raises(HeadwaterError) as failed:
        asyncio.run(opened.put("a", b""))
    assert not [marker for marker in MARKERS if marker in _traceback(failed.value)]


@pytest.mark.parametrize("options", [{"region": "no region"}, {"endpoint": "nonsense"}])
def test_no_traceback_of_opening_holds_a_secret(tmp_path: Path, options: dict[str, str]) -> None:
    _write(tmp_path, credentials=_keys("mine", token=True))
    with pytest.raises(Refused) as refused:
        open_store("s3://bucket", profile="mine", **options)  # type: ignore[arg-type]
    assert not [marker for marker in MARKERS if marker in _traceback(refused.value)]


def test_no_traceback_of_half_a_profile_holds_the_other_half(tmp_path: Path) -> None:
    _write(tmp_path, credentials=f"[mine]\naws_secret_access_key = {MARKER}\n")
    with pytest.raises(Denied) as refused:
        open_store("s3://bucket", profile="mine")
    assert MARKER not in _traceback(refused.value)


def _traceback(error: BaseException) -> str:
    """As the tools print it that show the variables of every frame as well."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=True)
    # The test's own frames hold what they check for.
    shown.stack[:] = [frame for frame in shown.stack if "/tests/" not in frame.filename]
    return "".join(shown.format())
