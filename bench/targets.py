"""What is measured: file systems that can be started, made cold and stopped.

A target has a name, `roots` (directories on mounts of one and the same tree; several where it is shared), and cold().
Everything it needs is below its own directory.
"""
import os
import shutil
import socket
import subprocess
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROJECT = os.path.dirname(HERE)
QUIET = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run(*command, **kwargs):
    """A command that must succeed; its output is part of the error."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **kwargs)
    if done.returncode:
        raise SystemExit(f"bench/run: {' '.join(command)}: {done.stdout.decode(errors='replace')[-800:]}")
    return done.stdout.decode().strip()


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(port, process):
    for _ in range(400):
        if process.poll() is not None:
            raise SystemExit(f"bench/run: the server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("bench/run: the server does not listen after 20 s")


class Local:
    """The local file system itself."""
    name = "local"
    clients = 1

    def __init__(self, base, _soda):
        self.base = base
        self.roots = [base]
        os.makedirs(base)

    @staticmethod
    def available():
        return True

    def start(self):
        pass

    def cold(self):
        """Nothing of the tree is in any cache afterwards."""
        drop_caches()

    def stop(self):
        pass


class Passthrough(Local):
    """libfuse's pass-through of the local file system: FUSE without a network and without consistency."""
    name = "passthrough"
    script = os.path.join(PROJECT, "tests/external/passthrough.sh")

    def __init__(self, base, soda):
        super().__init__(base, soda)
        self.source, self.mount = os.path.join(base, "source"), os.path.join(base, "mount")
        self.roots = [self.mount]
        os.mkdir(self.source)
        os.mkdir(self.mount)

    def start(self):
        run(self.script, "mount", self.source, self.mount)

    def cold(self):
        self.stop()
        drop_caches()
        self.start()

    def stop(self):
        run(self.script, "umount", self.mount)


class Soda(Local):
    """One server on loopback, mounted several times, as several machines would."""
    name = "soda"
    clients = 4
    options = []

    def __init__(self, base, soda):
        super().__init__(base, soda)
        self.program = soda or os.path.join(PROJECT, "target/release/soda")
        self.server, self.port = None, free_port()
        self.roots = [os.path.join(base, f"mount{number}") for number in range(self.clients)]
        for root in self.roots:
            os.mkdir(root)

    def start(self):
        if not os.path.exists(self.program):
            run("cargo", "build", "--release", "--locked", "-p", "soda-cli", cwd=PROJECT)
        self.start_server()
        for root in self.roots:
            self.mount(root, self.options)

    def start_server(self):
        with open(os.path.join(self.base, "server.log"), "ab") as log:
            command = [self.program, "serve", "--data", os.path.join(self.base, "data"), "--listen", f"127.0.0.1:{self.port}"]
            self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for_port(self.port, self.server)

    def mount(self, root, options):
        arguments = [word for option in options for word in ("-o", option)]
        run(self.program, "mount", f"127.0.0.1:{self.port}/main", root, *arguments)

    def unmount(self, root):
        run(self.program, "umount", root)

    def cold(self):
        for root in self.roots:
            self.unmount(root)
        self.stop_server()
        drop_caches()
        self.start_server()
        for root in self.roots:
            self.mount(root, self.options)

    def stop_server(self):
        if self.server:
            self.server.terminate()
            self.server.wait()
            self.server = None

    def stop(self):
        for root in self.roots:
            if os.path.ismount(root):
                self.unmount(root)
        self.stop_server()


