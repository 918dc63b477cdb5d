"""Measures images per second of the encoders: bare engines, and `Encoder.encode` with decoding.

    python benchmarks/encoders.py efficientnet-lite0 efficientnet-lite0:float --rounds 5

For each encoder: torch and the fast engine on ready pixels, then `encode` of arrays of another size
and of JPEG files, and decoding alone. The measurements of a round follow one another, and the best
round of each counts, because other work on the machine only ever takes time away.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from onepass.encoders import Encoder, images
from onepass.encoders.engines import Torch
from onepass.encoders.registry import canonical
from onepass.encoders.whole_numbers import freeze
from onepass.runs.environment import describe_environment


def photos(count, folder):
    """Writes smooth JPEGs of 500x375 pixels; returns their paths."""
    rng = np.random.default_rng(0)
    paths = []
    for index in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        path = Path(folder) / f"{index:04}.jpg"
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
        paths.append(str(path))
    return paths


def measured(encoder, paths, device):
    """Returns a function for each thing that is measured; each takes as many images."""
    from onepass.encoders.efficientnet_lite import pretrained

    (part,) = canonical(encoder.name).parts
    network = encoder._networks[0]
    size, count = network.size, len(paths)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    small = torch.from_numpy(rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8))
    frozen = freeze(pretrained(part.key), whole=network.exact, earlier=part.earlier)
    eager = Torch(frozen, torch.device(device))

    def in_chunks(engine, chunk):
        return [engine(pixels[first : first + chunk]) for first in range(0, count, chunk)]

    return {
        "torch": lambda: in_chunks(eager, 16),
        network.engine: lambda: in_chunks(network._engine, encoder._chunk),
        "encode 32x32 arrays": lambda: encoder.encode(small),
        "decode JPEGs": lambda: deque(images.prepare(paths, [size], encoder._chunk, None), 0),
        "encode JPEGs": lambda: encoder.encode(paths),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("encoders", nargs="+")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    for name in given.encoders:
        began = time.perf_counter()
        encoder = Encoder(name, given.device)
        rates = {"load": time.perf_counter() - began}
        with tempfile.TemporaryDirectory() as folder:
            cases = measured(encoder, photos(given.images, folder), given.device)
            for _ in range(given.rounds):
                for case, work in cases.items():
                    began = time.perf_counter()
                    work()
                    rate = given.images / (time.perf_counter() - began)
                    rates[case] = max(rates.get(case, 0), rate)
        line = {"encoder": name, "images": given.images, "rounds": given.rounds}
        line |= {case: round(rate, 2) for case, rate in rates.items()}
        print(json.dumps(line | {"environment": describe_environment()}), flush=True)


if __name__ == "__main__":
    main()
