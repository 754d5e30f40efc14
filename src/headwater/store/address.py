"""From an address to an open store.

    memory://NAME          this process; the same name gives the same objects
    file:///absolute/path  a directory, created if absent
    s3://BUCKET/PREFIX     also any S3-protocol server, with endpoint=…
    gs://BUCKET/PREFIX
    az://CONTAINER/PREFIX  with account=… or AZURE_STORAGE_ACCOUNT_NAME

Options are keywords, or follow a `?` in the address. Neither contains credentials: those are named,
by the environment or by a profile in the AWS files. Resolved credentials go to obstore and are
stored nowhere else; a store that is sent to another process resolves the name there.

People paste signed addresses all the same, so no error repeats a query, a fragment, a user or the
value of an option.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from obstore.store import AzureStore, GCSStore, S3Store

from headwater.core import runtime
from headwater.core.errors import BadUrl, Denied, Refused, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.core.settings import Secret, closest, did_you_mean
from headwater.store.backend import Backend, MemoryBackend
from headwater.store.cloud import CLIENT_OPTIONS, NO_RETRIES, CloudBackend, translated
from headwater.store.local import LocalBackend
from headwater.store.objects import check_prefix
from headwater.store.store import Store

# Options of other tools whose values are credentials.
_SECRET_OPTIONS: Final = frozenset(
    "access_key access_key_id account_key aws_access_key_id aws_secret_access_key "
    "aws_session_token bearer_token client_secret connection_string key password sas_key "
    "sas_token secret secret_access_key secret_key service_account_key session_token token "
    # The parameters of signed addresses: Azure's shared access signatures, S3's and Google's.
    "awsaccesskeyid googleaccessid se sig signature sp sr srt ss st sv".split()
)
_SIGNED: Final = ("x-amz-", "x_amz_", "x-goog-", "x_goog_")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class Profile:
    access_key_id: Secret
    secret_access_key: Secret
    session_token: Secret | None
    region: str | None
    endpoint: str | None


def refuse_secrets(options: Mapping[str, object], where: str) -> None:
    """Refuse credentials among options, because options are shown, logged and sent around."""
    for name in options:
        if name.lower() in _SECRET_OPTIONS or name.lower().startswith(_SIGNED):
            raise Refused(
                f"{shown_name(name)} in {where}: credentials are not passed as options, which "
                "are shown, logged and sent to other machines. Set them in the environment there "
                "(for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for Azure "
                "AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_ACCOUNT_KEY), or for S3 name a profile: "
                "profile=…"
            )


def shown_name(name: str) -> str:
    """An option's name for an error; hidden if it may be a pasted signature."""
    return repr(name) if _PLAIN_NAME.fullmatch(name) else "an option"


def read_profile(name: str, environment: Mapping[str, str] | None = None) -> Profile:
    """The static credentials of a profile in the AWS credentials and config files."""
    env = os.environ if environment is None else environment
    home = env.get("HOME") or os.path.expanduser("~")
    files = (
        env.get("AWS_CONFIG_FILE") or f"{home}/.aws/config",
        env.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials",
    )
    # `Secret` from the start: tracebacks may show the variables of a frame.
    settings: dict[str, Secret] = {}
    in_config = name if name == "default" else f"profile {name}"
    for path, section in zip(files, (in_config, name), strict=True):
        settings.update(_section(path, section))
    if not settings:
        raise Refused(f"there is no profile {name!r} in {files[1]} or {files[0]}")
    if "aws_access_key_id" not in settings or "aws_secret_access_key" not in settings:
        raise Denied(
            f"profile {name!r} has no static keys. Put temporary ones into the environment: "
            f"eval $(aws configure export-credentials --profile {name} --format env)"
        )
    token = settings.get("aws_session_token")
    return Profile(
        access_key_id=settings["aws_access_key_id"],
        secret_access_key=settings["aws_secret_access_key"],
        session_token=token if token and token.reveal() else None,
        region=settings["region"].reveal() if "region" in settings else None,
        endpoint=settings["endpoint_url"].reveal() if "endpoint_url" in settings else None,
    )


