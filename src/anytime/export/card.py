"""The model card of an exported network."""

from anytime.export.description import Description


def model_card(description: Description) -> str:
    """What the folder is, how it is run, and what each exit costs."""
    about, prepare = description.about, description.preprocessing
    takes = ", ".join(f"`{name}` {_shape(description, name)}" for name in description.input)
    lines = [
        f"# {about.get('network', 'An anytime network')}, exported for {description.backend}",
        "",
        "An anytime network as one graph for each stage and one for each exit's head. Run one stage after another: "
        "after any of them its head gives a prediction, and later exits are better.",
        "",
        "    import anytime",
        '    net = anytime.load_exported("this folder")',
        "    anytime.predict(net, x, deadline=0.02)",
        "",
        f"Input: {takes}.",
    ]
    if prepare is not None:
        height, width = prepare.size
        part = "" if prepare.crop == 1 else f", {prepare.crop:g} of its height and width"
        lines += [
            f"Images: the largest part in the middle with the proportions {height} × {width}{part}, resized to "
            f"{prepare.channels} × {height} × {width}; bytes divided by 255, minus {list(prepare.mean)}, divided by "
            f"{list(prepare.std)}.",
        ]
        if prepare.classes:
            lines.append(f"Classes: {', '.join(prepare.classes[:20])}{', …' if len(prepare.classes) > 20 else ''}.")
    lines += ["", "| exit | stage | head | million MACs | parameters |", "|---:|---|---|---:|---:|"]
    costs = description.costs
    for i, exit in enumerate(description.exits):
        stage, head = description.stages[i].file, description.heads[i].file
        lines.append(f"| {exit} | {stage} | {head} | {costs.macs[i] / 1e6:.2f} | {costs.params[i]:,} |")
    versions = ", ".join(f"{name} {value}" for name, value in about.items() if name != "network")
    return "\n".join([*lines, "", "`anytime.json` describes all of it for programs.", "", f"Made with {versions}.", ""])


def _shape(description: Description, name: str) -> str:
    value = description.values[name]
    return f"{value.type} {' × '.join(map(str, value.shape))}"
