"""Ceph's object gateway on loopback: a monitor, an OSD in memory and radosgw, from Debian's packages, unpacked and not installed."""

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from servers.object_store import BUCKET, ObjectStore, variables_of
from servers.processes import RunningServer

_PACKAGES = ("radosgw", "ceph-mon", "ceph-osd", "ceph-common")
_START_S = 90.0
_DOWNLOAD_S = 600.0
_KEY, _SECRET = "test", "testtest"
_CONFIGURATION = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{monitor},v1:127.0.0.1:{monitor_v1}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
mon allow pool size one = true
mon max pg per osd = 500
osd crush chooseleaf type = 0
plugin dir = {libraries}/rados-classes
osd class dir = {libraries}/rados-classes
erasure code dir = {libraries}/ceph/erasure-code
run dir = {folder}
admin socket = {folder}/$name.socket
log file = {folder}/$name.log
keyring = {folder}/keyring
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {folder}/rgw
rgw enable ops log = false
"""


def unpacked_ceph(kept: Path) -> Path:
    """The folder with Ceph's files, which later sessions find again. Skips the test where the packages cannot be had."""
    root = kept / "ceph"
    if not (root / ".complete").exists():
        missing = [name for name in ("apt-get", "dpkg", "/usr/bin/python3") if shutil.which(name) is None]
        if missing:
            pytest.skip(f"radosgw is unpacked from Debian's packages, and this machine lacks {', '.join(missing)}")
        packages = kept / "ceph-packages"
        packages.mkdir(parents=True, exist_ok=True)
        names = _closure(_PACKAGES)
        got = subprocess.run(
            ["apt-get", "download", *names], cwd=packages, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
        )
        if got.returncode:
            pytest.skip(f"Debian's packages of radosgw cannot be had: {got.stderr.strip().splitlines()[-1:]}")
        for package in sorted(packages.glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, root], check=True)
        shutil.rmtree(packages)
        (root / ".complete").touch()
    return root


def _closure(names: Sequence[str]) -> list[str]:
    """Packages with all that they depend on and that is not installed. Skips the test where the lists of packages do not have them."""
    options = ["--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"]
    found = subprocess.run(["apt-cache", "depends", *options, *names], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(f"this machine's lists of packages do not have radosgw: {found.stderr.strip()}")
    wanted = {line.strip() for line in found.stdout.splitlines() if line and not line.startswith((" ", "<"))}
    query = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${binary:Package}\n"], capture_output=True, text=True, check=True
    )
    installed = {line.split()[1].partition(":")[0] for line in query.stdout.splitlines() if line.startswith("ii")}
    return sorted(wanted - installed)


class _Cluster:
    """The processes of a cluster in a folder."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        libraries = next(root.glob("usr/lib/*-linux-gnu"))
        self.port, monitor, monitor_v1 = (_free_port() for _ in range(3))
        for name in ("mon", "osd", "rgw"):
            (folder / name).mkdir(parents=True)
        self._configuration = folder / "ceph.conf"
        self.fsid, self._monitor = str(uuid.uuid4()), f"[v2:127.0.0.1:{monitor},v1:127.0.0.1:{monitor_v1}]"
        values = {"fsid": self.fsid, "monitor": monitor, "monitor_v1": monitor_v1, "port": self.port}
        self._configuration.write_text(_CONFIGURATION.format(**values, libraries=libraries, folder=folder))
        paths = [libraries, libraries / "ceph", root / "lib" / libraries.name, root / "usr/lib"]
        self._environment: Mapping[str, str] = {
            **os.environ,
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, paths)),
            "PATH": os.pathsep.join([str(root / "usr/bin"), os.environ["PATH"]]),
            "CEPH_CONF": str(self._configuration),
            "PYTHONPATH": str(root / "usr/lib/python3/dist-packages"),
        }
        self._root = root

    def start(self) -> None:
        """Start all processes, and wait until the gateway answers."""
        folder = self.folder
        keys = folder / "keyring"
        self._run("ceph-authtool", "--create-keyring", keys, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        for name in ("client.admin", "client.rgw", "osd.0"):
            allowed = [part for service in ("mon", "osd", "mgr") for part in ("--cap", service, "allow *")]
            self._run("ceph-authtool", keys, "--gen-key", "-n", name, *allowed)
        self._run("monmaptool", "--create", "--addv", "a", self._monitor, "--fsid", self.fsid, folder / "monmap")
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", folder / "monmap", "--keyring", keys)
        self._start("ceph-mon", "-f", "-i", "a")
        device = str(uuid.uuid4())
        self._run("/usr/bin/python3", self._root / "usr/bin/ceph", "osd", "new", device, "0")
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", device)
        self._start("ceph-osd", "-f", "-i", "0")
        self._start("radosgw", "-f", "-n", "client.rgw")
        self._wait()
        user = ("--uid=t", "--display-name=t", "--access-key", _KEY, "--secret-key", _SECRET)
        self._run("radosgw-admin", "-n", "client.rgw", "user", "create", *user)

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=_START_S, check=False)
        assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.stderr[-2000:]}"

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            self._processes.append(subprocess.Popen(command, env=self._environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL))

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            with socket.socket() as found:
                if found.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            ended = [process.args for process in self._processes if process.poll() is not None]
            assert not ended, f"{ended} ended; see the logs in {self.folder}"
            assert time.monotonic() < deadline, f"no gateway after {_START_S:.0f} s; see the logs in {self.folder}"
            time.sleep(0.1)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    @property
    def gateway(self) -> int:
        """The id of the gateway's process."""
        return self._processes[-1].pid


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _kept() -> Path:
    """A folder outside the tree for the unpacked packages (270 MB), which other sessions find again."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "eval_dagster" / "test-servers"


@contextmanager
def radosgw_store(folder: Path) -> Iterator[ObjectStore]:
    """A cluster with an empty bucket for as long as the block lasts. Skips the test where Ceph cannot be had."""
    import boto3

    cluster = _Cluster(unpacked_ceph(_kept()), folder / "cluster")
    try:
        cluster.start()
        url = f"http://127.0.0.1:{cluster.port}"
        client = boto3.client("s3", endpoint_url=url, aws_access_key_id=_KEY, aws_secret_access_key=_SECRET, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        server = RunningServer(url=url, model="", pid=cluster.gateway, log=cluster.folder / "radosgw.out")
        yield ObjectStore(server=server, variables=variables_of(url, key=_KEY, secret=_SECRET))
    finally:
        cluster.stop()
