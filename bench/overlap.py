#!/usr/bin/env python3
"""Tells from a trace of `plimsoll generate --trace OUT.json` how much of the copying lies under computing.

    python3 bench/overlap.py OUT.json [--json]

For each phase, and for the steps of the loop but the first: seconds, seconds in which the copy lane was busy, in which
the compute lane was, and the share of the copy lane's busy time that lies under computing.
"""

import argparse
import json


def merged(spans):
    """Spans as ascending ranges that do not touch."""
    ranges = []
    for start, end in sorted(spans):
        if ranges and start <= ranges[-1][1]:
            ranges[-1][1] = max(ranges[-1][1], end)
        elif end > start:
            ranges.append([start, end])
    return ranges


def within(ranges, start, end):
    """Seconds of some ranges between two times."""
    return sum(max(0.0, min(last, end) - max(first, start)) for first, last in ranges)


def common(some, others):
    """What lies in both, as ranges."""
    found, at = [], 0
    for start, end in some:
        while at < len(others) and others[at][1] <= start:
            at += 1
        on = at
        while on < len(others) and others[on][0] < end:
            found.append([max(start, others[on][0]), min(end, others[on][1])])
            on += 1
    return found


def table(events):
    """A row for each stretch of the run."""
    spans = {"copy": [], "compute": [], "phase": []}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in spans:
            start = event["ts"] * 1e-6
            spans[event["cat"]].append((start, start + event["dur"] * 1e-6, event))
    copies = merged([(start, end) for start, end, _ in spans["copy"]])
    computes = merged([(start, end) for start, end, _ in spans["compute"]])
    both = common(copies, computes)
    stretches, steps = {}, []
    for start, end, event in spans["phase"]:
        step = event["args"].get("step")
        if step is None:
            stretches[event["name"]] = (start, end)
        elif step > 0:
            steps.append((start, end))
    if steps:
        stretches["steps after the first"] = (min(s for s, _ in steps), max(e for _, e in steps))
    everything = copies + computes
    if everything:
        stretches["all"] = (min(s for s, _ in everything), max(e for _, e in everything))
    rows = []
    for name, (start, end) in stretches.items():
        copy = within(copies, start, end)
        rows.append({
            "name": name,
            "seconds": end - start,
            "copy_seconds": copy,
            "compute_seconds": within(computes, start, end),
            "copy_under_compute": within(both, start, end) / copy if copy > 0 else None,
        })
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args()
    with open(options.trace, encoding="utf-8") as file:
        rows = table(json.load(file)["traceEvents"])
    if options.json:
        print(json.dumps({"stretches": rows}))
        return
    print(f"{'':24} {'seconds':>10} {'copying':>10} {'computing':>10} {'copy under compute':>19}")
    for row in rows:
        share = row["copy_under_compute"]
        share = "-" if share is None else f"{share * 100:.1f} %"
        print(f"{row['name'][:24]:24} {row['seconds']:10.4f} {row['copy_seconds']:10.4f} "
              f"{row['compute_seconds']:10.4f} {share:>19}")


if __name__ == "__main__":
    main()
