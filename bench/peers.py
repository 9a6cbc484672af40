"""Other file systems that people share: each started as its own documentation says, with its defaults, on this machine.

Those that are not installed are left out; `bench/install-peers` installs them.
"""

import os
import shutil
import subprocess
from pathlib import Path

from targets import (
    Failed,
    Target,
    drop_caches,
    free_port,
    is_mounted,
    listens,
    run,
    spawn,
    stop_process,
    wait_until,
)

# Where the external suites keep what they build, too (tests/external/lib.sh).
CACHE = Path(
    os.environ.get("SODA_EXTERNAL_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "soda-external"
)


def outer_address() -> str:
    """An address of this machine that is not loopback's, or nothing: GlusterFS and MooseFS refuse loopback. Traffic to it
    does not leave the machine either."""
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    return next((address for address in addresses if ":" not in address), "")


class Peer(Target):
    """A file system with servers and two mounts. Subclasses say how it is served and mounted."""

    programs: list[str]

    def __init__(self, base: Path):
        super().__init__(base)
        self.roots = self.make_mount_points(2)
        self.processes: list[subprocess.Popen] = []

    @classmethod
    def available(cls) -> bool:
        return all(shutil.which(program) for program in cls.programs)

    def serve(self) -> None:
        """Starts the servers; they go into `processes`."""
        raise NotImplementedError

    def mount(self, root: Path) -> None:
        raise NotImplementedError

    def unmount(self, root: Path) -> None:
        run("umount", root)

    def start(self) -> None:
        self.serve()
        for root in self.roots:
            self.mount(root)

    def cold(self) -> None:
        for root in self.roots:
            self.unmount(root)
        drop_caches()
        for root in self.roots:
            self.mount(root)

    def stop(self) -> None:
        for root in self.roots:
            # Lazily: a peer that hangs must not keep the others from being stopped.
            if is_mounted(root):
                run("umount", "--lazy", root)
        self.stop_servers()

    def stop_servers(self) -> None:
        for process in reversed(self.processes):
            stop_process(process)


class Sshfs(Peer):
    """sshfs with its default caches, to an sshd of its own."""

    name = "sshfs"
    programs = ["sshfs", "/usr/sbin/sshd"]

    def serve(self) -> None:
        (self.base / "source").mkdir()
        self.port = free_port()
        host, user = self.base / "host_key", self.base / "user_key"
        for key in (host, user):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        config = self.base / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {host}\nAuthorizedKeysFile {user}.pub\n"
            "PermitRootLogin yes\nStrictModes no\nPidFile none\nSubsystem sftp internal-sftp\n"
        )
        os.makedirs("/run/sshd", exist_ok=True)
        sshd = spawn("/usr/sbin/sshd", "-D", "-f", config, log=self.base / "sshd.log")
        self.processes.append(sshd)
        wait_until(lambda: listens(self.port), "sshd", sshd)

    def mount(self, root: Path) -> None:
        run(
            "sshfs",
            "-p",
            str(self.port),
            "-o",
            f"IdentityFile={self.base}/user_key",
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-o",
            "ssh_command=ssh -F none",
            f"127.0.0.1:{self.base}/source",
            root,
        )


class JuiceFs(Peer):
    """JuiceFS with its metadata in a Redis that appends to a file, its data in a local directory."""

    name = "juicefs"
    program = CACHE / "juicefs/bin/juicefs"
    programs = [str(program), "redis-server"]

    def serve(self) -> None:
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}/1"
        redis = spawn(
            "redis-server",
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--appendonly",
            "yes",
            "--dir",
            self.base,
            log=self.base / "redis.log",
        )
        self.processes.append(redis)
        wait_until(lambda: listens(port), "redis-server", redis)
        run(
            self.program, "format", "--storage", "file", "--bucket", f"{self.base}/bucket/", self.url, "bench"
        )

    def cache_of(self, root: Path) -> Path:
        return self.base / f"cache.{root.name}"

    def mount(self, root: Path) -> None:
        # Local to the machine whose cache is to be cold.
        shutil.rmtree(self.cache_of(root), ignore_errors=True)
        run(
            self.program,
            "mount",
            "-d",
            "--log",
            self.base / "juicefs.log",
            "--cache-dir",
            self.cache_of(root),
            self.url,
            root,
        )

    def unmount(self, root: Path) -> None:
        run(self.program, "umount", root)


