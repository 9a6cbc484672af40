#!/usr/bin/env python3
"""Two mounts of one volume, A and B: what docs/SEMANTICS.md promises, numbers as there.

    semantics.py A B [TEST...]
"""

import ctypes
import errno
import fcntl
import itertools
import mmap
import multiprocessing
import os
import random
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOTS = [os.path.join(os.path.abspath(root), f"semantics.{os.getpid()}") for root in sys.argv[1:3]]
A, B = ROOTS
TESTS = []
# Descriptors opened for reading and writing go through the page cache there: see "What is not there".
KERNEL = tuple(int(part) for part in os.environ.get("SODA_FUSE_PRETEND", os.uname().release).split("-")[0].split(".")[:2])
OLD_KERNEL = KERNEL < (6, 6)
# Seconds after which a test says how long it took.
SLOW = 5
LIBC = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE, INSERT = 1, 2, 8, 16, 32
FICLONE, FS_IOC_GETVERSION = 0x40049409, 0x80087601
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x80086601, 0x40086602, 0x801C581F, 0x401C5820
NOBODY = 65534


def test(function):
    TESTS.append(function)
    return function


def same(seen, expected, what=""):
    assert seen == expected, f"{what}: expected {expected!r}, saw {seen!r}"


def errno_of(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return None


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "")


def rename2(old, new, flags):
    checked(LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags))


