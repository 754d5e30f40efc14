"""Installing a server once: a cache folder, one lock and one stamp per server.

The stamp is written last and holds what was installed. An install that was interrupted has no
stamp and starts again; a changed pin does not match its stamp and starts again.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
INSTALL_TIMEOUT_S = 1800
OUTPUT_TAIL_CHARS = 2000


class Unavailable(Exception):
    """This machine cannot give the server: skip what needs it, and show the reason."""


def cache_folder() -> Path:
    configured = os.environ.get("HEADWATER_INTEROP_CACHE")
    return Path(configured).absolute() if configured else REPO / ".cache" / "interop"


def progress(message: str) -> None:
    print(f"interop: {message}", file=sys.stderr, flush=True)


def fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def require_tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"{name} is not on PATH")
    return found


def run_installer(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_TIMEOUT_S,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        reason = f"{command[0]} did not finish within {INSTALL_TIMEOUT_S} s"
        raise Unavailable(reason) from None
    except OSError as error:
        raise Unavailable(f"{command[0]} could not be run: {error}") from error
    if done.returncode != 0:
        tail = done.stdout[-OUTPUT_TAIL_CHARS:].strip()
        raise Unavailable(f"{' '.join(command)} exited with {done.returncode}: {tail}")


def install_once(name: str, pin: str, product: str, build: Callable[[Path], None]) -> Path:
    """Give the path of `product` inside the server's folder, building it if it is not there."""
    folder = cache_folder() / name
    stamp = folder / "stamp"
    with _locked(name):
        if not (_read(stamp) == pin and (folder / product).exists()):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            progress(f"installing {name} ({pin}); this can take minutes")
            build(folder)
            if not (folder / product).exists():
                raise Unavailable(f"installing {name} did not leave {product}")
            stamp.write_text(pin)
            progress(f"installed {name}")
    return folder / product


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Two test processes must not build into the same folder; the second one waits."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