def _section(path: str, section: str) -> dict[str, Secret]:
    import configparser  # slow to import, and most stores need no profile

    # No interpolation: keys contain "%". The errors of this parser quote lines of the file.
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        raise Refused(f"{path} cannot be read as an AWS credentials file") from None
    if not parser.has_section(section):
        return {}
    return {name: Secret(value) for name, value in parser.items(section)}


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
# Surely a path, and not a string of credentials.
_PATH: Final = re.compile(r"[./~][^?#;&]*|[\w./ -]*")
# The hosts of the providers, and the scheme and option to use instead.
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
    scheme: str
    bucket: str
    path: str
    options: dict[str, str]

    @property
    def place(self) -> str:
        """The bucket or container as errors name it."""
        return f"{self.scheme}://{self.bucket}"


def open_store(url: str, *, policy: RetryPolicy | None = None, **options: object) -> Store:
    """Open the store at an address. The first connection is made by the first request.

    A pickled store contains its address and options. It opens again where it is unpickled, with
    the credentials of that machine.
    """
    address = parse_address(url, options)
    if address.scheme != "memory" and not runtime.current().outside_allowed:
        raise Refused(f"{address.place}: a simulation reaches nothing outside; use memory://")
    backend = _OPENERS[address.scheme](address)

    reopen = functools.partial(open_store, url, policy=policy, **options)
    return Store(
        backend,
        url=url,
        policy=policy,
        reopen=None if address.scheme == "memory" else reopen,
    )


