"""The workloads. Each phase prepares its files on a target, measures, and takes them away again."""
import json
import multiprocessing
import os
import random
import shutil
import statistics
import struct
import threading
import time
from dataclasses import dataclass

from targets import PROJECT, run

MIB = 1 << 20
now = time.perf_counter


@dataclass(frozen=True)
class Kind:
    """What a figure is: its name, unit, and whether more of it is better."""
    name: str
    unit: str
    better: str = "higher"


@dataclass(frozen=True)
class Sizes:
    sequential_mib: int
    cached_mib: int
    small_files: int
    fio_seconds: float
    synced_creates: int
    trips: int

    @staticmethod
    def full():
        return Sizes(1024, 256, 5000, 3, 200, 500)

    @staticmethod
    def smoke():
        return Sizes(32, 8, 200, 0.5, 20, 50)


class Phase:
    slow = False

    def rounds(self, wanted):
        return wanted

    def applies(self, _target):
        return True

    def run(self, target, sizes):
        """{Kind: value}. Leaves nothing behind."""
        base = os.path.join(target.roots[0], "bench")
        os.mkdir(base)
        try:
            os.sync()
            return self.measure(target, base, sizes)
        finally:
            # The target may have been remounted meanwhile: by path.
            shutil.rmtree(base)


def write_file(path, mib):
    """`mib` blocks of 1 MiB, each with its number in front; synced."""
    block = bytearray(os.urandom(MIB))
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    for number in range(mib):
        struct.pack_into("<Q", block, 0, number)
        view = memoryview(block)
        while view:
            view = view[os.write(fd, view):]
    os.fsync(fd)
    os.close(fd)


def read_file(path, mib):
    """Reads it from end to end and checks the number of every block. Seconds."""
    buffer = bytearray(MIB)
    start = now()
    fd = os.open(path, os.O_RDONLY)
    for number in range(mib):
        got = 0
        while got < MIB:
            count = os.readv(fd, [memoryview(buffer)[got:]])
            if not count:
                raise SystemExit(f"bench/run: {path} is too short")
            got += count
        if struct.unpack_from("<Q", buffer)[0] != number:
            raise SystemExit(f"bench/run: {path}: wrong data in block {number}")
    os.close(fd)
    return now() - start


def megabytes(mib, seconds):
    return mib * MIB / 1e6 / seconds


class Sequential(Phase):
    """1 GiB written in 1 MiB pieces with fsync in the end; read with everything cold."""
    WRITE, READ = Kind("seq write", "MB/s"), Kind("seq read cold", "MB/s")

    def rounds(self, wanted):
        return min(wanted, 3)

    def measure(self, target, base, sizes):
        path = os.path.join(base, "file")
        start = now()
        write_file(path, sizes.sequential_mib)
        written = now() - start
        target.cold()
        read = read_file(path, sizes.sequential_mib)
        return {self.WRITE: megabytes(sizes.sequential_mib, written), self.READ: megabytes(sizes.sequential_mib, read)}


class Cached(Phase):
    """A file that was just read: read again from end to end, and at random with fio."""
    REREAD, RANDOM = Kind("warm re-read", "MB/s"), Kind("random 4K read", "/s")

    def measure(self, target, base, sizes):
        path = os.path.join(base, "file")
        write_file(path, sizes.cached_mib)
        for _ in range(2):
            read_file(path, sizes.cached_mib)
        reread = statistics.median(read_file(path, sizes.cached_mib) for _ in range(5))
        output = run("fio", "--output-format=json", "--name=random", "--ioengine=psync", "--rw=randread", "--bs=4k",
                     "--invalidate=0", f"--filename={path}", f"--size={sizes.cached_mib}m", "--time_based",
                     f"--runtime={sizes.fio_seconds}", cwd="/")
        iops = json.loads(output[output.index("{"):])["jobs"][0]["read"]["iops"]
        return {self.REREAD: megabytes(sizes.cached_mib, reread), self.RANDOM: iops}


