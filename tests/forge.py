"""Files with a correct checksum around a wrong content, which none of our writers would produce."""

import json

from safetensors.torch import save_file

from anytime.files import _checksum, pack, read_json, read_tensors


def forge_json(path, content):
    """Like ``write_json(sealed=True)``, but anything goes, NaN too."""
    content = {key: value for key, value in content.items() if key != "checksum"}
    path.write_text(json.dumps({**content, "checksum": _checksum(content)}))


def forge_config(folder, **changes):
    forge_json(folder / "config.json", read_json(folder / "config.json") | changes)


def forge_weights(folder, change):
    """Let ``change`` edit a saved model's tensors, and config.json agree with them."""
    path = folder / "model.safetensors"
    tensors, about = read_tensors(path)
    change(tensors)
    packed, metadata, checksum = pack(tensors, about)
    path.unlink()
    save_file(packed, path, metadata)
    forge_config(folder, weights=checksum)
