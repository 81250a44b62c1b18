"""ConvertedNetwork: a user's model with exits."""

import copy
import difflib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anytime.conversion.head_layers import PooledHead
from anytime.conversion.initial import untrained_layers
from anytime.conversion.outputs import first_tensor, own_loss
from anytime.conversion.pausing import CallHook, Place
from anytime.conversion.stages import Carried, Trunk, image_size
from anytime.conversion.survey import Survey
from anytime.errors import AnytimeError
from anytime.meta import changes_input
from anytime.network import AnytimeNetwork, Step, clone_tensors


class ConvertedNetwork(AnytimeNetwork):
    """A user's model with exits; ``convert`` makes it.

    Attributes:
        model: the user's model, with its own parameters.
        places: for each exit the module after which it is, with the number of the call if the module is called several
            times; the last is ``"the model's own"``.
        paused_because: why the model's graph could not be captured; None if it was.
    """

    def __init__(
        self,
        trunk: Trunk,
        stages: Sequence[nn.Module],
        heads: Sequence["Exit"],
        places: Sequence[Place],
        survey: "Survey",
        input_form: Any,
        paused_because: str | None = None,
    ) -> None:
        super().__init__(stages, heads)
        self.trunk, self._places, self.places = trunk, list(places), survey.names(places)
        self.input_form, self.paused_because = input_form, paused_because
        self._form, self._ends = survey.form, survey.ends

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be pickled."""
        raise AnytimeError(
            "a converted network cannot be pickled: its stages are code that was made from the model's graph. Write it "
            "with anytime.save(net, folder) and read it with anytime.load(folder, net=anytime.convert(model, example))"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "ConvertedNetwork":
        """A copy, which would otherwise be made by way of pickling."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def layout(self) -> dict[str, Any]:
        """Where the exits are, and the form of the input."""
        return {"places": self.places, "input": self.input_form}

    @property
    def model(self) -> nn.Module:
        """The model that was converted."""
        return self.trunk.model

    @property
    def trained_units(self) -> list[tuple[nn.Module, nn.Module | None]]:
        """The stages, each with the head itself: a training finds its features without the state of a stage."""
        return [(stage, exit.head) for stage, exit in zip(self.stages, self.heads, strict=True)]  # type: ignore[misc]

    def outputs(self, x: Any, labels: Tensor | None = None, only: Iterable[int] | None = None) -> list[Any]:
        """What every exit answers, in the form that the model itself returns; calling the network gives plain logits.

        Args:
            x: the input, as for ``forward``. A dict may have the labels in it.
            labels: for models of transformers: each output then has a ``loss``, which the model's own function
                computes.
            only: the exits wanted, if not all.

        Examples:
            >>> from anytime import convert
            >>> class Named(nn.Sequential):
            ...     def forward(self, x):
            ...         return {"logits": super().forward(x)}
            >>> net = convert(Named(*(nn.Linear(8, 8) for _ in range(4))), torch.zeros(1, 8), exits=2)
            >>> [list(output) for output in net.outputs(torch.zeros(5, 8))]
            [['logits'], ['logits']]
        """
        if isinstance(x, Mapping) and "labels" in x:
            x = dict(x)
            given = x.pop("labels")
            labels = given if labels is None else labels
        answers = self(x, only)
        losses = [None if labels is None else own_loss(self.model, logits, labels) for logits in answers]
        return list(map(self._form, answers, losses))

    def freeze(self, train: Sequence[str] = ()) -> "ConvertedNetwork":
        """Train only the new heads: the model's parameters get no gradients and its batch norm stays in eval mode.

        Warns of layers that have their initial, random weights: they would stay random. ``unfreeze`` trains the model
        too, from where it is.

        Args:
            train: the modules of the model that are trained all the same, such as a classifier for new classes:
                ``freeze(train=["fc"])``.

        Examples:
            >>> from anytime import convert
            >>> model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))
            >>> _ = [nn.init.orthogonal_(layer.weight) for layer in model]      # trained, in practice
            >>> net = convert(model, torch.zeros(1, 8), exits=["0"]).freeze(train=["2"])
            >>> [name for name, parameter in net.model.named_parameters() if parameter.requires_grad]
            ['2.weight', '2.bias']
        """
        modules = dict(self.model.named_modules())
        if isinstance(train, str) or not set(train) <= modules.keys():
            near = difflib.get_close_matches(str(next((n for n in train if n not in modules), train)), modules, n=3)
            raise AnytimeError(
                f"freeze(train={train!r}): expected a list of the model's modules, e.g. freeze(train="
                f"{near or [list(modules)[-1]]})"
            )
        self.trunk.requires_grad_(False)
        for name in train:
            modules[name].requires_grad_(True)
        self.trunk.frozen, self.trunk.tuned, self.trunk.trained = True, False, tuple(train)
        self.train(self.training)
        if random := untrained_layers(self.model):
            more = f" and {len(random) - 3} more" if len(random) > 3 else ""
            warnings.warn(
                f"frozen layers have initial, random weights: {', '.join(random[:3])}{more}. Load the model's weights "
                f"before you convert it, or train these layers: net.freeze(train={random[-1:]})",
                stacklevel=2,
            )
        return self

    def unfreeze(self) -> "ConvertedNetwork":
        """Train everything, starting from weights that are trained already: fine-tuning.

        The model's batch norm keeps its statistics, which come from more samples than most fine-tunings have, and
        ``fit`` has a recipe for it, in which the model's learning rate is a tenth of the heads'.

        Examples:
            >>> from anytime import convert
            >>> model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
            >>> net = convert(model, torch.zeros(2, 8), exits=["0"]).unfreeze().train()
            >>> model[0].training, model[1].training, model[1].weight.requires_grad
            (True, False, True)
        """
        self.trunk.requires_grad_(True)
        self.trunk.frozen, self.trunk.tuned, self.trunk.trained = False, True, ()
        return self.train(self.training)

    @property
    def recipe(self) -> str | None:  # type: ignore[override]
        """For the heads of a frozen model, or for a model that is fine-tuned."""
        if self.keeps_features:
            return "heads"
        return "finetuning" if self.trunk.frozen or self.trunk.tuned else None

    @property
    def keeps_features(self) -> bool:  # type: ignore[override]
        """Whether what is trained is given features that do not change.

        So it is if the model is frozen, or all of it but its last module, the classifier.
        """
        trained = [p for p in self.trunk.parameters() if p.requires_grad]
        return self.trunk.frozen and (not trained or self._classifier is not None)

    @property
    def _classifier(self) -> nn.Module | None:
        """The module that returns the logits, if nothing else of the model is trained."""
        trained = {id(p) for p in self.trunk.parameters() if p.requires_grad}
        for name in self._ends if trained else []:
            module = self.model.get_submodule(name)
            inside = all(f"{each}.".startswith(f"{name}.") for each in self.trunk.trained)
            if inside and trained <= {id(p) for p in module.parameters()}:
                return module
        return None

    @torch.no_grad()
    def features(self, x: Any) -> list[tuple[Any, ...]]:
        """What the head of each exit is given: the features of the frozen model, with the padding mask if it takes one.

        Examples:
            >>> from anytime import convert
            >>> net = convert(nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), torch.zeros(1, 8), exits=2).freeze()
            >>> first, last = net.features(torch.zeros(5, 8))
            >>> torch.equal(net.answers([first, last])[0], net(torch.zeros(5, 8))[0])
            True
        """
        found, state, classifier = [], x, self._classifier
        for number, (stage, exit) in enumerate(zip(self.stages, self.heads, strict=True), start=1):
            if classifier is not None and number == self.exits:
                found.append((self._given_to(classifier, x),))
                break
            state = stage(state)
            found.append(exit.pooled(*exit.inputs(state)))  # type: ignore[operator]
        return found

    def _given_to(self, module: nn.Module, x: Any) -> Tensor:
        """What the model gives to one of its modules."""
        given: list[Tensor] = []

        def note(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            given.append(inputs[0].clone())
            raise _Enough

        hook = module.register_forward_pre_hook(note)
        try:
            self.trunk(x)
        except _Enough:
            pass
        finally:
            hook.remove()
        return given[0]

    def answers(self, features: Sequence[tuple[Any, ...]], only: Iterable[int] | None = None) -> list[Tensor]:
        """The logits of the exits, given their features."""
        classifier, last = self._classifier, self.exits - 1
        return [
            classifier(*features[exit]) if classifier is not None and exit == last
            else self.heads[exit].answer(*features[exit])  # type: ignore[operator]
            for exit in sorted(self.exit_indices(only))
        ]  # fmt: skip

    def _steps(self, x: Any, wanted: frozenset[int]) -> Iterator[Any]:
        if not self.training or not wanted:
            yield from super()._steps(x, wanted)
            return
        # In training mode the model's own code runs once. The heads run after it: a module may be called inside a
        # checkpointed region, which is computed again in the backward pass, and the heads must not be.
        features: dict[int, Tensor] = {}

        def reached(place: Place, output: Any) -> None:
            exit = self._places.index(place)
            tensor = first_tensor(output)
            assert tensor is not None
            if grad and not tensor.requires_grad and self._trains(exit):
                raise AnytimeError(
                    f"no gradients reach {place[0]}: with gradient checkpointing, use it with use_reentrant=False"
                )
            features[exit] = tensor.clone() if self.heads[exit].changed_later else tensor
            if exit >= max(wanted):
                raise _Enough

        grad = torch.is_grad_enabled() and any(p.requires_grad for p in self.trunk.parameters())
        try:
            with CallHook(self.model, self._places, reached), torch.set_grad_enabled(grad):
                features[self.exits - 1] = self.trunk(x)
        except _Enough:
            pass
        for exit in sorted(wanted):
            yield Step(exit, self.heads[exit].evaluate(features[exit], x))  # type: ignore[operator]

    def _trains(self, exit: int) -> bool:
        """Whether a parameter that is used up to this exit is trained."""
        return any(p.requires_grad for stage in self.stages[: exit + 1] for p in stage.parameters())


class _Enough(BaseException):
    """No deeper exit is wanted."""


class Exit(nn.Module):
    """An exit of a converted network: finds its features in the state and gives them to its head.

    Args:
        head: from features, and the padding mask if it takes one, to an output shaped as the model's own.
        index: where the features are in the state that a stage returns.
        batch_dim: the dimension of the features that holds the samples; the head gets them with samples first.
        mask: the name of the padding mask in the input, and where it is in the state.
        changed_later: whether the model changes the features in place after the exit.
    """

    def __init__(
        self,
        head: nn.Module,
        index: int,
        batch_dim: int = 0,
        mask: tuple[str, int] | None = None,
        changed_later: bool = False,
    ) -> None:
        super().__init__()
        self.head, self.index, self.batch_dim, self.mask = head, index, batch_dim, mask
        self.changed_later = changed_later

    def forward(self, state: Any) -> Tensor:
        """Logits."""
        return self._apply_head(self.inputs(state))

    def evaluate(self, features: Tensor, x: Any) -> Tensor:
        """Logits, with the mask from the network's input."""
        return self._apply_head(self._inputs(features, x[self.mask[0]] if self.mask else None, image_size(x)))

    def inputs(self, state: Any) -> tuple[Any, ...]:
        """What the head takes of a state: features with samples first, the padding mask, the image's size."""
        if isinstance(state, Carried):
            return self._inputs(state.values[self.index], state.values[self.mask[1]] if self.mask else None, state.size)
        features = first_tensor(state.value)
        assert features is not None
        x = state.going.x
        return self._inputs(features, x[self.mask[0]] if self.mask else None, image_size(x))

    def _inputs(self, features: Tensor, mask: Tensor | None, size: tuple[int, ...]) -> tuple[Any, ...]:
        features = features.movedim(self.batch_dim, 0) if self.batch_dim else features
        inputs = (features,) if mask is None else (features, mask)
        return (*inputs, size) if getattr(self.head, "follows_image", False) else inputs

    def _apply_head(self, inputs: tuple[Any, ...]) -> Tensor:
        # In training mode all heads run at last, and the features of two exits may be the same memory.
        return self.head(*clone_tensors(inputs) if changes_input(self.head, *inputs) else inputs)

    def pooled(self, *inputs: Any) -> tuple[Any, ...]:
        """A copy of the head's inputs, or of what a head that pools them first makes of them: it is much smaller."""
        if isinstance(self.head, PooledHead):
            return (self.head.pool(*inputs),)
        return clone_tensors(inputs)

    def answer(self, *pooled: Any) -> Tensor:
        """Logits, given what ``pooled`` returned."""
        if isinstance(self.head, PooledHead):
            return self.head.classify(*pooled)
        return self._apply_head(pooled)
