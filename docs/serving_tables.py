"""The tables of serving.md, from the records of benchmarks/serving_*.py."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Results = Callable[[str], dict[str, Any]]


def percent(value: float) -> str:
    """A share as a percentage without its sign."""
    return f"{100 * value:.1f}"


def serving_lead(results: Results) -> str:
    """What is answered in time and right at each load, by the engine and by the servers that it is compared with."""
    found = results("serving_rush")["facts"]
    loads = [key.removeprefix("engine_") for key in found if key.startswith("engine_")]
    lines = [
        "| load | engine | best exit in hindsight | `predict`, one after another | full depth | mean exit | admitted | in time |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for load in loads:
        scores = " | ".join(f"{percent(found[f'{name}_{load}'])} %" for name in ("engine", "fixed", "plain", "full"))
        shares = " | ".join(f"{percent(found[f'{name}_{load}'])} %" for name in ("admitted", "in_time"))
        lines.append(f"| {load.removesuffix('x')}× | {scores} | {found[f'exit_{load}']:.1f} | {shares} |")
    return "\n" + "\n".join(lines) + "\n"


def spread(system: str, load: str) -> str:
    """The lowest and the highest score of a system, in the runs that count."""
    lines = (Path(__file__).parent / "records" / "serving_load.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [run for run in map(json.loads, lines) if run["system"] == system and f"{run['load']:g}x" == load]
    scores = [run["score"] for run in runs if run["lag_p99"] <= 0.001]
    return f"{percent(min(scores))}–{percent(max(scores))}"


def serving_load(results: Results) -> str:
    """What real processes answer in time and right at each load."""
    found = results("serving_load")["facts"]
    systems = {
        "engine": "engine",
        "http": "engine over HTTP",
        "fixed": "best exit in hindsight",
        "plain": "`predict`, one after another",
        "full": "full depth, batches",
        "litserve": "LitServe",
        "ray": "Ray Serve",
    }
    loads = sorted({key.rpartition("_")[2] for key in found if key.startswith("score_")}, key=lambda x: float(x[:-1]))
    lines = [
        f"| load | {' | '.join(systems.values())} | mean exit | admitted | in time | ready in time | overrun p99 "
        "| refusal p99 |",
        "|" + "---:|" * (len(systems) + 7),
    ]
    for load in loads:
        best = [
            max(found.get(f"score_{s}_{load}", -1) for s in ([name, "fixed2"] if name == "fixed" else [name]))
            for name in systems
        ]
        scores = " | ".join("–" if value < 0 else f"{percent(value)} %" for value in best)
        scores = scores.replace(" %", f" % ({spread('engine', load)})", 1)
        shares = " | ".join(f"{percent(found[f'{name}_engine_{load}'])} %" for name in ("admitted", "in_time", "ready"))
        times = " | ".join(
            f"{1000 * found[f'{name}_p99_engine_{load}']:.1f} ms".replace("-", "−") for name in ("overrun", "refusal")
        )
        lines.append(f"| {load[:-1]}× | {scores} | {found[f'exits_engine_{load}'] + 1:.1f} | {shares} | {times} |")
    return "\n" + "\n".join(lines) + "\n"


def serving_http(results: Results) -> str:
    """What HTTP adds, and what of the throughput is left."""
    lines = [
        "| | over HTTP, p50 / p99 | in process, p50 / p99 | HTTP adds, p50 / p99 | saturated, per second | offline batches of 32 | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for record, name in (("serving_http", "the embedded model"), ("serving_http_large", "ResANN(9, 16)")):
        found = results(record)
        pairs = [
            " / ".join(f"{found['facts'][f'{what}_{p}_ms']:.1f}" for p in ("p50", "p99")) + " ms"
            for what in ("http", "here", "overhead")
        ]
        rates = " | ".join(f"{found['facts'][f'{what}_per_second']:.0f}" for what in ("http", "offline"))
        lines.append(
            f"| {name} | {' | '.join(pairs)} | {rates} | {found['verdicts']['serving_http_throughput']['ratio']:.2f} |"
        )
    return "\n" + "\n".join(lines) + "\n"


def serving_faults(results: Results) -> str:
    """What became of the requests of an engine under faults."""
    names = ("sent", "refused", "answered", "in_time", "died", "failed", "cancelled")
    lines = [
        "| | sent | refused | answered | of them in time | told that their process died | failed | cancelled | lost | wrong |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    faults = {
        "kills": "process killed every 5 s, for a minute",
        "cancels": "half of the requests cancelled within 20 ms, 30 s",
        "soak": "twice the load of full depth, 10 minutes",
    }
    for kind, what in faults.items():
        found = results(f"serving_{kind}")
        counts = " | ".join(f"{found['facts'][f'{kind}_{name}']:,.0f}" for name in names)
        lost, wrong = (f"{found['verdicts'][f'serving_{kind}_{end}']['ratio']:.0f}" for end in ("lost", "wrong"))
        lines.append(f"| {what} | {counts} | {lost} | {wrong} |")
    return "\n" + "\n".join(lines) + "\n"


def serving_shift(results: Results) -> str:
    """After how many requests a server noticed that its inputs had changed."""
    found = results("serving_shift")["facts"]
    shifts = {"none": "none", "blur": "blurred", "contrast": "low contrast", "svhn": "house numbers (SVHN)"}
    lines = [
        "| inputs after the shift | requests until the warning | until the alarm | audited by then | of the answers that left early, unlike the last exit's |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, text in shifts.items():
        trail = found[f"{name}_trail"]
        when = [
            f"{found[f'{name}_{what}']:,.0f}" if found[f"{name}_{what}"] >= 0 else "–" for what in ("warning", "alarm")
        ]
        end = trail[-1]
        at = next((each for each in trail if each["sent"] - found["before"] == found[f"{name}_alarm"]), end)
        audited = at["audited"] - next(each["audited"] for each in trail if each["sent"] >= found["before"])
        bounds = "–".join(percent(bound) for bound in at["early"]) + " %"
        lines.append(f"| {text} | {' | '.join(when)} | {audited:,} | {bounds} |")
    return "\n" + "\n".join(lines) + "\n"


def serving_clients(results: Results) -> str:
    """What clients see by their own clocks."""
    rows = {
        **{f"poisson_{load}x": f"open loop, Poisson, {load}×" for load in ("0.5", "1", "2", "3", "5")},
        "burst_1": "`hey`: 100 at once, every second",
        "burst_3": "`hey`: 100 at once, three times a second",
        "triton": "`tritonclient` over HTTP, 0.5×",
        "grpc": "`tritonclient` over gRPC, 0.5×",
        "nginx_1x": "open loop through nginx, 1×",
        "nginx_3x": "open loop through nginx, 3×",
    }
    found = results("serving_clients")
    lines = [clients_row(found, name, text) for name, text in rows.items()]
    return "\n" + "\n".join([*CLIENTS, *lines]) + "\n"


CLIENTS = (
    "| | requests | admitted | of them in time | p50 / p99 of them | refusals, p50 / p99 |",
    "|---|---:|---:|---:|---:|---:|",
)


def serving_photos(results: Results) -> str:
    """The same for photos, by the requests per second."""
    found = results("serving_clients_photos")
    lines = []
    for name in [key.removesuffix("_requests") for key in found["facts"] if key.endswith("_requests")]:
        rate = found["facts"]["capacity"] * float(name.removeprefix("poisson_").removesuffix("x"))
        lines.append(clients_row(found, name, f"open loop, Poisson, {rate:.0f} a second"))
    return "\n" + "\n".join([*CLIENTS, *lines]) + "\n"


def clients_row(found: dict[str, Any], name: str, text: str) -> str:
    """What became of the requests of one client."""
    facts, in_time = found["facts"], found["verdicts"][f"clients_{name}_in_time"]["ratio"]
    times = f"{facts[f'{name}_p50_ms']:.0f} / {facts[f'{name}_p99_ms']:.0f} ms"
    refusals = "–"
    if f"{name}_refusal_p50_ms" in facts:
        refusals = f"{facts[f'{name}_refusal_p50_ms']:.1f} / {facts[f'{name}_refusal_p99_ms']:.0f} ms"
    admitted = f"{percent(facts[f'{name}_admitted'])} %"
    return f"| {text} | {facts[f'{name}_requests']:,.0f} | {admitted} | {percent(in_time)} % | {times} | {refusals} |"


TABLES = {
    "serving_clients": serving_clients,
    "serving_photos": serving_photos,
    "serving_shift": serving_shift,
    "serving_lead": serving_lead,
    "serving_load": serving_load,
    "serving_http": serving_http,
    "serving_faults": serving_faults,
}
"""By the name of the figure."""
