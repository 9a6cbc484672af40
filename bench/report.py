"""Figures, their medians and ratios, and the page."""

import re
import statistics
from collections.abc import Sequence

from goals import DOOR, Goal, Judged, judge
from phases import Kind, Trials

BASELINES = ["local", "passthrough"]
WHILE = {"watched": "while another mount looks"}


class Figure:
    """One measured quantity: what each target had in each round."""

    def __init__(self, kind: Kind):
        self.kind = kind
        self.values: dict[str, dict[int, float | Trials]] = {}

    def add(self, target: str, number: int, value: float | Trials) -> None:
        """Trials of one kind that several phases have made in a round count together."""
        rounds = self.values.setdefault(target, {})
        before = rounds.get(number)
        rounds[number] = before + value if isinstance(before, Trials) else value

    def to_json(self) -> dict:
        targets = {target: summary(list(rounds.values())) for target, rounds in self.values.items()}
        ratios = {base: self.ratios(base) for base in self.values}
        return {"unit": self.kind.unit, "better": self.kind.better, "targets": targets, "ratios": ratios}

    def ratios(self, base: str) -> dict[str, float]:
        """For each target: how good it is relative to `base` (above 1 is better), the median over the rounds."""
        found = {}
        for target, rounds in self.values.items():
            pairs = [(value, self.values[base].get(number)) for number, value in rounds.items()]
            each = [
                self.kind.goodness(value, other)
                for value, other in pairs
                if isinstance(value, int | float) and isinstance(other, int | float) and value and other
            ]
            if target != base and each:
                found[target] = statistics.median(each)
        return found


def summary(values: list[float | Trials]) -> dict:
    trials = [value for value in values if isinstance(value, Trials)]
    numbers = [value for value in values if not isinstance(value, Trials)]
    if trials:
        total = sum(trials, Trials())
        late = statistics.median(total.delays) if total.delays else None
        return {"trials": total.count, "stale": total.stale, "median_delay_s": late}
    return {"median": statistics.median(numbers), "min": min(numbers), "max": max(numbers), "values": numbers}


def short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def where(result: dict) -> str:
    """When, of what, and on which machine."""
    machine = result["machine"]
    return (
        f"{result['date']}, commit {result['commit']}: {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gib']} GiB, Linux {machine['kernel']}."
    )


def command(result: dict) -> str:
    """What was called, without the paths of the machine that it was called on."""
    return re.sub(" --(out|soda) [^ ]+", "", result["command"])


def peers(result: dict) -> list[str]:
    """The targets that are neither Soda nor what it is built on."""
    return [name for name in result.get("targets", []) if name not in BASELINES and not name.startswith("soda")]


def text(result: dict) -> str:
    """The page: the machine, each series, what was aimed at. Markdown."""
    others = " and other file systems" if peers(result) else ""
    lines = [
        where(result),
        f"`{command(result)}`:",
        rounds_of(result["rounds"]),
        "In round brackets relative to " + " and ".join(BASELINES) + ": above 1 is better.",
    ]
    verdicts = {name: judge(series["figures"]) for name, series in result["series"].items()}
    if any(verdicts.values()) and not result["smoke"]:
        lines += [
            "",
            f"### Against what was aimed at{' (the run with other file systems)' if others else ''}",
            "",
        ]
        lines += goal_table(verdicts)
    for name, series in result["series"].items():
        usage = series["usage"]
        lines += [
            "",
            f"### Soda{others}, {WHILE.get(name, f'the other cores {name}')}",
            "",
            f"Stolen by the host {usage['steal']:.1%}, busy {usage['busy']:.0%}, {usage['swapped_pages']} pages swapped, "
            f"load {usage['load']:.1f}; {series['seconds']} s.",
            "",
        ]
        lines += tables(series["figures"], result["targets"])
    return "\n".join(lines)


def rounds_of(count: int) -> str:
    match count:
        case 1:
            return "One round."
        case 2:
            return "Means of two rounds, in square brackets both; ratios round by round."
        case _:
            return f"Medians of {count} rounds, in square brackets the least and the most; ratios round by round."


MESSAGES, REQUESTS = "messages per ", "requests per "
BEHIND, THROUGH = "soda", "soda-through"


def tables(figures: dict, targets: list[str]) -> list[str]:
    looks = {name: figure for name, figure in figures.items() if figure["unit"] in ("stale", "lost")}
    timed, counted = rates(figures), counts(figures)
    lines = table("figure", targets, timed, speed_cell) if timed else []
    lines += [""] + counts_table(counted) if counted else []
    if looks:
        shared = [
            target for target in targets if any(target in figure["targets"] for figure in looks.values())
        ]
        lines += [""] + table("stale or lost, of trials", shared, looks, trials_cell)
    return lines


def rates(figures: dict) -> dict:
    """What is neither counted for each operation nor a look for stale data."""
    return {
        name: figure
        for name, figure in figures.items()
        if figure["unit"] not in ("stale", "lost") and not name.startswith((MESSAGES, REQUESTS))
    }


def counts(figures: dict) -> dict:
    return {name: figure for name, figure in figures.items() if name.startswith((MESSAGES, REQUESTS))}


