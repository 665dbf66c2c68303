"""Rows into a table (Markdown) and data (JSON), with the machine described."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from measure import Row

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, str]:
    """What a reader needs to place the figures; no names, no paths."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    engine = subprocess.run(
        ["docker", "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "cpu": f"{os.cpu_count()} × {model}",
        "memory": f"{memory} GiB",
        "kernel": platform.release().split("-")[0],
        "engine": engine or "none",
        "cgroup": "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1",
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def human(seconds: float, unit: str = "s") -> str:
    """Seconds in the unit that reads best; of what is counted the number and its unit."""
    if unit != "s":
        return f"{seconds:,.0f} {unit}"
    return f"{seconds * 1000:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def table(rows: Sequence[Row]) -> str:
    """A Markdown table: a line per contestant; the ratio is ours over theirs."""
    lines = [
        "| what | contestant | median | p90 | p99 | n | ours ÷ theirs | bar |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        for index, contestant in enumerate(row.seconds):
            ratio = "" if index == 0 else f"{row.ratio(contestant):.3g}"
            speed = f" ({row.byte_count / row.median(contestant) / 1e9:.2f} GB/s)" if row.byte_count else ""
            lines.append(
                f"| {row.name if index == 0 else ''} | {contestant} | {human(row.median(contestant), row.unit)}{speed} "
                f"| {human(row.percentile(contestant, 0.9), row.unit)} "
                f"| {human(row.percentile(contestant, 0.99), row.unit)} "
                f"| {len(row.seconds[contestant])} | {ratio} | {row.bar if index == 0 else ''} |"
            )
    notes = [f"- {row.name}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, "", *notes])


def write(name: str, title: str, rows: Sequence[Row]) -> Path:
    """Write `results/NAME.md` and `.json`; returns the Markdown's path."""
    RESULTS.mkdir(exist_ok=True)
    described = machine()
    page = RESULTS / f"{name}.md"
    lines = [f"# {title}", "", ", ".join(f"{key} {value}" for key, value in described.items()), "", table(rows), ""]
    page.write_text("\n".join(lines))
    data = {
        "machine": described,
        "rows": [
            {"name": row.name, "bar": row.bar, "note": row.note, "bytes": row.byte_count, "unit": row.unit,
             "median": {who: row.median(who) for who in row.seconds},
             "p99": {who: row.percentile(who, 0.99) for who in row.seconds},
             "ratio": {who: row.ratio(who) for who in list(row.seconds)[1:]}}
            for row in rows
        ],
    }  # fmt: skip
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    return page
