"""Damaged files for tests of loaders: only `AnytimeError` may come out, and never other contents in silence."""

import random


def mutations(content, seed, n):
    """``n`` damaged copies of ``content``, the same for the same seed: flipped, truncated, zeroed and spliced bytes."""
    draw = random.Random(seed)
    for i in range(n):
        copy = bytearray(content)
        start = draw.randrange(len(copy))
        # Damage of one byte up to a tenth of the file; headers and footers are small, so both ends get their share.
        length = min(len(copy) - start, draw.choice((1, 1, 2, 8, 64, 1 + len(copy) // 10)))
        if draw.random() < 0.3:
            start = draw.choice((0, len(copy) - length)) if draw.random() < 0.5 else draw.randrange(min(64, len(copy)))
        end = start + length
        match i % 5:
            case 0:
                copy[start] ^= 1 << draw.randrange(8)
            case 1:
                copy[start:end] = draw.randbytes(len(copy[start:end]))
            case 2:
                del copy[start : None if draw.random() < 0.5 else end]
            case 3:
                copy[start:end] = bytes(len(copy[start:end]))
            case 4:
                other = draw.randrange(len(copy))
                copy[start:end] = copy[other : other + length]
        if copy == content:
            copy[0] ^= 0xFF
        yield bytes(copy)