def allocate(fd, mode, offset, length):
    checked(LIBC.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


def allocating(mode):
    """Does that to the file of a name."""
    def work(name):
        with open(name, "r+b") as file:
            allocate(file.fileno(), mode, 0, 4096)
    return work


def copying(name):
    """Copies from the file `source` beside it."""
    with open(f"{os.path.dirname(name)}/source", "rb") as source, open(name, "r+b") as file:
        os.copy_file_range(source.fileno(), file.fileno(), 3)


def as_nobody():
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def in_child(work):
    """Exit code of a process that runs `work`; 99 if it threw."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return child


def wait(child, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("a process hangs")


def eventually(condition, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def wait_until_blocked(child, about_to):
    """The child has said on the pipe `about_to` that its next call is the one that waits, and sleeps in it."""
    same(os.read(about_to, 1), b".", "the child does not get there")

    def sleeps():
        with open(f"/proc/{child}/stat") as stat:
            return stat.read().rpartition(") ")[2][0] in "SD"
    eventually(sleeps, "the child does not wait")
    # From its machine to the server: the only step that cannot be seen from here.
    time.sleep(0.5)


def see_writes(start_writing, read, writes=40, seconds=60):
    """Another process writes, the byte 0 first, then 1 and so on, until `read` has returned that many of these bytes."""
    enough = multiprocessing.Event()

    def write_on():
        write = start_writing()
        for number in itertools.count():
            if enough.is_set():
                return
            write(number % 251)

    writer, seen, deadline = in_child(write_on), set(), time.monotonic() + seconds
    try:
        while len(seen) < writes:
            assert time.monotonic() < deadline, f"only {seen} seen"
            seen.add(read())
    finally:
        enough.set()
        written = wait(writer)
    same(written, 0, "the writer")


# SEMANTICS 6
@test
def whole_writes():
    """A machine writes a mebibyte of one byte after the other; what another one reads is never of two."""
    size, page = 1 << 20, mmap.PAGESIZE
    # Aligned memory: a mebibyte that begins in the middle of a page has a page too many for one request of the kernel.
    buffer = mmap.mmap(-1, size)
    with open(f"{A}/whole", "wb") as file:
        file.write(bytes(size))

    def start_writing():
        fd, source = os.open(f"{A}/whole", os.O_RDWR), mmap.mmap(-1, size)

        def write(byte):
            source[:] = bytes([byte]) * size
            same(os.pwritev(fd, [source], 0), size)
        return write

    whole, cached = os.open(f"{B}/whole", os.O_RDWR), os.open(f"{B}/whole", os.O_RDONLY)

    def read():
        same(os.preadv(whole, [buffer], 0), size)
        first = buffer[0]
        if not OLD_KERNEL:
            same(buffer[:].count(first), size, "bytes of one write")
        same(os.preadv(cached, [buffer], 0), size)
        pages = [buffer[at:at + page] for at in range(0, size, page)]
        same([len(set(of)) for of in pages], [1] * len(pages), "writes in each page")
        return first

    see_writes(start_writing, read)


# SEMANTICS 6
@test
def whole_writes_from_anywhere():
    """Memory that begins in the middle of a page: a mebibyte less a page is whole still."""
    page = mmap.PAGESIZE
    size = (1 << 20) - page
    with open(f"{A}/anywhere", "wb") as file:
        file.write(bytes(size))

    def start_writing():
        fd, source = os.open(f"{A}/anywhere", os.O_WRONLY), memoryview(mmap.mmap(-1, size + page))[100:100 + size]

        def write(byte):
            source[:] = bytes([byte]) * size
            same(os.pwritev(fd, [source], 0), size)
        return write

    fd, buffer = os.open(f"{B}/anywhere", os.O_RDWR), memoryview(mmap.mmap(-1, size + page))[100:100 + size]

    def read():
        same(os.preadv(fd, [buffer], 0), size)
        if not OLD_KERNEL:
            same(bytes(buffer).count(buffer[0]), size, "bytes of one write")
        return buffer[0]

    see_writes(start_writing, read)


def race(attempt, rounds=150):
    """How many of two machines that do `attempt(root, round)` at the same time succeed, for each round."""
    barrier = multiprocessing.Barrier(2)
    wins = multiprocessing.Array("i", 2 * rounds)

    def contend(machine):
        for number in range(rounds):
            barrier.wait(20)
            failure = errno_of(attempt, ROOTS[machine], machine, number)
            assert failure in (None, "EEXIST"), failure
            wins[2 * number + machine] = failure is None

    children = [in_child(lambda machine=machine: contend(machine)) for machine in (0, 1)]
    same([wait(child, 60) for child in children], [0, 0])
    return [wins[2 * number] + wins[2 * number + 1] for number in range(rounds)]


# SEMANTICS 8
@test
def one_winner():
    for machine, number in itertools.product((0, 1), range(150)):
        open(f"{A}/source{machine}.{number}", "w").close()
    attempts = {
        "O_EXCL": lambda root, _, n: os.close(os.open(f"{root}/excl{n}", os.O_CREAT | os.O_EXCL | os.O_RDWR)),
        "mkdir": lambda root, _, n: os.mkdir(f"{root}/dir{n}"),
        "symlink": lambda root, _, n: os.symlink("target", f"{root}/symlink{n}"),
        "mknod": lambda root, _, n: os.mkfifo(f"{root}/fifo{n}"),
        "link": lambda root, of, n: os.link(f"{root}/source{of}.{n}", f"{root}/link{n}"),
        "NOREPLACE": lambda root, of, n: rename2(f"{root}/source{of}.{n}", f"{root}/renamed{n}", NOREPLACE),
    }
    for name, attempt in attempts.items():
        same(race(attempt), [1] * 150, name)


# SEMANTICS 4, 9
@test
def renames():
    with open(f"{A}/one", "w") as one, open(f"{A}/two", "w") as two:
        one.write("1")
        two.write("2")
    same(errno_of(rename2, f"{B}/one", f"{B}/two", NOREPLACE), "EEXIST")
    rename2(f"{A}/one", f"{A}/two", EXCHANGE)
    same((open(f"{B}/one").read(), open(f"{B}/two").read()), ("2", "1"), "exchanged")
    os.mkdir(f"{A}/dir")
    rename2(f"{B}/dir", f"{B}/one", EXCHANGE)
    same((os.path.isdir(f"{A}/one"), open(f"{A}/dir").read()), (True, "2"), "a file with a directory")
    rename2(f"{B}/dir", f"{B}/one", EXCHANGE)
    os.rename(f"{A}/one", f"{A}/two")
    same(open(f"{B}/two").read(), "2", "rename replaces")
    rename2(f"{A}/two", f"{A}/away", WHITEOUT)
    left = os.lstat(f"{B}/two")
    same((stat.S_IFMT(left.st_mode), left.st_rdev), (stat.S_IFCHR, 0), "a whiteout stays")
    same(errno_of(rename2, f"{B}/two", f"{B}/away", WHITEOUT | NOREPLACE), "EEXIST")
    same(errno_of(rename2, f"{B}/two", f"{B}/away", WHITEOUT | EXCHANGE), "EINVAL")
    os.unlink(f"{B}/two")
    os.rename(f"{B}/away", f"{B}/two")
    same(os.path.exists(f"{B}/one"), False, "the old name")


# SEMANTICS 9
@test
def a_name_that_is_replaced_is_always_there():
    # More than one page of a listing: while the second is asked for the names of the first may be dropped.
    for number in range(1100):
        open(f"{A}/beside {number}", "w").close()
    open(f"{A}/always", "w").close()
    open(f"{A}/always too", "w").close()

    def replace():
        number = 0
        while number < 200 or not os.path.exists(f"{A}/enough"):
            number += 1
            with open(f"{A}/next", "w") as file:
                file.write(str(number))
            os.rename(f"{A}/next", f"{A}/always")
            rename2(f"{A}/always", f"{A}/always too", EXCHANGE)

    replacing, looks, ended = in_child(replace), 0, (0, 0)
    while ended == (0, 0):
        for root, name in itertools.product(ROOTS, ("always", "always too")):
            # ESTALE: replaced twice in the middle of the call, see "What is not there".
            for call in (os.stat, lambda name: os.close(os.open(name, os.O_RDONLY))):
                assert errno_of(call, f"{root}/{name}") in (None, "ESTALE"), "the name is not there"
            looks += 1
        if looks == 200:
            open(f"{A}/enough", "w").close()
        ended = os.waitpid(replacing, os.WNOHANG)
    same(ended[1], 0, "the one who replaces")


# SEMANTICS 12
@test
def the_longest_names():
    """Names of 255 bytes, none of them text, through every call that takes a name; each step on the other machine."""
    here, there = os.fsencode(A), os.fsencode(B)
    every = bytes(byte for byte in range(1, 256) if byte != ord("/"))
    first, second, third = every + b"1", every[::-1] + b"2", b"\xff\xfe" * 127 + b"3"
    same({len(first), len(second), len(third)}, {255})
    directory = b"/" + bytes(reversed(range(128, 256))) + b"d" * 127
    same(len(directory), 256)
    here, there = here + directory, there + directory
    os.mkdir(here)
    path = lambda root, name: root + b"/" + name
    with open(path(here, first), "wb") as file:
        file.write(b"content")
    same(os.listdir(there), [first])
    same(open(path(there, first), "rb").read(), b"content")
    os.link(path(there, first), path(there, second))
    same((os.stat(path(here, second)).st_nlink, set(os.listdir(here))), (2, {first, second}))
    os.unlink(path(here, first))
    same(errno_of(os.stat, path(there, first)), "ENOENT")
    os.rename(path(there, second), path(there, third))
    same((os.listdir(here), os.stat(path(here, third)).st_size), ([third], 7))
    os.symlink(third, path(here, first))
    same((os.readlink(path(there, first)), open(path(there, first), "rb").read()), (third, b"content"))
    rename2(path(there, first), path(there, third), EXCHANGE)
    same((os.readlink(path(here, third)), os.stat(path(here, first)).st_nlink), (third, 1))
    os.truncate(path(here, first), 3)
    os.chmod(path(there, first), 0o604)
    same((os.stat(path(there, first)).st_size, stat.S_IMODE(os.stat(path(here, first)).st_mode)), (3, 0o604))
    attribute = b"user." + bytes(range(128, 256)) + b"a" * 122
    same(len(attribute), 255)
    os.setxattr(path(here, first), attribute, b"value")
    same((os.listxattr(path(there, first)), os.getxattr(path(there, first), attribute)),
         ([os.fsdecode(attribute)], b"value"))
    os.mkdir(path(there, second))
    os.mkfifo(path(here, second) + b"/" + third)
    os.unlink(path(there, second) + b"/" + third)
    os.rmdir(path(here, second))
    os.unlink(path(here, first))
    os.unlink(path(there, third))
    same((os.listdir(here), os.listdir(there)), ([], []))
    longer = path(here, first + b"x")
    for call in (os.stat, os.unlink, os.mkdir, os.rmdir, os.readlink, lambda name: os.rename(here, name)):
        same(errno_of(call, longer), "ENAMETOOLONG", call)
    os.rmdir(there)
    target = "t" * 4095
    os.symlink(target, f"{A}/longest link")
    same(os.readlink(f"{B}/longest link"), target, "target")
    same(errno_of(os.symlink, target + "t", f"{A}/too long"), "ENAMETOOLONG")
    same(errno_of(os.symlink, "", f"{A}/no target"), "ENOENT")


# SEMANTICS 11
@test
def listings():
    """Names that stay are listed once each while others come and go on the other machine; rewinding shows what is new."""
    os.mkdir(f"{A}/list")
    stay = {f"stays {number}" for number in range(400)}
    for name in stay:
        open(f"{A}/list/{name}", "w").close()

    def come_and_go():
        for number in range(120):
            open(f"{B}/list/passes {number}", "w").close()
            os.rename(f"{B}/list/passes {number}", f"{B}/list/passed {number}")
            os.unlink(f"{B}/list/passed {number}")

    changing, listings = in_child(come_and_go), 0
    passing = {f"{what} {number}" for what in ("passes", "passed") for number in range(120)}
    while os.waitpid(changing, os.WNOHANG) == (0, 0):
        seen = os.listdir(f"{A}/list")
        same(sorted(name for name in seen if name in stay), sorted(stay), "names that stay")
        same(set(seen) - stay - passing, set(), "names that never were")
        listings += 1
    assert listings > 2, listings
    fd = os.open(f"{A}/list", os.O_RDONLY)
    same(set(os.listdir(fd)), stay)
    os.unlink(f"{B}/list/stays 7")
    open(f"{B}/list/new", "w").close()
    same(set(os.listdir(fd)), stay - {"stays 7"} | {"new"}, "after rewinddir")
    shutil.rmtree(f"{B}/list")


# SEMANTICS 11
@test
def listings_kept_by_the_kernel():
    """What another machine has changed shows although the time of modification is as before, which Linux goes by."""
    os.mkdir(f"{A}/kept")
    open(f"{A}/kept/old", "w").close()
    was = os.stat(f"{A}/kept")
    fd = os.open(f"{A}/kept", os.O_RDONLY)
    for number in range(20):
        name = f"{B}/kept/{number}"
        for _ in range(3):
            same(os.listdir(fd), os.listdir(f"{A}/kept"))
        open(name, "w").close()
        os.utime(f"{B}/kept", ns=(was.st_atime_ns, was.st_mtime_ns))
        same(sorted(os.listdir(fd)), sorted(["old", str(number)]), "made")
        same(sorted(os.listdir(f"{A}/kept")), sorted(["old", str(number)]), "made")
        os.unlink(name)
        os.utime(f"{B}/kept", ns=(was.st_atime_ns, was.st_mtime_ns))
        same((os.listdir(fd), os.listdir(f"{A}/kept")), (["old"], ["old"]), "removed")
    os.close(fd)
    shutil.rmtree(f"{A}/kept")


# SEMANTICS 10
@test
def orphans():
    held = open(f"{A}/gone", "w+")
    held.write("still there")
    held.flush()
    os.unlink(f"{B}/gone")
    held.seek(0)
    same(held.read(), "still there")
    same(os.fstat(held.fileno()).st_nlink, 0)
    held.write(" and written")
    held.flush()
    same(os.pread(held.fileno(), 100, 0), b"still there and written")
    same(errno_of(os.stat, f"{A}/gone"), "ENOENT")


# SEMANTICS 10, 46
@test
def changes_of_a_removed_file():
    """Who still has it open sees them, although who made them has closed it."""
    changes = {
        "data": lambda file: os.pwrite(file, b"new", 0),
        "length": lambda file: os.ftruncate(file, 1),
        "mode": lambda file: os.fchmod(file, 0o600),
    }
    expected = {"data": (b"new", 0o644), "length": (b"o", 0o644), "mode": (b"old", 0o600)}
    for what, change in changes.items():
        for remove_first in (True, False):
            with open(f"{B}/removed", "w+b") as there:
                os.fchmod(there.fileno(), 0o644)
                os.pwrite(there.fileno(), b"old", 0)
                here = os.open(f"{A}/removed", os.O_RDWR)
                steps = [lambda: os.unlink(f"{A}/removed"), lambda: change(here)]
                for step in steps if remove_first else reversed(steps):
                    step()
                os.close(here)
                mode = stat.S_IMODE(os.fstat(there.fileno()).st_mode)
                same((os.pread(there.fileno(), 10, 0), mode), expected[what], what)


# SEMANTICS 10
@test
def removed_directories():
    """A directory that is removed under those who have it open or work in it is empty and has no links."""
    for there in A, B:
        os.makedirs(f"{A}/dead/below")
        os.chmod(f"{A}/dead", 0o775)
        fd = os.open(f"{A}/dead", os.O_RDONLY)
        os.chdir(f"{A}/dead")
        same(os.listdir(fd), ["below"])
        os.rmdir(f"{there}/dead/below")
        os.rmdir(f"{there}/dead")
        for _ in range(2):
            same(os.fstat(fd).st_nlink, 0)
            same(os.stat(".").st_ino, os.fstat(fd).st_ino)
            same((os.listdir(fd), os.listdir(".")), ([], []))
            same(errno_of(os.stat, "below"), "ENOENT")
            same(errno_of(os.unlink, "below"), "ENOENT")
            same(errno_of(os.rename, f"{A}/dead", "below"), "ENOENT")
            same(errno_of(os.mkdir, "below"), "ENOENT")
            same(errno_of(os.symlink, "x", "below"), "ENOENT")
            same(errno_of(os.open, "file", os.O_CREAT | os.O_WRONLY), "ENOENT")
        # Its name is free.
        os.mkdir(f"{B}/dead")
        open(f"{A}/dead/file", "w").close()
        same(os.listdir(f"{B}/dead"), ["file"])
        same(os.listdir(fd), [])
        os.chdir("/")
        os.close(fd)
        shutil.rmtree(f"{A}/dead")


# SEMANTICS 9
@test
def moved_directories():
    """Directories that another machine has moved can be renamed where Linux still has them at the old place."""
    os.makedirs(f"{A}/moved/from")
    os.makedirs(f"{A}/moved/deep/to")

    def moved(name, hold):
        os.makedirs(f"{A}/moved/from/{name}/below")
        os.stat(f"{A}/moved/from/{name}/below")
        holder = hold(f"{A}/moved/from/{name}")
        os.rename(f"{B}/moved/from/{name}", f"{B}/moved/deep/to/{name}")
        return holder

    def work_in(path):
        parked, go_on = os.pipe()

        def work():
            os.chdir(path)
            os.close(go_on)
            os.read(parked, 1)
        child = in_child(work)
        eventually(lambda: os.readlink(f"/proc/{child}/cwd") == path, "it does not get there")
        os.close(parked)
        return lambda: (os.close(go_on), same(wait(child), 0))

    def keep_open(path):
        fd = os.open(path, os.O_RDONLY)
        return lambda: os.close(fd)

    for number, hold in enumerate([keep_open, work_in, lambda _: lambda: None]):
        let_go = moved(f"source{number}", hold)
        os.rename(f"{A}/moved/deep/to/source{number}", f"{A}/moved/source{number}")
        same(os.listdir(f"{B}/moved/source{number}"), ["below"])
        let_go()
        let_go = moved(f"target{number}", hold)
        os.rmdir(f"{B}/moved/deep/to/target{number}/below")
        os.rename(f"{A}/moved/source{number}", f"{A}/moved/deep/to/target{number}")
        same(os.listdir(f"{B}/moved/deep/to/target{number}"), ["below"])
        let_go()
        let_go = moved(f"fds{number}", hold)
        old, new = (os.open(f"{A}/{path}", os.O_PATH) for path in ("moved/deep/to", "moved"))
        eventually(
            lambda: errno_of(lambda: os.rename(f"fds{number}", f"fds{number}", src_dir_fd=old, dst_dir_fd=new)) is None,
            "the descriptors say where it is, and it cannot be renamed",
        )
        same(os.listdir(f"{B}/moved/fds{number}"), ["below"])
        let_go()
        os.close(old)
        os.close(new)
    # Moved by both, in turns: Linux is told each time.
    os.makedirs(f"{A}/moved/x/there")
    for _ in range(20):
        os.rename(f"{B}/moved/x/there", f"{B}/moved/deep/there")
        os.rename(f"{A}/moved/deep/there", f"{A}/moved/x/there")


@test
def a_working_directory_beside_changes():
    """Who works in a directory has a path although it is looked up all the time and another machine changes names beside it.

    But for a moment now and then: where its name was looked up less than a second before such a change, all names of the mount
    are made void, and a look-up takes it away before it brings it back.
    """
    os.makedirs(f"{A}/beside/work")
    names = [f"{B}/beside/{i}" for i in range(400)]

    def looks():
        while True:
            os.stat(f"{A}/beside/work")

    def changes():
        for name in names:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            os.unlink(name)

    looking, changing = in_child(looks), in_child(changes)
    home = os.getcwd()
    os.chdir(f"{A}/beside/work")
    failures, is_lost = 0, False
    try:
        while os.waitpid(changing, os.WNOHANG) == (0, 0):
            error = errno_of(os.getcwd)
            failures += error is not None and not is_lost
            is_lost = error is not None
    finally:
        os.chdir(home)
        os.kill(looking, signal.SIGKILL)
        os.waitpid(looking, 0)
    same(failures <= len(names) // 40, True, f"{failures} times in {len(names)} changes")


@test
def tmpfile():
    fd = os.open(A, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"first without a name")
    os.link(f"/proc/self/fd/{fd}", f"{A}/linked", src_dir_fd=os.open("/", 0), follow_symlinks=True)
    os.close(fd)
    same(open(f"{B}/linked").read(), "first without a name")


# SEMANTICS 24
@test
def truncated_under_a_mapping():
    """A file is cut, and made longer, while a page of it has stores that nobody has written back. (It waited for itself.)"""
    here, there = f"{A}/mapped-cut", f"{B}/mapped-cut"

    def cut(to):
        fd = os.open(here, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.pwrite(fd, b"x" * 8192, 0)
        with mmap.mmap(fd, 8192) as mapped:
            mapped[:] = b"z" * 8192
            os.ftruncate(fd, to)
            same(open(there, "rb").read(), b"z" * min(to, 8192) + bytes(max(to - 8192, 0)), f"cut to {to}")
            os.ftruncate(fd, 8192)
            mapped[:] = b"y" * 8192
            os.close(os.open(here, os.O_WRONLY | os.O_TRUNC))
            same(os.stat(there).st_size, 0, "cut by another descriptor")
        os.close(fd)

    def cuts():
        signal.alarm(60)
        for to in (2048, 4096, 5000, 0, 12000):
            cut(to)
        os._exit(0)

    same(os.waitstatus_to_exitcode(os.waitpid(in_child(cuts), 0)[1]), 0, "in time")


# SEMANTICS 13
@test
def appends():
    """O_APPEND counts as it is at the moment of the write, whether it came with open or with F_SETFL."""
    here, there = f"{A}/appended", f"{B}/appended"

    def holds(expected, what):
        for name in (here, there):
            if OLD_KERNEL:
                eventually(lambda: expected(open(name, "rb").read()), f"{what}, on {name}")
            else:
                assert expected(open(name, "rb").read()), f"{what}, on {name}"

    def set_to(fd, flags):
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        return fd

    for access in (os.O_WRONLY, os.O_RDWR):
        fd = os.open(here, access | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        same(os.pwrite(fd, b"0123456789", 3), 10, "at the end, not where it says")
        set_to(fd, 0)
        same(os.pwrite(fd, b"AB", 2), 2)
        same(open(there, "rb").read(), b"01AB456789", "cleared")
        set_to(fd, os.O_APPEND)
        same(os.pwrite(fd, b"z", 2), 1)
        same(open(there, "rb").read(), b"01AB456789z", "set again")
        os.close(fd)

        fds = [set_to(os.open(name, access | os.O_TRUNC), os.O_APPEND) for name in (here, there)]
        for fd, data in ((fds[0], b"aaaa"), (fds[1], b"bbbb"), (fds[0], b"cc"), (fds[1], b"d" * 5000), (fds[0], b"e")):
            same(os.write(fd, data), len(data))
        holds(lambda seen: seen == b"aaaabbbbcc" + b"d" * 5000 + b"e", "by turns")

        def write_records(number):
            for record in range(300):
                os.write(fds[number], b"%d%06d\n" % (number, record))

        os.truncate(here, 0)
        for child in [in_child(lambda number=number: write_records(number)) for number in (0, 1)]:
            same(wait(child), 0)
        records = sorted(b"%d%06d" % of for of in itertools.product((0, 1), range(300)))
        holds(lambda seen: sorted(seen.splitlines()) == records, "at once")
        for fd in fds:
            os.close(fd)

    fd = set_to(os.open(here, os.O_RDWR | os.O_TRUNC), os.O_APPEND)
    os.write(fd, b"0123456789")
    with mmap.mmap(fd, 10) as mapping:
        mapping[2:4] = b"AB"
        mapping.flush()
        same(open(there, "rb").read(), b"01AB456789", "stores go where they are")
    os.close(fd)


# SEMANTICS 13
@test
def where_appends_are_thought_to_be():
    """The position after an append, and RWF_APPEND, go by the size that this machine knew last."""
    here, there = os.open(f"{A}/end", os.O_RDWR | os.O_CREAT | os.O_APPEND), os.open(f"{B}/end", os.O_RDWR | os.O_APPEND)

    def positions(data):
        os.write(here, data)
        return os.lseek(here, 0, os.SEEK_CUR), os.fstat(here).st_size

    same(positions(b"aaaa"), (4, 4), "alone")
    os.write(there, b"b" * 100)
    position, size = positions(b"cc")
    assert position in (6, 106) and size == 106, (position, size)
    same(positions(b"d"), (107, 107), "after stat")
    os.write(there, b"e" * 100)
    same(os.fstat(here).st_size, 207)
    same(positions(b"f"), (208, 208), "stat before it")
    plain = os.open(f"{A}/end", os.O_RDWR)
    for data in (b"g", b"h"):
        os.pwritev(plain, [data], 0, os.RWF_APPEND)
    same(os.pread(there, 9, 205), b"eefgh", "RWF_APPEND, no other machine appends")
    for fd in (here, there, plain):
        os.close(fd)


# SEMANTICS 14
@test
def holes():
    fd = os.open(f"{A}/sparse", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"x" * 65536, 1 << 20)
    os.ftruncate(fd, 4 << 20)
    other = os.open(f"{B}/sparse", os.O_RDONLY)
    for each in (fd, other):
        same(os.lseek(each, 0, os.SEEK_DATA), 1 << 20, "SEEK_DATA")
        same(os.lseek(each, 1 << 20, os.SEEK_HOLE), (1 << 20) + 65536, "SEEK_HOLE")
        same(errno_of(os.lseek, each, 2 << 20, os.SEEK_DATA), "ENXIO", "no data behind")
    subprocess.run(["fallocate", "--punch-hole", "-o", str(1 << 20), "-l", "4096", f"{B}/sparse"], check=True)
    same(os.pread(fd, 4097, 1 << 20), b"\0" * 4096 + b"x", "a punched hole")


# SEMANTICS 14
@test
def allocation():
    fd, other = os.open(f"{A}/allocated", os.O_CREAT | os.O_RDWR), None
    other = os.open(f"{B}/allocated", os.O_RDWR)
    size = lambda: (os.fstat(fd).st_size, os.fstat(other).st_size)
    os.pwrite(fd, b"x" * 16384, 0)
    allocate(other, KEEP_SIZE, 0, 1 << 20)
    same(size(), (16384, 16384), "KEEP_SIZE")
    allocate(other, 0, 0, 32768)
    same(size(), (32768, 32768), "plain allocation extends")
    same(os.pread(fd, 32768, 0), b"x" * 16384 + bytes(16384))
    allocate(fd, ZERO_RANGE, 100, 5000)
    same(os.pread(other, 16384, 0), b"x" * 100 + bytes(5000) + b"x" * (16384 - 5100), "ZERO_RANGE")
    allocate(fd, ZERO_RANGE | KEEP_SIZE, 32768, 4096)
    allocate(other, ZERO_RANGE, 32768, 4096)
    same(size(), (36864, 36864), "ZERO_RANGE with and without KEEP_SIZE")
    allocate(other, PUNCH_HOLE | KEEP_SIZE, 8000, 1 << 30)
    same(os.pread(fd, 40000, 0), b"x" * 100 + bytes(5000) + b"x" * 2900 + bytes(36864 - 8000), "PUNCH_HOLE")
    same(errno_of(allocate, fd, COLLAPSE, 0, 4096), "ENOTSUP", "EOPNOTSUPP by its other name")
    same(errno_of(allocate, fd, 0, 0, 0), "EINVAL")
    # Everything else would be a promise that the disk has exabytes.
    same(errno_of(allocate, fd, 0, 0, 1 << 60), "ENOSPC")


# SEMANTICS 14
@test
def the_largest_file():
    end = (1 << 63) - 1
    fd, other = os.open(f"{A}/largest", os.O_CREAT | os.O_RDWR), os.open(f"{B}/largest", os.O_CREAT | os.O_RDWR)
    same(os.pwrite(fd, b"end", end - 3), 3)
    same((os.fstat(other).st_size, os.pread(other, 3, end - 3)), (end, b"end"))
    same(errno_of(os.pwrite, other, b"x", end), "EINVAL", "past the last offset, says the kernel")
    same(os.pwrite(other, b"middle", 1 << 40), 6)
    same((os.lseek(fd, 0, os.SEEK_DATA) >> 20, os.pread(fd, 8, (1 << 40) - 1)), ((1 << 40) >> 20, b"\0middle\0"))
    os.ftruncate(fd, (5 << 30) + 1)
    same((os.fstat(other).st_size, errno_of(os.lseek, other, 0, os.SEEK_DATA)), ((5 << 30) + 1, "ENXIO"))
    os.ftruncate(other, end)
    same(os.fstat(fd).st_size, end)
    os.unlink(f"{B}/largest")


# SEMANTICS 15
@test
def copies():
    source, target = (os.open(f"{A}/{name}", os.O_CREAT | os.O_RDWR) for name in ("source", "target"))
    os.write(source, os.urandom(1 << 20))
    same(os.copy_file_range(source, target, 1 << 20, 0, 4096), 1 << 20)
    same(open(f"{B}/target", "rb").read(), b"\0" * 4096 + os.pread(source, 1 << 20, 0))


# SEMANTICS 21-23
@test
def mappings():
    page = mmap.PAGESIZE
    with open(f"{A}/mapped", "wb") as file:
        file.write(b"0" * 2 * page)
    writer, reader = os.open(f"{A}/mapped", os.O_RDWR), os.open(f"{A}/mapped", os.O_RDONLY)
    elsewhere = os.open(f"{B}/mapped", os.O_RDONLY)
    writable = mmap.mmap(writer, 2 * page)
    here = mmap.mmap(reader, 2 * page, prot=mmap.PROT_READ)
    there = mmap.mmap(elsewhere, 2 * page, prot=mmap.PROT_READ)
    same((writable[:4], here[:4], there[:4]), (b"0000",) * 3)
    for number in range(100):
        text = b"%04d" % number
        os.pwrite(writer, text, 0)
        seen = (writable[:4], here[:4], there[:4], os.pread(reader, 4, 0), os.pread(elsewhere, 4, 0))
        same(seen, (text,) * 5, "21, 23: after a write")
        store = b"s%03d" % number
        writable[page:page + 4] = store
        same((here[page:page + 4], os.pread(writer, 4, page)), (store,) * 2, "21: after a store")
        writable.flush()
        same((there[page:page + 4], os.pread(elsewhere, 4, page)), (store,) * 2, "22: after msync")
        again = b"f%03d" % number
        writable[page:page + 4] = again
        os.fsync(writer)
        same((there[page:page + 4], os.pread(elsewhere, 4, page)), (again,) * 2, "22: after fsync")


# SEMANTICS 22
@test
def unmapped():
    """What a program stored is there for others when it has unmapped and closed the file, or ended."""
    with open(f"{A}/unmapped", "wb") as file:
        file.write(b"0" * mmap.PAGESIZE)
    for number in range(20):
        text = b"%04d" % number

        def store():
            fd = os.open(f"{A}/unmapped", os.O_RDWR)
            mapped = mmap.mmap(fd, mmap.PAGESIZE)
            mapped[:4] = text
            if number % 2 == 0:
                mapped.close()
                os.close(fd)

        same(wait(in_child(store)), 0)
        same(open(f"{B}/unmapped", "rb").read(4), text)


# SEMANTICS 24
@test
def stores_of_two_machines():
    """Two machines store to the same page, and write it back: one page wins as a whole, the same one everywhere."""
    page = mmap.PAGESIZE
    old = b"o" * page
    for number, order in enumerate([(0, 1), (1, 0)]):
        name = f"stores {number}"
        with open(f"{A}/{name}", "wb") as file:
            file.write(old * 2)
        maps = [mmap.mmap(os.open(f"{root}/{name}", os.O_RDWR), 2 * page) for root in ROOTS]
        for machine, mapped in enumerate(maps):
            same(mapped[:4], b"oooo")
            mapped[100 * machine:100 * machine + 4] = b"new!"
        start = time.monotonic()
        for machine in order:
            maps[machine].flush()
        assert time.monotonic() - start < 8, "machines hold each other up"
        pages = [b"new!" + old[4:], old[:100] + b"new!" + old[104:]]
        seen = [open(f"{root}/{name}", "rb").read() for root in ROOTS]
        same(seen[0], seen[1], "on both machines")
        assert seen[0][:page] in pages and seen[0][page:] == old, "a page of two machines"
        same([bytes(mapped[:page]) for mapped in maps], [seen[0][:page]] * 2, "mapped")


# SEMANTICS 1, 24
@test
def a_write_beside_stores():
    """What another machine has written by write(2) no page takes back that was stored to before and is written back as a whole."""
    page = mmap.PAGESIZE
    for number, change in enumerate(["write", "truncate"]):
        name = f"beside {number}"
        with open(f"{A}/{name}", "wb") as file:
            file.write(b"o" * 2 * page)
        mapped = mmap.mmap(os.open(f"{A}/{name}", os.O_RDWR), 2 * page)
        # Both machines hold leases.
        same(open(f"{B}/{name}", "rb").read(4), b"oooo")
        mapped[:4] = b"here"
        fd = os.open(f"{B}/{name}", os.O_WRONLY)
        if change == "write":
            same(os.pwrite(fd, b"there", 100), 5)
            expected = b"here" + b"o" * 96 + b"there" + b"o" * (2 * page - 105)
        else:
            os.ftruncate(fd, 50)
            expected = b"here" + b"o" * 46
        for written_back in [False, True]:
            if written_back:
                mapped.flush()
            for root in ROOTS:
                seen = open(f"{root}/{name}", "rb").read()
                start = (seen[:110], len(seen))
                same(start, (expected[:110], len(expected)), f"{change} at {root}, written back: {written_back}")
        os.close(fd)


def take(path, kind):
    """0: locked, 1: somebody else has it."""
    def work():
        with open(path, "r+") as file:
            lock = fcntl.flock if kind == "flock" else fcntl.lockf
            return 0 if errno_of(lock, file, fcntl.LOCK_EX | fcntl.LOCK_NB) is None else 1
    return wait(in_child(work))


# SEMANTICS 26, 29
@test
def locks():
    open(f"{A}/lock", "w").close()
    file = open(f"{A}/lock", "r+")
    fcntl.lockf(file, fcntl.LOCK_EX)
    same((take(f"{B}/lock", "record"), take(f"{B}/lock", "flock")), (1, 0), "a record lock")
    open(f"{A}/lock").close()
    same(take(f"{B}/lock", "record"), 0, "closing any descriptor gives record locks up")
    fcntl.flock(file, fcntl.LOCK_EX)
    same((take(f"{B}/lock", "record"), take(f"{B}/lock", "flock")), (0, 1), "a flock")
    file.close()
    eventually(lambda: take(f"{B}/lock", "flock") == 0, "a closed flock stays")
    ofd_setlk, everything = 37, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    file = open(f"{A}/lock", "r+")
    fcntl.fcntl(file, ofd_setlk, everything)
    open(f"{A}/lock").close()
    same(take(f"{B}/lock", "record"), 1, "an OFD lock")
    file.close()
    eventually(lambda: take(f"{B}/lock", "record") == 0, "a closed OFD lock stays")


# SEMANTICS 26
@test
def ranges():
    with open(f"{A}/ranges", "wb") as file:
        file.write(b"x" * 100)
    here, there = open(f"{A}/ranges", "r+"), open(f"{B}/ranges", "r+")
    fcntl.lockf(here, fcntl.LOCK_EX, 10, 20)
    same(errno_of(fcntl.lockf, there, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0), None, "beside it")
    same(errno_of(fcntl.lockf, there, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 29), "EAGAIN", "its last byte")
    question = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, start, length, _ = struct.unpack("hhqqi", fcntl.fcntl(there, fcntl.F_GETLK, question))
    same((kind, start, length), (fcntl.F_WRLCK, 20, 10), "F_GETLK")


# SEMANTICS 27
@test
def waiting():
    open(f"{A}/wait", "w").close()
    held = open(f"{A}/wait", "r+")
    fcntl.lockf(held, fcntl.LOCK_EX)

    about_to, say = os.pipe()

    def wait_for_it():
        file = open(f"{B}/wait", "r+")
        os.write(say, b".")
        fcntl.lockf(file, fcntl.LOCK_EX)
        return 7

    def wait_until_alarm():
        def ring(*_):
            raise InterruptedError
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            fcntl.lockf(open(f"{B}/wait", "r+"), fcntl.LOCK_EX)
        except InterruptedError:
            return 9
        return 1

    same(wait(in_child(wait_until_alarm)), 9, "a signal ends the wait")
    killed = in_child(wait_for_it)
    wait_until_blocked(killed, about_to)
    os.kill(killed, signal.SIGKILL)
    same(wait(killed), -signal.SIGKILL)
    waiting = in_child(wait_for_it)
    wait_until_blocked(waiting, about_to)
    same(os.waitpid(waiting, os.WNOHANG)[0], 0, "it waits")
    fcntl.lockf(held, fcntl.LOCK_UN)
    same(wait(waiting), 7, "it is let in")
    eventually(lambda: take(f"{A}/wait", "record") == 0, "the killed one has got the lock")


# SEMANTICS 27
@test
def turns():
    """Four that wait for a lock, two on each machine, get it in the order in which they asked."""
    open(f"{A}/turn", "w").close()
    held = open(f"{A}/turn", "r+")
    for lock in (fcntl.flock, fcntl.lockf):
        open(f"{A}/order", "w").close()
        lock(held, fcntl.LOCK_EX)

        about_to, say = os.pipe()

        def wait_in_turn(number):
            file = open(f"{ROOTS[number % 2]}/turn", "r+")
            os.write(say, b".")
            lock(file, fcntl.LOCK_EX)
            with open(f"{ROOTS[number % 2]}/order", "a") as order:
                order.write(str(number))

        children = []
        for number in range(4):
            children.append(in_child(lambda number=number: wait_in_turn(number)))
            wait_until_blocked(children[-1], about_to)
        lock(held, fcntl.LOCK_UN)
        same([wait(child) for child in children], [0] * 4)
        same(open(f"{B}/order").read(), "0123", lock.__name__)


# SEMANTICS 27
@test
def signals_beside_grants():
    """A wait that a signal ends while the lock is being granted either has it or leaves nothing behind."""
    path = "crossing"
    open(f"{A}/{path}", "w").close()
    range_of = {kind: struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 10, 0) for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK)}
    ofd_setlk, ofd_setlkw = 37, 38

    def record(fd, kind, waiting=fcntl.F_SETLKW, trying=fcntl.F_SETLK, wait_for_it=True):
        return LIBC.fcntl(fd, waiting if wait_for_it else trying, range_of[kind])

    def ofd(fd, kind, wait_for_it=True):
        return record(fd, kind, ofd_setlkw, ofd_setlk, wait_for_it)

    def flock(fd, kind, wait_for_it=True):
        how = fcntl.LOCK_EX if kind == fcntl.F_WRLCK else fcntl.LOCK_UN
        return LIBC.flock(fd, how | (0 if wait_for_it else fcntl.LOCK_NB))

    def hold(lock, hear, say):
        fd = os.open(f"{B}/{path}", os.O_RDWR)
        while os.read(hear, 1):
            checked(lock(fd, fcntl.F_WRLCK))
            os.write(say, b"h")
            time.sleep(0.001)
            checked(lock(fd, fcntl.F_UNLCK))
            os.write(say, b"u")

    def storm(lock):
        (hear, go), (heard, say) = os.pipe(), os.pipe()

        def work():
            os.close(go)
            return hold(lock, hear, say)
        holder = in_child(work)
        os.close(hear)
        os.close(say)
        here, there = (os.open(f"{root}/{path}", os.O_RDWR) for root in ROOTS)

        def is_free():
            return lock(there, fcntl.F_WRLCK, wait_for_it=False) == 0
        seen, deadline = [0, 0], time.monotonic() + 2
        while time.monotonic() < deadline:
            os.write(go, b".")
            same(os.read(heard, 1), b"h")
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.0025))
            result, failed = lock(here, fcntl.F_WRLCK), ctypes.get_errno()
            signal.setitimer(signal.ITIMER_REAL, 0)
            same(os.read(heard, 1), b"u")
            seen[result] += 1
            if result == 0:
                same(is_free(), False, "granted twice")
                checked(lock(here, fcntl.F_UNLCK))
            else:
                same(errno.errorcode[failed], "EINTR")
            eventually(is_free, f"a lock that nobody has is held, after {seen} (granted, interrupted)")
            checked(lock(there, fcntl.F_UNLCK))
        os.close(go)
        same(wait(holder), 0)
        for fd in (heard, here, there):
            os.close(fd)

    old = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        for lock in (flock, record, ofd):
            storm(lock)
    finally:
        signal.signal(signal.SIGALRM, old)


# SEMANTICS 28
@test
def deadlock():
    with open(f"{A}/dead", "wb") as file:
        file.write(b"xx")
    first, second = (f"{A}/dead", 0, 1), (f"{B}/dead", 1, 0)
    (locked, say), (go, let_go) = os.pipe(), os.pipe()

    def work(path, mine, other):
        file = open(path, "r+")
        fcntl.lockf(file, fcntl.LOCK_EX, 1, mine)
        os.write(say, b".")
        os.read(go, 1)
        return {None: 0, "EDEADLK": 35, "EDEADLOCK": 35}.get(errno_of(fcntl.lockf, file, fcntl.LOCK_EX, 1, other), 1)

    children = [in_child(lambda order=order: work(*order)) for order in (first, second)]
    for _ in children:
        same(os.read(locked, 1), b".", "the first lock")
    os.write(let_go, b"..")
    same(sorted(wait(child) for child in children), [0, 35])


# SEMANTICS 5, 31-33
@test
def access():
    path = f"{A}/listed"
    open(path, "w").close()
    os.chmod(path, 0o600)
    os.chmod(A, 0o755)
    nobody = NOBODY

    def read_as_nobody(of):
        def work():
            as_nobody()
            return 0 if errno_of(lambda: open(of).close()) is None else 1
        return wait(in_child(work))

    same((read_as_nobody(path), read_as_nobody(f"{B}/listed")), (1, 1), "by mode")
    subprocess.run(["setfacl", "-m", f"u:{nobody}:r", path], check=True)
    same((read_as_nobody(path), read_as_nobody(f"{B}/listed")), (0, 0), "by access list")
    subprocess.run(["setfacl", "-b", f"{B}/listed"], check=True)
    same((read_as_nobody(path), read_as_nobody(f"{B}/listed")), (1, 1), "without it")
    subprocess.run(["setfacl", "-d", "-m", f"u:{nobody}:rx", A], check=True)
    os.mkdir(f"{B}/heir")
    heir = subprocess.run(["getfacl", "-cnp", f"{A}/heir"], check=True, capture_output=True, text=True).stdout
    assert f"default:user:{nobody}:r-x" in heir, heir
    subprocess.run(["setfacl", "-k", A], check=True)
    for name in ("user.a", "trusted.b", "security.c"):
        os.setxattr(path, name, name.encode())
        same(os.getxattr(f"{B}/listed", name), name.encode())
    same(set(os.listxattr(f"{B}/listed")) >= {"user.a", "trusted.b", "security.c"}, True)
    os.removexattr(f"{B}/listed", "user.a")
    same(errno_of(os.getxattr, path, "user.a"), "ENODATA")


# SEMANTICS 31
@test
def owners():
    """Linux remembers who owned a file. Who does not any more may do nothing to it, who does now may do all at once."""
    only_owner = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
    acts = {
        "chmod": lambda path: os.chmod(path, 0o4777),
        "utimes": lambda path: os.utime(path, (1, 1)),
        "chown": lambda path: os.chown(path, NOBODY, NOBODY),
        "list": lambda path: os.setxattr(path, "system.posix_acl_access", only_owner),
        "rename": lambda path: os.rename(path, f"{path}.away"),
        "unlink": os.unlink,
    }

    def shared(name, uid):
        os.mkdir(f"{A}/{name}")
        os.chmod(f"{A}/{name}", 0o1777)
        open(f"{A}/{name}/file", "w").close()
        os.chown(f"{A}/{name}/file", uid, uid)
        return f"{A}/{name}/file", f"{B}/{name}/file"

    def act_there(here, there, uid, act):
        ready, go_on = os.pipe(), os.pipe()

        def work():
            as_nobody()
            same(os.stat(there).st_uid, NOBODY if uid == 0 else 0)
            # With delayed writes a stat alone may bring no lease.
            os.close(os.open(there, os.O_RDONLY))
            os.write(ready[1], b".")
            os.read(go_on[0], 1)
            return getattr(errno, errno_of(act, there) or "", 0)
        child = in_child(work)
        os.read(ready[0], 1)
        os.chown(here, uid, uid)
        os.write(go_on[1], b".")
        [os.close(fd) for fd in (*ready, *go_on)]
        return wait(child)

    for name, act in acts.items():
        here, there = shared(f"taken-{name}", NOBODY)
        same(act_there(here, there, 0, act), errno.EPERM, f"{name} by who was the owner")
        same(os.stat(here).st_uid, 0, name)
        if KERNEL < (6, 16):
            continue  # there it may take half a second
        here, there = shared(f"given-{name}", 0)
        same(act_there(here, there, NOBODY, act), 0, f"{name} by who is the owner now")
    # Through a descriptor there is no name that the kernel could look up again.
    here, there = shared("held", NOBODY)
    held = os.open(there, os.O_RDWR)
    same(act_there(here, there, 0, lambda _: os.fchmod(held, 0o4777)), errno.EPERM, "fchmod by who was the owner")
    # In a user namespace of his own he has all capabilities, for what is in there.
    os.chown(here, NOBODY, NOBODY)

    def as_root_of_nothing(_):
        checked(LIBC.unshare(0x10000000))  # CLONE_NEWUSER
        os.fchmod(held, 0o4777)
    same(act_there(here, there, 0, as_root_of_nothing), errno.EPERM, "fchmod in a user namespace")
    same(stat.S_IMODE(os.stat(here).st_mode) & 0o4000, 0)
    os.close(held)
    # Nor does anybody keep set-group-id for a group that he is not in.
    here, there = shared("group", NOBODY)
    os.stat(there)
    os.chown(here, -1, 50)
    same(wait(in_child(lambda: (as_nobody(), os.chmod(there, 0o2755))[1])), 0)
    same(stat.S_IMODE(os.stat(here).st_mode), 0o755)


# SEMANTICS 32
@test
def privileges():
    """They are set here and dropped by what somebody does there."""
    path = f"{A}/privileged"
    os.chmod(A, 0o755)

    def done_there_by_nobody(work):
        with open(path, "w") as file:
            file.write("x")
        os.chown(path, NOBODY, NOBODY)
        os.chmod(path, 0o6777)
        same(stat.S_IMODE(os.stat(f"{B}/privileged").st_mode), 0o6777)

        def unprivileged():
            as_nobody()
            work(f"{B}/privileged")

        same(wait(in_child(unprivileged)), 0)
        seen = [stat.S_IMODE(os.stat(f"{root}/privileged").st_mode) for root in ROOTS]
        same(seen[0], seen[1], "on both machines")
        return seen[0]

    def append(name):
        with open(name, "a") as file:
            file.write("y")

    same(done_there_by_nobody(append), 0o777, "a write")
    same(done_there_by_nobody(lambda name: os.truncate(name, 0)), 0o777, "a truncation")

    with open(f"{A}/source", "wb") as file:
        file.write(b"source")
    for mode in (0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE):
        same(done_there_by_nobody(allocating(mode)), 0o777, f"fallocate, mode {mode}")
    same(done_there_by_nobody(copying), 0o777, "a copy")
    for work in (append, allocating(0), copying):
        os.chmod(path, 0o6777)
        work(f"{B}/privileged")
        same(stat.S_IMODE(os.stat(path).st_mode), 0o6777, "by user 0")
    same(done_there_by_nobody(lambda name: os.chown(name, NOBODY, NOBODY)), 0o777, "a change of owner")
    same(done_there_by_nobody(lambda name: os.chown(name, -1, -1)), 0o777, "a change to nobody")
    same(done_there_by_nobody(os.stat), 0o6777, "nothing")

    def of_another(name):
        """Not the owner's work, by nobody in particular."""
        os.chown(name, 0, 0)
        os.chmod(name, 0o6777)

        def unprivileged():
            as_nobody()
            os.chown(name, -1, -1)
            descriptor = os.open(name, os.O_RDONLY)
            os.fchown(descriptor, -1, -1)

        same(wait(in_child(unprivileged)), 0)
        return stat.S_IMODE(os.stat(name).st_mode)

    for root in ROOTS:
        same(of_another(f"{root}/privileged"), 0o6777, "a change to nobody, by who does not own it")
    for work, left in ((append, 0o6777), (allocating(0), 0o777), (copying, 0o777)):
        os.chmod(path, 0o6777)
        os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 2, 0, 0, 0))
        work(f"{B}/privileged")
        same(stat.S_IMODE(os.stat(path).st_mode), left, "by user 0, with file capabilities")
    for name, mode in (("privileged", 0o2747), ("directory", 0o6777)):
        if name == "directory":
            os.mkdir(f"{A}/directory")
        os.chmod(f"{A}/{name}", mode)
        before = os.stat(f"{B}/{name}").st_ctime_ns
        os.chown(f"{A}/{name}", -1, -1)
        after = os.stat(f"{B}/{name}")
        same(stat.S_IMODE(after.st_mode), mode, f"a change to nobody, {name}")
        assert after.st_ctime_ns > before, "it is one all the same"

    os.mkdir(f"{A}/shared")
    os.chmod(f"{A}/shared", 0o1777)
    open(f"{A}/shared/root's", "w").close()

    def remove():
        as_nobody()
        same(errno_of(os.unlink, f"{B}/shared/root's"), "EPERM", "sticky")
        open(f"{B}/shared/own", "w").close()
        os.unlink(f"{B}/shared/own")

    same(wait(in_child(remove)), 0)
    os.chown(f"{A}/shared", 0, 4321)
    os.chmod(f"{A}/shared", 0o2777)
    os.mkdir(f"{B}/shared/below")
    open(f"{B}/shared/file", "w").close()
    seen = [os.stat(f"{A}/shared/{name}") for name in ("below", "file")]
    same([of.st_gid for of in seen], [4321, 4321], "the group of the directory")
    same(stat.S_IMODE(seen[0].st_mode) & stat.S_ISGID, stat.S_ISGID)


