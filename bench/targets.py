"""What is measured: file systems that can be started, made cold and stopped.

A target has a name, `roots` (directories on mounts of one and the same tree; several where it is shared), and `cold()`.
Everything it needs is below its own directory. The other file systems that people use are in `peers.py`.
"""

import itertools
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent


class Failed(Exception):
    """What cannot be measured, and why."""


def run(*command: str | Path, **options) -> str:
    """A command that must succeed; its output is part of the error."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options
    )
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))}: {text[-800:]}")
    return text.strip()


def shell(command: str) -> str:
    """A command of the external suites' library (packages and sources of Debian)."""
    return run("bash", "-c", f". {PROJECT}/tests/external/lib.sh; {command}")


def spawn(*command: str | Path, log: Path, **options) -> subprocess.Popen:
    """A server in the background; what it says is appended to `log`. A signal to all that was started here (Ctrl-C) does not reach
    it: its mounts are to be taken away before it ends."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options
        )


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


# Below those that connections get by themselves, so that nobody has one by chance; each is given once.
PORTS = itertools.islice(itertools.cycle(range(20000, 32000)), os.getpid() % 12000, None)


def free_port() -> int:
    return next(port for port in PORTS if not listens(port))


def wait_until(ready, what: str, process: subprocess.Popen | None = None, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if process and process.poll() is not None:
            raise Failed(f"{what}: its process ended with {process.returncode}")
        if time.monotonic() > end:
            raise Failed(f"{what}: not ready after {seconds:.0f} s")
        time.sleep(0.02)


def is_mounted(path: Path) -> bool:
    """Without asking the file system, whose server may be gone."""
    return any(line.split()[1] == str(path) for line in Path("/proc/self/mounts").read_text().splitlines())


def stop_process(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), 1).close()
        return True
    except OSError:
        return False


class Target:
    """One file system under test. `base` is an empty directory of its own on the local file system."""

    name: str
    roots: list[Path]
    # Said of one that is not available.
    why_not = "is not installed: left out (bench/install-peers)"

    def __init__(self, base: Path):
        self.base = base
        base.mkdir()

    @staticmethod
    def available() -> bool:
        """Whether what it needs is installed."""
        return True

    def start(self) -> None:
        raise NotImplementedError

    def cold(self) -> None:
        """Nothing of the tree is in any cache of a client afterwards, nor in the page cache."""
        raise NotImplementedError

    def stop(self) -> None:
        """Also after a `start()` that went half way."""
        raise NotImplementedError

    def settle(self, roots: Sequence[Path]) -> None:
        """Has the server told what these mounts delay: it belongs to the work."""

    def counts(self, roots: Sequence[Path]) -> dict[str, int]:
        """What the work on these mounts took so far, where that is counted: requests of the kernel to the file system's daemons,
        messages of the daemons to the server."""
        return {}

    def make_mount_points(self, count: int) -> list[Path]:
        mounts = [self.base / f"mount{number}" for number in range(count)]
        for mount in mounts:
            mount.mkdir()
        return mounts


class Local(Target):
    """The local file system itself."""

    name = "local"

    def __init__(self, base: Path):
        super().__init__(base)
        self.roots = [base]

    def start(self) -> None:
        pass

    def cold(self) -> None:
        drop_caches()

    def stop(self) -> None:
        pass


class Passthrough(Target):
    """libfuse's pass-through of the local file system: FUSE without a network and without consistency."""

    name = "passthrough"
    script = PROJECT / "tests/external/passthrough.sh"

    def __init__(self, base: Path):
        super().__init__(base)
        self.source = base / "source"
        self.source.mkdir()
        self.roots = self.make_mount_points(1)

    def start(self) -> None:
        run(self.script, "mount", self.source, self.roots[0])

    def cold(self) -> None:
        self.stop()
        drop_caches()
        self.start()

    def stop(self) -> None:
        if is_mounted(self.roots[0]):
            run(self.script, "umount", self.roots[0])


