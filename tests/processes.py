"""Python processes that start at once: each is forked from a server that has imported torch already.

A new interpreter spends about two seconds of processor time on importing torch. These processes do not; apart from
that they are like any others: they can be killed, limited, and given another folder or environment.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["anytime.cli", "torch.utils.tensorboard", "matplotlib.backends.backend_agg"])


class Child:
    """A running process.

    Args:
        arguments: as after ``python``: ``-m MODULE …``, ``-c CODE …`` or ``SCRIPT …``.
        env: its environment; by default that of this process.
        cwd: its folder; by default that of this process.
    """

    def __init__(self, arguments, env=None, cwd=None):
        self.arguments = [str(argument) for argument in arguments]
        self._output = Path(tempfile.mkdtemp())
        environment = dict(os.environ if env is None else env)
        place = (str(cwd or os.getcwd()), environment, str(self._output))
        self._process = FORKED.Process(target=_main, args=(self.arguments, *place))
        self._process.start()
        self.pid = self._process.pid

    @property
    def stdout(self):
        """What it has printed so far."""
        return (self._output / "stdout").read_text()

    @property
    def stderr(self):
        """What it has printed to standard error so far."""
        return (self._output / "stderr").read_text()

    def poll(self):
        """Its exit code, as subprocess has it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout=None):
        """Wait for its end; returns the exit code."""
        self._process.join(timeout)
        return self.poll()

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self._process.kill()


def run(arguments, check=False, timeout=None, **options):
    """Run a process to its end, as ``subprocess.run`` does with ``capture_output=True, text=True``."""
    child = Child(arguments, **options)
    code = child.wait(timeout)
    if check and code:
        raise AssertionError(f"{child.arguments} ended with {code}:\n{child.stderr}")
    return subprocess.CompletedProcess(child.arguments, code, child.stdout, child.stderr)


def _main(arguments, folder, environment, output):
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(output, name), os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
