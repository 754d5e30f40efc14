"""Pin sets are closed, and a later release of any package changes nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts import check_pins

ROOT = Path(__file__).resolve().parents[2]


def test_the_repository_pins_are_closed() -> None:
    assert check_pins.check(ROOT) == []
    assert check_pins.compare_with_installed(ROOT) == []


# ── what the check finds ──────────────────────────────────────────────────────────────────────────


def small_set(
    root: Path, pins: Sequence[str], requires: dict[str, list[str]], wanted: str = "alpha"
) -> list[str]:
    """The findings for one set of pins, given what each release requires."""
    folder = root / "requirements"
    folder.mkdir(exist_ok=True)
    (root / "pyproject.toml").write_text('[project]\nname = "x"\ndependencies = []\n')
    (folder / "tiny.in").write_text(f"{wanted}\n")
    (folder / "tiny.txt").write_text("".join(f"{pin} --hash=sha256:00\n" for pin in pins))
    (folder / "requires.json").write_text(json.dumps(requires))
    return check_pins.check(root, {"tiny": ("tiny.in",)})


def test_a_closed_set_has_no_findings(tmp_path: Path) -> None:
    requires = {
        "alpha==1.0": ["beta[fast]>=1", "gone; sys_platform == 'win32'"],
        "beta==1.5": ["gamma>=2; extra == 'fast'", "delta; extra == 'slow'"],
        "gamma==2.0": [],
    }
    assert small_set(tmp_path, ["alpha==1.0", "beta==1.5", "gamma==2.0"], requires) == []


def test_a_requirement_that_nothing_pins_is_found(tmp_path: Path) -> None:
    (finding, *_) = small_set(tmp_path, ["alpha==1.0"], {"alpha==1.0": ["beta>=1"]})
    assert "alpha==1.0 requires beta>=1, and nothing pins beta" in finding


def test_a_pin_outside_the_required_range_is_found(tmp_path: Path) -> None:
    requires: dict[str, list[str]] = {"alpha==1.0": ["beta>=2"], "beta==1.0": []}
    (finding, *_) = small_set(tmp_path, ["alpha==1.0", "beta==1.0"], requires)
    assert "alpha==1.0 requires beta>=2, and the pin is beta==1.0" in finding


def test_what_an_extra_requires_is_followed_through_extras_of_extras(tmp_path: Path) -> None:
    requires = {
        "alpha==1.0": ["beta[fast]"],
        "beta==1.0": ["beta[inner]; extra == 'fast'", "gamma; extra == 'inner'"],
    }
    (finding, *_) = small_set(tmp_path, ["alpha==1.0", "beta==1.0"], requires)
    assert "beta==1.0[inner] requires gamma" in finding


def test_a_requirement_of_one_python_version_alone_is_found(tmp_path: Path) -> None:
    requires = {"alpha==1.0": ["beta; python_full_version < '3.11.3'"]}
    findings = small_set(tmp_path, ["alpha==1.0"], requires)
    assert {finding.rpartition(" (")[2] for finding in findings} == {
        "linux x86_64, Python 3.11.0)",
        "linux aarch64, Python 3.11.0)",
        "darwin x86_64, Python 3.11.0)",
        "darwin arm64, Python 3.11.0)",
    }


@pytest.mark.parametrize(
    ("marker", "machine"),
    [
        ("platform_machine == 'aarch64'", "linux aarch64, Python 3.14.0)"),
        ("sys_platform == 'darwin' and platform_machine != 'arm64'", "darwin x86_64, Python 3."),
        ("python_full_version >= '3.13.4'", "Python 3.13.99)"),
        ("python_version == '3.14'", "Python 3.14.0)"),
    ],
)
def test_a_requirement_of_other_machines_than_this_one_is_found(
    tmp_path: Path, marker: str, machine: str
) -> None:
    findings = small_set(tmp_path, ["alpha==1.0"], {"alpha==1.0": [f"beta; {marker}"]})
    assert any(machine in finding for finding in findings)


def test_a_distribution_that_is_pinned_twice_for_one_machine_is_found(tmp_path: Path) -> None:
    requires: dict[str, list[str]] = {"alpha==1.0": [], "alpha==2.0": []}
    pins = ["alpha==1.0 ; python_version < '3.13'", "alpha==2.0 ; python_version >= '3.12'"]
    assert small_set(tmp_path, pins, requires) == [
        "tiny.txt: alpha==2.0 beside alpha==1.0 of tiny.txt"
    ]


def test_two_sets_that_pin_different_versions_are_found(tmp_path: Path) -> None:
    """Each is closed, and installing the second breaks the first."""
    requires: dict[str, list[str]] = {"alpha==1.0": ["beta<2"], "gamma==1.0": ["beta"]}
    requires |= {"beta==1.0": [], "beta==2.0": []}
    small_set(tmp_path, ["alpha==1.0", "beta==1.0"], requires)
    folder = tmp_path / "requirements"
    (folder / "more.in").write_text("gamma\n")
    (folder / "more.txt").write_text("gamma==1.0 --hash=sha256:00\nbeta==2.0 --hash=sha256:00\n")
    sets: dict[str, tuple[str, ...]] = {"tiny": ("tiny.in",), "more": ("more.in",)}
    assert check_pins.check(tmp_path, sets) == ["tiny.txt: beta==1.0 beside beta==2.0 of more.txt"]


@pytest.mark.parametrize("pin", ["alpha==1.*", "alpha>=1,<2", "alpha", "alpha[fast]==1.0", "-r x"])
def test_what_is_not_one_exact_version_is_no_pin(tmp_path: Path, pin: str) -> None:
    with pytest.raises(SystemExit, match="is not one exact version"):
        small_set(tmp_path, [pin], {})


def test_a_pin_that_its_marker_leaves_out_does_not_count(tmp_path: Path) -> None:
    requires: dict[str, list[str]] = {"alpha==1.0": ["beta"], "beta==1.0": []}
    pins = ["alpha==1.0", "beta==1.0 ; sys_platform == 'linux'"]
    findings = small_set(tmp_path, pins, requires)
    assert findings
    assert all("(darwin " in finding for finding in findings)


def test_what_the_set_is_for_must_be_pinned(tmp_path: Path) -> None:
    (finding, *_) = small_set(tmp_path, ["alpha==1.0"], {"alpha==1.0": []}, wanted="omega>=3")
    assert "the set's own input requires omega>=3" in finding


def test_a_release_without_recorded_metadata_is_found(tmp_path: Path) -> None:
    assert small_set(tmp_path, ["alpha==1.0"], {}) == [
        "tiny.txt: requirements/requires.json knows nothing of alpha==1.0"
    ]


def test_recorded_metadata_of_a_release_that_is_pinned_nowhere_is_found(tmp_path: Path) -> None:
    requires: dict[str, list[str]] = {"alpha==1.0": [], "alpha==0.9": []}
    assert small_set(tmp_path, ["alpha==1.0"], requires) == [
        "requirements/requires.json: alpha==0.9 is pinned nowhere"
    ]


def test_a_pin_without_a_hash_is_found(tmp_path: Path) -> None:
    small_set(tmp_path, ["alpha==1.0"], {"alpha==1.0": []})
    (tmp_path / "requirements" / "tiny.txt").write_text("alpha==1.0\n")
    findings = check_pins.check(tmp_path, {"tiny": ("tiny.in",)})
    assert findings == ["tiny.txt: alpha==1.0 has no hash"]


def test_a_set_that_the_check_does_not_know_is_found(tmp_path: Path) -> None:
    small_set(tmp_path, ["alpha==1.0"], {"alpha==1.0": []})
    (finding,) = check_pins.check(tmp_path, {})[:1]
    assert finding.startswith("requirements/tiny.txt:")


# ── a later release changes nothing ───────────────────────────────────────────────────────────────

BACKEND = '''
"""A build backend in one file. Version 2 refuses to build anything."""
import zipfile
VERSION = {version}
NAME, RELEASE, MODULE = {project!r}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    if VERSION > 1:
        raise SystemExit("tinybuild 2 builds nothing")
    name = f"{{NAME}}-{{RELEASE}}-py3-none-any.whl"
    info = f"{{NAME}}-{{RELEASE}}.dist-info"
    with zipfile.ZipFile(f"{{folder}}/{{name}}", "w") as wheel:
        wheel.writestr(f"{{MODULE}}.py", "")
        metadata = f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{RELEASE}}\\n"
        wheel.writestr(f"{{info}}/METADATA", metadata)
        kind = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(f"{{info}}/WHEEL", kind)
        wheel.writestr(f"{{info}}/RECORD", "")
    return name

build_editable = build_wheel
'''


def put_wheel(index: Path, name: str, version: str, requires: Sequence[str], source: str) -> str:
    """Release a wheel with one module into the index, and return the line that pins it."""
    path = index / f"{name}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    extras = sorted({line.split("'")[1] for line in requires if "extra ==" in line})
    metadata += "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", source)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def put_source(index: Path, name: str, version: str) -> str:
    """Release a distribution as source only, as PySpark is, built by `tinybuild`."""
    path = index / f"{name}-{version}.tar.gz"
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["tinybuild"]\nbuild-backend = "tinybuild"\n',
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def backend(version: int) -> str:
    return BACKEND.format(version=version, project=("sourced", "1.0", "sourced"))


def set_up(project: Path, index: Path, installer: str) -> subprocess.CompletedProcess[str]:
    """Run the project's own set-up script with an index that is a folder, and no network."""
    path = "/usr/bin:/bin"
    if installer == "uv":
        tools = project / "tools"
        tools.mkdir(exist_ok=True)
        shutil.copy(Path(sys.executable).with_name("uv"), tools / "uv")
        path = f"{tools}:{path}"
    base = Path(sys.base_prefix) / "bin" / "python3"
    environment = {
        "HOME": str(project),
        "PATH": path,
        "PYTHON": str(base),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_NO_CACHE_DIR": "1",
        "UV_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(index),
        "UV_CACHE_DIR": str(project / "uv-cache"),
    }
    return subprocess.run(
        ["sh", "scripts/venv.sh", "tiny"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_a_later_release_of_any_package_changes_nothing(tmp_path: Path, installer: str) -> None:
    project, index = tmp_path / "project", tmp_path / "index"
    for folder in (project / "scripts", project / "requirements", index):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "venv.sh", project / "scripts")
    pins = [
        put_wheel(index, "alpha", "1.0", ["beta[fast]>=1"], "VERSION = 1"),
        put_wheel(index, "beta", "1.0", ["gamma>=1; extra == 'fast'"], "VERSION = 1"),
        put_wheel(index, "gamma", "1.0", [], "VERSION = 1"),
        put_source(index, "sourced", "1.0"),
    ]
    (project / "requirements" / "tiny.txt").write_text("".join(pins))
    build_pin = put_wheel(index, "tinybuild", "1.0", [], backend(1))
    (project / "requirements" / "build.txt").write_text(build_pin)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["tinybuild"]\nbuild-backend = "tinybuild"\n'
        '[project]\nname = "sourced"\nversion = "1.0"\n'
    )

    for name in ("alpha", "beta", "gamma"):
        put_wheel(index, name, "2.0", [], "VERSION = 2")
    put_wheel(index, "tinybuild", "2.0", [], backend(2))

    done = set_up(project, index, installer)

    assert done.returncode == 0, done.stderr
    asked = "import alpha, beta, gamma, sourced; print(alpha.VERSION, beta.VERSION, gamma.VERSION)"
    python = project / ".venv" / "bin" / "python"
    answer = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["1", "1", "1"]
