"""The CSS of a page: light or dark by the reader's system, for wide and narrow screens and for paper."""

from __future__ import annotations

# The contrast of text against paper and panel is 4.5 or more (WCAG 2.2, AA), that of lines in charts 3 or more.
PALETTE = {
    "light": {
        "paper": "#ffffff",
        "panel": "#f4f6f8",
        "ink": "#1c2127",
        "muted": "#545d67",
        "rule": "#cfd6dd",
        "main": "#0b5cad",
        "second": "#a8400b",
        "other": "#7d8792",
        "good": "#176430",
        "bad": "#a3151b",
        "wanted": "#d3ecd9",
    },
    "dark": {
        "paper": "#14171b",
        "panel": "#1e2329",
        "ink": "#e7eaed",
        "muted": "#a4adb7",
        "rule": "#3a424b",
        "main": "#6fb4ff",
        "second": "#ffa46b",
        "other": "#7f8994",
        "good": "#74d491",
        "bad": "#ff9089",
        "wanted": "#1f4a2c",
    },
}


def write_variables(scheme: str) -> str:
    """Write the colours of a scheme as CSS variables."""
    colours = "".join(f"--{name}:{colour};" for name, colour in PALETTE[scheme].items())
    return f":root{{color-scheme:{scheme};{colours}}}"


COLOURS = f"""
{write_variables("light")}
@media (prefers-color-scheme: dark) {{ {write_variables("dark")} }}
@media print {{ {write_variables("light")} }}
"""

CHARTS = """
svg { font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .tick { fill: var(--muted); font-size: 11px; } svg .name { font-weight: 600; }
svg .axis { stroke: var(--other); } svg .grid { stroke: var(--rule); }
svg .goal { stroke: var(--good); stroke-width: 2; }
svg .line { fill: none; stroke-width: 1.3; stroke-linejoin: round; stroke: var(--other); }
svg .line.main, svg .line.second { stroke-width: 2.4; }
svg .line.main { stroke: var(--main); } svg .line.second { stroke: var(--second); }
svg .dotted { stroke-dasharray: 3 3; }
svg .dot { fill: var(--other); } svg .dot.main { fill: var(--main); } svg .dot.second { fill: var(--second); }
svg .track { fill: var(--panel); } svg .wanted { fill: var(--wanted); } svg .bar { fill: var(--main); }
svg .interval { stroke: var(--ink); stroke-width: 3; } svg .end { stroke: var(--ink); stroke-width: 2; }
svg .mark { stroke: var(--paper); } svg .mark.holds { fill: var(--good); } svg .mark.open { fill: var(--main); }
svg .mark.misses { stroke: var(--bad); stroke-width: 3; fill: none; }
svg .part0 { fill: var(--main); } svg .part1 { fill: var(--second); } svg .part2 { fill: var(--good); }
svg .part3 { fill: var(--bad); } svg .part4 { fill: var(--other); } svg .part5 { fill: var(--ink); }
"""

LAYOUT = """
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 4rem;
  background: var(--paper); color: var(--ink); overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; } h3 { font-size: 1rem; margin: 0 0 .4rem; }
h2 { font-size: 1.25rem; margin: 2.4rem 0 .3rem; padding-top: .8rem; border-top: 1px solid var(--rule); }
p { margin: .2rem 0 .8rem; max-width: 46rem; } .lead { font-size: 1.1rem; font-weight: 600; }
.note, small, figcaption { color: var(--muted); font-size: .875rem; }
figure { margin: 0 0 1.2rem; min-width: 0; } figure img { display: block; width: 100%; border-radius: 4px; }
figure svg { display: block; width: 100%; height: auto; }
figure > svg { max-width: 30rem; } figcaption { margin-top: .3rem; }
figcaption b { color: var(--ink); }
.column_names { display: grid; grid-auto-flow: column; grid-auto-columns: 1fr; text-align: center; font-size: .8rem; }
.columns { display: grid; gap: 0 1.6rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
.narrow { max-width: 36rem; } .group { min-width: 0; }
.scroll { overflow-x: auto; }
ul.rows { list-style: none; margin: 0 0 1rem; padding: 0; }
ul.rows li { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 6fr) minmax(0, 4fr); gap: 0 1.4rem;
  align-items: center; padding: .5rem 0; border-bottom: 1px solid var(--rule); break-inside: avoid; }
ul.rows small { display: block; line-height: 1.35; } ul.rows .ends { display: flex; justify-content: space-between; }
.strip { display: block; overflow: visible; }
.holds { color: var(--good); font-weight: 600; } .misses { color: var(--bad); font-weight: 600; }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: 0 0 .6rem; padding: 0; }
.key svg { vertical-align: middle; }
details { border-bottom: 1px solid var(--rule); } summary { cursor: pointer; padding: .5rem 0; font-weight: 600; }
summary small { font-weight: 400; margin-left: .5rem; }
table { border-collapse: collapse; font-size: .9rem; overflow-wrap: normal; }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
td:first-child, td.brief { white-space: nowrap; } td:last-child { min-width: 12rem; }
td.value { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code, pre { font: .875rem ui-monospace, monospace; }
pre { background: var(--panel); padding: .7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
:focus-visible { outline: 2px solid var(--main); outline-offset: 2px; }
@media (max-width: 44rem) { ul.rows li { grid-template-columns: minmax(0, 1fr); gap: .3rem; } }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt; } figure, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; } details::details-content { content-visibility: visible; block-size: auto; }
  .scroll { overflow: visible; }
  ul.rows li { grid-template-columns: minmax(0, 5fr) minmax(0, 6fr) minmax(0, 4fr); }
  * { print-color-adjust: exact; }
}
"""

# The style of a chart in a file of its own, and that of a page.
CHART_STYLE = COLOURS + CHARTS
PAGE_STYLE = COLOURS + CHARTS + LAYOUT
