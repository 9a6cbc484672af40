"""The machine's other core: idle, or busy. Waking an idle virtual core costs more than most requests."""
import multiprocessing
import os


class Load:
    def __init__(self, which):
        self.spinners = []
        if which == "busy":
            # One for all cores but one, each kept on its core.
            cores = sorted(os.sched_getaffinity(0))[1:]
            self.spinners = [multiprocessing.Process(target=spin, args=(core,), daemon=True) for core in cores]

    def __enter__(self):
        for spinner in self.spinners:
            spinner.start()

    def __exit__(self, *_):
        for spinner in self.spinners:
            spinner.terminate()
            spinner.join()


def spin(core):
    os.sched_setaffinity(0, {core})
    while True:
        pass