# SEMANTICS 38
@test
def the_killed():
    """What a process that was killed had asked for is done when its end is known, or never: names here, data there."""
    os.mkdir(f"{A}/killed")
    path = f"{A}/killed/data"

    def creates():
        while True:
            os.close(os.open(f"{A}/killed/name", os.O_CREAT | os.O_WRONLY))
            os.unlink(f"{A}/killed/name")

    def writes():
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        while True:
            os.pwrite(file, b"killed" * 700, 0)

    for round_ in range(400):
        child = in_child((creates, writes)[round_ % 2])
        time.sleep(random.uniform(0.002, 0.008))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if round_ % 2 == 0:
            errno_of(os.unlink, f"{A}/killed/name")
            time.sleep(0.002)
            same(sorted(os.listdir(f"{A}/killed")), ["data"] if round_ > 1 else [], f"round {round_}")
        else:
            with open(f"{B}/killed/data", "wb", buffering=0) as file:
                file.write(b"living")
            time.sleep(0.002)
            with open(path, "rb") as file:
                same(file.read(), b"living", f"round {round_}")


@test
def small_pieces():
    """What was written a few bytes at a time is read in large pieces, here and there: appended, in any order, with holes."""
    def appended(fd, contents):
        for at in range(len(contents)):
            os.write(fd, contents[at:at + 1])

    def shuffled(fd, contents):
        for at in random.sample(range(len(contents)), len(contents)):
            os.pwrite(fd, contents[at:at + 1], at)

    def with_holes(fd, contents):
        for at in range(1, len(contents), 2):
            os.pwrite(fd, contents[at:at + 1], at)

    for number, (work, flags) in enumerate(itertools.product((appended, shuffled, with_holes), (os.O_WRONLY, os.O_RDWR))):
        name, contents = f"pieces{number}", random.randbytes(4000)
        fd = os.open(f"{A}/{name}", os.O_CREAT | flags)
        work(fd, contents)
        if work is with_holes:
            contents = bytes(byte if at % 2 else 0 for at, byte in enumerate(contents))
        os.close(fd)
        for root, mode in itertools.product(ROOTS, (os.O_RDONLY, os.O_RDWR)):
            fd = os.open(f"{root}/{name}", mode)
            same(os.pread(fd, 1 << 17, 0), contents, f"{work.__name__} {root} {mode}")
            with mmap.mmap(fd, len(contents), access=mmap.ACCESS_READ) as mapped:
                same(mapped[:], contents, f"{work.__name__} {root} {mode}, mapped")
            os.close(fd)


