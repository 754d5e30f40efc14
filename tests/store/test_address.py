"""From an address to a store: every mistake is answered with what to write instead."""

from __future__ import annotations

import asyncio
import os
import traceback
from pathlib import Path

import pytest

from headwater.core.errors import BadKey, BadUrl, NotFound, Refused
from headwater.store import address, open_store
from headwater.store.address import OPTIONS, parse_address
from tests.store.scripted import virtual

AWS = {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "SECRET"}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))


# Addresses that work


def test_a_named_memory_store_is_the_same_store() -> None:
    asyncio.run(open_store("memory://named").put("a", b"one"))
    assert asyncio.run(open_store("memory://named").get("a")).data == b"one"
    for other in ("memory://other", "memory://", "memory://"):
        with pytest.raises(NotFound):
            asyncio.run(open_store(other).get("a"))


def test_a_directory_is_made_when_it_is_first_written_to(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    store = open_store(f"file://{root}")
    assert not root.exists()
    asyncio.run(store.put("a", b"one"))
    assert (root / "a").read_bytes() == b"one"
    assert store.is_local


def test_a_path_may_have_characters_that_keys_may_not(tmp_path: Path) -> None:
    root = tmp_path / "my data ä %"
    asyncio.run(open_store("file://" + str(root).replace("%", "%25")).put("a", b""))
    assert (root / "a").exists()
    asyncio.run(open_store(f"file://localhost{tmp_path}/plain/").put("a", b""))
    assert (tmp_path / "plain" / "a").exists()


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/",
        "s3://bucket/some/prefix/",
        "s3://bucket?endpoint=http://127.0.0.1:9000&region=eu-west-1",
        "s3://bucket?anonymous=true&virtual_hosted_style=false",
        "gs://bucket/prefix?anonymous=true",
        "az://container/prefix?account=name&anonymous=true",
    ],
)
def test_cloud_addresses_open_without_contacting_anything(url: str) -> None:
    store = open_store(url)
    assert store.url == url
    assert not store.is_local
    assert repr(store) == f"Store({url!r})"


def test_options_come_as_keywords_too_and_win() -> None:
    parsed = parse_address(
        "s3://b-1/p?region=one&anonymous=false",
        {"region": "two", "anonymous": True, "profile": None},
    )
    assert parsed.options == {"region": "two", "anonymous": "true"}
    assert (parsed.bucket, parsed.path, parsed.place) == ("b-1", "p", "s3://b-1")


# Addresses that do not


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("/some/path", "file:///some/path"),
        ("", "is not an address"),
        ("s3a://bucket", "did you mean s3://"),
        ("flie:///x", "did you mean file://"),
        ("gcs://bucket", "did you mean gs://"),
        ("ftp://host", "known: memory://, file://, s3://, gs://, az://"),
        ("file://some/path", "three slashes, file:///some/path"),
        ("file:some/path", "absolute path"),
        ("file:///a%00b", "zero byte"),
        ("file:///a#b", "'#' has no meaning"),
        ("s3://bucket#x", "'#' has no meaning"),
        ("s3://", "the name of a bucket follows the slashes, s3://BUCKET/PREFIX"),
        ("s3://-bucket", "s3://-bucket: the name of a bucket follows the slashes"),
        ("s3://a b", "the name of a bucket follows"),
        ("gs:///prefix", "the name of a bucket follows the slashes, gs://BUCKET/PREFIX"),
        ("memory://name/path", "a name and no path"),
    ],
)
def test_a_bad_address_is_answered_with_advice(url: str, advice: str) -> None:
    with pytest.raises(BadUrl) as refused:
        open_store(url)
    assert advice in str(refused.value)


# What people paste, credentials and all

SECRET = "wJalrXUtnFEMIK7MDENG"
PASTED = [
    f"https://account.blob.core.windows.net/container/p?sv=2024&sig={SECRET}",
    f"https://bucket.s3.eu-west-1.amazonaws.com/p?X-Amz-Signature={SECRET}",
    f"https://storage.googleapis.com/bucket/p?X-Goog-Signature={SECRET}",
    f"https://user:{SECRET}@host/bucket",
    f"https://host/bucket?{SECRET}#{SECRET}",
    f"az://container/p?sig={SECRET}#x",
    f"az://container/p?sv%3D2024%26sig%3D{SECRET}",
    f"az://container/p?account=a#{SECRET}",
    f"s3://bucket?X-Amz-Security-Token={SECRET}",
    f"s3://bucket?x-amz-{SECRET}{SECRET}=1",
    f"s3://bucket?unheard-of={SECRET}",
    f"s3://bucket?region=eu;sig={SECRET}",
    f"s3://bucket?anonymous={SECRET}",
    f"s3://bucket?endpoint=https://host?sig={SECRET}",
    f"s3://AKIA:{SECRET}",
    f"s3://AKIA:{SECRET}@bucket",
    f"s3:///AKIA:{SECRET}@bucket",
    f"s3:///AKIA:{SECRET}",
    f"file://AKIA:{SECRET}/path",
    f"s3:AKIA:{SECRET}@bucket",
    f"s3://[{SECRET}",
    f"s4://bucket/p?sig={SECRET}",
    f"s4:AKIA:{SECRET}",
    f"file://host/path?sig={SECRET}",
    f"file:///path?sig={SECRET}#{SECRET}",
    f"account.blob.core.windows.net/container?sig={SECRET}",
    f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={SECRET}==;EndpointSuffix=b",
    f"BlobEndpoint=https://a.blob.core.windows.net/;SharedAccessSignature=sv=1&sig={SECRET}",
]


