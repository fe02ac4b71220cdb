"""Draws what compare_methods.py measured: quality against bytes of the cache."""

import math

RATIOS = (0.5, 0.35, 0.25, 0.125, 0.0625)  # that the horizontal axis names
COLOURS = ("#c0392b", "#e67e22", "#f1c40f", "#d35400", "#2980b9", "#8e44ad", "#27ae60", "#16a085", "#7f8c8d", "#2c3e50",
           "#e84393", "#6c5ce7", "#00b894", "#636e72", "#b2bec3", "#fd79a8", "#55efc4", "#0984e3", "#a29bfe", "#fdcb6e",
           "#00cec9", "#b33939", "#218c74", "#cc8e35")


class Axis:
    """A logarithmic axis from the decade below `low` to the one above `high`, over pixels first .. last."""

    def __init__(self, low, high, first, last):
        self.low, self.high = math.log10(low), math.log10(high)
        self.first, self.last = first, last

    def at(self, value):
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)


def panel(results, key, title, top, bottom):
    """One plot of `key` against kept_ratio between two heights."""
    lines = {name: sorted((r["kept_ratio"], r[key]) for r in by_ratio.values() if r.get(key))
             for name, by_ratio in results.items()}
    values = [value for line in lines.values() for _, value in line]
    if not values:
        return []
    log = key == "kld"
    low, high = (10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))) if log else (
        min(values) - 0.01, max(values) + 0.01)
    ratios = [ratio for line in lines.values() for ratio, _ in line]
    x = Axis(min(ratios) * 0.9, max(*ratios, 0.55) * 1.1, 70, 560)
    y = Axis(low, high, bottom, top) if log else Axis(10 ** low, 10 ** high, bottom, top)
    height = y.at if log else lambda value: y.at(10 ** value)
    parts = [f'<text x="70" y="{top - 10}" font-weight="bold">{title}</text>',
             f'<path d="M70 {top}V{bottom}H560" fill="none" stroke="#999"/>']
    ticks = [10 ** d for d in range(round(math.log10(low)), round(math.log10(high)) + 1)] if log else [
        low + (high - low) * i / 4 for i in range(5)]
    for tick in ticks:
        parts.append(f'<text x="64" y="{height(tick) + 4:.0f}" text-anchor="end">{tick:.3g}</text>'
                     f'<path d="M70 {height(tick):.1f}H560" stroke="#eee"/>')
    for ratio in RATIOS:
        if x.first <= x.at(ratio) <= x.last:
            parts.append(f'<text x="{x.at(ratio):.0f}" y="{bottom + 16}" text-anchor="middle">{ratio:g}</text>')
    for index, (name, line) in enumerate(lines.items()):
        points = [(x.at(ratio), height(value)) for ratio, value in line]
        colour = COLOURS[index % len(COLOURS)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{px:.1f},{py:.1f}" for px, py in points) + '"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
    return parts


def plot(results, subject):
    legend = [f'<rect x="590" y="{50 + 18 * i}" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/>'
              f'<text x="608" y="{61 + 18 * i}">{name}</text>' for i, name in enumerate(results)]
    panels = [("kld", "KL divergence (nats)", 270), ("perplexity_ratio", "perplexity ratio", 170),
              ("recall", "recall accuracy", 170)]
    parts, top = [f'<text x="70" y="22" font-size="15">{subject}: quality against KV bytes kept</text>', *legend], 60
    for key, title, height in panels:
        drawn = panel(results, key, title, top, top + height)
        parts += drawn
        top += height + 70 if drawn else 0
    bottom = max(top - 20, 70 + 18 * len(results))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {bottom}" font-family="sans-serif" font-size="12">'
            f'<rect width="860" height="{bottom}" fill="white"/>' + "\n".join(parts) + "</svg>\n")
