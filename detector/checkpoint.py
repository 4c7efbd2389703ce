"""Weights on disk: tensors in safetensors with the configuration inside, whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from data.files import replacing
from detector.config import Config, parse_config

FORMAT = "millisecond weights 1"


def save_weights(path: str | Path, model: nn.Module, config: Config) -> None:
    """Writes a model's weights and the configuration it is built from, atomically."""
    state = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(path) as temporary:
        temporary.write_bytes(save(state, {"format": FORMAT, "config": config.to_yaml()}))


def load_weights(path: str | Path) -> tuple[Config, dict[str, Tensor]]:
    """The configuration and the weights of a file that `save_weights` wrote; nothing is unpickled.

    Raises FileNotFoundError, or ValueError where the file is damaged or of another program.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such weights file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT or "config" not in metadata:
                raise ValueError(
                    f"{path}: not weights of this program; a .pth of OpenPCDet is converted by "
                    "tools/import_openpcdet.py"
                )
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        hint = "; convert it by tools/import_openpcdet.py" if path.suffix == ".pth" else ""
        raise ValueError(f"{path}: damaged or not a safetensors file ({error}){hint}") from None
    return parse_config(metadata["config"], source=f"{path}, its configuration"), state


def restore(model: nn.Module, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Copies weights into a model. Raises ValueError naming the first that does not fit."""
    own = model.state_dict()
    for name, tensor in own.items():
        if name not in state:
            raise ValueError(f"{source}: weights of another network: {name} is missing")
        if state[name].shape != tensor.shape:
            raise ValueError(
                f"{source}: weights of another network: {name} is {list(state[name].shape)} "
                f"instead of {list(tensor.shape)}"
            )
    for name in state:
        if name not in own:
            raise ValueError(f"{source}: weights of another network: {name} is unknown")
    model.load_state_dict(dict(state))
