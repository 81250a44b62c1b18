"""The commands whose figures stand in the documents, and the code that each of them measures."""

from collections.abc import Sequence
from typing import NamedTuple

SRC = "src/anytime"


class Measurement(NamedTuple):
    """A command that prints JSON, and the code whose speed or errors it measures."""

    command: str
    code: Sequence[str]


NETWORK = [f"{SRC}/network.py", f"{SRC}/models"]
INFERENCE = [*NETWORK, f"{SRC}/measuring.py", f"{SRC}/inference"]
TRAINING = [*NETWORK, f"{SRC}/training", f"{SRC}/weights", f"{SRC}/data"]
GUARANTEES = [f"{SRC}/inference/{name}.py" for name in ("risk", "temperature", "conformal")] + [f"{SRC}/combination"]
NETWORKS = [
    "cifar10-25000-resann-5-16-patch2-adaloss-60-seed0",
    "svhn-15000-resann-5-8-patch2-adaloss-12-seed1",
    "cifar10-resann-9-16",
]
RECOMMENDED = "cifar10-25000-resann-5-16-patch2-mlpheads-adaloss-60-seed0-stacking"
"""Written by ``anytime combine``."""
SERVING = [f"{SRC}/serving/{name}.py" for name in ("engine", "crew", "worker", "runner", "arena", "wire", "admission")]
HTTP = [f"{SRC}/serving/{name}.py" for name in ("app", "server", "service", "predict", "images", "served")]
LOAD = "--systems engine,http,full,fixed,fixed2,plain,litserve,ray --rounds 3 --seed 7000 --out docs/records/serving_load.jsonl"
LOOP = [f"{SRC}/serving/{name}.py" for name in ("booking", "turns", "typical", "exchange", "connection", "rehearsal")]
SCHEDULER = [f"{SRC}/serving/{name}.py" for name in ("scheduler", "flight", "ways", "slowdown")]
TEAM = [*INFERENCE, f"{SRC}/ensemble"]
CONVERTED = [*TRAINING, f"{SRC}/conversion"]
EXPORT = [*INFERENCE, f"{SRC}/export"]
EXAMPLES = ("regression", "segmentation", "multi_task")
CIFAR = "--data {data} --subset 15000"
MODELS = {
    "resnet": "resnet {scheme} " + CIFAR + " --epochs 12",
    "vit": "vit {scheme} " + CIFAR + " --epochs 20 --exits vit.layers.0,vit.layers.1,vit.layers.2",
    "vit_even": "vit {scheme} " + CIFAR + " --epochs 20",
}


def benchmark(name: str, code: Sequence[str], options: str = "") -> Measurement:
    """A script in ``benchmarks/``."""
    script = f"benchmarks/{name}.py"
    return Measurement(f"python {script} {options}".strip(), [*code, script])


