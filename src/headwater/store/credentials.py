"""Credentials travel by name: an environment, or a profile in the AWS files.

What is resolved here is handed to obstore and kept nowhere else. A store that is sent to
another process carries the name and resolves it there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.core.errors import Denied, Refused
from headwater.core.settings import Secret

# What people pass by habit, and where it belongs instead.
_SECRET_OPTIONS: Final = frozenset(
    "access_key access_key_id account_key aws_access_key_id aws_secret_access_key "
    "aws_session_token bearer_token client_secret connection_string key password sas_key "
    "sas_token secret secret_access_key secret_key service_account_key session_token token "
    # What a signed address carries: Azure's shared access signatures, S3's and Google's.
    "awsaccesskeyid googleaccessid se sig signature sp sr srt ss st sv".split()
)
_SIGNED: Final = ("x-amz-", "x_amz_", "x-goog-", "x_goog_")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile of the AWS files holds."""

    access_key_id: Secret
    secret_access_key: Secret
    session_token: Secret | None
    region: str | None
    endpoint: str | None


def refuse_secrets(options: Mapping[str, object], where: str) -> None:
    """Options are shown, logged and shipped; a credential among them is refused unread."""
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
    """An option's name as an error may quote it: a pasted signature can stand in its place."""
    return repr(name) if _PLAIN_NAME.fullmatch(name) else "an option"


def read_profile(name: str, environment: Mapping[str, str] | None = None) -> Profile:
    """The static credentials of a profile in the AWS credentials and config files."""
    env = os.environ if environment is None else environment
    home = env.get("HOME") or os.path.expanduser("~")
    files = (
        env.get("AWS_CONFIG_FILE") or f"{home}/.aws/config",
        env.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials",
    )
    # Wrapped from the start: tracebacks may show the variables of a frame.
    found: dict[str, Secret] = {}
    for path, section in zip(files, (_config_section(name), name), strict=True):
        found.update(_section(path, section))
    if not found:
        raise Refused(f"there is no profile {name!r} in {files[1]} or {files[0]}")
    if "aws_access_key_id" not in found or "aws_secret_access_key" not in found:
        raise Denied(
            f"profile {name!r} holds no static keys. Put temporary ones into the environment: "
            f"eval $(aws configure export-credentials --profile {name} --format env)"
        )
    token = found.get("aws_session_token")
    return Profile(
        access_key_id=found["aws_access_key_id"],
        secret_access_key=found["aws_secret_access_key"],
        session_token=token if token and token.reveal() else None,
        region=found["region"].reveal() if "region" in found else None,
        endpoint=found["endpoint_url"].reveal() if "endpoint_url" in found else None,
    )


def _config_section(name: str) -> str:
    return name if name == "default" else f"profile {name}"


def _section(path: str, section: str) -> dict[str, Secret]:
    import configparser  # here: stores that need no credentials do not wait for it

    # No interpolation: keys contain "%". Errors of this parser quote lines of the file.
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        raise Refused(f"{path} cannot be read as an AWS credentials file") from None
    if not parser.has_section(section):
        return {}
    return {name: Secret(value) for name, value in parser.items(section)}