# SEMANTICS 32
@test
def capabilities():
    """File capabilities, set here, go with what somebody does there to contents or owner, root too; as on a local file."""
    os.chmod(A, 0o755)
    # struct vfs_ns_cap_data of revision 2: cap_dac_override, effective.
    capability = struct.pack("<IIIII", 0x02000001, 2, 0, 0, 0)

    def write(name):
        with open(name, "r+b") as file:
            file.write(b"new")

    def append(name):
        with open(name, "ab") as file:
            file.write(b"more")

    def truncate_open(name):
        os.close(os.open(name, os.O_WRONLY | os.O_TRUNC))

    def read(name):
        with open(name, "rb") as file:
            file.read()

    works = {
        "a write": write, "an append": append, "a truncation": lambda name: os.truncate(name, 1), "O_TRUNC": truncate_open,
        "allocation": allocating(0), "a hole": allocating(PUNCH_HOLE | KEEP_SIZE), "zeros": allocating(ZERO_RANGE),
        "a copy": copying,
        "a change of owner": lambda name: os.chown(name, NOBODY, NOBODY), "chmod": lambda name: os.chmod(name, 0o700),
        "times": os.utime, "another attribute": lambda name: os.setxattr(name, "user.other", b"x"), "a read": read,
    }
    keep = {"chmod", "times", "another attribute", "a read"}

    def left(work, set_by, done_at, user):
        """Whether the file has its capability yet, as each of the directories sees it."""
        path = f"{set_by}/capable"
        with open(path, "wb") as file, open(f"{set_by}/source", "wb") as source:
            file.write(b"x" * 8192)
            source.write(b"source")
        os.chmod(path, 0o777)
        os.setxattr(path, "security.capability", capability)
        for root in {set_by, done_at}:
            same(os.getxattr(f"{root}/capable", "security.capability"), capability)

        def there():
            if user != 0:
                as_nobody()
            work(f"{done_at}/capable")

        same(wait(in_child(there)), 0)
        seen = {"security.capability" in os.listxattr(f"{root}/capable") for root in {set_by, done_at}}
        same(len(seen), 1, "on both machines")
        os.unlink(path)
        return seen.pop()

    with tempfile.TemporaryDirectory() as local:
        os.chmod(local, 0o755)
        for user, (what, work) in itertools.product((0, NOBODY), works.items()):
            if user != 0 and what not in ("a write", "an append", "a truncation", "O_TRUNC", "allocation", "a copy", "a read"):
                continue
            expected = left(work, local, local, user)
            same(expected, what in keep, f"{what} by {user} on a local file")
            for set_by, done_at in ((A, A), (A, B), (B, A)):
                same(left(work, set_by, done_at, user), expected, f"{what} by {user}")

    def store(name):
        with open(name, "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapping:
            mapping[0] = 1
            mapping.flush()

    same([left(store, set_by, done_at, 0) for set_by, done_at in ((A, A), (A, B))], [False, False], "a store to a mapping")


# SEMANTICS 33
@test
def names_of_attributes():
    """Which there can be, and who is shown them, as on ext4."""
    path = f"{A}/named"
    open(path, "w").close()
    os.chmod(A, 0o755)
    wrong = dict.fromkeys(("user", "osx.a", "system.a", "a", "system.posix_acl_accessx"), "ENOTSUP")
    wrong |= dict.fromkeys(("user.", "trusted.", "security."), "EINVAL")
    for name, expected in wrong.items():
        for call in ((os.setxattr, path, name, b""), (os.getxattr, path, name), (os.removexattr, path, name)):
            same(errno_of(*call), expected, f"{call[0].__name__} {name}")
    os.mkdir(f"{A}/listless")
    for of, kind in ((path, "access"), (path, "default"), (f"{A}/listless", "access"), (f"{A}/listless", "default")):
        same(errno_of(os.removexattr, of, f"system.posix_acl_{kind}"), None, f"the {kind} list of {of}, which has none")

    attributes = {"user.a", "security.b", "trusted.c"}
    for name in attributes:
        os.setxattr(path, name, b"value")

    def listed_with(user, effective):
        def work():
            checked(LIBC.prctl(8, 1, 0, 0, 0))  # keep capabilities
            os.setresuid(user, user, user)
            header, sets = struct.pack("<Ii", 0x20080522, 0), struct.pack("<IIIIII", effective, effective, 0, 0, 0, 0)
            checked(LIBC.capset(header, sets))
            listed = set(os.listxattr(f"{B}/named"))
            same(listed - {"trusted.c"}, attributes - {"trusted.c"})
            return 1 if "trusted.c" in listed else 0
        return wait(in_child(work))

    sys_admin, chown = 1 << 21, 1 << 0
    seen = [listed_with(user, effective) for user in (0, NOBODY) for effective in (sys_admin, chown)]
    same(seen, [1, 0, 1, 0], "trusted attributes are for CAP_SYS_ADMIN")


# SEMANTICS 33
@test
def many_attributes():
    """What can be set can be listed."""
    path = f"{A}/attributed"
    open(path, "w").close()
    names = []
    for number in range(600):
        name = f"user.{number:0>103}"
        refused = errno_of(os.setxattr, path, name, b"x" * 3000)
        if refused:
            same(refused, "ENOSPC")
            break
        names.append(name)
    assert 300 < len(names) < 400, len(names)
    for root in ROOTS:
        same(sorted(os.listxattr(f"{root}/attributed")), names)
    same(errno_of(os.setxattr, path, names[0], b"y" * 30000), "ENOSPC", "one that was there")
    os.removexattr(f"{B}/attributed", names.pop())
    os.setxattr(path, "user.last", b"z")
    same(sorted(os.listxattr(f"{B}/attributed")), [*names, "user.last"])


# SEMANTICS 34
@test
def special():
    os.mkfifo(f"{A}/fifo")
    os.mknod(f"{A}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    same((stat.S_ISFIFO(os.stat(f"{B}/fifo").st_mode), os.stat(f"{B}/null").st_rdev), (True, os.makedev(1, 3)))
    same(open(f"{B}/null").read(), "", "the device works")

    def speak():
        with open(f"{A}/fifo", "w") as fifo:
            fifo.write("through the fifo")

    speaker = in_child(speak)
    same(open(f"{A}/fifo").read(), "through the fifo")
    wait(speaker)
    listener = os.open(f"{B}/fifo", os.O_RDONLY | os.O_NONBLOCK)
    same(errno_of(os.open, f"{A}/fifo", os.O_WRONLY | os.O_NONBLOCK), "ENXIO", "a reader on another machine")
    os.close(listener)
    server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    os.chdir(A)
    server.bind("socket")
    server.listen()
    client.connect("socket")
    os.chdir(B)
    same(stat.S_ISSOCK(os.stat("socket").st_mode), True)
    same(errno_of(socket.socket(socket.AF_UNIX).connect, "socket"), "ECONNREFUSED", "a socket of another machine")
    os.chdir("/")


# SEMANTICS 5, 35
@test
def times():
    open(f"{A}/null", "w").close()
    os.utime(f"{A}/null", ns=(123456789123456789, -987654321))
    seen = os.stat(f"{B}/null")
    same((seen.st_atime_ns, seen.st_mtime_ns), (123456789123456789, -987654321))
    written = open(f"{A}/timed", "w")
    before = os.stat(f"{B}/timed")
    written.write("content")
    written.flush()
    after = os.stat(f"{B}/timed")
    assert after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns
    assert abs(time.time_ns() - after.st_mtime_ns) < 60 * 10**9, "the server's clock is that of this computer"
    for root in ROOTS:
        same(open(f"{root}/timed").read(), "content")
        same(os.listdir(root) != [], True)
    same([os.stat(f"{root}/timed").st_atime_ns for root in ROOTS], [before.st_atime_ns] * 2, "access time")


# SEMANTICS 42
@test
def locks_of_directories():
    """Linux keeps them to itself: they exclude each other on one machine only."""
    os.mkdir(f"{A}/locked dir")
    own, same_machine, other = (os.open(f"{root}/locked dir", os.O_RDONLY) for root in (A, A, B))
    fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    same(errno_of(fcntl.flock, same_machine, fcntl.LOCK_EX | fcntl.LOCK_NB), "EAGAIN")
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


# SEMANTICS 43
@test
def file_leases():
    """Those of fcntl(2), which Linux keeps to itself: an opener on the other machine does not break them."""
    open(f"{A}/leased", "w").close()
    fd = os.open(f"{A}/leased", os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    os.close(os.open(f"{B}/leased", os.O_WRONLY))
    same(fcntl.fcntl(fd, fcntl.F_GETLEASE), fcntl.F_RDLCK)
    os.close(fd)


# SEMANTICS 44
@test
def watching():
    """inotify tells what this machine does."""
    os.mkdir(f"{A}/watched")
    watch = LIBC.inotify_init1(os.O_NONBLOCK)
    create = 0x100
    assert LIBC.inotify_add_watch(watch, os.fsencode(f"{A}/watched"), create) >= 0
    open(f"{B}/watched/theirs", "w").close()
    assert os.path.exists(f"{A}/watched/theirs")
    same(errno_of(os.read, watch, 4096), "EAGAIN", "a change of the other machine")
    open(f"{A}/watched/ours", "w").close()
    assert b"ours" in os.read(watch, 4096)


# SEMANTICS 45
@test
def refused():
    """What there is no way to do says so."""
    os.mkdir(f"{A}/no links")
    same(errno_of(os.link, f"{A}/no links", f"{A}/no links here"), "EPERM")
    for name in "from", "to":
        with open(f"{A}/clone {name}", "wb") as file:
            file.write(bytes(8192))
    source, target = os.open(f"{A}/clone from", os.O_RDONLY), os.open(f"{A}/clone to", os.O_RDWR)
    same(errno_of(fcntl.ioctl, target, FICLONE, source), "ENOTSUP")
    same(errno_of(fcntl.ioctl, target, FS_IOC_SETFLAGS, b"\x10\0\0\0\0\0\0\0"), "ENOTSUP")
    same(errno_of(fcntl.ioctl, target, FS_IOC_GETVERSION, bytes(8)), "ENOTTY")
    for mode in (COLLAPSE, INSERT):
        same(errno_of(allocate, target, mode, 0, 4096), "ENOTSUP")


@test
def always_ready():
    """poll(2) and epoll(7), which take files of a FUSE mount: there is nothing to wait for, at any time."""
    open(f"{A}/polled", "w").close()
    for root in ROOTS:
        for attempt in range(2):
            fd = os.open(f"{root}/polled", os.O_RDWR)
            polled, ready = select.poll(), select.POLLIN | select.POLLOUT
            polled.register(fd, ready)
            same(polled.poll(0), [(fd, ready)], f"poll, time {attempt}")
            with select.epoll() as epoll:
                epoll.register(fd, select.EPOLLIN | select.EPOLLOUT)
                same(epoll.poll(0), [(fd, select.EPOLLIN | select.EPOLLOUT)], f"epoll, time {attempt}")
            os.close(fd)


@test
def flags_of_files():
    """No file has a flag of chattr's, which lsattr can say; who sets none is right, who sets one is refused."""
    os.mkdir(f"{A}/flags")
    open(f"{A}/flags/file", "w").close()
    get, set_, get_all, set_all = FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR
    for path in f"{A}/flags", f"{B}/flags/file":
        fd = os.open(path, os.O_RDONLY)
        same(fcntl.ioctl(fd, get, b"\xff" * 8)[:4], bytes(4))
        same(fcntl.ioctl(fd, get_all, b"\xff" * 28), bytes(28))
        same(fcntl.ioctl(fd, set_, bytes(8)), bytes(8))
        same(fcntl.ioctl(fd, set_all, bytes(28)), bytes(28))
        same(errno_of(fcntl.ioctl, fd, set_, b"\x10" + bytes(7)), "ENOTSUP")
        os.close(fd)
    if shutil.which("lsattr"):
        seen = subprocess.run(["lsattr", f"{A}/flags"], capture_output=True, text=True)
        same((seen.returncode, seen.stderr, set(seen.stdout.split()[0])), (0, "", {"-"}))


# SEMANTICS 5
@test
def time_of_birth():
    """statx(2) tells when a file was made, the same on both machines, whatever happens to it."""
    if OLD_KERNEL:
        return  # does not ask
    def born(root):
        return subprocess.run(["stat", "--format=%W %w", f"{root}/born"], capture_output=True, text=True, check=True).stdout
    before = int(time.time())
    with open(f"{A}/born", "w") as file:
        first = born(A)
        assert before - 1 <= int(first.split()[0]) <= time.time() + 1, first
        file.write("x")
    os.utime(f"{A}/born", (1, 1))
    with open(f"{B}/born", "a") as file:
        file.write("y")
    same([born(root) for root in ROOTS], [first, first])


@test
def working_directory():
    """A process that works in a directory keeps its path when other machines change the directory's parent."""
    os.makedirs(f"{A}/work/here")
    os.chdir(f"{A}/work/here")
    for number in range(20):
        open(f"{B}/work/{number}", "w").close()
        same(subprocess.run(["pwd", "-P"], capture_output=True, text=True).stdout.strip(), f"{A}/work/here")
    os.chdir("/")


def main():
    os.mkdir(A)
    passed, failed = 0, 0
    named = sys.argv[3:]
    for function in [function for function in TESTS if not named or function.__name__ in named]:
        start = time.monotonic()
        try:
            function()
            passed += 1
        except Exception as error:  # the next ones are still worth knowing
            failed += 1
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)]
            print(f"semantics: {function.__name__}, lines {lines}: {type(error).__name__}: {error}")
        if time.monotonic() - start > SLOW:
            print(f"semantics: {function.__name__} took {time.monotonic() - start:.0f} s")
    shutil.rmtree(A, ignore_errors=True)
    print(f"semantics: {passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
