"""One recipe per real server: what to install, how it starts, how obstore reaches it.

Which of them keep conditional writes honest under contention is measured, not assumed. In `GOOD`
no compare-and-swap was lost and no create had two winners. `FLAWED` are worth having because a
check that trusts every server would pass on them: rclone ignores the conditions of a write, so
every race shows it; moto lets a second writer through so seldom (once in 125 races of 64 writers)
that a short check will usually miss it.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import ClassVar

from tests.interop.cache import (
    REPO,
    Unavailable,
    fingerprint,
    install_once,
    require_tool,
    run_installer,
)
from tests.interop.process import (
    HOST,
    START_ATTEMPTS,
    PortTaken,
    Process,
    StartFailed,
    free_port,
    http_status,
)

# ministack is pinned in requirements/dev.txt and moto in requirements/interop.txt.
GOFAKES3 = "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0"
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
RCLONE = "github.com/rclone/rclone@v1.75.1"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
AZURITE = "azurite@3.35.0"  # the last one that runs on Node 20

BUCKET = "interop"
REGION = "us-east-1"
AZURE_API_VERSION = "2021-12-02"


@dataclass(frozen=True)
class Credentials:
    """Made up at the first start in a folder and kept there, so that a restart finds its data."""

    key_id: str
    secret: str

    @classmethod
    def of(cls, folder: Path) -> "Credentials":
        kept = folder / "credentials.json"
        if not kept.exists():
            secret = base64.b64encode(secrets.token_bytes(32)).decode()
            kept.touch(mode=0o600)
            kept.write_text(json.dumps([f"test{secrets.token_hex(6)}", secret]))
        key_id, secret = json.loads(kept.read_text())
        return cls(key_id, secret)


@dataclass(frozen=True)
class Launch:
    """What a recipe needs to know to write its command line."""

    folder: Path
    port: int
    credentials: Credentials

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}"


@dataclass(frozen=True)
class Server:
    """A running server with an empty or earlier filled bucket at `url`."""

    name: str
    url: str
    env: Mapping[str, str]
    process: Process

    def kill(self) -> None:
        """SIGKILL, as a crash would be. Start the recipe again in the same folder to go on."""
        self.process.kill()


class Recipe(ABC):
    name: ClassVar[str]

    @abstractmethod
    def install(self) -> Path:
        """The program to run; installs it if needed. Raises Unavailable."""

    @abstractmethod
    def command(self, program: Path, launch: Launch) -> list[str]: ...

    def process_env(self, launch: Launch) -> dict[str, str]:
        """Secrets go this way and not by `command`, which every user of the machine can read."""
        return {}

    def prepare(self, launch: Launch) -> None:
        """What must be on disk before the process starts."""
        (launch.folder / "data").mkdir(exist_ok=True)

    def url(self) -> str:
        return f"s3://{BUCKET}/"

    def client_env(self, launch: Launch) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": launch.credentials.key_id,
            "AWS_SECRET_ACCESS_KEY": launch.credentials.secret,
            # The variable of the service beats every other way to name an endpoint, so one from
            # outside would send the test's writes to somebody's real bucket.
            "AWS_ENDPOINT_URL": launch.endpoint,
            "AWS_ENDPOINT_URL_S3": launch.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "NO_PROXY": HOST,
        }

    def ready(self, launch: Launch) -> bool:
        """True once the bucket can be used: each call may make one step towards it."""
        status = http_status(urllib.request.Request(f"{launch.endpoint}/{BUCKET}"))
        return status is not None and status < 500

    @contextmanager
    def start(self, workdir: Path) -> Iterator[Server]:
        """A second start in the same folder finds the data and the credentials of the first."""
        program = self.install()
        folder = workdir.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        launch, process = self._launch(program, folder)
        try:
            yield Server(self.name, self.url(), self.client_env(launch), process)
        finally:
            process.kill()

    def _launch(self, program: Path, folder: Path) -> tuple[Launch, Process]:
        for _ in range(START_ATTEMPTS):
            launch = Launch(folder, free_port(), Credentials.of(folder))
            self.prepare(launch)
            command, env = self.command(program, launch), self.process_env(launch)
            process = Process(command, env, folder, folder / "server.log")
            try:
                process.wait_until(partial(self.ready, launch))
            except PortTaken:
                process.kill()
            except BaseException:
                process.kill()
                raise
            else:
                return launch, process
        raise StartFailed(f"{self.name} found {START_ATTEMPTS} free ports taken")


class GoRecipe(Recipe):
    module: ClassVar[str]

    def install(self) -> Path:
        def build(folder: Path) -> None:
            env = {"GOBIN": str(folder), "CGO_ENABLED": "0"}
            run_installer([require_tool("go"), "install", self.module], folder, env)

        return install_once(self.name, self.module, self.name, build)


class PutBucketRecipe(Recipe):
    """Servers that look at no signature: an unsigned PUT makes the bucket."""

    def ready(self, launch: Launch) -> bool:
        request = urllib.request.Request(f"{launch.endpoint}/{BUCKET}", method="PUT")
        # 409 is the bucket of an earlier start in the same folder.
        return http_status(request) in (200, 409)


class Ministack(PutBucketRecipe):
    name = "ministack"

    def install(self) -> Path:
        program = Path(sys.executable).parent / "ministack"
        if not program.exists():
            raise Unavailable("ministack (requirements/dev.txt) is not beside this Python")
        return program

    def command(self, program: Path, launch: Launch) -> list[str]:
        return [str(program)]

    def process_env(self, launch: Launch) -> dict[str, str]:
        return {
            "BIND_HOST": HOST,
            "GATEWAY_PORT": str(launch.port),
            "SERVICES": "s3",
            "S3_PERSIST": "1",
            "S3_DATA_DIR": str(launch.folder / "data"),
        }


class Moto(PutBucketRecipe):
    """In a virtual environment of its own: it brings dozens of packages nothing else here needs."""

    name = "moto"

    def install(self) -> Path:
        pins = REPO / "requirements" / "interop.txt"
        if not pins.exists():
            raise Unavailable("requirements/interop.txt is missing")

        def build(folder: Path) -> None:
            run_installer([sys.executable, "-m", "venv", "venv"], folder, {})
            pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            run_installer([*pip, "-r", str(pins)], folder, {})

        return install_once(self.name, fingerprint(pins), "venv/bin/moto_server", build)

    def command(self, program: Path, launch: Launch) -> list[str]:
        return [str(program), "-H", HOST, "-p", str(launch.port)]


class Gofakes3(GoRecipe):
    name = "gofakes3"
    module = GOFAKES3

    def command(self, program: Path, launch: Launch) -> list[str]:
        store = ["-backend", "bolt", "-bolt.db", str(launch.folder / "data" / "s3.bolt")]
        return [str(program), "-host", launch.address, *store, "-initialbucket", BUCKET, "-quiet"]


class FolderRecipe(GoRecipe):
    """Servers for which a folder under their root is a bucket."""

    def prepare(self, launch: Launch) -> None:
        super().prepare(launch)
        (launch.folder / "data" / BUCKET).mkdir(exist_ok=True)


class Minio(FolderRecipe):
    name = "minio"
    module = MINIO

    def command(self, program: Path, launch: Launch) -> list[str]:
        options = ["--quiet", "--address", launch.address]
        return [str(program), "server", *options, str(launch.folder / "data")]

    def process_env(self, launch: Launch) -> dict[str, str]:
        return {
            "MINIO_ROOT_USER": launch.credentials.key_id,
            "MINIO_ROOT_PASSWORD": launch.credentials.secret,
            "MINIO_BROWSER": "off",
        }

    def ready(self, launch: Launch) -> bool:
        probe = urllib.request.Request(f"{launch.endpoint}/minio/health/ready")
        return http_status(probe) == 200


class Versitygw(FolderRecipe):
    """With metadata in extended attributes: its sidecar folder loses updates."""

    name = "versitygw"
    module = VERSITYGW

    def prepare(self, launch: Launch) -> None:
        super().prepare(launch)
        try:
            os.setxattr(launch.folder / "data", "user.headwater", b"1")
        except (AttributeError, OSError) as error:
            reason = f"{launch.folder} takes no extended attributes: {error}"
            raise Unavailable(reason) from error

    def command(self, program: Path, launch: Launch) -> list[str]:
        options = ["--port", launch.address, "--region", REGION, "--quiet"]
        return [str(program), *options, "posix", str(launch.folder / "data")]

    def process_env(self, launch: Launch) -> dict[str, str]:
        return {
            "ROOT_ACCESS_KEY": launch.credentials.key_id,
            "ROOT_SECRET_KEY": launch.credentials.secret,
        }


class Rclone(FolderRecipe):
    name = "rclone"
    module = RCLONE

    def command(self, program: Path, launch: Launch) -> list[str]:
        # No configuration file: one of the user's could name real remotes.
        options = ["--addr", launch.address, "--config", ""]
        return [str(program), "serve", "s3", *options, str(launch.folder / "data")]

    def process_env(self, launch: Launch) -> dict[str, str]:
        # The variable is read as one line of CSV, the pair as one field of it.
        return {"RCLONE_AUTH_KEY": f'"{launch.credentials.key_id},{launch.credentials.secret}"'}


class Azurite(Recipe):
    name = "azurite"

    def install(self) -> Path:
        def build(folder: Path) -> None:
            options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
            run_installer([require_tool("npm"), "install", *options, AZURITE], folder, {})

        require_tool("node")
        return install_once(self.name, AZURITE, "node_modules/.bin/azurite-blob", build)

    def command(self, program: Path, launch: Launch) -> list[str]:
        where = ["--location", str(launch.folder / "data"), "--blobHost", HOST]
        quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        return [str(program), *where, "--blobPort", str(launch.port), *quiet]

    def process_env(self, launch: Launch) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{launch.credentials.key_id}:{launch.credentials.secret}"}

    def url(self) -> str:
        return f"az://{BUCKET}/"

    def client_env(self, launch: Launch) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": launch.credentials.key_id,
            "AZURE_STORAGE_ACCOUNT_KEY": launch.credentials.secret,
            "AZURE_STORAGE_ENDPOINT": f"{launch.endpoint}/{launch.credentials.key_id}",
            "AZURE_ALLOW_HTTP": "true",
            "NO_PROXY": HOST,
        }

    def ready(self, launch: Launch) -> bool:
        return http_status(_put_container(launch)) in (201, 409)


def _put_container(launch: Launch) -> urllib.request.Request:
    """Create Container, signed with the account's key: obstore has no call for it."""
    account = launch.credentials.key_id
    headers = {
        "x-ms-date": formatdate(usegmt=True),
        "x-ms-version": AZURE_API_VERSION,
    }
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    # Eleven standard headers, all empty; the account appears twice because it is in the path too.
    resource = f"/{account}/{account}/{BUCKET}\nrestype:container"
    to_sign = "PUT" + "\n" * 12 + lines + resource
    key = base64.b64decode(launch.credentials.secret)
    digest = hmac.new(key, to_sign.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    url = f"{launch.endpoint}/{account}/{BUCKET}?restype=container"
    return urllib.request.Request(url, headers=headers, method="PUT")


GOOD: tuple[Recipe, ...] = (Ministack(), Gofakes3(), Versitygw(), Azurite(), Minio())
FLAWED: tuple[Recipe, ...] = (Moto(), Rclone())

__all__ = [
    "FLAWED",
    "GOOD",
    "Recipe",
    "Server",
    "StartFailed",
    "Unavailable",
]