def table(head: str, targets: list[str], figures: dict, cell) -> list[str]:
    lines = [f"| {head} | " + " | ".join(targets) + " |", "|---" * (len(targets) + 1) + "|"]
    for name, figure in figures.items():
        title = f"{name}, {figure['unit']}" if figure["unit"] else name
        lines.append(f"| {title} | " + " | ".join(cell(figure, target) for target in targets) + " |")
    return lines


def counts_table(figures: dict) -> list[str]:
    """What each operation takes with delayed writes and without, and how many times as much without."""
    lines = [
        "| for each | messages, behind | through | ratio | requests, behind | through | ratio |",
        "|---" * 7 + "|",
    ]
    for operation in dict.fromkeys(name.removeprefix(MESSAGES).removeprefix(REQUESTS) for name in figures):
        cells = [cell for what in (MESSAGES, REQUESTS) for cell in count_cells(figures.get(what + operation))]
        lines.append(f"| {operation} | " + " | ".join(cells) + " |")
    return lines


def count_cells(figure: dict | None) -> list[str]:
    if not figure:
        return ["", "", ""]
    counts = [figure["targets"].get(target) for target in (BEHIND, THROUGH)]
    ratio = figure["ratios"].get(THROUGH, {}).get(BEHIND)
    return [*(short(count["median"]) if count else "" for count in counts), short(ratio) if ratio else ""]


def speed_cell(figure: dict, target: str, bases: Sequence[str] = BASELINES) -> str:
    measured = figure["targets"].get(target)
    if not measured:
        return ""
    words = [short(measured["median"])]
    if len(measured["values"]) > 1:
        words.append(f"[{short(measured['min'])}-{short(measured['max'])}]")
    ratios = [
        f"{figure['ratios'][base][target]:.2f}"
        for base in bases
        if target in figure["ratios"].get(base, {})
    ]
    if ratios:
        words.append(f"({', '.join(ratios)})")
    return " ".join(words)


def median_cell(figure: dict, target: str) -> str:
    """Of Soda's own targets with what it is relative to the baselines."""
    measured = figure["targets"].get(target)
    if not measured:
        return ""
    return speed_cell({**figure, "targets": {target: {**measured, "values": []}}}, target, BASELINES if target not in BASELINES else [])


def trials_cell(figure: dict, target: str) -> str:
    found = figure["targets"].get(target)
    if not found:
        return ""
    late = f" ({found['median_delay_s']:.2g} s late)" if found["median_delay_s"] else ""
    return f"{found['stale']}/{found['trials']}{late}"


def goal_table(verdicts: dict[str, list[Judged]]) -> list[str]:
    lines = ["| goal | bound | " + " | ".join(verdicts) + " |", "|---" * (len(verdicts) + 2) + "|"]
    by_goal: dict[Goal, dict[str, str]] = {
        judged.goal: {} for series in verdicts.values() for judged in series
    }
    for name, series in verdicts.items():
        for judged in series:
            value = short(judged.value)
            by_goal[judged.goal][name] = value if judged.met else f"**{value}, missed**"
    for goal, values in by_goal.items():
        cells = " | ".join(values.get(name, "") for name in verdicts)
        lines.append(f"| {goal.words} | {goal.bound.value} {short(goal.limit)} | {cells} |")
    return lines


def door_text(result: dict) -> str:
    """What the kernel's requests cost, and what of it was aimed at. Markdown."""
    lines = [
        where(result),
        f"`{command(result)}`; stolen by the host {result['usage']['steal']:.1%}:",
        rounds_of(result["rounds"]),
        "In round brackets relative to the pass-through: above 1 is better.",
        "",
        *door_goals(result),
        "",
        *table("figure", result["door"], result["figures"], speed_cell),
    ]
    return "\n".join(lines)


def door_goals(result: dict) -> list[str]:
    return goal_table({"idle": judge(result["figures"], DOOR)})


def policies_text(result: dict) -> str:
    """A table for each policy: each value that was tried, next to the default. Markdown."""
    usage = result["usage"]
    lines = [
        where(result),
        f"`{command(result)}`:",
        rounds_of(result["rounds"]),
        "In round brackets relative to the default: above 1 is better.",
        "Bold: each round was better than all of the default's, by 5 % or more; crossed out: each was worse.",
        f"Stolen by the host {usage['steal']:.1%}, busy {usage['busy']:.0%}, load {usage['load']:.1f}; {result['seconds']} s.",
    ]
    for name, policy in result["policies"].items():
        default = policy["default"]

        def cell(figure: dict, value: str) -> str:
            words = speed_cell(figure, value, [default])
            return {1: f"**{words}**", -1: f"~~{words}~~"}.get(beyond_chance(figure, value, default), words)

        heads = [f"{value} (default)" if value == default else value for value in policy["values"]]
        rows = table(f"`{name}`", policy["values"], policy["figures"], cell)
        lines += ["", f"| `{name}` | " + " | ".join(heads) + " |", *rows[1:]]
    return "\n".join(lines)


def beyond_chance(figure: dict, value: str, other: str) -> int:
    """1 if each round of one value was better than all of another's by 5 % and more, -1 if each was worse; else, and of fewer
    than three rounds, 0."""
    mine, theirs = figure["targets"][value], figure["targets"][other]
    if value == other or len(mine["values"]) < 3:
        return 0
    above, below = mine["min"] > 1.05 * theirs["max"], theirs["min"] > 1.05 * mine["max"]
    better, worse = (above, below) if figure["better"] == "higher" else (below, above)
    return better - worse