MEASUREMENTS = {
    "exit_tax": benchmark("exit_tax", TRAINING),
    "exit_tax_wide": benchmark("exit_tax", TRAINING, "resann-7-32 1.08 11"),
    "pipeline": benchmark("pipeline", [f"{SRC}/data"]),
    "epoch_overhead": benchmark("epoch_overhead", TRAINING),
    "data_parallel": benchmark("data_parallel", [*TRAINING, f"{SRC}/distributed.py"]),
    "memory": benchmark("memory", TRAINING),
    "steps": benchmark("steps", INFERENCE),
    "export_resann": benchmark("export_speed", EXPORT, "resann-9-16 1 1,32 40"),
    "export_resann_two": benchmark("export_speed", EXPORT, "resann-9-16 2 1,32 20"),
    "export_msdnet": benchmark("export_speed", [*EXPORT, "benchmarks/plain_msdnet.py"], "msdnet-cifar 1 1,32 20"),
    "export_resann50": benchmark("export_speed", EXPORT, "resann50 1 1,32 9"),
    "export_resnet18": benchmark("export_speed", EXPORT, "timm:resnet18 1 1,32 9"),
    "export_vit": benchmark("export_speed", EXPORT, "timm:vit_tiny_patch16_224 1 1,32 9"),
    "export_backends": benchmark("export_backends", EXPORT, "resann-9-16 20"),
    "export_int8": benchmark("export_int8", EXPORT, f"runs/{NETWORKS[0]} {{data}}"),
    "import_time": benchmark("import_time", [f"{SRC}/__init__.py"]),
    "deadlines_quiet": benchmark("deadlines", INFERENCE, "--frames 160 --only quiet"),
    "deadlines_busy": benchmark("deadlines", INFERENCE, "--frames 160 --only busy"),
    "deadlines_realtime": benchmark("deadlines", INFERENCE, "--frames 160 --only busy --realtime"),
    "selected": benchmark("selected", [*INFERENCE, f"{SRC}/selection.py"], f"runs/{NETWORKS[0]} {{data}} --realtime"),
    "start_stop": benchmark("start_stop", INFERENCE),
    "early_exit": benchmark("early_exit", INFERENCE, "runs/cifar10-resann-5-16"),
    "early_exit_small": benchmark("early_exit", INFERENCE, f"runs/{NETWORKS[0]} {{data}}"),
    "eann_parallel": benchmark("eann_parallel", TEAM, "30"),
    "eann_parallel_ray": benchmark("eann_parallel", TEAM, "30 --ray"),
    "extras": benchmark("extras", TRAINING),
    "guarantees_heads": benchmark(
        "guarantees", GUARANTEES, f"--data data runs/{RECOMMENDED.removesuffix('-stacking')}"
    ),
    "guarantees": benchmark("guarantees", GUARANTEES, "--data data " + " ".join(f"runs/{name}" for name in NETWORKS)),
    "serving_shift": benchmark(
        "serving_shift", [f"{SRC}/inference/monitoring.py", f"{SRC}/serving/audit.py"], "--data data"
    ),
    "serving_optimum": benchmark("serving_optimum", SCHEDULER),
    "serving_rush": benchmark("serving_rush", SCHEDULER, "runs/cifar10-resann-9-16"),
    "serving_decision": benchmark("serving_decision", SCHEDULER),
    "serving_load": benchmark("serving_load", [*SERVING, *SCHEDULER], "runs/cifar10-resann-9-16 --data {data} " + LOAD),
    "serving_clients": benchmark("serving_clients", [*SERVING, *HTTP, *LOOP], "runs/cifar10-5000-resann-9-16"),
    "serving_clients_photos": benchmark(
        "serving_clients",
        [*SERVING, *HTTP, *LOOP],
        "runs/lite0 --only poisson --deadline 100 --rates 80,160,300 --image runs/photo.jpg",
    ),
    "serving_http": benchmark("serving_http", [*SERVING, *HTTP]),
    "serving_http_large": benchmark("serving_http", [*SERVING, *HTTP], "runs/cifar10-resann-9-16"),
    "serving_kills": benchmark("serving_faults", SERVING, "kills resann-3-16 --seconds 60 --load 0.5"),
    "serving_cancels": benchmark("serving_faults", SERVING, "cancels resann-3-16 --seconds 30 --load 0.5"),
    "serving_soak": benchmark("serving_faults", SERVING, "soak resann-3-16 --seconds 600"),
    "budgets": Measurement(f"anytime evaluate runs/{RECOMMENDED} --budgets --data {{data}}", INFERENCE),
    **{
        f"convert_{name}_{scheme}": Measurement(
            f"python examples/convert_cifar.py {options.replace('{scheme}', scheme)} --output runs/convert_{name}_{scheme}",
            CONVERTED,
        )
        for name, options in MODELS.items()
        for scheme in ("adaloss", "const")
    },
    "pretrained_errors": benchmark("pretrained", CONVERTED, "errors runs/imagenette-1500"),
    "pretrained_times": benchmark("pretrained", EXPORT, "times"),
    "convert_text": Measurement("python examples/convert_text.py --epochs 3", CONVERTED),
    **{
        f"example_{name}": Measurement(
            f"python examples/{name}.py", [*CONVERTED, f"examples/{name}.py", "examples/side_by_side.py"]
        )
        for name in EXAMPLES
    },
    "published": benchmark("published", [*EXPORT, f"{SRC}/serving/embedded.py"], "100 --realtime"),
    "shipped": benchmark("shipped", [*INFERENCE, f"{SRC}/serving/embedded.py"], "{data}"),
}
"""By the record's name. ``{data}`` is CIFAR-10; runs in ``runs/`` that are finished are not trained again."""