@pytest.mark.parametrize("url", PASTED)
def test_a_pasted_credential_is_not_repeated(url: str) -> None:
    with pytest.raises(Refused) as refused:
        open_store(url)
    shown = "".join(traceback.format_exception_only(refused.value)).lower()
    assert SECRET.lower() not in shown


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        (PASTED[0], "write az://container/p?account=account and set the credentials in the env"),
        ("https://a.dfs.core.windows.net/c/p", "write az://c/p?account=a, not https://"),
        (PASTED[1], "write s3://bucket/p?region=eu-west-1 and set the credentials in the env"),
        ("https://s3.amazonaws.com/bucket/p/", "write s3://bucket/p, not https://"),
        ("https://s3-eu-west-1.amazonaws.com/", "write s3://BUCKET?region=eu-west-1, not"),
        (PASTED[2], "write gs://bucket/p and set the credentials"),
        ("https://bucket.storage.googleapis.com", "write gs://bucket, not https://"),
        ("http://127.0.0.1:9000/b", "write s3://BUCKET/PREFIX?endpoint=http://127.0.0.1:9000, not"),
        ("https://a b/c", "write s3://BUCKET/PREFIX?endpoint=https://host:port, not"),
    ],
)
def test_an_address_of_the_web_is_answered_with_the_one_to_write(url: str, instead: str) -> None:
    with pytest.raises(BadUrl) as refused:
        open_store(url)
    assert instead in str(refused.value)


def test_a_directory_may_have_an_at_sign(tmp_path: Path) -> None:
    asyncio.run(open_store(f"file://{tmp_path}/me@home").put("a", b""))
    with pytest.raises(BadUrl, match="write file:///data/me@home"):
        open_store("/data/me@home")


@pytest.mark.parametrize("path", ["a//b", "a/../b", "ä", "a b", ".headwater"])
def test_a_prefix_obeys_the_rules_of_keys(path: str) -> None:
    with pytest.raises(BadKey):
        open_store(f"s3://bucket/{path}")


@pytest.mark.parametrize(
    ("url", "option", "advice"),
    [
        ("s3://bucket", "regoin", "did you mean region?"),
        ("s3://bucket", "endpoint_url", "did you mean endpoint?"),
        ("az://bucket", "acount", "did you mean account?"),
        ("s3://bucket", "zzz", "of s3://; known: anonymous, endpoint, profile"),
        ("file:///x", "region", "of file://; known: none"),
        ("memory://", "region", "of memory://; known: none"),
    ],
)
def test_an_unknown_option_is_answered_with_the_known_ones(
    url: str, option: str, advice: str
) -> None:
    with pytest.raises(Refused) as refused:
        open_store(url, **{option: "x"})  # type: ignore[arg-type]
    assert advice in str(refused.value)
    with pytest.raises(Refused) as refused:
        open_store(f"{url}?{option}=x")
    assert advice in str(refused.value)


def test_every_scheme_is_documented() -> None:
    assert address.__doc__ is not None
    for scheme in OPTIONS:
        assert f"    {scheme}://" in address.__doc__


@pytest.mark.parametrize("name", ["anonymous", "virtual_hosted_style"])
def test_a_flag_is_true_or_false(name: str) -> None:
    with pytest.raises(Refused, match="true or false"):
        open_store("s3://bucket", **{name: "yes"})  # type: ignore[arg-type]


def test_an_azure_store_needs_an_account() -> None:
    with pytest.raises(Refused, match="AZURE_STORAGE_ACCOUNT_NAME"):
        open_store("az://container")


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"])
def test_a_credential_that_cannot_be_one_is_refused_unread(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, f"{SECRET}!")
    with pytest.raises(Refused) as refused:
        open_store("az://container?account=name")
    assert SECRET not in "".join(traceback.format_exception(refused.value))


# What the client library would panic on


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:9000",
        "localhost",
        "ftp://host",
        "http://",
        "http:///path",
        "http://a b",
        "http://host:port",
        "http://host:0",
        "http://host:99999",
        "http://host:+1",
        "http://[::1",
        "http://[zz]",
        "http://1.2.3.999",
        "http://1.2.3.4.5",
        "http://ex%61mple",
        "http://a\\b",
        "http://\x01",
        "http://é",
        "http://host/p q",
        "http://host/\n",
        "http://host?x=1",
        "http://host#x",
        " http://host",
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_garbage_endpoint_is_refused_at_once(
    scheme: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    with pytest.raises(BadUrl, match="https://host:port"):
        open_store(f"{scheme}://bucket", endpoint=endpoint)
    variable = "AWS_ENDPOINT_URL_S3" if scheme == "s3" else "AZURE_STORAGE_ENDPOINT"
    if "\n" not in endpoint:
        monkeypatch.setenv(variable, endpoint)
        with pytest.raises(BadUrl, match="https://host:port"):
            open_store(f"{scheme}://bucket")


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "https://s3.example.com/", "http://[::1]:9000/path"]
)
def test_an_endpoint_is_an_address(endpoint: str) -> None:
    open_store("s3://bucket", endpoint=endpoint)


@pytest.mark.parametrize("region", ["eu west", "eu\n", "", "é", "a" * 65])
def test_a_garbage_region_is_refused_at_once(region: str) -> None:
    if region == "":
        open_store("s3://bucket", region=region)
        return
    with pytest.raises(Refused, match="us-east-1"):
        open_store("s3://bucket", region=region)


@virtual
async def test_a_simulation_reaches_nothing_outside() -> None:
    for url in ("file:///tmp/x", "s3://bucket", "gs://bucket", "az://container?account=a"):
        with pytest.raises(Refused, match="memory://"):
            open_store(url)
    await open_store("memory://").put("a", b"")
