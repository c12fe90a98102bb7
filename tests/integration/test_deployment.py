"""`deploy/`: the commands of the container and of the unit are commands of this version, and the image stays small.

Docker is not needed: the steps of the Dockerfile run in a virtual environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from dragoman.cli import app
from dragoman.serve.settings import ServerConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
MEGABYTE = 10**6
LARGEST = 125 * MEGABYTE
"""Of the environment: an image may have 250 MB, and python:3.13-slim has about 125 MB."""


def instructions(name: str) -> list[str]:
    """The arguments of all instructions of a kind, continued lines joined."""
    text = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)


def check_command(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse the arguments of `dragoman`; return those of `serve`."""
    group: Any = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), arguments[0])
    parsed: dict[str, Any] = command.make_context(arguments[0], list(arguments[1:])).params
    return parsed


def test_the_container_serves_to_other_machines_without_the_viewer() -> None:
    (command,) = instructions("CMD")
    assert instructions("ENTRYPOINT") == ['["dragoman"]']
    parsed = check_command(json.loads(command))
    assert (parsed["viewer"], parsed["host"], parsed["port"]) == (False, "0.0.0.0", 8000)
    assert instructions("EXPOSE") == ["8000"] and instructions("USER") == ["10001:10001"]
    (health,) = instructions("HEALTHCHECK")
    assert f"http://127.0.0.1:{parsed['port']}/livez" in health and parsed["models"] == [Path("/model")]


def test_the_image_copies_files_that_exist_and_that_are_not_ignored() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {path for line in instructions("COPY") if "--from" not in line for path in line.split()[:-1]}
    assert copied == kept and all((ROOT / path).exists() for path in copied)


def test_the_services_of_compose() -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    (service,) = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    parsed = check_command(service["command"])
    mounted = [volume.split(":")[1] for volume in service["volumes"]]
    assert all(str(path).startswith(f"{mounted[0]}/") for path in parsed["models"]) and not parsed["viewer"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert f"{parsed['port']}:{parsed['port']}" in service["ports"][0] and service["read_only"] and service["tmpfs"]
    assert int(service["stop_grace_period"].removesuffix("s")) > drain_seconds()


def drain_seconds() -> int:
    """The seconds in which the server finishes its requests."""
    return int(ServerConfig.model_fields["drain"].default)


def unit() -> dict[str, str]:
    lines = (DEPLOY / "dragoman.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_the_unit_of_systemd() -> None:
    settings = unit()
    program, *arguments = shlex.split(settings["ExecStart"])
    assert Path(program).name == "dragoman"
    assert check_command(arguments)["models"] == [Path("/var/lib", settings["StateDirectory"], "model")]
    assert int(settings["TimeoutStopSec"]) > drain_seconds()
    assert settings["DynamicUser"] == "yes" and settings["ProtectSystem"] == "strict"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = unit()["ExecStart"].split()[0]
    text = (DEPLOY / "dragoman.service").read_text().replace(program, "/bin/true")
    (tmp_path / "dragoman.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "dragoman.service"], capture_output=True, text=True, timeout=300
    )
    assert "dragoman.service" not in done.stderr, done.stderr


# ---------------------------------------------------------------------------------------------------------- its size


@pytest.fixture
def slim() -> ModuleType:
    specification = importlib.util.spec_from_file_location("slim", DEPLOY / "slim.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_only_what_a_server_never_reads_is_removed(
    slim: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib" / "python3.13" / "site-packages"
    kept = ["babel/locale-data/root.dat", "babel/locale-data/en.dat", "babel/locale-data/en_GB.dat", "a/b.py", "a/c.so"]
    gone = ["babel/locale-data/de.dat", "a/tests/test_b.py", "a/d.pyi", "a/e.h", "a/__pycache__/b.cpython-313.pyc"]
    for name in [*kept, *gone]:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(b"x" * 10)
    commands: list[list[str]] = []
    monkeypatch.setattr(slim.subprocess, "run", lambda command, check: commands.append(list(map(str, command))))

    slim.main(tmp_path)

    assert sorted(path.relative_to(packages).as_posix() for path in packages.rglob("*.*") if path.is_file()) == sorted(
        kept
    )
    assert [command[0] for command in commands] == [f"{tmp_path}/bin/python"]  # no package to strip


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The environment of the image, built by the RUN instructions of the Dockerfile that follow the first."""
    if shutil.which("g++") is None:
        pytest.skip("no g++ to build the native engine with")
    folder = tmp_path_factory.mktemp("image")
    for path in {path for line in instructions("COPY") if "--from" not in line for path in line.split()[:-1]}:
        source, target = ROOT / path, folder / "source" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
        else:
            shutil.copy(source, target)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for line in instructions("RUN")[1:]:
        command = line.replace("/opt/dragoman", str(folder / "opt"))
        command = re.sub("^(?=pip )", "python -m ", command)
        command = re.sub("^python ", f"{shlex.quote(getattr(sys, '_base_executable', sys.executable))} ", command)
        done = subprocess.run(
            command, shell=True, cwd=folder / "source", env=environment, capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, done.stderr[-2000:]
    yield folder / "opt"


@pytest.mark.slow
def test_the_steps_of_the_dockerfile(image: Path, tmp_path: Path) -> None:
    """The environment is small, and serves a model that it packs itself."""
    size = sum(path.lstat().st_size for path in image.rglob("*") if not path.is_dir())
    assert size < LARGEST, f"{size / MEGABYTE:.0f} MB"
    packages = {path.name.split("-")[0] for path in image.glob("lib/python*/site-packages/*.dist-info")}
    assert "dragoman" in packages and not packages & {"torch", "matplotlib", "tensorboard", "pip"}

    model = shutil.copytree(ROOT / "tests" / "golden" / "model_v1", tmp_path / "model")
    (command,) = instructions("CMD")
    arguments = [*json.loads(command)[:-1], "0"]
    arguments[1] = str(model)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    program = [image / "bin" / "dragoman", *arguments]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stderr is not None
        port = server.stderr.readline().split()[0].rpartition(":")[2]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=300) as answer:
                assert json.load(answer) == {"status": "ok"}
            body = json.dumps({"q": "one two three", "source": "en", "target": "xx"}).encode()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/translate", body, {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=300) as answer:
                assert json.load(answer) == {"translatedText": "trois deux un"}
        finally:
            server.terminate()
    assert server.returncode == 0
