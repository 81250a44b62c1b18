"""Two engines behind Ray Serve on a local cluster; one replica is killed while requests run, and none is lost.

python examples/serve_cluster.py [FOLDER]       # pip install "anytime-nets[cluster]"
"""

import sys
import tempfile
import threading
from collections import Counter

import numpy as np
import ray
from ray import serve

import anytime
from anytime import OverloadedError
from anytime.serving import ask, deployment

CLIENTS, REQUESTS, DEADLINE = 4, 60, 30.0


def main(folder: str) -> None:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    handle = serve.run(deployment(folder, replicas=2))
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    ask(handle, image, DEADLINE)
    outcomes: Counter[str] = Counter()
    some_answered = threading.Event()

    def client() -> None:
        for _ in range(REQUESTS):
            try:
                answer = ask(handle, image, DEADLINE)
                outcomes["in time" if answer["seconds"] <= DEADLINE else "late"] += 1
            except OverloadedError:
                outcomes["refused"] += 1
            except anytime.AnytimeError as error:
                outcomes[f"lost: {error}"] += 1
            if outcomes.total() > CLIENTS * REQUESTS // 4:
                some_answered.set()

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in clients:
        thread.start()
    some_answered.wait()
    replicas = [each for each in ray.util.list_named_actors(all_namespaces=True) if "Replica" in each["name"]]
    ray.kill(ray.get_actor(replicas[0]["name"], namespace=replicas[0]["namespace"]))
    print(f"killed one of {len(replicas)} replicas after {outcomes.total()} answers")
    for thread in clients:
        thread.join()
    print(f"{outcomes.total()} requests: {dict(outcomes)}")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            anytime.save(anytime.create_model("resann-3-16"), folder)
            main(folder)