_REPRODUCTION = "python -m experiments run {} --only {} --schemes adaloss --seeds {} --data DIR --output runs"
RUNS = {
    "runs/cifar10-resann-5-16": "anytime train --model resann-5-16 --data cifar10 --subset 25000 --epochs 16 "
    "--output runs/cifar10-resann-5-16",
    "runs/cifar10-5000-resann-9-16": "anytime train --model resann-9-16 --data cifar10 --subset 5000 --epochs 3 "
    "--output runs/cifar10-5000-resann-9-16",
    "runs/photo.jpg": "a photo of imagenette",
    "runs/lite0": "the exported EfficientNet-Lite0 of docs/pretrained.md, for photos of 224 pixels",
    "runs/cifar10-resann-9-16": "anytime train --model resann-9-16 --data cifar10 --epochs 6 "
    "--output runs/cifar10-resann-9-16",
    f"runs/{NETWORKS[0]}": _REPRODUCTION.format("table_weights", "cifar10", 1),
    f"runs/{NETWORKS[1]}": _REPRODUCTION.format("table_weights", "svhn", 2),
    f"runs/{RECOMMENDED.removesuffix('-stacking')}": _REPRODUCTION.format("heads", "cifar10", 1),
    "runs/imagenette-1500": "imagenette (fast.ai), a link to its folder with train and val",
    f"runs/{RECOMMENDED}": f"anytime combine runs/{RECOMMENDED.removesuffix('-stacking')}",
}
"""The trained networks that commands above measure, and what trains each."""

EXPORTED = [
    ("export_resann", "resann-9-16", 1, (1, 32)),
    ("export_resann_two", "resann-9-16", 2, (1, 32)),
    ("export_msdnet", "msdnet-cifar", 1, (1, 32)),
    ("export_resann50", "resann50", 1, (1, 32)),
    ("export_resnet18", "timm's ResNet18, converted, 4 exits", 1, (1, 32)),
    ("export_vit", "timm's ViT-Tiny, converted, 4 exits", 1, (1, 32)),
]
"""Records of ``export_speed.py``: what they are of, the number of threads, and the batch sizes."""


def exported_rows(record: str, what: str, threads: int, batch: int) -> list[tuple[str, str, str | None, str]]:
    """Rows of one network and batch size."""
    compared = [
        ("to the last exit / PyTorch", "last", f"{what}, {threads} thread{'s' * (threads > 1)}, batch {batch}: ONNX Runtime to the last exit / PyTorch"),
        ("stage by stage to the last exit / PyTorch", None, "the same stage by stage, as under a deadline"),
        ("through all exits / PyTorch", None, "ONNX Runtime through all exits / PyTorch"),
    ]  # fmt: skip
    if record in ("export_resann", "export_resann_two"):
        compared.append(
            ("through all exits / one graph of all exits", "boundaries", "the same / one ONNX graph of all exits")
        )
    if record == "export_msdnet":
        compared.append(("through all exits / the public MSDNet", "public", "the same / the public PyTorch MSDNet"))
        compared.append(
            (
                "PyTorch through all exits / the public MSDNet",
                None,
                "our PyTorch through all exits / the public PyTorch MSDNet",
            )
        )
    return [
        (record, f"{threads} thread, batch {batch}: {figure}", name and f"{name}_{threads}_{batch}", text)
        for figure, name, text in compared
    ]


