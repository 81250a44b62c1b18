"""The log of a run in TensorBoard's files, where TensorBoard is installed."""

import importlib.util
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class TensorBoard:
    """Writes one value per epoch, exit and curve. If that fails, it warns once and the training goes on.

    Args:
        folder: where its files go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None
        self.usable = importlib.util.find_spec("tensorboard") is not None

    def log(self, record: dict[str, Any]) -> None:
        """Add the record of an epoch."""
        if not self.usable:
            return
        try:
            self._write(record)
        except Exception as error:  # an incompatible version, a full disk: not worth the training
            logger.warning("TensorBoard's files in %s cannot be written: %s", self.folder, error)
            self.usable, self.writer = False, None

    def close(self) -> None:
        """Flush."""
        if self.writer is not None:
            try:
                self.writer.close()
            except Exception as error:
                logger.warning("TensorBoard's files in %s cannot be written: %s", self.folder, error)

    def _write(self, record: dict[str, Any]) -> None:
        epoch = record["epoch"]
        if self.writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder), purge_step=epoch)
        curves = {
            f"{split} {kind}": record[split][kind]
            for split in ("train", "validation")
            for kind in record.get(split, {})
        }
        for curve, values in {**curves, "weights": record["weights"] or []}.items():
            for exit, value in enumerate(values):
                if value is not None:
                    self.writer.add_scalar(f"{curve}/exit {exit + 1:02}", value, epoch)
