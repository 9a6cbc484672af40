"""What Soda must reach, as said when it was begun, and whether it does."""

# (figure, compared with, at least or at most, bound, in words)
GOALS = [
    ("warm re-read", "passthrough", "min", 1.0, "re-read of a cached 256 MiB file: the pass-through's rate"),
    ("random 4K read", "passthrough", "min", 1.0, "4 KiB random reads of it: the pass-through's rate"),
    ("stat", "local", "min", 0.85, "stat of cached names: 0.85 of the local rate"),
    ("small read", "passthrough", "min", 1.0, "open+read+close of a cached small file: the pass-through's rate"),
    ("cache over server", None, "min", 13, "a read from the client's cache over one from the server: 13 times faster"),
    ("leases off over on", None, "min", 0.95, "a server's read with leases: at most 5 % slower than without"),
    ("seq read cold", "passthrough", "min", 0.6, "cold sequential read of 1 GiB: 0.6 of the pass-through's rate"),
    ("seq write", "passthrough", "min", 0.6, "sequential write of 1 GiB with fsync: 0.6 of the pass-through's rate"),
    ("create", None, "min", 3000, "create+write+close of small files from one thread: 3,000/s"),
    ("recall", None, "max", 1000, "a write that invalidates a reader: under 1,000 us"),
]


def judge(series):
    """For each goal and series: the value, the bound and whether it is met."""
    judged = []
    for which, figures in series.items():
        for name, against, direction, bound, words in GOALS:
            figure = figures.get(name)
            if not figure or "soda" not in figure["targets"]:
                continue
            if against is None:
                value = figure["targets"]["soda"]["median"]
            elif against in figure["ratios"]:
                value = figure["ratios"][against]["soda"]
            else:
                continue
            met = value >= bound if direction == "min" else value <= bound
            judged.append({"series": which, "figure": name, "against": against, "value": round(value, 4), "bound": bound,
                           "direction": direction, "met": met, "words": words})
    return judged
