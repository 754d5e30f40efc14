"""One real Apache Kafka broker from its published artifacts, with or without tiered storage.

Its tiered storage keeps segments in a folder, and its own metadata in `__remote_log_metadata`: the
topic, the events in it and all that is written there are those of any other broker.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.spark import java
from tests.interop.cache import Unavailable, install_once, require_tool, run_installer
from tests.interop.process import HOST, Process, free_port

VERSION: Final = "4.3.1"
ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION, ""),
    ("org.apache.kafka", "kafka-tools", VERSION, ""),
    # LocalTieredStorage is in the tests of the broker.
    ("org.apache.kafka", "kafka-storage", VERSION, "test"),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4", ""),
)
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
METADATA_PARTITIONS: Final = 3
TOOL_TIMEOUT_S: Final = 120.0
START_DEADLINE_S: Final = 180.0
"""Ten times what it takes on a machine that has nothing else to do."""

SMALL: Final = ("-Xms256m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a broker that carries little: it starts in half the processor time."""
METADATA_MANAGER: Final = "metadata.storage.TopicBasedRemoteLogMetadataManager"
FORMATTER: Final = (
    "org.apache.kafka.server.log.remote.metadata.storage.serialization."
    "RemoteLogMetadataSerde$RemoteLogMetadataFormatter"
)


def install() -> Path:
    """The folder of the broker's jars."""

    def build(folder: Path) -> None:
        maven = require_tool("mvn")
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>"
            f"<version>{version}</version>"
            + (f"<classifier>{classifier}</classifier>" if classifier else "")
            + "</dependency>"
            for group, name, version, classifier in ARTIFACTS
        )
        (folder / "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>headwater</groupId>"
            "<artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>"
            f"<dependencies>{dependencies}</dependencies></project>\n",
            encoding="utf-8",
        )
        copy = "dependency:copy-dependencies"
        options = ["-DoutputDirectory=lib", "-DincludeScope=runtime"]
        run_installer([maven, "-q", "-B", copy, *options], folder, {})

    return install_once("kafka", repr(ARTIFACTS), "lib", build)


@dataclass(frozen=True)
class JavaTools:
    """Java with the broker's jars."""

    java: str
    jars: Path

    @staticmethod
    def find() -> JavaTools:
        """`Unavailable` says why this machine cannot have them."""
        home = java.find(os.environ)
        if home is None:
            raise Unavailable(f"no Java {java.OLDEST} or newer (make java says where one is)")
        return JavaTools(str(home / "bin" / "java"), install())

    def command(self, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        """A command line that runs a class of Kafka's, or a source file that uses some."""
        return [self.java, *options, "-cp", f"{self.jars}/*", *arguments]

    def run(self, *arguments: str, given: str = "") -> str:
        """What such a program prints."""
        ran = subprocess.run(
            self.command(*arguments, options=SMALL),
            input=given,
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
        )
        if ran.returncode != 0:
            raise AssertionError(f"{arguments[0]} exited with {ran.returncode}: {ran.stderr}")
        return ran.stdout


class KafkaBroker:
    """A broker with data of its own: it may be killed and started again where it was."""

    def __init__(
        self,
        folder: Path,
        tools: JavaTools,
        *,
        tiered: bool = False,
        options: Sequence[str] = SMALL,
    ) -> None:
        self.folder = folder
        self.tools = tools
        self._options = options
        self._process: Process | None = None
        self._settings = folder / "server.properties"
        port, controller_port = free_port(), free_port()
        self.servers = f"{HOST}:{port}"
        lines = _settings(folder, port, controller_port) + (_tiering(folder) if tiered else [])
        self._settings.write_text("\n".join([*lines, ""]), encoding="utf-8")
        arguments = ("format", "-c", str(self._settings), "-t", CLUSTER_ID)
        run_installer(tools.command("kafka.tools.StorageTool", *arguments), folder, {})

    @property
    def pid(self) -> int | None:
        """Of the process, if it runs."""
        return None if self._process is None else self._process.pid

    def start(self, is_ready: Callable[[], bool]) -> None:
        """Start it, and wait until it answers."""
        broker = self.tools.command("kafka.Kafka", str(self._settings), options=self._options)
        self._process = Process(broker, {}, self.folder, self.folder / "server.log")
        self._process.wait_until(is_ready, START_DEADLINE_S)

    def kill(self) -> None:
        """SIGKILL; a second call does nothing."""
        if self._process is not None:
            self._process.kill()
            self._process = None


def _settings(folder: Path, port: int, controller_port: int) -> list[str]:
    return [
        "process.roles=broker,controller",
        "node.id=1",
        f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        f"advertised.listeners=PLAINTEXT://{HOST}:{port}",
        "controller.listener.names=CONTROLLER",
        f"controller.quorum.voters=1@{HOST}:{controller_port}",
        f"log.dirs={folder / 'data'}",
        "offsets.topic.replication.factor=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
        "group.initial.rebalance.delay.ms=0",
    ]


def _tiering(folder: Path) -> list[str]:
    storage = "org.apache.kafka.server.log.remote"
    topic = "rlmm.config.remote.log.metadata.topic"
    return [
        "offsets.topic.num.partitions=1",
        "transaction.state.log.num.partitions=1",
        "remote.log.storage.system.enable=true",
        f"remote.log.metadata.manager.class.name={storage}.{METADATA_MANAGER}",
        "remote.log.metadata.manager.listener.name=PLAINTEXT",
        f"{topic}.replication.factor=1",
        f"{topic}.min.isr=1",
        f"{topic}.num.partitions={METADATA_PARTITIONS}",
        f"remote.log.storage.manager.class.name={storage}.storage.LocalTieredStorage",
        f"rsm.config.dir={folder / 'tiered'}",
        "remote.log.manager.task.interval.ms=500",
        "log.retention.check.interval.ms=500",
    ]
