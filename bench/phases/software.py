"""Real software: unpacked, built, copied, kept in git. All inputs are on the local disk and in the page cache; what is made is
new, so warm where it is used again, unless a figure says that it is cold."""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from phases.base import Counted, Kind, Measured, Phase, Sizes, now
from targets import Target, run, shell


def source(package: str) -> Path:
    """The archive of Debian's source of a package; fetched once."""
    directory = Path(shell(f"debian_source {package}").splitlines()[-1])
    [archive] = [path for path in directory.iterdir() if ".orig.tar." in path.name and path.suffix != ".asc"]
    return archive


def seconds(work: Callable[[], object]) -> float:
    start = now()
    work()
    return now() - start


class Openssh(Phase):
    """Debian's source of openssh unpacked, configured and built."""

    UNPACK, CONFIGURE = Kind("ssh unpack", "s", better="lower"), Kind("ssh configure", "s", better="lower")
    BUILD, ALL = Kind("ssh build", "s", better="lower"), Kind("ssh all three", "s", better="lower")
    tree = Kind("entries of the built openssh", "stale")
    CONFIGURE_COMMAND = (
        "./configure CFLAGS=-O0 --without-hardening --without-stackprotect --without-pam --without-selinux "
        "--disable-pkcs11 --disable-security-key --prefix=/tmp/none"
    ).split()

    def prepare(self) -> None:
        shell("install_packages gcc make libc6-dev zlib1g-dev libssl-dev >&2")
        self.archive = source("openssh")

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        self.archive.read_bytes()
        with Counted(target) as counted:
            unpack = seconds(lambda: run("tar", "xf", self.archive, "--no-same-owner", cwd=base))
            [tree] = base.iterdir()
            configure = seconds(lambda: run(*self.CONFIGURE_COMMAND, cwd=tree))
            build = seconds(lambda: run("make", "-j2", "ssh", cwd=tree))
        figures: Measured = {self.UNPACK: unpack, self.CONFIGURE: configure, self.BUILD: build}
        return {**figures, self.ALL: unpack + configure + build, **counted.per("openssh")}


class Andrew(Phase):
    """The phases of the Andrew benchmark on zlib's source tree, which is on the target itself."""

    MAKE_DIR, COPY = Kind("andrew MakeDir", "s", better="lower"), Kind("andrew Copy", "s", better="lower")
    SCAN_DIR, READ_ALL = (
        Kind("warm andrew ScanDir", "s", better="lower"),
        Kind("warm andrew ReadAll", "s", better="lower"),
    )
    MAKE = Kind("andrew Make", "s", better="lower")
    tree = Kind("entries of andrew's trees", "stale")
    most_rounds = 3

    def prepare(self) -> None:
        shell("install_packages gcc make libc6-dev bzip2 xz-utils >&2")
        self.archive = source("zlib")

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        run("tar", "xf", self.archive, "--no-same-owner", cwd=base)
        [original] = base.iterdir()
        copy = base / "copy"
        tree = [(Path(directory).relative_to(original), files) for directory, _, files in os.walk(original)]

        def make_dirs() -> None:
            for directory, _ in tree:
                (copy / directory).mkdir()

        def copy_files() -> None:
            for directory, files in tree:
                for name in files:
                    shutil.copy2(original / directory / name, copy / directory / name)

        def scan() -> None:
            for directory, _, files in os.walk(copy):
                for name in files:
                    os.lstat(f"{directory}/{name}")

        def read_all() -> None:
            for directory, _, files in os.walk(copy):
                for name in files:
                    Path(directory, name).read_bytes()

        def build() -> None:
            run("./configure", "--static", cwd=copy, env={**os.environ, "CFLAGS": "-O0"})
            run("make", "-j2", "libz.a", "example", "minigzip", cwd=copy)

        steps = {
            self.MAKE_DIR: make_dirs,
            self.COPY: copy_files,
            self.SCAN_DIR: scan,
            self.READ_ALL: read_all,
            self.MAKE: build,
        }
        with Counted(target) as counted:
            figures: Measured = {kind: seconds(step) for kind, step in steps.items()}
        return {**figures, **counted.per("andrew")}


class Git(Phase):
    """A clone of openssh's tree as one commit, from the local disk; `git status`, warm, and `git gc`; `git status` cold."""

    CLONE, STATUS = Kind("git clone", "s", better="lower"), Kind("warm git status", "s", better="lower")
    GC, COLD_STATUS = Kind("git gc", "s", better="lower"), Kind("cold git status", "s", better="lower")
    tree = Kind("entries of the clone", "stale")
    most_rounds = 3
    TIMES = 5

    def prepare(self) -> None:
        shell("install_packages git >&2")
        archive = source("openssh")
        self.repository = archive.parent / "repository"
        if self.repository.is_dir():
            return
        work = archive.parent / "repository.new"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        run("tar", "xf", archive, "--no-same-owner", cwd=work)
        [tree] = work.iterdir()
        run("git", "init", "-q", cwd=tree)
        run("git", "add", "-A", cwd=tree)
        run(
            "git",
            "-c",
            "user.name=b",
            "-c",
            "user.email=b@localhost",
            "commit",
            "-q",
            "-m",
            "import",
            cwd=tree,
        )
        run("git", "clone", "-q", "--bare", ".", self.repository, cwd=tree)
        shutil.rmtree(work)

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        # Of its own objects, not in links to the original's.
        with Counted(target) as counted:
            clone = seconds(
                lambda: run("git", "clone", "-q", "--no-hardlinks", self.repository, "clone", cwd=base)
            )
        tree = base / "clone"
        # git reads each file that is of the same second as its index, every time.
        time.sleep(1.1)

        def status() -> float:
            return seconds(lambda: run("git", "status", "--porcelain", cwd=tree))

        status()
        with Counted(target) as counted_status:
            warm = [status() for _ in range(self.TIMES)]
        collect = seconds(lambda: run("git", "-c", "gc.auto=0", "gc", "-q", cwd=tree))
        self.make_cold(target)
        figures: Measured = {self.CLONE: clone, self.STATUS: statistics.median(warm), self.GC: collect}
        figures[self.COLD_STATUS] = status()
        return {**figures, **counted.per("git clone"), **counted_status.per("warm git status", self.TIMES)}


class Npm(Phase):
    """`npm ci` of a package and the 85 that it needs, from npm's own cache on the local disk."""

    INSTALL = Kind("npm ci", "s", better="lower")
    tree = Kind("entries of node_modules", "stale")
    most_rounds = 3
    PACKAGE = "eslint@9.15.0"

    def prepare(self) -> None:
        shell("command -v npm >/dev/null || install_packages npm >&2")
        self.project = Path(shell('echo "$SODA_EXTERNAL_CACHE"').splitlines()[-1]) / "npm"
        if not (self.project / "package-lock.json").is_file():
            new = self.project.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(parents=True)
            (new / "package.json").write_text('{"name": "bench", "private": true}')
            run("npm", "install", "--cache", new / "cache", *self.QUIETLY, self.PACKAGE, cwd=new)
            shutil.rmtree(new / "node_modules")
            new.rename(self.project)

    QUIETLY = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", "--omit-lockfile-registry-resolved=false"]

    def measure(self, target: Target, base: Path, sizes: Sizes) -> Measured:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(self.project / name, base / name)
        command = ["npm", "ci", "--offline", "--cache", self.project / "cache", *self.QUIETLY]
        with Counted(target) as counted:
            install = seconds(lambda: run(*command, cwd=base))
        return {self.INSTALL: install, **counted.per("npm ci")}
