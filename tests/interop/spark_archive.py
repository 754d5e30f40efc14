"""What executors are sent: an environment in one file, made as docs/spark-clusters.md says."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from tests.interop.cache import REPO, install_once, run_installer
from tests.interop.spark_environment import pins

VENV_PACK = "venv-pack==0.2.0"
_PANDAS = ("numpy", "pandas", "python-dateutil", "pytz", "six", "tzdata")


def environment_archive() -> Path:
    """A .tar.gz with Python's packages and Headwater in it. Raises Unavailable."""
    env = _environment()

    def build(folder: Path) -> None:
        wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        wheel += ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(REPO)]
        run_installer(wheel, REPO, {})
        (built,) = folder.glob("headwater-*.whl")
        pip = [f"{env}/bin/python", "-m", "pip", "install", "--quiet", "--no-deps"]
        run_installer([*pip, "--force-reinstall", str(built)], folder, {})
        # Little compression: it is unpacked on this machine.
        pack = [f"{env}/bin/venv-pack", "--quiet", "--compress-level", "1", "--prefix", str(env)]
        run_installer([*pack, "--output", "environment.tar.gz"], folder, {})

    pin = hashlib.sha256(f"{env} {_tree(REPO / 'src')}".encode()).hexdigest()
    return install_once("spark-archive-packed", pin, "environment.tar.gz", build)


def _environment() -> Path:
    """What Headwater needs on an executor, without Headwater, which changes more often."""
    spark = pins("spark")
    lines = sorted({**pins("base"), **{name: spark[name] for name in _PANDAS}}.values())

    def build(folder: Path) -> None:
        (folder / "requirements.txt").write_text("\n".join(lines))
        run_installer([sys.executable, "-m", "venv", "env"], folder, {})
        pip = ["env/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_installer([*pip, "-r", "requirements.txt", VENV_PACK], folder, {})

    known = "\n".join([*lines, VENV_PACK, sys.version, str(REPO)])
    pin = hashlib.sha256(known.encode()).hexdigest()
    return install_once("spark-archive", pin, "env/bin/venv-pack", build).parents[1]


def unpack(archive: Path, folder: Path) -> None:
    """As the driver does it, in the folder where it starts."""
    folder.mkdir(parents=True)
    run_installer(["tar", "-xzf", str(archive), "-C", str(folder)], folder, {})


def _tree(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
