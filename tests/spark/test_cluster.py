"""A standalone cluster of one master and two workers, and Spark Connect, as processes.

The executors' Python has PySpark, PyArrow and the standard library; of this project it has what
``--py-files`` or the wheel brings, and nothing else.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.daemon import Daemon, wait_until
from tests.ports import free_port
from tests.spark.messages import bodies_of, fingerprint, publish, waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("pyspark", "pyarrow", "py4j")
JOB_SECONDS = 110


def bare_python(path: Path) -> Path:
    """An interpreter with what an executor has to have, and its directory for packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    (packages,) = path.glob("lib/python*/site-packages")
    for name in NEEDED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).parent)
    return path / "bin" / "python"


def packages_of(python: Path) -> Path:
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    return packages


def zipped(path: Path) -> Path:
    """The package as docs/spark.md says to ship it."""
    with zipfile.ZipFile(path, "w") as archive:
        for source in sorted((ROOT / "nsqpy").rglob("*.py")):
            archive.write(source, source.relative_to(ROOT))
    return path


def environment(python: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYSPARK_PYTHON": str(python),
        "PYTHONWARNINGS": "ignore",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return bare_python(tmp_path / "bare")


@pytest.fixture
def master(tmp_path: Path, python: Path) -> Iterator[str]:
    """A cluster's address. Each worker is a host of its own: speculation asks for two."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    spark_class = str(Path(spec.origin).parent / "bin" / "spark-class")
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [
        [
            f"{deploy}.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        ],
        *(
            [
                *(f"{deploy}.worker.Worker", "--host", host, "--webui-port", "0"),
                *("-c", "1", "-m", "600m", "-d", str(tmp_path / host), address),
            ]
            for host in ("127.0.0.2", "127.0.0.3")
        ),
    ]
    log = tmp_path / "cluster.log"
    processes = []
    try:
        with log.open("wb") as out:
            for command in commands:
                env = environment(python)
                del env["SPARK_LOCAL_IP"]
                processes.append(
                    subprocess.Popen(
                        [spark_class, *command], cwd=tmp_path, env=env, stdout=out, stderr=out
                    )
                )
        registered = b"Successfully registered with master"
        wait_until(lambda: log.read_bytes().count(registered) == 2, "two workers", 40)
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()
        sys.stdout.write(log.read_text(errors="replace")[-4000:])


def submit(tmp_path: Path, python: Path, *arguments: str) -> None:
    """Run the job as a user would, from a directory that has none of our code."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "spark" / "cluster_job.py"), *arguments],
        cwd=tmp_path,
        env=environment(python),
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]


def test_a_cluster_that_has_only_the_zip(
    spark: "SparkSession", nsqd: Daemon, master: str, python: Path, tmp_path: Path
) -> None:
    # Large enough for several split points, hence several partitions.
    bodies = {
        topic: publish(nsqd, 30_000, size=200, topic=topic) for topic in ("plain", "lost", "slow")
    }
    marks = tmp_path / "marks"
    marks.mkdir()
    package = zipped(tmp_path / "nsqpy.zip")
    out = tmp_path / "out"
    submit(tmp_path, python, master, nsqd.http_address, str(out), str(marks), str(package))
    assert (marks / "python").read_text() == f"{python} []"
    assert (marks / "killed").exists()
    assert len(list(marks.glob("attempt-*"))) == 2
    for topic, expected in bodies.items():
        table = spark.read.parquet(str(out / topic))
        assert fingerprint(bodies_of(table)) == fingerprint(expected), topic
        assert waiting(nsqd, topic) == (0, 0)


def test_an_executor_with_the_wheel_finds_the_format_by_itself(
    spark: "SparkSession", nsqd: Daemon, python: Path, tmp_path: Path
) -> None:
    """``local[2]``: the planner's and the tasks' Python is the bare one with the wheel in it."""
    wheel = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", str(tmp_path / "w")]
    subprocess.run([*wheel, str(ROOT)], check=True, capture_output=True, cwd=tmp_path)
    (built,) = (tmp_path / "w").glob("nsqpy-*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(packages_of(python))
    bodies = publish(nsqd, 1000, topic="plain")
    marks = tmp_path / "marks"
    marks.mkdir()
    submit(tmp_path, python, "local[2]", nsqd.http_address, str(tmp_path / "out"), str(marks))
    assert (marks / "python").read_text() == f"{python} []"
    table = spark.read.parquet(str(tmp_path / "out" / "plain"))
    assert fingerprint(bodies_of(table)) == fingerprint(bodies)


def test_spark_connect(nsqd: Daemon, python: Path, tmp_path: Path) -> None:
    """The same drain runs in the client; planner and executors have what ``addArtifact`` sends."""
    bodies = publish(nsqd, 3000)
    program = tmp_path / "connected.py"
    program.write_text(
        "import sys\n"
        "from pyspark.sql import SparkSession\n"
        "from nsqpy.spark import drain, register\n"
        "spark = SparkSession.builder.remote('local[2]').getOrCreate()\n"
        "spark.addArtifact(sys.argv[2], pyfile=True)\n"
        "register(spark)\n"
        "with drain(spark, topic='orders', channel='lake', nsqd=sys.argv[1]) as df:\n"
        "    rows = df.select('body').collect()\n"
        "print(type(spark).__module__)\n"
        "print('\\n'.join(bytes(row.body).decode() for row in rows))\n"
        "spark.stop()\n"
    )
    package = zipped(tmp_path / "nsqpy.zip")
    result = subprocess.run(
        [sys.executable, str(program), nsqd.http_address, str(package)],
        cwd=tmp_path,
        env=environment(python),
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    kind, *printed = result.stdout.splitlines()
    assert kind == "pyspark.sql.connect.session"
    assert fingerprint(line.encode() for line in printed) == fingerprint(bodies)
    assert waiting(nsqd) == (0, 0)