class SodaServer:
    """A `soda serve` on a port of loopback; the port stays the same when it is started again."""

    def __init__(self, data: Path):
        self.data, self.port = data, free_port()
        self.process: subprocess.Popen | None = None

    def start(self, *options: str) -> None:
        self.process = spawn(
            Soda.program,
            "serve",
            "--data",
            self.data,
            "--listen",
            f"127.0.0.1:{self.port}",
            *options,
            log=self.data.with_suffix(".log"),
        )
        wait_until(lambda: listens(self.port), "soda serve", self.process)

    def mount(self, mount: Path, *options: str) -> None:
        words = [word for option in options for word in ("-o", option)]
        run(Soda.program, "mount", f"127.0.0.1:{self.port}/main", mount, *words)

    def stop(self) -> None:
        if self.process:
            stop_process(self.process)
            self.process = None


class Soda(Target):
    """One server on loopback, mounted several times, as several machines would."""

    name = "soda"
    program = PROJECT / "target/release/soda"
    clients = 8
    serve_options: tuple[str, ...] = ()
    mount_options: tuple[str, ...] = ()
    patience: tuple[str, ...] = ("dirty-age=1h", "digest-size=64M")

    def __init__(self, base: Path):
        super().__init__(base)
        self.server = SodaServer(base / "data")
        self.roots = self.make_mount_points(self.clients)

    def start(self) -> None:
        if not self.program.exists():
            run("cargo", "build", "--release", "--locked", "-p", "soda-cli", cwd=PROJECT)
        self.server.start(*self.serve_options)
        for root in self.roots:
            self.server.mount(root, *self.mount_options)

    def cold(self) -> None:
        self.stop()
        drop_caches()
        self.start()

    def stop(self) -> None:
        try:
            for root in self.roots:
                self.unmount(root)
        finally:
            self.server.stop()

    def unmount(self, root: Path) -> None:
        end = time.monotonic() + 20
        while is_mounted(root):
            try:
                run(self.program, "umount", root)
            except Failed:
                # Whoever lists the machine's mounts, as df does, uses each for a moment.
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def counters(self, root: Path) -> dict[str, int]:
        """What `soda stats` says of one mount."""
        return json.loads(run(self.program, "stats", "--once", "--json", root))[str(root)]

    def settle(self, roots: Sequence[Path]) -> None:
        for root in roots:
            run(self.program, "sync", root)

    def counts(self, roots: Sequence[Path]) -> dict[str, int]:
        each = [self.counters(root) for root in roots]
        return {"requests": sum(counters["kernel_requests"] for counters in each), "messages": sum(map(messages, each))}

    @contextmanager
    def patient_mount(self) -> Iterator[Path]:
        """One more mount, which tells the server nothing before somebody asks, or 60,000 changes wait."""
        mount = self.base / "patient"
        mount.mkdir()
        self.server.mount(mount, *self.mount_options, *self.patience)
        try:
            yield mount
        finally:
            self.unmount(mount)
            mount.rmdir()


def messages(counters: dict[str, int]) -> int:
    """What a mount has sent to its server, of all kinds."""
    return sum(count for name, count in counters.items() if name.startswith("msg_"))


class SodaThrough(Soda):
    """The same without delayed writes."""

    name = "soda-through"
    mount_options = ("write=through",)
    patience = ()


class SodaFollow(Soda):
    """The same with the threads that answer beside who asks."""

    name = "soda-follow"
    mount_options = ("cores=follow",)


class SodaUring(Soda):
    """The same with the kernel's requests over io_uring, where the kernel has that and it is switched on."""

    name = "soda-uring"
    mount_options = ("transport=uring",)
    switch = Path("/sys/module/fuse/parameters/enable_uring")
    why_not = f"is left out: {switch} is not Y (Linux 6.14 and later, as root: echo Y > {switch})"

    @classmethod
    def available(cls) -> bool:
        return cls.switch.exists() and cls.switch.read_text().strip() == "Y"
