"""Plots (SVG) of what measure_policies.py measures: {policy: {"kept_ratio", "kld", "recall": {tokens: share}, "rouge_l"}}."""

import math

LINE_COLOURS = ("#c0392b", "#2980b9", "#27ae60", "#8e44ad", "#e67e22", "#16a085", "#7f8c8d")


def budget_of(policy):
    """Tokens of a policy's budget, or None."""
    settings = dict(setting.split("=") for setting in policy.partition(":")[2].split(",") if setting)
    if policy.startswith("streamingllm"):
        return int(settings.get("sink", 4)) + int(settings["window"])
    return int(settings["budget"]) if settings.get("budget", "").isdigit() else None


def family_of(policy):
    """A policy without its budget."""
    name, _, settings = policy.partition(":")
    rest = [setting for setting in settings.split(",") if setting.startswith(("sink=", "residual=")) and name != "streamingllm"]
    return " ".join([name, *rest])


def panel(lines, full, title, top, log, ticks):
    """One plot over `ticks` (a logarithmic axis), `lines` {name: [(x, value)]}, `full` the value of all tokens."""
    left, right, bottom = 70, 560, top + 200
    values = [value for line in lines.values() for _, value in line] + ([] if log else [full])
    scale = (lambda value: math.log10(max(value, 1e-9))) if log else (lambda value: value)
    low, high = (math.floor(scale(min(values))), math.ceil(scale(max(values)))) if log else (0, 1)
    across = lambda x: left + 20 + (right - left - 40) * math.log(x / ticks[0]) / max(math.log(ticks[-1] / ticks[0]), 1e-9)
    up = lambda value: bottom - (bottom - top) * (scale(value) - low) / max(high - low, 1e-9)
    parts = [f'<text x="{left}" y="{top - 10}" font-weight="bold">{title}</text>',
             f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#999"/>']
    for tick in ([10 ** power for power in range(low, high + 1)] if log else [0, 0.25, 0.5, 0.75, 1]):
        parts.append(f'<text x="{left - 6}" y="{up(tick) + 4:.0f}" text-anchor="end">{tick:g}</text>'
                     f'<path d="M{left} {up(tick):.1f}H{right}" stroke="#eee"/>')
    parts += [f'<text x="{across(tick):.0f}" y="{bottom + 16}" text-anchor="middle">{tick:g}</text>' for tick in ticks]
    if low <= scale(full) <= high:
        parts.append(f'<path d="M{left} {up(full):.1f}H{right}" stroke="#333" stroke-dasharray="4 3"/>')
    for index, line in enumerate(lines.values()):
        colour = LINE_COLOURS[index % len(LINE_COLOURS)]
        points = [(across(x), up(value)) for x, value in sorted(line)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return parts


def write(lines, full, tokens, title, ticks, path):
    """Panels of divergence, recall at so many tokens and ROUGE-L; `lines` {name: [(x, measured)]}, `full` measured."""
    kinds = [("KL divergence from the full cache of the original (nats)", lambda row: row["kld"], True),
             (f"recall at {tokens} tokens", lambda row: row["recall"][str(tokens)], False),
             ("ROUGE-L of continuations", lambda row: row["rouge_l"], False)]
    parts = []
    for index, (name, value, log) in enumerate(kinds):
        of_kind = {line: [(x, value(row)) for x, row in points] for line, points in lines.items()}
        parts += panel(of_kind, value(full), name, 60 + 260 * index, log, ticks)
    for index, name in enumerate([*lines, "all tokens (dashed)"]):
        colour = LINE_COLOURS[index % len(LINE_COLOURS)] if index < len(lines) else "#333"
        parts.append(f'<rect x="590" y="{50 + 18 * index}" width="12" height="12" fill="{colour}"/>'
                     f'<text x="608" y="{61 + 18 * index}">{name}</text>')
    path.write_text('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 830" font-family="sans-serif" font-size="12">'
                    f'<rect width="800" height="830" fill="white"/><text x="70" y="22" font-size="15">{title}</text>'
                    + "\n".join(parts) + "</svg>\n")


def plot_budgets(cache, rows, tokens, path):
    """One cache's policies, a line each, over their budgets. rows: {policy: measured}, "full" among them."""
    lines = {}
    for policy, row in rows.items():
        if budget_of(policy):
            lines.setdefault(family_of(policy), []).append((budget_of(policy), row))
    if lines:
        budgets = sorted({budget for line in lines.values() for budget, _ in line})
        write(lines, rows["full"], tokens, f"{cache}: quality against budget in tokens", budgets, path)


def plot_compositions(caches, tokens, path):
    """Caches and what policies leave of them, a line for each cache and kind of policy, over their share of the bytes of
    all tokens as 16-bit numbers. caches: {name: {policy: measured}}, the original first, "full" among the policies."""
    lines = {}
    for name, rows in caches.items():
        for kind in dict.fromkeys(family_of(policy) for policy in rows if budget_of(policy)):
            line = [row for policy, row in rows.items() if policy == "full" or family_of(policy) == kind]
            lines[f"{name}, {kind}"] = [(row["kept_ratio"], row) for row in line]
    if lines:
        least = min(x for line in lines.values() for x, _ in line)
        ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1) if 2.5 * tick >= least]
        full = next(iter(caches.values()))["full"]
        write(lines, full, tokens, "Quality against bytes, of those of 16-bit numbers of all tokens", ticks, path)