class Gluster(Peer):
    """GlusterFS, one brick, mounted natively."""

    name = "gluster"
    programs = ["glusterd", "gluster", "glusterfs"]
    volume = "sodabench"
    PORT = 24007

    @classmethod
    def available(cls) -> bool:
        return super().available() and bool(outer_address())

    def serve(self) -> None:
        if listens(self.PORT):
            raise Failed("another glusterd is running")
        self.host = outer_address()
        state = self.base / "glusterd"
        state.mkdir()
        config = self.base / "glusterd.vol"
        config.write_text(
            "volume management\n type mgmt/glusterd\n"
            f" option working-directory {state}\n option run-directory {state}\n"
            " option transport-type socket\nend-volume\n"
        )
        glusterd = spawn(
            "glusterd",
            "--no-daemon",
            "--volfile",
            config,
            "--log-file",
            self.base / "glusterd.log",
            "--pid-file",
            state / "pid",
            log=self.base / "glusterd.out",
        )
        self.processes.append(glusterd)
        # Well after it listens.
        wait_until(
            lambda: (
                subprocess.run(["gluster", "--mode=script", "volume", "list"], capture_output=True).returncode
                == 0
            ),
            "glusterd",
            glusterd,
        )
        self.control("create", self.volume, f"{self.host}:{self.base}/brick", "force")
        self.control("start", self.volume)

    def control(self, verb: str, *arguments: str) -> None:
        run("gluster", "--mode=script", "volume", verb, *arguments)

    def mount(self, root: Path) -> None:
        run(
            "glusterfs",
            f"--volfile-server={self.host}",
            f"--volfile-id={self.volume}",
            "--log-file",
            self.base / f"{root.name}.log",
            root,
        )
        wait_until(lambda: is_mounted(root), "glusterfs")

    def stop_servers(self) -> None:
        # The brick is a process of its own, started by glusterd.
        if (self.base / "brick").exists():
            self.control("stop", self.volume)
        super().stop_servers()


class MooseFs(Peer):
    """MooseFS: one master, one chunk server."""

    name = "moosefs"
    programs = ["mfsmaster", "mfschunkserver", "mfsmount"]

    @classmethod
    def available(cls) -> bool:
        return super().available() and bool(outer_address())

    def serve(self) -> None:
        self.host = outer_address()
        self.client_port, self.chunk_port, control_port = free_port(), free_port(), free_port()
        for part in ("master", "chunk", "disk"):
            (self.base / part).mkdir()
        shutil.copy("/var/lib/mfs/metadata.mfs.empty", self.base / "master/metadata.mfs")
        exports = self.base / "exports"
        exports.write_text("* / rw,alldirs,admin,maproot=0:0\n")
        disks = self.base / "disks"
        disks.write_text(f"{self.base}/disk\n")
        common = "WORKING_USER = root\nWORKING_GROUP = root\nLOCK_MEMORY = 0\n"
        master = self.base / "master.cfg"
        master.write_text(
            f"{common}DATA_PATH = {self.base}/master\nEXPORTS_FILENAME = {exports}\n"
            f"MATOML_LISTEN_PORT = {free_port()}\nMATOCS_LISTEN_HOST = {self.host}\n"
            f"MATOCS_LISTEN_PORT = {control_port}\nMATOCL_LISTEN_HOST = {self.host}\n"
            f"MATOCL_LISTEN_PORT = {self.client_port}\n"
        )
        chunk = self.base / "chunk.cfg"
        chunk.write_text(
            f"{common}DATA_PATH = {self.base}/chunk\nHDD_CONF_FILENAME = {disks}\nHDD_LEAVE_SPACE_DEFAULT = 0\n"
            f"MASTER_HOST = {self.host}\nMASTER_PORT = {control_port}\nBIND_HOST = {self.host}\n"
            f"CSSERV_LISTEN_HOST = {self.host}\nCSSERV_LISTEN_PORT = {self.chunk_port}\n"
        )
        for program, config, port in (
            ("mfsmaster", master, self.client_port),
            ("mfschunkserver", chunk, self.chunk_port),
        ):
            server = spawn(program, "-f", "-c", config, "start", log=self.base / f"{program}.log")
            self.processes.append(server)
            wait_until(lambda: listens(port, self.host), program, server)

    def mount(self, root: Path) -> None:
        run("mfsmount", root, "-H", self.host, "-P", str(self.client_port))
        # Until the chunk server has registered, writes are refused.
        wait_until(lambda: can_write(root), "mfsmount")


def can_write(root: Path) -> bool:
    probe = root / "probe"
    try:
        probe.write_bytes(b"x")
        return True
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)


PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (Sshfs, JuiceFs, Gluster, MooseFs)}
