"""Which exits a training reaches: of a frozen network not all."""

from torch import nn

from anytime.network import Network


def trained_exits(net: Network) -> list[bool]:
    """For each exit, whether its answer depends on parameters that are trained.

    Examples:
        >>> from anytime import AnytimeNetwork
        >>> net = AnytimeNetwork([nn.Linear(8, 8), nn.Linear(8, 8)], [nn.Linear(8, 3), nn.Identity()])
        >>> _ = net.stages.requires_grad_(False)
        >>> trained_exits(net)
        [True, False]
    """
    found, trained = [], False
    for stage, head in net.trained_units:
        trained = trained or _trains(stage)
        if head is not None:
            found.append(trained or _trains(head))
            trained = trained or (net.answers_together and found[-1])
    return found


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
