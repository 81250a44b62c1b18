import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import anytime

SCHEMES = ["adaloss", "adaloss:update_every=7,final_extra=1", "geometric-mean", "log-barrier"]


def rank_run(rank, port, results):
    dist.init_process_group("gloo", init_method=f"tcp://localhost:{port}", rank=rank, world_size=2)
    draw = torch.Generator().manual_seed(rank)
    for name in SCHEMES:
        scheme = anytime.create_scheme(name, exits=5)
        seen = []
        for _ in range(50):
            losses = torch.rand(5, generator=draw).requires_grad_()
            scheme(losses).backward()
            with torch.no_grad():
                for parameter in scheme.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
            seen.append({key: value.clone() for key, value in scheme.state_dict().items()})
        results[rank, name] = seen
    dist.destroy_process_group()


def test_weights_and_averages_are_equal_on_both_ranks_at_every_step():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(rank_run, (port, results), nprocs=2)
        for name in SCHEMES:
            pairs = zip(results[0, name], results[1, name], strict=True)
            for step, (one, other) in enumerate(pairs):
                for key, value in one.items():
                    assert torch.equal(value.nan_to_num(), other[key].nan_to_num()), (name, key, step)
