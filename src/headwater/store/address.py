"""From an address to an open store.

    memory://NAME          this process; the same name gives the same objects
    file:///absolute/path  a directory, made if it is not there
    s3://BUCKET/PREFIX     also any S3-protocol server, with endpoint=…
    gs://BUCKET/PREFIX
    az://CONTAINER/PREFIX  with account=… or AZURE_STORAGE_ACCOUNT_NAME

Options come as keywords or after a `?` in the address; both name, neither carries, credentials.
People paste signed addresses all the same, so no error repeats a query, a fragment, a user or
an option's value.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from headwater.core import runtime
from headwater.core.errors import BadUrl, Refused, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store.backend import Backend
from headwater.store.cloud import CLIENT_OPTIONS, NO_RETRIES, CloudBackend, translated
from headwater.store.credentials import Profile, read_profile, refuse_secrets, shown_name
from headwater.store.keys import check_prefix
from headwater.store.local import LocalBackend
from headwater.store.memory import MemoryBackend
from headwater.store.store import Store

OPTIONS: Final[dict[str, frozenset[str]]] = {
    "memory": frozenset(),
    "file": frozenset(),
    "s3": frozenset({"anonymous", "endpoint", "profile", "region", "virtual_hosted_style"}),
    "gs": frozenset({"anonymous", "service_account"}),
    "az": frozenset({"account", "anonymous", "endpoint"}),
}
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_REGION: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
_ENDPOINT: Final = re.compile(
    r"https?://(?P<host>[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(:(?P<port>[0-9]{1,5}))?(?P<path>/[A-Za-z0-9._~/-]*)?"
)
# What is surely a path, and no string of credentials.
_PATH: Final = re.compile(r"[./~][^?#;&]*|[\w./ -]*")
# Where the providers answer, and what to write instead.
_PROVIDERS: Final = (
    (re.compile(r"(?P<account>[a-z0-9]+)\.(?:blob|dfs)\.core\.windows\.net"), "az", "account"),
    (
        re.compile(
            r"(?:(?P<bucket>[a-z0-9.-]+)\.)?s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com"
        ),
        "s3",
        "region",
    ),
    (re.compile(r"(?:(?P<bucket>[a-z0-9._-]+)\.)?storage\.googleapis\.com"), "gs", ""),
)
_memory: dict[str, MemoryBackend] = {}


@dataclass(frozen=True, slots=True)
class Address:
    """An address taken apart and checked."""

    scheme: str
    bucket: str
    path: str
    options: dict[str, str]

    @property
    def place(self) -> str:
        """What a person calls it."""
        return f"{self.scheme}://{self.bucket}"


def open_store(url: str, *, policy: RetryPolicy | None = None, **options: object) -> Store:
    """Open the store at an address. Contacts nothing: the first request does.

    A store that is pickled carries its address and the names in its options, and opens anew,
    with the credentials found there, where it is unpickled.
    """
    address = parse_address(url, options)
    inside = address.scheme == "memory" or runtime.current().outside_allowed
    if not inside:
        raise Refused(f"{address.place}: a simulation reaches nothing outside; use memory://")
    backend = _OPENERS[address.scheme](address)

    def reopen() -> tuple[Any, ...]:
        return _reopen, (url, policy, options)

    return Store(
        backend,
        url=url,
        policy=policy,
        reopen=None if address.scheme == "memory" else reopen,
    )


def parse_address(url: str, options: Mapping[str, object]) -> Address:
    """Check an address and its options; whatever is wrong is said without opening anything."""
    parts = _split(url)
    if parts.scheme in ("http", "https"):
        raise BadUrl(f"write {_instead_of_web(parts)}, not {parts.scheme}://…")
    # Secrets first, whatever else is wrong.
    asked = dict(parse_qsl(parts.query, keep_blank_values=True))
    refuse_secrets(asked, "the address")
    refuse_secrets(options, "the options")
    if parts.scheme not in OPTIONS:
        raise BadUrl(_unknown_scheme(parts))
    given = {name: _text(value) for name, value in options.items() if value is not None}
    merged = asked | given
    for name in merged:
        if name not in OPTIONS[parts.scheme]:
            raise Refused(_unknown_option(name, parts.scheme))
    after = parts.netloc + ("" if parts.scheme == "file" else parts.path)
    # A key and its secret may stand there without the "@" that gives them away.
    shown = f"{parts.scheme}://" + ("…" if ":" in after else parts.netloc + parts.path)
    if parts.fragment:
        raise BadUrl(f"{shown}: '#' has no meaning here")
    if parts.scheme == "file":
        return Address("file", "", _local_path(shown, parts.netloc, unquote(parts.path)), merged)
    if parts.scheme != "memory" and not _BUCKET.fullmatch(parts.netloc):
        raise BadUrl(
            f"{shown}: after the slashes stands the name of a bucket, {parts.scheme}://BUCKET/PREFIX"
        )
    path = parts.path.strip("/")
    if path:
        check_prefix(path)
    return Address(parts.scheme, parts.netloc, path, merged)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadUrl("this is not an address: its brackets do not match") from None
    # In a directory's path "@" is a letter like any other; elsewhere a password stands before it.
    is_directory = parts.scheme == "file" or (not parts.scheme and url.startswith(("/", ".", "~")))
    if "@" in parts.netloc or ("@" in parts.path and not is_directory):
        raise Refused("an address carries no user and no password")
    return parts


def _reopen(url: str, policy: RetryPolicy | None, options: dict[str, object]) -> Store:
    return open_store(url, policy=policy, **options)


def _open_memory(address: Address) -> Backend:
    if address.path:
        raise BadUrl(
            f"memory://{address.bucket}/{address.path}: a memory store has a name, no path"
        )
    if not address.bucket:
        return MemoryBackend()
    return _memory.setdefault(address.bucket, MemoryBackend())


def _open_local(address: Address) -> Backend:
    return LocalBackend(address.path)


def _open_s3(address: Address) -> Backend:
    options = address.options
    config: dict[str, Any] = {}
    found: Profile | None = None
    profile = options.get("profile") or os.environ.get("AWS_PROFILE")
    named_keys = "AWS_ACCESS_KEY_ID" in os.environ
    region, endpoint = options.get("region"), options.get("endpoint")
    if profile and not _flag(options, "anonymous") and ("profile" in options or not named_keys):
        found = read_profile(profile)
        region, endpoint = region or found.region, endpoint or found.endpoint
    endpoint = endpoint or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    region = region or _environment("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
    if not _REGION.fullmatch(region):
        raise Refused("region is not the name of a region, such as us-east-1")
    if endpoint:
        # By this name it overrides the environment; plain "endpoint" gives way to one there.
        config["aws_endpoint_url_s3"] = _check_endpoint(endpoint)
    if _flag(options, "anonymous"):
        config["skip_signature"] = True
    if _flag(options, "virtual_hosted_style"):
        config["virtual_hosted_style_request"] = True
    with _opening(address.place):
        store = S3Store(
            address.bucket,
            region=region,
            client_options=_client_options(endpoint),
            retry_config=NO_RETRIES,
            **config,
            **_keys(found),
        )
    return _cloud(store, address)


def _keys(profile: Profile | None) -> dict[str, Any]:
    """Handed over in place: a variable that holds them would be shown with a traceback."""
    if profile is None:
        return {}
    token = profile.session_token
    return {
        "access_key_id": profile.access_key_id.reveal(),
        "secret_access_key": profile.secret_access_key.reveal(),
        **({} if token is None else {"session_token": token.reveal()}),
    }


def _open_gcs(address: Address) -> Backend:
    config: dict[str, Any] = {}
    if "service_account" in address.options:
        config["service_account"] = address.options["service_account"]
    if _flag(address.options, "anonymous"):
        config["skip_signature"] = True
    with _opening(address.place):
        store = GCSStore(
            address.bucket, client_options=_client_options(None), retry_config=NO_RETRIES, **config
        )
    return _cloud(store, address)


def _open_azure(address: Address) -> Backend:
    options = address.options
    config: dict[str, Any] = {}
    endpoint = options.get("endpoint") or _environment("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    if endpoint:
        config["endpoint"] = _check_endpoint(endpoint)
    if "account" in options:
        config["account_name"] = options["account"]
    elif not _environment("AZURE_STORAGE_ACCOUNT_NAME"):
        raise Refused(f"{address.place}: name the account: account=… or AZURE_STORAGE_ACCOUNT_NAME")
    if _flag(options, "anonymous"):
        config["skip_signature"] = True
    with _opening(address.place):
        store = AzureStore(
            address.bucket,
            client_options=_client_options(endpoint),
            retry_config=NO_RETRIES,
            **config,
        )
    return _cloud(store, address)


_OPENERS: Final[dict[str, Callable[[Address], Backend]]] = {
    "memory": _open_memory,
    "file": _open_local,
    "s3": _open_s3,
    "gs": _open_gcs,
    "az": _open_azure,
}


def _cloud(store: S3Store | GCSStore | AzureStore, address: Address) -> CloudBackend:
    prefix = check_prefix(address.path)
    return CloudBackend(store, scheme=address.scheme, prefix=prefix, place=address.place)


@contextlib.contextmanager
def _opening(place: str) -> Iterator[None]:
    """Nothing is contacted yet: what the client cannot take now, it will not take later."""
    try:
        with translated("", place):
            yield
    except Unavailable as error:
        raise Refused(str(error)) from error


def _client_options(endpoint: str | None) -> Any:
    # A plain-text endpoint was written out by the user; nothing else goes unencrypted.
    allow_http = endpoint is not None and endpoint.startswith("http://")
    return {**CLIENT_OPTIONS, "allow_http": allow_http}


def _check_endpoint(endpoint: str) -> str:
    """obstore panics on what it does not understand, and only at the first request."""
    found = _ENDPOINT.fullmatch(endpoint)
    if found is None or not _is_host(found["host"]) or not 0 < int(found["port"] or 1) < 65536:
        shown = "endpoint with a user or a password" if "@" in endpoint else "endpoint"
        raise BadUrl(f"{shown} is not an address like https://host:port")
    return endpoint.rstrip("/")


def _is_host(host: str) -> bool:
    looks_numeric = host.startswith("[") or host.rpartition(".")[2].isdigit()
    try:
        return not looks_numeric or bool(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return False


def _local_path(shown: str, host: str, path: str) -> str:
    if host not in ("", "localhost"):
        meant = "path" if ":" in host else host + path
        raise BadUrl(f"{shown}: a local store needs three slashes, file:///{meant}")
    if not path.startswith("/"):
        raise BadUrl(f"{shown}: a local store needs an absolute path, file:///path")
    if "\0" in path:
        raise BadUrl("a path contains no zero byte")
    return os.path.normpath(path)


def _environment(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise Refused(f"{name} is true or false")
    return value == "true"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown_scheme(parts: SplitResult) -> str:
    known = ", ".join(f"{name}://" for name in OPTIONS)
    if not parts.scheme:
        if parts.query or not _PATH.fullmatch(parts.path):
            return f"this is not an address (known: {known})"
        path = os.path.abspath(os.path.expanduser(parts.path))
        return f"{parts.path!r} is not an address; for a directory write file://{path}"
    close = difflib.get_close_matches(parts.scheme, OPTIONS, n=1)
    hint = f"; did you mean {close[0]}://?" if close else ""
    return f"unknown kind of store {parts.scheme!r}{hint} (known: {known})"


def _instead_of_web(parts: SplitResult) -> str:
    """The address of what a browser or a signed link shows, without its query."""
    path = parts.path.strip("/")
    for host, scheme, option in _PROVIDERS:
        found = host.fullmatch(parts.netloc.lower())
        if found is not None:
            named = found.groupdict()
            place = "/".join(filter(None, (named.get("bucket"), path))) or "BUCKET"
            value = named.get(option)
            secrets = " and set the credentials in the environment" if parts.query else ""
            return f"{scheme}://{place}" + (f"?{option}={value}" if value else "") + secrets
    endpoint = f"{parts.scheme}://{parts.netloc}"
    if not _ENDPOINT.fullmatch(endpoint):
        endpoint = "https://host:port"
    return f"s3://BUCKET/PREFIX?endpoint={endpoint}"


def _unknown_option(name: str, scheme: str) -> str:
    known = sorted(OPTIONS[scheme])
    close = difflib.get_close_matches(name, known, n=1)
    hint = (
        f"did you mean {close[0]!r}?"
        if close
        else f"{scheme}:// takes {', '.join(known) or 'none'}"
    )
    return f"unknown option {shown_name(name)}: {hint}"