ROWS = [
    ("exit_tax", "time of a step, all exits / last exit", "exit_tax", "training step of resann-9-16, batch 128: all 27 exits / last exit alone"),
    ("exit_tax_wide", "time of a step, all exits / last exit", "exit_tax", "the same of resann-7-32, 21 exits"),
    ("pipeline", "images/s, ours / DataLoader", "pipeline", "images/s delivered, cached and augmented: ours / Pillow in a DataLoader with two workers"),
    ("pipeline", "images/s, ours / batch transforms", "pipeline", "ours / the same transforms on whole batches of tensors"),
    ("pipeline", "images/s, ours / consumed by training resann-7-16", "pipeline_consumed", "ours / consumed by training resann-7-16"),
    ("epoch_overhead", "time of an epoch, ours / bare loop", "epoch_overhead", "an epoch with data, metrics, validation, log, checkpoint / a bare loop on ready tensors"),
    ("data_parallel", "images/s, two processes / one", "data_parallel", "images/s: two processes of one thread / one process of two threads"),
    ("memory", "peak memory, all exits / last exit", "memory", "peak memory of a training step: all exits / last exit alone"),
    ("steps", "batch 1: steps / bare loop over all exits", "steps_batch_1", "resann-9-16, batch 1: `steps` through all exits / a bare loop over them"),
    ("steps", "batch 32: steps / bare loop over all exits", "steps_batch_32", "the same, batch 32"),
    ("steps", "batch 1: predict / network without exits", "predict_batch_1", "batch 1: `predict` to the last exit / the network without exits"),
    ("steps", "batch 32: predict / network without exits", "predict_batch_32", "the same, batch 32"),
    ("early_exit", "time: early exits / whole network, last head", "early_exit_time", "CIFAR-10, resann-5-16, batch 256, half of the MACs on average: samples leaving early / all to the last exit"),
    ("early_exit_small", "time: early exits / whole network, last head", "early_exit_time", "the same, a network of a quarter of the MACs (`patch2`)"),
    ("eann_parallel", "two workers of one thread / one after the other on one thread", "eann_parallel", "an EANN whose networks cost 1 : 2 : 4, to the last answer: two workers of one thread / one after the other on one thread"),
    ("eann_parallel", "two workers of one thread / one after the other on two threads", "eann_parallel_two", "the same / one after the other on two threads"),
    ("eann_parallel_ray", "two workers of one thread / one after the other on one thread", "eann_parallel_ray", "two Ray actors / one after the other on one thread"),
    ("eann_parallel_ray", "two workers of one thread / one after the other on two threads", "eann_parallel_ray_two", "the same / one after the other on two threads"),
    *(row for name, what, threads, batches in EXPORTED for batch in batches for row in exported_rows(name, what, threads, batch)),
    ("export_int8", "batch 1: int8 / float32, all exits", None, "trained resann-5-16 with `patch2` on ONNX Runtime, batch 1, all exits: 8-bit integers / floats"),
    ("export_int8", "batch 32: int8 / float32, all exits", None, "trained resann-5-16 with `patch2` on ONNX Runtime, batch 32, all exits: 8-bit integers / floats"),
    ("import_time", "import anytime / import torch", "import_time", "`import anytime` / `import torch`"),
]  # fmt: skip
"""Of the table of PERFORMANCE.md: record, figure, verdict, what is compared."""

GOALS = {
    "boundaries_1_1": "batch 1: ONNX Runtime stage by stage / one ONNX graph of all exits",
    "last_1_32": "batch 32: ONNX Runtime to the last exit / PyTorch",
    "early_exit_time": "time with half of the MACs on average: samples leaving early / all to the last exit",
    "eann_parallel_two": "time to the last answer: two workers of one thread / one network after the other on two threads",
    "eann_parallel_ray_two": "the same with Ray actors",
    "deadlines_quiet": "`predict` on a quiet machine: share of answers in time by the caller's clock, at the worst of the deadlines",
    "deadlines_quiet_depth": "the same: mean exit / mean exit in hindsight, from half of the full time on",
    "deadlines_quiet_depth_early": "the same: at a quarter of the full time",
    "deadlines_busy": "`predict` beside a busy process per core: share of answers in time, where 97 % were possible",
    "deadlines_busy_depth": "the same: mean exit / mean exit in hindsight",
    "deadlines_realtime": "`predict` within `anytime.realtime()` beside a busy process per core: share of answers in time",
    "selected_against_even": "mean error over uniform deadlines: 5 selected exits / 5 evenly spaced ones",
    "extras_first-order": "training step: `first-order` / AdaLoss",
    "serving_ready_0.5x": "share of answers ready in time by the engine's own clock, at half of the load of full depth",
    "serving_http_overhead_p50_ms": "ms that HTTP adds, median",
    "serving_http_overhead_p99_ms": "ms that HTTP adds, 99th percentile",
    "serving_http_throughput": "predictions per second over HTTP / in batches, offline",
    "clients_burst_1_admitted_of_possible": "of a burst every second, requests admitted / of those that a simulation allows",
    "clients_burst_3_admitted_of_possible": "the same three times a second",
    "clients_burst_1_refusal_ms": "ms until a request of a burst is refused, 99th percentile",
    "clients_burst_3_refusal_ms": "the same three times a second",
    "serving_soak_growth_mb": "MB that memory grew by in 10 minutes at twice the load of full depth",
}  # fmt: skip
"""What was to be reached, by the verdict that says it was missed."""
