"""Two engines behind Ray Serve on a local cluster; one replica is killed while requests run.

python examples/serve_cluster.py [FOLDER]       # pip install "anytime-nets[cluster]" "ray[serve]"
"""

import sys
import tempfile
import threading
import time

import numpy as np
import ray
from ray import serve

import anytime
from anytime.serving.deployment import ask, deployment
from anytime.serving.engine import OverloadedError


def main(folder: str) -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    handle = serve.run(deployment(folder, replicas=2))
    outcomes: list[str] = []

    def client(requests: int) -> None:
        for _ in range(requests):
            begun = time.perf_counter()
            try:
                answer = ask(handle, np.random.randn(1, 3, 32, 32).astype(np.float32), deadline=30.0)
                late = time.perf_counter() - begun > 30.0
                outcomes.append("late" if late else f"exit {answer['exit'] + 1}")
            except OverloadedError:
                outcomes.append("refused")

    clients = [threading.Thread(target=client, args=(50,)) for _ in range(4)]
    for thread in clients:
        thread.start()
    time.sleep(0.5)
    actors = [a for a in ray.util.list_named_actors(all_namespaces=True) if "Replica" in a["name"]]
    ray.kill(ray.get_actor(actors[0]["name"], namespace=actors[0]["namespace"]))
    print("killed one of", len(actors), "replicas")
    for thread in clients:
        thread.join()
    print(len(outcomes), "requests:", {what: outcomes.count(what) for what in sorted(set(outcomes))})
    serve.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            anytime.save(anytime.create_model("resann-3-16"), folder)
            main(folder)