class Sshfs(Local):
    """sshfs with its default caches, to an sshd of its own."""
    name = "sshfs"

    def __init__(self, base, soda):
        super().__init__(base, soda)
        self.source, self.mount, self.port = os.path.join(base, "source"), os.path.join(base, "mount"), free_port()
        self.roots = [self.mount]
        os.mkdir(self.source)
        os.mkdir(self.mount)
        self.server = None

    @staticmethod
    def available():
        return bool(shutil.which("sshfs") and os.path.exists("/usr/sbin/sshd"))

    def start(self):
        host, user = os.path.join(self.base, "host_key"), os.path.join(self.base, "user_key")
        for key in (host, user):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        config = os.path.join(self.base, "sshd_config")
        with open(config, "w") as file:
            file.write(f"ListenAddress 127.0.0.1:{self.port}\nHostKey {host}\nAuthorizedKeysFile {user}.pub\n"
                       "PermitRootLogin yes\nStrictModes no\nPidFile none\nSubsystem sftp internal-sftp\n")
        os.makedirs("/run/sshd", exist_ok=True)
        self.server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", config], **QUIET)
        wait_for_port(self.port, self.server)
        self.connect()

    def connect(self):
        run("sshfs", "-p", str(self.port), "-o", f"IdentityFile={self.base}/user_key", "-o", "StrictHostKeyChecking=no",
            "-o", "UserKnownHostsFile=/dev/null", "-o", "ssh_command=ssh -F none", f"127.0.0.1:{self.source}", self.mount)

    def cold(self):
        run("fusermount3", "-u", self.mount)
        drop_caches()
        self.connect()

    def stop(self):
        if os.path.ismount(self.mount):
            run("fusermount3", "-u", self.mount)
        if self.server:
            self.server.terminate()
            self.server.wait()


class JuiceFs(Local):
    """JuiceFS with its metadata in a Redis that appends to a file, its data in a local directory."""
    name = "juicefs"

    def __init__(self, base, soda):
        super().__init__(base, soda)
        self.mount, self.port = os.path.join(base, "mount"), free_port()
        self.roots = [self.mount]
        os.mkdir(self.mount)
        self.redis = None
        self.url = f"redis://127.0.0.1:{self.port}/1"

    @staticmethod
    def available():
        return bool(shutil.which("juicefs") and shutil.which("redis-server"))

    def start(self):
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--appendonly", "yes", "--dir", self.base]
        self.redis = subprocess.Popen(command, **QUIET)
        wait_for_port(self.port, self.redis)
        run("juicefs", "format", "--storage", "file", "--bucket", self.base + "/bucket/", self.url, "bench")
        self.connect()

    def connect(self):
        run("juicefs", "mount", "-d", "--cache-dir", self.base + "/cache", self.url, self.mount)

    def cold(self):
        run("juicefs", "umount", self.mount)
        shutil.rmtree(self.base + "/cache", ignore_errors=True)
        drop_caches()
        self.connect()

    def stop(self):
        if os.path.ismount(self.mount):
            run("juicefs", "umount", self.mount)
        if self.redis:
            self.redis.terminate()
            self.redis.wait()


class Gluster(Local):
    """GlusterFS, one brick, mounted natively. Needs glusterd and a host name other than that of the loopback."""
    name = "gluster"
    volume = "sodabench"

    def __init__(self, base, soda):
        super().__init__(base, soda)
        self.mount, self.brick = os.path.join(base, "mount"), os.path.join(base, "brick")
        self.roots = [self.mount]
        os.mkdir(self.mount)
        self.host = socket.gethostname()

    @staticmethod
    def available():
        running = subprocess.run(["pgrep", "-x", "glusterd"], **QUIET).returncode == 0 if shutil.which("glusterd") else False
        return running

    def start(self):
        gluster = ["gluster", "--mode=script", "volume"]
        run(*gluster, "create", self.volume, f"{self.host}:{self.brick}", "force")
        run(*gluster, "start", self.volume)
        self.connect()

    def connect(self):
        run("glusterfs", f"--volfile-server={self.host}", f"--volfile-id={self.volume}", self.mount)

    def cold(self):
        run("umount", self.mount)
        drop_caches()
        self.connect()

    def stop(self):
        if os.path.ismount(self.mount):
            run("umount", self.mount)
        for verb in ("stop", "delete"):
            run("gluster", "--mode=script", "volume", verb, self.volume)


PEERS = ["sshfs", "juicefs", "gluster"]
ALL = {target.name: target for target in (Local, Passthrough, Soda, Sshfs, JuiceFs, Gluster)}
