"""TaskWeights: one weight for each exit and task."""

from collections.abc import Sequence

import torch
from torch import Tensor

from anytime.errors import AnytimeError, check_integer
from anytime.weights.create import create_scheme
from anytime.weights.scheme import AdaptiveScheme, WeightScheme


class TaskWeights(AdaptiveScheme):
    """A weight scheme over exits × tasks (the paper's future work), whatever the units of the tasks' losses.

    The losses of a task are divided by the task's first loss, averaged over the exits; then an adaptive scheme balances
    all L × T of them as if each were an exit. So the objective does not change if the losses of a task are scaled. A
    scheme with constant weights gives those of an exit to each of its tasks.

    Args:
        exits: Number of exits, L in the paper.
        tasks: Number of tasks, T.
        scheme: The scheme's name, as for ``create_scheme``.

    Examples:
        >>> balance = TaskWeights(exits=2, tasks=2)
        >>> balance(torch.tensor([[4.0, 400.0], [2.0, 200.0]]))       # exits × tasks
        tensor(2.7333)
        >>> balance.weights
        tensor([0.5250, 0.5250, 1.0000, 1.0000])
    """

    scale: Tensor
    _if_negative = "the losses of its task are not scaled, and an adaptive scheme does not observe it"

    def __init__(self, exits: int, tasks: int, scheme: str = "adaloss") -> None:
        super().__init__(check_integer("exits", exits) * check_integer("tasks", tasks))
        self.shape = (exits, tasks)
        by_exit = create_scheme(scheme, exits)
        if getattr(by_exit, "final_extra", 0) and tasks > 1:
            raise AnytimeError(f"scheme {scheme!r}: final_extra is for one loss per exit, not for {tasks} tasks")
        if isinstance(by_exit, AdaptiveScheme):
            self.inner = create_scheme(scheme, exits * tasks)
        else:
            self.inner = WeightScheme(by_exit.weights.repeat_interleave(tasks))
        if hasattr(by_exit, "only"):
            self.only: list[int] = by_exit.only  # type: ignore[assignment]
        self.name, self._known = scheme, False
        self.register_buffer("scale", torch.full((tasks,), torch.nan, dtype=torch.float32))

    def forward(self, losses: Tensor | Sequence[Tensor]) -> Tensor:
        """Return the weighted sum of the scaled losses, given those of exits × tasks, or all in one vector."""
        if isinstance(losses, Tensor) and losses.shape == self.shape:
            losses = losses.flatten()
        losses = self._vector(losses).view(self.shape)
        if self._observing and not self._known:
            self._observe(self._mean_over_ranks(losses))
        scaled = losses / torch.where(self.scale.isnan(), 1.0, self.scale)
        objective = self.inner(scaled.flatten())
        self.weights.copy_(self.inner.weights)
        return objective

    def restrict(self, trained: Sequence[bool] | None) -> None:
        """Weigh only losses that depend on trained parameters: the others have weight 0 and influence nothing."""
        super().restrict(trained)
        self.inner.restrict(trained)

    @torch.no_grad()
    def _observe(self, losses: Tensor) -> None:
        counted = torch.ones_like(losses) if self.trained is None else self.trained.view(self.shape)
        if (only := getattr(self, "only", None)) is not None:
            losses, counted = losses[only], counted[only]
        first = torch.where(counted > 0, losses, 0.0).sum(0) / counted.sum(0)
        valid = self.scale.isnan() & first.isfinite() & (first > 0)
        self.scale.copy_(torch.where(valid, first, self.scale))
        self._known = not self.scale.isnan().any()  # waits for the device, but not in later calls

    def extra_repr(self) -> str:
        """Return what ``print(scheme)`` shows in parentheses."""
        return f"exits={self.shape[0]}, tasks={self.shape[1]}, scheme={self.name!r}"
