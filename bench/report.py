"""Figures, their medians and ratios, and the table."""
import statistics

BASELINES = ["local", "passthrough"]


class Figure:
    """One measured quantity: its values for each target, round by round."""

    def __init__(self, kind):
        self.kind = kind
        self.values = {}

    def add(self, target, number, value):
        self.values.setdefault(target, {}).setdefault(number, []).append(value)

    def to_json(self):
        flat = {target: [v for vs in rounds.values() for v in vs] for target, rounds in self.values.items()}
        targets = {
            target: {"median": statistics.median(values), "min": min(values), "max": max(values), "values": values}
            for target, values in flat.items()
        }
        ratios = {base: self.ratios(base) for base in BASELINES if base in self.values}
        return {"unit": self.kind.unit, "better": self.kind.better, "targets": targets, "ratios": ratios}

    def ratios(self, base):
        """For each target: how good it is relative to `base` (above 1 is better), the median over the rounds."""
        found = {}
        for target, rounds in self.values.items():
            pairs = [(statistics.median(rounds[n]), statistics.median(self.values[base][n]))
                     for n in rounds if n in self.values[base]]
            if pairs:
                higher = self.kind.better == "higher"
                found[target] = statistics.median([a / b if higher else b / a for a, b in pairs])
        return found


def show(value, unit):
    if unit == "x":
        return f"{value:.2f} x"
    if value >= 1000:
        return f"{value:,.0f} {unit}"
    return f"{value:.3g} {unit}"


def text(result):
    """The table: a line for each figure, a column for each target with its ratio to both baselines; then the goals."""
    lines = []
    for which, figures in result["series"].items():
        names = []
        for figure in figures.values():
            names += [target for target in figure["targets"] if target not in names]
        lines.append("")
        lines.append(f"other core {which}; in brackets: relative to local, to the pass-through (above 1 is better)")
        lines.append("| figure | " + " | ".join(names) + " |")
        lines.append("|---|" + "---|" * len(names))
        for name, figure in figures.items():
            cells = []
            for target in names:
                measured = figure["targets"].get(target)
                if not measured:
                    cells.append("")
                    continue
                ratios = [f"{figure['ratios'][base][target]:.2f}" for base in BASELINES
                          if target != base and target in figure["ratios"].get(base, {})]
                bracket = f" ({', '.join(ratios)})" if ratios else ""
                cells.append(show(measured["median"], figure["unit"]) + bracket)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("")
    for goal in result["goals"]:
        sign = ">=" if goal["direction"] == "min" else "<="
        verdict = "met   " if goal["met"] else "MISSED"
        lines.append(f"{verdict} {goal['series']}: {goal['words']}: {goal['value']:.4g} (goal {sign} {goal['bound']})")
    return "\n".join(lines)
