#!/usr/bin/env python3
"""SQLite in rollback-journal mode, used by one process for each given directory at the same time.

usage: sqlite.py DIRECTORY [DIRECTORY...]      the same directory, as seen on different mounts

Each process adds to its own row and to a shared one in transactions of its own; some are rolled back. In the end every
addition that was committed is there, none that was rolled back is, and SQLite finds its file sound.
"""
import multiprocessing
import os
import random
import sqlite3
import sys
import tempfile

TRANSACTIONS = int(os.environ.get("SQLITE_TRANSACTIONS", "150"))


def connect(path):
    db = sqlite3.connect(path, timeout=120, isolation_level=None)
    mode = db.execute("PRAGMA journal_mode=DELETE").fetchone()[0]
    assert mode == "delete", mode
    db.execute("PRAGMA synchronous=NORMAL")
    return db


def work(path, worker, results):
    rng = random.Random(worker)
    db = connect(path)
    committed = 0
    for number in range(TRANSACTIONS):
        db.execute("BEGIN IMMEDIATE")
        before = db.execute("SELECT value FROM counters WHERE name = 'shared'").fetchone()[0]
        db.execute("UPDATE counters SET value = value + 1 WHERE name = 'shared'")
        db.execute("UPDATE counters SET value = value + 1 WHERE name = ?", (f"worker{worker}",))
        db.execute("INSERT INTO log VALUES (?, ?, ?)", (worker, number, before + 1))
        if rng.random() < 0.1:
            db.execute("ROLLBACK")
            continue
        db.execute("COMMIT")
        committed += 1
        seen = db.execute("SELECT value FROM counters WHERE name = 'shared'").fetchone()[0]
        assert seen > before, f"own commit not seen: {seen} after {before}"
    results.put((worker, committed))


def main():
    directories = sys.argv[1:] or sys.exit(__doc__)
    base = tempfile.mkdtemp(prefix="sqlite.", dir=directories[0])
    paths = [os.path.join(d, os.path.basename(base), "db") for d in directories]
    if len(paths) == 1:
        paths *= 2
    db = connect(paths[0])
    db.execute("CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER)")
    db.execute("CREATE TABLE log (worker INTEGER, number INTEGER, value INTEGER UNIQUE)")
    names = ["shared"] + [f"worker{i}" for i in range(len(paths))]
    db.executemany("INSERT INTO counters VALUES (?, 0)", [(name,) for name in names])
    db.close()

    results = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=work, args=(p, i, results)) for i, p in enumerate(paths)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    codes = [worker.exitcode for worker in workers]
    if any(codes):
        for worker in workers:
            worker.kill()
        sys.exit(f"sqlite: worker exit codes {codes}")
    committed = dict(results.get() for _ in workers)

    for path in paths:
        db = connect(path)
        check = db.execute("PRAGMA integrity_check").fetchone()[0]
        counters = dict(db.execute("SELECT name, value FROM counters"))
        rows = db.execute("SELECT count(*) FROM log").fetchone()[0]
        db.close()
        total = sum(committed.values())
        assert check == "ok", check
        assert counters["shared"] == rows == total, (counters, rows, committed)
        assert all(counters[f"worker{i}"] == n for i, n in committed.items()), (counters, committed)
    for name in os.listdir(base):
        os.unlink(os.path.join(base, name))
    os.rmdir(base)
    print("sqlite: 1 passed, 0 failed")


main()
