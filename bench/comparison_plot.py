"""Draws what compare_methods.py measured: quality against bytes of the cache."""

import math

RATIOS = (0.5, 0.35, 0.25, 0.125, 0.0625)  # that the horizontal axis names
FACTORS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)  # that the axis of perplexity ratios names
# A colour for each family of methods, a mark for each of its variants.
COLOURS = ("#c0392b", "#2c3e50", "#6c5ce7", "#0984e3", "#00a383", "#8fbf2f", "#8e5a2b", "#e84393", "#636e72", "#e67e22", "#d4a900",
           "#00b8d4", "#9b59b6", "#1b5e20")
SHAPES = ("M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0z", "M-3 -3h6v6h-6z", "M0 -4.4l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
          "M0 -4l4 7h-8z", "M0 4l4 -7h-8z")


def family(name):
    word = name.partition(",")[0].partition(" ")[0]
    return {"int8": "cache", "int4": "cache", "int2": "cache", "nvfp4": "fp4", "mxfp4": "fp4"}.get(word, word)


def styles(names):
    """Each method's colour and how its mark is drawn: filled shapes first, then hollow ones."""
    families, found = {}, {}
    for name in names:
        members = families.setdefault(family(name), [])
        colour = COLOURS[list(families).index(family(name)) % len(COLOURS)]
        hollow = len(members) // len(SHAPES) % 2 == 1
        found[name] = colour, SHAPES[len(members) % len(SHAPES)], "white" if hollow else colour
        members.append(name)
    return found


def mark(style, x, y):
    colour, shape, fill = style
    return f'<path transform="translate({x:.1f} {y:.1f})" d="{shape}" fill="{fill}" stroke="{colour}" stroke-width="1.2"/>'


class Axis:
    """A logarithmic axis from `low` to `high`, over pixels first .. last."""

    def __init__(self, low, high, first, last):
        self.low, self.high = math.log10(low), math.log10(high)
        self.first, self.last = first, last

    def at(self, value):
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.first + share * (self.last - self.first)


def panel(results, of, key, title, top, bottom):
    """One plot of `key` against kept_ratio between two heights."""
    least = 0 if key == "recall" else 1e-30  # other axes are logarithmic
    lines = {name: sorted((r["kept_ratio"], r[key]) for r in by_ratio.values() if r.get(key) is not None and r[key] >= least)
             for name, by_ratio in results.items()}
    values = [value for line in lines.values() for _, value in line]
    if not values:
        return []
    if key == "kld":
        low = 10 ** math.floor(math.log10(min(values)))
        high = max(10 * low, 10 ** math.ceil(math.log10(max(values))))
        ticks = [10 ** d for d in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    elif key == "perplexity_ratio":
        low, high = min(*values, 0.95) / 1.02, max(*values, 1.05) * 1.02
        ticks = [factor for factor in FACTORS if low <= factor <= high]
    else:
        low, high = min(0.75, math.floor(4 * min(values)) / 4), 1
        ticks = [low + i / 4 for i in range(round(4 * (high - low)) + 1)]
    height = Axis(low, high, bottom, top).at if key != "recall" else lambda value: bottom + (value - low) / (high - low) * (top - bottom)
    ratios = [ratio for line in lines.values() for ratio, _ in line]
    x = Axis(min(ratios) * 0.9, max(*ratios, 0.55) * 1.1, 70, 560)
    parts = [f'<text x="70" y="{top - 10}" font-weight="bold">{title}</text>',
             f'<path d="M70 {top}V{bottom}H560" fill="none" stroke="#999"/>']
    for tick in ticks:
        parts.append(f'<text x="64" y="{height(tick) + 4:.0f}" text-anchor="end">{tick:.3g}</text>'
                     f'<path d="M70 {height(tick):.1f}H560" stroke="#eee"/>')
    for ratio in RATIOS:
        if x.first <= x.at(ratio) <= x.last:
            parts.append(f'<text x="{x.at(ratio):.0f}" y="{bottom + 16}" text-anchor="middle">{ratio:g}</text>')
    for name, line in lines.items():
        points = [(x.at(ratio), height(value)) for ratio, value in line]
        if len(points) > 1:
            parts.append(f'<polyline fill="none" stroke="{of[name][0]}" stroke-width="1.4" points="'
                         + " ".join(f"{px:.1f},{py:.1f}" for px, py in points) + '"/>')
        parts += [mark(of[name], px, py) for px, py in points]
    return parts


def plot(results, subject):
    of = styles(results)
    legend = [mark(of[name], 596, 57 + 18 * i) + f'<text x="608" y="{61 + 18 * i}">{name}</text>' for i, name in enumerate(results)]
    panels = [("kld", "KL divergence (nats)", 430), ("perplexity_ratio", "perplexity ratio", 190),
              ("recall", "recall accuracy", 170)]
    parts, top = [f'<text x="70" y="22" font-size="15">{subject}: quality against KV bytes kept</text>', *legend], 60
    for key, title, height in panels:
        drawn = panel(results, of, key, title, top, top + height)
        parts += drawn
        top += height + 70 if drawn else 0
    bottom = max(top - 20, 70 + 18 * len(results))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {bottom}" font-family="sans-serif" font-size="12">'
            f'<rect width="860" height="{bottom}" fill="white"/>' + "\n".join(parts) + "</svg>\n")
