#!/usr/bin/env python3
"""Two mounts of one volume, A and B: what docs/SEMANTICS.md promises, numbers as there.

    semantics.py A B
"""

import errno
import fcntl
import mmap
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time

ROOTS = [os.path.join(root, f"semantics.{os.getpid()}") for root in sys.argv[1:3]]
A, B = ROOTS
TESTS = []


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


def wait(child, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("a process hangs")


def eventually(condition, what, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@test
def names_8_9_12():
    with open(f"{A}/one", "w") as one, open(f"{A}/two", "w") as two:
        one.write("1")
        two.write("2")
    same(errno_of(os.open, f"{B}/one", os.O_CREAT | os.O_EXCL | os.O_RDWR), "EEXIST", "O_EXCL")
    same(errno_of(os.mkdir, f"{B}/one"), "EEXIST", "mkdir")
    same(errno_of(os.link, f"{B}/two", f"{B}/one"), "EEXIST", "link")
    os.rename(f"{A}/one", f"{A}/two")
    same(open(f"{B}/two").read(), "1", "rename replaces")
    same(os.path.exists(f"{B}/one"), False, "the old name")
    longest = "n" * 255
    open(f"{A}/{longest}", "w").close()
    same(longest in os.listdir(B), True, "255 bytes")
    same(errno_of(os.open, f"{A}/{longest}x", os.O_CREAT), "ENAMETOOLONG", "256 bytes")
    target = "t" * 4095
    os.symlink(target, f"{A}/longest link")
    same(os.readlink(f"{B}/longest link"), target, "target")


@test
def orphans_10():
    held = open(f"{A}/gone", "w+")
    held.write("still there")
    held.flush()
    os.unlink(f"{B}/gone")
    held.seek(0)
    same(held.read(), "still there")
    same(os.fstat(held.fileno()).st_nlink, 0)


@test
def tmpfile():
    fd = os.open(A, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"first without a name")
    os.link(f"/proc/self/fd/{fd}", f"{A}/linked", src_dir_fd=os.open("/", 0), follow_symlinks=True)
    os.close(fd)
    same(open(f"{B}/linked").read(), "first without a name")


@test
def holes_14():
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


@test
def copies_15():
    source, target = (os.open(f"{A}/{name}", os.O_CREAT | os.O_RDWR) for name in ("source", "target"))
    os.write(source, os.urandom(1 << 20))
    same(os.copy_file_range(source, target, 1 << 20, 0, 4096), 1 << 20)
    same(open(f"{B}/target", "rb").read(), b"\0" * 4096 + os.pread(source, 1 << 20, 0))


@test
def mappings_21_to_24():
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


def take(path, kind):
    """0: locked, 1: somebody else has it."""
    def work():
        with open(path, "r+") as file:
            lock = fcntl.flock if kind == "flock" else fcntl.lockf
            return 0 if errno_of(lock, file, fcntl.LOCK_EX | fcntl.LOCK_NB) is None else 1
    return wait(in_child(work))


@test
def locks_26_29():
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


@test
def ranges_26():
    with open(f"{A}/ranges", "wb") as file:
        file.write(b"x" * 100)
    here, there = open(f"{A}/ranges", "r+"), open(f"{B}/ranges", "r+")
    fcntl.lockf(here, fcntl.LOCK_EX, 10, 20)
    same(errno_of(fcntl.lockf, there, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0), None, "beside it")
    same(errno_of(fcntl.lockf, there, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 29), "EAGAIN", "its last byte")
    question = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, start, length, _ = struct.unpack("hhqqi", fcntl.fcntl(there, fcntl.F_GETLK, question))
    same((kind, start, length), (fcntl.F_WRLCK, 20, 10), "F_GETLK")


@test
def waiting_27():
    open(f"{A}/wait", "w").close()
    held = open(f"{A}/wait", "r+")
    fcntl.lockf(held, fcntl.LOCK_EX)

    def wait_for_it():
        fcntl.lockf(open(f"{B}/wait", "r+"), fcntl.LOCK_EX)
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
    time.sleep(0.2)
    os.kill(killed, signal.SIGKILL)
    same(wait(killed), -signal.SIGKILL)
    waiting = in_child(wait_for_it)
    time.sleep(0.2)
    same(os.waitpid(waiting, os.WNOHANG)[0], 0, "it waits")
    fcntl.lockf(held, fcntl.LOCK_UN)
    same(wait(waiting), 7, "it is let in")
    eventually(lambda: take(f"{A}/wait", "record") == 0, "the killed one has got the lock")


@test
def deadlock_28():
    with open(f"{A}/dead", "wb") as file:
        file.write(b"xx")
    first, second = (f"{A}/dead", 0, 1), (f"{B}/dead", 1, 0)

    def work(path, mine, other):
        file = open(path, "r+")
        fcntl.lockf(file, fcntl.LOCK_EX, 1, mine)
        time.sleep(0.5)
        return {None: 0, "EDEADLK": 35, "EDEADLOCK": 35}.get(errno_of(fcntl.lockf, file, fcntl.LOCK_EX, 1, other), 1)

    children = [in_child(lambda order=order: work(*order)) for order in (first, second)]
    same(sorted(wait(child) for child in children), [0, 35])


@test
def access_31_33():
    path = f"{A}/listed"
    open(path, "w").close()
    os.chmod(path, 0o600)
    os.chmod(A, 0o755)
    nobody = 65534

    def read_as_nobody(of):
        def work():
            os.setgroups([])
            os.setgid(nobody)
            os.setuid(nobody)
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


@test
def privileges_32():
    path = f"{A}/privileged"
    with open(path, "w") as file:
        file.write("x")
    os.chmod(path, 0o6777)

    def write_as_nobody():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with open(path, "a") as file:
            file.write("y")
        return 0

    same(wait(in_child(write_as_nobody)), 0)
    same(stat.S_IMODE(os.stat(f"{B}/privileged").st_mode), 0o777, "a write drops set-user-id and set-group-id")


@test
def special_34_35():
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
    os.utime(f"{A}/null", ns=(123456789123456789, -987654321))
    seen = os.stat(f"{B}/null")
    same((seen.st_atime_ns, seen.st_mtime_ns), (123456789123456789, -987654321))


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
    for function in TESTS:
        try:
            function()
            passed += 1
        except Exception as error:  # the next ones are still worth knowing
            failed += 1
            print(f"semantics: {function.__name__}: {type(error).__name__}: {error}")
    shutil.rmtree(A, ignore_errors=True)
    print(f"semantics: {passed} passed, {failed} failed")
    return 1 if failed else 0


sys.exit(main())