def parse_address(url: str, options: Mapping[str, object]) -> Address:
    """Parse and check an address and its options, without opening anything."""
    parts = _split(url)
    if parts.scheme in ("http", "https"):
        raise BadUrl(f"write {_instead_of_web(parts)}, not {parts.scheme}://…")
    # Secrets first: no later error may show them.
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    refuse_secrets(query, "the address")
    refuse_secrets(options, "the options")
    if parts.scheme not in OPTIONS:
        raise BadUrl(_unknown_scheme(parts))
    merged = query | {name: _text(value) for name, value in options.items() if value is not None}
    for name in merged:
        if name not in OPTIONS[parts.scheme]:
            hint = did_you_mean(name, OPTIONS[parts.scheme])
            raise Refused(f"unknown option {shown_name(name)} of {parts.scheme}://{hint}")
    after = parts.netloc + ("" if parts.scheme == "file" else parts.path)
    # A key and its secret may be there, also without the "@" that marks them.
    shown = f"{parts.scheme}://" + ("…" if ":" in after else parts.netloc + parts.path)
    if parts.fragment:
        raise BadUrl(f"{shown}: '#' has no meaning here")
    if parts.scheme == "file":
        return Address("file", "", _local_path(shown, parts.netloc, unquote(parts.path)), merged)
    if parts.scheme != "memory" and not _BUCKET.fullmatch(parts.netloc):
        raise BadUrl(
            f"{shown}: the name of a bucket follows the slashes, {parts.scheme}://BUCKET/PREFIX"
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
    # In a directory's path "@" is an ordinary character; elsewhere a password precedes it.
    is_directory = parts.scheme == "file" or (not parts.scheme and url.startswith(("/", ".", "~")))
    if "@" in parts.netloc or ("@" in parts.path and not is_directory):
        raise Refused("an address contains no user and no password")
    return parts


def _open_memory(address: Address) -> Backend:
    if address.path:
        raise BadUrl(
            f"memory://{address.bucket}/{address.path}: a memory store has a name and no path"
        )
    if not address.bucket:
        return MemoryBackend()
    return _memory.setdefault(address.bucket, MemoryBackend())


def _open_s3(address: Address) -> Backend:
    options = address.options
    config: dict[str, Any] = {}
    credentials: Profile | None = None
    profile = options.get("profile") or os.environ.get("AWS_PROFILE")
    named_keys = "AWS_ACCESS_KEY_ID" in os.environ
    region, endpoint = options.get("region"), options.get("endpoint")
    if profile and not _flag(options, "anonymous") and ("profile" in options or not named_keys):
        credentials = read_profile(profile)
        region, endpoint = region or credentials.region, endpoint or credentials.endpoint
    endpoint = endpoint or _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    region = region or _environment("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
    if not _REGION.fullmatch(region):
        raise Refused("region is not the name of a region, such as us-east-1")
    if endpoint:
        # This name overrides the environment; with plain "endpoint" the environment would win.
        config["aws_endpoint_url_s3"] = _check_endpoint(endpoint)
    if _flag(options, "virtual_hosted_style"):
        config["virtual_hosted_style_request"] = True
    return _cloud(S3Store, address, endpoint, credentials, region=region, **config)


def _keys(profile: Profile | None) -> dict[str, Any]:
    """The revealed keys, never held in a variable: a traceback may show variables."""
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
    return _cloud(GCSStore, address, **config)


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
    return _cloud(AzureStore, address, endpoint, **config)


_OPENERS: Final[dict[str, Callable[[Address], Backend]]] = {
    "memory": _open_memory,
    "file": lambda address: LocalBackend(address.path),
    "s3": _open_s3,
    "gs": _open_gcs,
    "az": _open_azure,
}


def _cloud(
    kind: Callable[..., S3Store | GCSStore | AzureStore],
    address: Address,
    endpoint: str | None = None,
    credentials: Profile | None = None,
    **config: Any,
) -> CloudBackend:
    if _flag(address.options, "anonymous"):
        config["skip_signature"] = True
    # A plain-text endpoint was written out by the user; nothing else goes unencrypted.
    allow_http = endpoint is not None and endpoint.startswith("http://")
    try:
        with translated("", address.place):
            store = kind(
                address.bucket,
                client_options={**CLIENT_OPTIONS, "allow_http": allow_http},
                retry_config=NO_RETRIES,
                **config,
                **_keys(credentials),
            )
    except Unavailable as error:
        # Nothing is contacted yet: what the client cannot take now, it will not take later.
        raise Refused(str(error)) from error
    prefix = check_prefix(address.path)
    return CloudBackend(store, scheme=address.scheme, prefix=prefix, place=address.place)


def _check_endpoint(endpoint: str) -> str:
    """Check it here: obstore panics on a wrong endpoint, and only at the first request."""
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None or not _is_host(match["host"]) or not 0 < int(match["port"] or 1) < 65536:
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
        raise Refused(f"{name} is true or false")  # without the value, which may be a secret
    return value == "true"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown_scheme(parts: SplitResult) -> str:
    schemes = ", ".join(f"{name}://" for name in OPTIONS)
    if not parts.scheme:
        if parts.query or not _PATH.fullmatch(parts.path):
            return f"this is not an address (known: {schemes})"
        path = os.path.abspath(os.path.expanduser(parts.path))
        return f"{parts.path!r} is not an address; for a directory write file://{path}"
    near = closest(parts.scheme, OPTIONS)
    hint = f"; did you mean {near}://?" if near else ""
    return f"unknown kind of store {parts.scheme!r}{hint} (known: {schemes})"


def _instead_of_web(parts: SplitResult) -> str:
    """The address of what a browser or a signed link shows, without its query."""
    path = parts.path.strip("/")
    for host, scheme, option in _PROVIDERS:
        match = host.fullmatch(parts.netloc.lower())
        if match is not None:
            named = match.groupdict()
            place = "/".join(filter(None, (named.get("bucket"), path))) or "BUCKET"
            value = named.get(option)
            secrets = " and set the credentials in the environment" if parts.query else ""
            return f"{scheme}://{place}" + (f"?{option}={value}" if value else "") + secrets
    endpoint = f"{parts.scheme}://{parts.netloc}"
    if not _ENDPOINT.fullmatch(endpoint):
        endpoint = "https://host:port"
    return f"s3://BUCKET/PREFIX?endpoint={endpoint}"
