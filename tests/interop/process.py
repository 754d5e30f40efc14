"""One server process: started on a free loopback port, awaited, and killed with its group."""

import http.client
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HOST = "127.0.0.1"
READY_DEADLINE_S = 60.0
POLL_INTERVAL_S = 0.05
PROBE_TIMEOUT_S = 5.0
START_ATTEMPTS = 3
LOG_TAIL_CHARS = 3000

# A proxy of the surrounding environment must never see loopback traffic.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StartFailed(Exception):
    """The server is installed but did not come up: a failure to look into, never a skip."""


class PortTaken(StartFailed):
    """Somebody else got the port between choosing and binding it: choose another."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def http_status(request: urllib.request.Request) -> int | None:
    """The status of one request, or None while nothing speaks HTTP there."""
    try:
        with _direct.open(request, timeout=PROBE_TIMEOUT_S) as reply:
            status: int = reply.status
            return status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, http.client.HTTPException):
        return None


class Process:
    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self._log = log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def wait_until(self, ready: Callable[[], bool], within_s: float = READY_DEADLINE_S) -> None:
        deadline_s = time.monotonic() + within_s
        while not ready():
            if self._has_exited():
                tail = self.log_tail()
                kind = PortTaken if "in use" in tail.lower() else StartFailed
                raise kind(f"server exited before it was ready; its log ends:\n{tail}")
            if time.monotonic() > deadline_s:
                raise StartFailed(
                    f"server not ready in {within_s} s; its log ends:\n{self.log_tail()}"
                )
            time.sleep(POLL_INTERVAL_S)

    def kill(self) -> None:
        """SIGKILL to the whole group; a second call does nothing."""
        if self._popen.returncode is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()

    def _has_exited(self) -> bool:
        # Popen.poll() would reap the leader. Its id would be free for another process while the
        # group may still have members, and kill() could no longer use it safely.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._popen.pid, flags) is not None