def create(directory, count, content, sync=False, first=0):
    for number in range(first, first + count):
        fd = os.open(f"{directory}/file{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(fd, content)
        if sync:
            os.fsync(fd)
        os.close(fd)


def rate(count, work):
    start = now()
    work()
    return count / (now() - start)


class Small(Phase):
    """4 KiB files in directories of 100: made, looked at, read, removed, all by one thread."""
    CREATE, STAT, READ = Kind("create", "/s"), Kind("stat", "/s"), Kind("small read", "/s")
    LIST, UNLINK = Kind("readdir names", "/s"), Kind("unlink", "/s")

    def measure(self, target, base, sizes):
        count, content = sizes.small_files, os.urandom(4096)
        directories = [f"{base}/dir{number}" for number in range(count // 100)]
        for directory in directories:
            os.mkdir(directory)
        paths = [f"{directory}/file{number}" for directory in directories for number in range(100)]

        def create_all():
            for directory in directories:
                create(directory, 100, content)

        def stat_all():
            for path in paths:
                os.stat(path)

        def read_all():
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                data = os.read(fd, 8192)
                os.close(fd)
                assert len(data) == 4096

        def list_all():
            assert sum(len(os.listdir(directory)) for directory in directories) == count

        def unlink_all():
            for path in paths:
                os.unlink(path)

        figures = {self.CREATE: rate(count, create_all)}
        os.sync()
        for warm_up in (list_all, stat_all, read_all):
            warm_up()
        figures[self.STAT] = statistics.median(rate(count, stat_all) for _ in range(5))
        figures[self.READ] = statistics.median(rate(count, read_all) for _ in range(3))
        figures[self.LIST] = statistics.median(rate(count, list_all) for _ in range(3))
        figures[self.UNLINK] = rate(count, unlink_all)
        return figures


class Clients(Phase):
    """Creates by 2 and 4 clients at once, each in its own directory; on a shared file system each on its own mount."""
    KINDS = {clients: Kind(f"create, {clients} clients", "/s") for clients in (2, 4)}

    def measure(self, target, base, sizes):
        figures = {}
        each = sizes.small_files // 2
        for clients, kind in self.KINDS.items():
            directories = []
            for number in range(clients):
                root = target.roots[number % len(target.roots)]
                directories.append(os.path.join(root, "bench", f"client{clients}.{number}"))
                os.mkdir(directories[-1])
            barrier = multiprocessing.Barrier(clients + 1)
            workers = [multiprocessing.Process(target=create_at_once, args=(directory, each, barrier))
                       for directory in directories]
            for worker in workers:
                worker.start()
            barrier.wait()
            start = now()
            for worker in workers:
                worker.join()
            if any(worker.exitcode for worker in workers):
                raise SystemExit(f"bench/run: a client failed on {target.name}")
            figures[kind] = clients * each / (now() - start)
        return figures


def create_at_once(directory, count, barrier):
    content = os.urandom(4096)
    barrier.wait()
    create(directory, count, content)


class Synced(Phase):
    """Files of 4 KiB that are made, written and fsync'ed, by one thread and by eight (group commit)."""
    ONE, EIGHT = Kind("fsync creates", "/s"), Kind("fsync creates, 8 threads", "/s")

    def measure(self, target, base, sizes):
        content, count = os.urandom(4096), sizes.synced_creates
        figures = {self.ONE: rate(count, lambda: create(base, count, content, sync=True))}
        threads = [threading.Thread(target=create, args=(base, count, content, True, number * count))
                   for number in range(1, 9)]

        def all_threads():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        figures[self.EIGHT] = rate(8 * count, all_threads)
        return figures


class Recall(Phase):
    """A 4 KiB write on one mount to a file that another has cached, and the other's next read."""
    WRITE = Kind("recall", "us", better="lower")
    ALONE, READ = Kind("write, nobody else", "us", better="lower"), Kind("read after recall", "us", better="lower")

    def applies(self, target):
        return len(target.roots) > 1

    def measure(self, target, base, sizes):
        path, block = os.path.join(base, "file"), os.urandom(4096)
        other_path = os.path.join(target.roots[1], "bench", "file")
        with open(path, "wb") as file:
            file.write(block)
        writer, reader = os.open(path, os.O_WRONLY), os.open(other_path, os.O_RDONLY)
        alone, writes, reads = [], [], []
        for _ in range(sizes.trips):
            start = now()
            os.pwrite(writer, block, 0)
            alone.append(now() - start)
        for number in range(sizes.trips):
            stamp = struct.pack("<Q", number) + block[8:]
            os.pread(reader, 4096, 0)
            start = now()
            os.pwrite(writer, stamp, 0)
            written = now()
            seen = os.pread(reader, 4096, 0)
            reads.append(now() - written)
            writes.append(written - start)
            if seen != stamp:
                raise SystemExit(f"bench/run: a stale read on {target.name}")
        os.close(writer)
        os.close(reader)
        return {self.WRITE: statistics.median(writes) * 1e6, self.ALONE: statistics.median(alone) * 1e6,
                self.READ: statistics.median(reads) * 1e6}


class CacheAndServer(Phase):
    """The SODA paper's measure: 1 KiB read from the client's cache over 1 KiB read from the server. Places far apart, so
    that nothing read ahead helps."""
    RATIO, SERVER = Kind("cache over server", "x"), Kind("1 KiB read from server", "us", better="lower")
    STRIDE = 4 * MIB

    def rounds(self, wanted):
        return min(wanted, 3)

    def applies(self, target):
        return target.name not in ("local", "passthrough")

    def measure(self, target, base, sizes):
        path, places = os.path.join(base, "file"), max(8, sizes.sequential_mib * MIB // self.STRIDE)
        with open(path, "wb") as file:
            for place in range(places):
                file.seek(place * self.STRIDE)
                file.write(os.urandom(4096))
            os.fsync(file.fileno())
        target.cold()
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        order = list(range(places))
        random.Random(1).shuffle(order)
        times = []
        for _ in range(3):
            samples = []
            for place in order:
                start = now()
                os.pread(fd, 1024, place * self.STRIDE)
                samples.append(now() - start)
            times.append(statistics.median(samples))
        os.close(fd)
        return {self.RATIO: times[0] / min(times[1:]), self.SERVER: times[0] * 1e6}


class LeasesOnAndOff(Phase):
    """Files read for the first time by a client with leases and by one without (NFS-like time-outs): what keeping
    the promise costs the server. Above 1: leases are faster."""
    RATIO = Kind("leases off over on", "x")

    def applies(self, target):
        return target.name == "soda"

    def measure(self, target, base, sizes):
        count, content = min(sizes.small_files, 2000), os.urandom(1024)
        create(base, count, content)
        root = target.roots[-1]
        target.unmount(root)
        times = {"on": [], "off": []}
        try:
            # Pairs, the order changing: on off, off on, ...
            for name in ["on", "off", "off", "on"] * 2:
                target.mount(root, [] if name == "on" else ["consistency=ttl=1"])
                directory = os.path.join(root, "bench")
                os.listdir(directory)
                start = now()
                for number in range(count):
                    fd = os.open(f"{directory}/file{number}", os.O_RDONLY)
                    os.read(fd, 1024)
                    os.close(fd)
                times[name].append(now() - start)
                target.unmount(root)
        finally:
            target.mount(root, target.options)
        return {self.RATIO: statistics.median(times["off"]) / statistics.median(times["on"])}


class Openssh(Phase):
    """Real software: Debian's source of openssh unpacked, configured and built."""
    UNPACK, CONFIGURE = Kind("ssh unpack", "s", better="lower"), Kind("ssh configure", "s", better="lower")
    BUILD = Kind("ssh build", "s", better="lower")
    slow = True
    archive = None

    def rounds(self, _wanted):
        return 1

    def measure(self, target, base, sizes):
        def seconds(command, directory):
            start = now()
            run("sh", "-c", command, cwd=directory)
            return now() - start

        with open(Openssh.archive, "rb") as file:
            file.read()
        unpack = seconds(f"tar xzf {Openssh.archive} --no-same-owner", base)
        source = os.path.join(base, os.listdir(base)[0])
        configure = seconds("./configure CFLAGS=-O0 --without-hardening --without-stackprotect --without-pam "
                            "--without-selinux --disable-pkcs11 --disable-security-key --prefix=/tmp/none", source)
        return {self.UNPACK: unpack, self.CONFIGURE: configure, self.BUILD: seconds("make -j2 ssh", source)}


class Git(Phase):
    """A clone of openssh's tree as one commit, from the local disk; then `git status`, warm."""
    CLONE, STATUS = Kind("git clone", "s", better="lower"), Kind("git status", "s", better="lower")
    slow = True
    repository = None

    def rounds(self, wanted):
        return min(wanted, 3)

    def measure(self, target, base, sizes):
        start = now()
        run("git", "clone", "-q", "--no-hardlinks", Git.repository, "clone", cwd=base)
        clone, times = now() - start, []
        for _ in range(6):
            start = now()
            run("git", "status", "--porcelain", cwd=os.path.join(base, "clone"))
            times.append(now() - start)
        return {self.CLONE: clone, self.STATUS: statistics.median(times[1:])}


ALL = {
    "seq": Sequential(), "cached": Cached(), "small": Small(), "clients": Clients(), "synced": Synced(),
    "recall": Recall(), "cache": CacheAndServer(), "leases": LeasesOnAndOff(), "ssh": Openssh(), "git": Git(),
}
SLOW = [name for name, phase in ALL.items() if phase.slow]


def install(chosen):
    """What the chosen phases need of the machine: packages, sources."""
    library = os.path.join(PROJECT, "tests/external/lib.sh")

    def shell(command):
        return run("bash", "-c", f". {library}; {command}")

    shell("install_packages fio python3 git >&2")
    if {"ssh", "git"} & set(chosen):
        shell("install_packages gcc make libc6-dev zlib1g-dev libssl-dev >&2")
        directory = shell("debian_source openssh").splitlines()[-1]
        [archive] = [name for name in os.listdir(directory) if name.endswith(".orig.tar.gz")]
        Openssh.archive = os.path.join(directory, archive)
        Git.repository = os.path.join(directory, "repository")
        if not os.path.isdir(Git.repository):
            work = Git.repository + ".new"
            shutil.rmtree(work, ignore_errors=True)
            os.mkdir(work)
            run("sh", "-c", f"tar xzf {Openssh.archive} --no-same-owner && cd openssh-* && git init -q && git add -A && "
                "git -c user.name=b -c user.email=b@localhost commit -q -m import && "
                f"git clone -q --bare . {Git.repository}", cwd=work)
            shutil.rmtree(work)
