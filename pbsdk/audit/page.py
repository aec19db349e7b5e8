"""The report as a page: one HTML file with its charts, for whoever pays the bill.

It loads nothing and runs nothing: a content security policy in its head forbids both. Colours follow the
reader's light or dark setting, print is black on white, tables scroll on a phone, and every chart
is described in words. The page includes the whole JSON form, so that a program can check it, and
every number in the tables names its path in the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from html import escape
from typing import TYPE_CHECKING

from pbsdk.audit.svg import Bar, Series, bars, columns
from pbsdk.audit.tables import outcomes, passes_spread, tables, used_of_limits
from pbsdk.audit.text import alarm, held
from pbsdk.formatting import Cell, Table, duration, milliseconds, moment, number, percent, size_text

if TYPE_CHECKING:
    from pbsdk.audit.report import AuditReport

__all__ = ["fragment", "page"]

_STYLE = """
.pbsdk{font:15px/1.5 system-ui,sans-serif;--line:color-mix(in srgb,currentColor 22%,transparent)}
.pbsdk h1{font-size:1.5em;line-height:1.2;margin:0 0 .4em;overflow-wrap:anywhere}
.pbsdk h2{font-size:1.15em;margin:1.6em 0 .5em}
.pbsdk h3{font-size:1em;margin:0 0 .6em}
.pbsdk p{margin:.4em 0;max-width:75ch;overflow-wrap:anywhere}
.pbsdk .verdict{border-left:.4em solid #15a34a;padding:.5em .8em;font-weight:600;max-width:none;background:color-mix(in srgb,#15a34a 10%,transparent)}
.pbsdk .verdict.over{border-color:#dc2626;background:color-mix(in srgb,#dc2626 12%,transparent)}
.pbsdk .glance{display:flex;flex-wrap:wrap;gap:1em;margin:1em 0}
.pbsdk .glance>div{flex:1 1 8em;padding:.7em 1em;border:1px solid var(--line);border-radius:8px}
.pbsdk .glance dt{font-size:.93em}
.pbsdk .glance dd{font-size:1.6em;line-height:1.3;font-weight:650;font-variant-numeric:tabular-nums}
.pbsdk .glance dd+dd{font-size:.86em;font-weight:400}
.pbsdk .charts{columns:24em;column-gap:1em;margin-top:1em}
.pbsdk figure{margin:0 0 1em;padding:1em;border:1px solid var(--line);border-radius:8px;break-inside:avoid}
.pbsdk svg{display:block;overflow:visible;width:100%;height:auto;font:12px system-ui,sans-serif}
.pbsdk svg text{fill:currentColor}
.pbsdk svg .axis{font-size:11px;fill-opacity:.85}
.pbsdk .answers{fill:#3b82f6}.pbsdk .hits{fill:#15a34a}.pbsdk .failed{fill:#d97706}.pbsdk .unknown,.pbsdk .over{fill:#dc2626}
.pbsdk .track{fill:currentColor;opacity:.14}
.pbsdk .grid{stroke:currentColor;opacity:.18}
.pbsdk .mark{stroke:#dc2626;stroke-width:2;stroke-dasharray:5 3}
.pbsdk .scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
.pbsdk .scroll:focus-visible,.pbsdk summary:focus-visible{outline:3px solid #3b82f6;outline-offset:2px}
.pbsdk table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93em}
.pbsdk th,.pbsdk td{padding:.35em .7em;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line);background:none}
.pbsdk tr:last-child>*{border-bottom:0}
.pbsdk th:first-child{text-align:left;font-weight:500;white-space:normal;min-width:9em;overflow-wrap:anywhere}
.pbsdk thead th,.pbsdk thead th:first-child{font-weight:650}
.pbsdk code{font-size:.9em;overflow-wrap:anywhere}
.pbsdk details{margin:1em 0}.pbsdk summary{cursor:pointer}
.pbsdk details dl{display:grid;grid-template-columns:max-content 1fr;gap:.2em 1em;font-size:.93em}
.pbsdk dd{margin:0;overflow-wrap:anywhere}
@media print{.pbsdk{font-size:13px}.pbsdk .scroll{overflow:visible}.pbsdk details>*{display:block}.pbsdk details::details-content{content-visibility:visible}.pbsdk th,.pbsdk td{padding:.2em .4em}
.pbsdk h2{break-after:avoid}.pbsdk .glance,.pbsdk tr{break-inside:avoid}
.pbsdk .charts{columns:auto;orphans:1;widows:1}.pbsdk figure{display:inline-block;box-sizing:border-box;width:49%;margin-right:1%;vertical-align:top}}
"""

_PAGE_STYLE = """
:root{color-scheme:light dark}
body{margin:0;background:#fff;color:#1b1f24}
main{max-width:1080px;margin:0 auto;padding:1.5em 1em 3em}
@media (prefers-color-scheme:dark){body{background:#14171c;color:#e6e8eb}}
@media print{body{background:#fff;color:#000}main{max-width:none;padding:0}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""


def page(report: AuditReport) -> str:
    """Return a complete HTML page."""
    # Keep a string in the data from closing the script element.
    data = json.dumps(report.to_dict(), ensure_ascii=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="pbsdk">
<link rel="icon" href="data:,">
<title>Audit of {escape(report.run)}: {"within budget" if report.within_budget else "over budget"}</title>
<style>{_STYLE}{_PAGE_STYLE}</style>
</head>
<body>
<main class="pbsdk">
{_body(report, level=1)}
<script type="application/json" id="report">{data}</script>
</main>
</body>
</html>
"""


def fragment(report: AuditReport) -> str:
    """Return the page's content for a notebook, in the notebook's own colours."""
    return f'<style>{_STYLE}</style><div class="pbsdk">{_body(report, level=3)}</div>'


def _body(report: AuditReport, *, level: int) -> str:
    top, section = f"h{level}", f"h{level + 1}"
    alarms = "".join(f'<p class="verdict over">{escape(line)}</p>' for line in alarm(report))
    shown = {table.title: table for table in tables(report)}
    parts = [
        f"<{top}>Audit of {escape(report.run)}</{top}>",
        alarms,
        f'<p class="verdict{"" if report.within_budget else " over"}">{escape(report.verdict)}</p>',
        _glance(report),
        f"<p>{_sentence(report)}</p>",
        f"<p>Budget: {escape(report.budget)}.</p>",
        *(f"<p>{escape(line[0].upper() + line[1:])}.</p>" for line in held(report)),
    ]
    for title, table in shown.items():
        parts.append(f"<{section}>{title}</{section}>{_table(table)}")
        if title == "Limits":
            parts += _drawn(report, section)
    parts.append(_evidence(report))
    return "\n".join(parts)


def _sentence(report: AuditReport) -> str:
    time = report.timeline
    now = (
        f" Right now {number(report.under_way)} queries are at the model and {number(report.reserved)} are reserved."
        if report.reserved or report.under_way
        else ""
    )
    return (
        f"{escape(report.model)}, from {moment(time.start)} to {moment(time.end)}: "
        f"{_data(Cell(number(report.records), 'records', report.records))} records, "
        f"{_data(Cell(number(report.requests), 'requests', report.requests))} requests, "
        f"{_data(Cell(size_text(report.bytes_on_disk), 'bytes_on_disk', report.bytes_on_disk))} on disk.{now}"
    )


def _glance(report: AuditReport) -> str:
    """Return what matters first: passes, money, time and accuracy, as far as they are known."""
    cards = [_passes(report), _time(report)]
    money = next(((at, total) for at, total in enumerate(report.totals) if total.name == "money"), None)
    if money is not None:
        at, total = money
        cards.insert(1, ("Money", [Cell(number(total.used), f"totals.{at}.used", total.used)], _of(total.limit)))
    if report.accuracy is not None:
        known = report.accuracy
        note = f"{percent(known.low)} to {percent(known.high)} with 95% confidence; {known.kind}, {number(known.texts)} texts"
        cards.append(("Accuracy", [Cell(percent(known.accuracy), "accuracy.accuracy", known.accuracy)], note))
    shown = (
        f"<div><dt>{escape(name)}</dt><dd>{''.join(map(_data, value))}</dd><dd>{escape(note)}</dd></div>"
        for name, value, note in cards
    )
    return f'<dl class="glance">{"".join(shown)}</dl>'


def _passes(report: AuditReport) -> tuple[str, list[Cell], str]:
    at, total = next((at, total) for at, total in enumerate(report.totals) if total.name == "passes")
    each = [
        f"{scope.scope}: {'' if scope.most == least else f'{least} to '}{scope.most} for each of {number(scope.examples)} examples"
        for scope in report.scopes
        if scope.examples
        for least in (min(pair.passes for pair in scope.distribution),)
    ]
    limit = [] if total.limit is None else [_of(total.limit)]
    return "Passes", [Cell(number(total.used), f"totals.{at}.used", total.used)], "; ".join([*limit, *each])


def _of(limit: float | None) -> str:
    return "no limit" if limit is None else f"of {number(limit)}"


def _time(report: AuditReport) -> tuple[str, list[Cell], str]:
    answers = sum(stretch.answers for stretch in report.timeline.stretches)
    busy = sum(phase.seconds for phase in report.phases)
    note = "at the model" + (f"; {milliseconds(1000 * busy / answers)} a query" if answers and busy else "")
    return "Time", [Cell(duration(busy))], note


def _data(cell: Cell) -> str:
    if not cell.path or cell.value is None:
        return escape(cell.text)
    return f'<data value="{escape(str(cell.value))}" data-path="{escape(cell.path)}">{escape(cell.text)}</data>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(name) or "<span hidden>what</span>"}</th>' for name in table.header)
    rows = "".join(
        f'<tr><th scope="row">{_data(first)}</th>{"".join(f"<td>{_data(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in table.rows
    )
    # A region that scrolls must have a name and be reachable by keyboard.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _drawn(report: AuditReport, section: str) -> list[str]:
    """Return the charts, after what a chart of one bar would show, in sentences."""
    spreads = passes_spread(report)
    alike = {f"passes per example ({scope})" for scope, counts, _ in spreads if _had(counts)[1:] == []}
    found = [
        *_used(report, alike),
        _outcomes(report),
        *(_distribution(*spread) for spread in spreads),
        _timeline(report),
        _latencies(report),
    ]
    said = [f"<p>{escape(one)}</p>" for one in found if isinstance(one, str) and one]
    figures = [
        f"<figure><figcaption><h3>{one[0]}</h3></figcaption>{one[1]}</figure>"
        for one in found
        if isinstance(one, tuple)
    ]
    charts = f'<div class="charts">{"".join(figures)}</div>' if figures else ""
    return [f"<{section}>{'Charts' if figures else 'In short'}</{section}>", *said, charts] if found else []


Drawn = tuple[str, str] | str
"""A chart's title and the chart, or a sentence that says as much; empty if there is nothing to say."""


def _used(report: AuditReport, told: Container[str]) -> list[Drawn]:
    """Return what was used of each limit, but for those that are used up and `told` elsewhere."""
    limits = used_of_limits(report)
    used_up = [
        f"The limit on {name}, {number(limit)}, is used up."
        for name, used, limit in limits
        if used == limit > 0 and name not in told
    ]
    rows = [
        Bar(name, used, f"{number(used)} of {number(limit)}", "over" if used > limit else "answers", track=limit)
        for name, used, limit in limits
        if used not in {0, limit}
    ]
    title = "Used of each limit"
    return [*used_up, (title, bars("used", title, rows, "the whole bar is the limit")) if rows else ""]


def _outcomes(report: AuditReport) -> Drawn:
    asked = outcomes(report)
    if len(asked) == 1:
        ((phase, kind, count),) = asked
        return f"There were {number(count)} {kind} in the phase {phase}, and no hits or failures."
    rows = [
        Bar(f"{phase}: {kind}", count, number(count), "answers" if kind == "passes" else kind)
        for phase, kind, count in asked
    ]
    title = "Passes, hits and failures by phase"
    return (title, bars("outcomes", title, rows, "number of queries")) if rows else ""


def _had(counts: Mapping[int, int]) -> list[tuple[int, int]]:
    """Return the numbers of passes that any example had, and how many."""
    return [(passes, examples) for passes, examples in counts.items() if examples]


def _distribution(scope: str, counts: Mapping[int, int], limit: int | None) -> Drawn:
    title = f"Passes per example ({scope})"
    (passes, examples), *others = _had(counts)
    if not others:
        allowed = ", as many as it may have" if passes == limit else ""
        each = "the one example" if examples == 1 else f"each of the {number(examples)} examples"
        return f"{title}: {each} had {number(passes)}{allowed}."
    note = "" if limit is None else f"; the dashed line is the limit of {limit}"
    drawn = columns(
        f"spread-{scope}",
        title,
        [str(passes) for passes in counts],
        [Series("examples", "answers", list(counts.values()))],
        x_axis=f"passes that an example had{note}",
        y_axis="examples",
        mark=limit if limit in counts else None,
    )
    return title, drawn


def _timeline(report: AuditReport) -> Drawn:
    time = report.timeline
    title = "Timeline"
    kinds = ("answers", "hits", "failed", "unknown")
    layers = [Series(kind, kind, [getattr(stretch, kind) for stretch in time.stretches]) for kind in kinds]
    layers = [layer for layer in layers if any(layer.values)]
    step = duration(time.seconds_a_stretch)
    busy = [at for at in range(len(time.stretches)) if any(layer.values[at] for layer in layers)]
    if len(busy) <= 1:
        return f"Everything was asked within {step}." if busy else ""
    labels = [duration(at * time.seconds_a_stretch) for at in range(len(time.stretches))]
    return title, columns(
        "timeline",
        title,
        labels,
        layers,
        x_axis=f"time since {moment(time.start)}, in steps of {step}",
        y_axis="queries per step",
    )


def _latencies(report: AuditReport) -> Drawn:
    rows = [
        Bar(f"{phase.phase}: {name}", value, milliseconds(value))
        for phase in report.phases
        if phase.latency is not None
        for name, value in (
            ("median", phase.latency.p50),
            ("90th percentile", phase.latency.p90),
            ("99th percentile", phase.latency.p99),
        )
    ]
    title = "Latency of a query"
    axis = "milliseconds, its share of its batch"
    return (title, bars("latency", title, rows, axis)) if rows else ""


def _evidence(report: AuditReport) -> str:
    details = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.model_details.items()
    )
    return (
        f"<details><summary>Evidence: the model's details and the head of the record</summary>"
        f"<dl><dt>model</dt><dd>{escape(report.model)}</dd>{details}"
        f"<dt>records</dt><dd>{number(report.records)}</dd><dt>head</dt><dd><code>{escape(report.head)}</code></dd></dl>"
        f"<p>The head is a hash over all records. <code>pbsdk audit verify</code> recomputes it.</p>"
        "</details>"
    )
