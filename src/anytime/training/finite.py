"""Stops a training before a number that is not finite does harm."""

import torch
from torch import Tensor, nn

from anytime.errors import NonFiniteLossError

_EPOCH = 2**32  # more steps than any epoch has: one number holds the epoch and the step


class FiniteGuard:
    """Watches the losses, the objective and the gradients of every step.

    From the first step on at which one of them is infinite or NaN, nothing changes any more: the optimizer skips its
    updates and ``look`` puts the buffers back that the forward pass has moved (batch norm's statistics, the scheme's
    averages). On a CPU ``look`` is called before each update. On an accelerator that would wait for the device, so
    the optimizer is told on the device to skip the update, and ``look`` is called every ``look_every`` steps.

    Args:
        parameters: what the optimizer updates, by name.
        buffers: what a forward pass changes.
        exits: indices of the exits whose losses are watched.
        total: the number of all exits.
        steps: steps per epoch; None if not known.
        device: where the network is.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        buffers: list[Tensor],
        exits: list[int],
        total: int,
        steps: int | None,
        device: torch.device,
    ) -> None:
        self.parameters, self.buffers, self.exits, self.total, self.steps = parameters, buffers, exits, total, steps
        self.look_every = 1 if device.type == "cpu" else 50
        self.kept = [buffer.clone() for buffer in buffers]
        self.bad = torch.zeros((), dtype=torch.bool, device=device)
        # What was seen at the first bad step.
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.losses = torch.zeros(len(exits), device=device)
        self.objective = torch.zeros((), device=device)

    def keep(self) -> None:
        """Remember the buffers as they are before a step."""
        for kept, buffer in zip(self.kept, self.buffers, strict=True):
            kept.copy_(torch.where(self.bad, kept, buffer))

    def watch(self, epoch: int, position: int, losses: Tensor, objective: Tensor, scaler: torch.amp.GradScaler) -> None:
        """Examine a step of an epoch, both counted from 0, whose gradients are computed and not yet applied.

        With float16 infinite gradients are part of the method: the scaler skips the step and lowers its scale.
        """
        sound = losses.isfinite().all() & objective.isfinite()
        if not scaler.is_enabled():
            sound &= torch.nn.utils.get_total_norm(self.gradients()).isfinite()
        new = ~sound & ~self.bad
        self.losses = torch.where(new, losses, self.losses)
        self.objective = torch.where(new, objective, self.objective)
        self.step = torch.where(new, epoch * _EPOCH + position, self.step)
        self.bad = self.bad | new

    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters that have one; exits that are left out have none."""
        return [p.grad for p in self.parameters.values() if p.grad is not None]

    def hold(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        """Let the next update change nothing if something was bad, without waiting for the device."""
        if scaler.is_enabled():  # it would replace found_inf by what it finds in the gradients
            gradient = self.gradients()[0]
            gradient += torch.where(self.bad, torch.nan, 0.0).to(gradient.dtype)
        else:
            optimizer.found_inf = self.bad.float()  # type: ignore[attr-defined]

    def look(self, lr: float, scaler: torch.amp.GradScaler) -> None:
        """Raise if a step was bad, with everything as it was before that step."""
        if self.bad:
            for kept, buffer in zip(self.kept, self.buffers, strict=True):
                buffer.copy_(kept)
            raise NonFiniteLossError(
                f"{self._what()} at {self._where()}; the step was not taken: network and averages are as before it. "
                f"Try a lower learning rate than {lr:g}"
            )
        if scaler.is_enabled() and scaler.get_scale() < 1:
            raise NonFiniteLossError(
                "the gradients overflow float16 at every scale, so no step is taken any more: train with "
                "precision='bfloat16' or 'float32'"
            )

    def _where(self) -> str:
        epoch, position = divmod(int(self.step), _EPOCH)
        if self.steps is None:
            return f"step {position + 1} of epoch {epoch + 1}"
        step = epoch * self.steps + position
        return f"step {step + 1} (epoch {epoch + 1}, step {position + 1} of {self.steps})"

    def _what(self) -> str:
        wrong = (~self.losses.isfinite()).nonzero()
        if len(wrong):
            first = int(wrong[0])
            exit, loss = self.exits[first], self.losses[first].item()
            return f"the loss of exit {exit + 1} of {self.total} (index {exit}) is {loss}"
        if not self.objective.isfinite():
            return f"every loss is finite but the weight scheme's objective is {self.objective.item()}"
        names = [name for name, p in self.parameters.items() if p.grad is not None and not p.grad.isfinite().all()]
        return f"every loss is finite but the gradient of {names[0] if names else 'the network'} is not"
