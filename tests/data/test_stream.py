"""Large images: decoded by workers, the same again, and errors on one line."""

import multiprocessing
import os
import signal

import numpy as np
import pytest
import shared_data as images
import torch

import anytime
from anytime.data.images import Take
from anytime.data.sources import read_folder
from anytime.data.stream import Stream


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_the_same_again_and_in_parts(tmp_path, workers):
    images.write_class_folders(tmp_path)
    encoded = read_folder(tmp_path)["train"]
    stream = Stream(encoded, torch.arange(30), size=32, workers=workers)
    augmentation = anytime.Recipe().augmentation
    indices = torch.tensor([3, 7, 7, 29, 0, 11])
    (whole,) = stream.batches([Take(indices, seed=4, first=0, total=6)], augmentation)
    assert whole.pixels.shape == (6, 3, 32, 32)
    assert whole.labels.tolist() == encoded.labels[indices].tolist()
    assert not torch.equal(whole.pixels[1], whole.pixels[2]), "each place is cut out in its own way"
    (part,) = stream.batches([Take(indices[2:5], seed=4, first=2, total=6)], augmentation)
    assert torch.equal(part.pixels, whole.pixels[2:5])
    (plain,) = stream.batches([Take(indices)])
    assert torch.equal(plain.pixels[1], plain.pixels[2]), "evaluation takes the middle"


def test_the_middle_is_seven_eighths_of_the_shorter_side(tmp_path):
    ramp = np.tile(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], (80, 1, 3))  # 120 wide, 80 high
    (tmp_path / "train/a").mkdir(parents=True)
    (tmp_path / "train/a/0.png").write_bytes(images.encoded(ramp))
    stream = Stream(read_folder(tmp_path)["train"], torch.arange(1), size=70, workers=0)
    (batch,) = stream.batches([Take(torch.tensor([0]))])
    assert np.array_equal(batch.pixels[0, 0].numpy(), ramp[5:75, 25:95, 0])


def test_photos_train(tmp_path):
    images.write_class_folders(tmp_path / "photos")
    data = anytime.load_data(str(tmp_path / "photos"), size=32)
    net = anytime.create_model("resann26", num_classes=3)
    result = anytime.fit(net, data, recipe=anytime.Recipe(epochs=1, batch_size=9, pad=0), show=False)
    assert len(result.curve.errors) == 4


def test_a_killed_worker_is_one_line_from_the_next_batch(tmp_path):
    images.write_class_folders(tmp_path)
    stream = Stream(read_folder(tmp_path)["train"], torch.arange(30), size=32, workers=2)
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    torch.utils.data._utils.signal_handling._SIGCHLD_handler_set = False
    try:
        batches = stream.batches(Take(torch.tensor([i % 30])) for i in range(40))
        next(batches)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()  # whatever the program does meanwhile goes on undisturbed
        with pytest.raises(anytime.AnytimeError, match="a process that decodes images was killed") as caught:
            list(batches)
        assert "\n" not in str(caught.value)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_digest_depends_on_size_and_images(tmp_path):
    images.write_class_folders(tmp_path / "photos")
    data = anytime.load_data(tmp_path / "photos", size=32)
    before = data.digest()
    assert anytime.load_data(tmp_path / "photos", size=32).digest() == before
    assert anytime.load_data(tmp_path / "photos", size=40).digest() != before
    changed = data.train.encoded.files[int(data.train.which[5])]
    changed.write_bytes(images.encoded(images.some_pixels(1, seed=9, size=80)[0], "JPEG"))
    assert data.digest() != before
