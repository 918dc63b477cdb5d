"""Tests whether closed-form methods have the same sums in any process, order and instruction set.

    python benchmarks/closed_form_bits.py

Each setting is learned in a process of its own, from the same samples. It prints a line of JSON for
each: a hash of the sums of all closed-form methods, the hash of their scores, the instruction sets
that the libraries report, and whether the sums are `equal` to those of the first setting or
`differs`. Scores may differ between settings. The exit status is 1 if any sums differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys

SSE4 = {
    "OPENBLAS_CORETYPE": "Nehalem",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
}
AVX2 = {
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
AVX512 = {
    "OPENBLAS_CORETYPE": "SkylakeX",
    "ATEN_CPU_CAPABILITY": "avx512",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    "MKL_ENABLE_INSTRUCTIONS": "AVX512",
}
# name: (shards, batch, seed of the order or None, environment)
SETTINGS = {
    "one process": (1, 1000, None, {}),
    "another order": (1, 1000, 1, {}),
    "batches of 7": (1, 7, 2, {}),
    "two processes": (2, 1000, None, {}),
    "two processes, another order": (2, 10, 3, {}),
    "one thread": (1, 1000, None, {"OMP_NUM_THREADS": "1"}),
    "two threads": (1, 1000, None, {"OMP_NUM_THREADS": "2"}),
    "SSE4": (1, 1000, None, SSE4),
    "AVX2": (1, 1000, None, AVX2),
    "AVX512": (1, 1000, None, AVX512),
    "SSE4 and AVX2, merged": (2, 1000, 4, [SSE4, AVX2]),
    "oneDNN in bfloat16": (1, 1000, None, {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}),
}


def learn_shard(args: argparse.Namespace) -> None:
    """Learns one shard of the samples with every method, and writes the learners to files. Prints
    the instruction sets that the libraries say they use."""
    import torch
    from threadpoolctl import threadpool_info

    import onepass

    source = torch.Generator().manual_seed(0)
    y = torch.randint(20, (args.samples,), generator=source)
    # whole numbers, because normal draws may differ between instruction sets
    x = torch.randint(-999, 1000, (args.samples, args.inputs), generator=source)
    x = (x + 300 * torch.randint(-3, 4, (20, args.inputs), generator=source)[y]) / 1024
    order = torch.arange(args.samples)
    if args.order is not None:
        order = torch.randperm(args.samples, generator=torch.Generator().manual_seed(args.order))
    own = order.tensor_split(args.shards)[args.shard]
    for learner in (onepass.NCM(), onepass.SLDA(), onepass.RanPAC(), onepass.KernelLDA()):
        for part in torch.split(own, args.batch):
            learner.learn(x[part], y[part])
        learner.save(f"{args.out}-{learner.key}.pt")
    torch.save(x[:100], f"{args.out}.samples")
    blas = sorted({part["architecture"] for part in threadpool_info() if "architecture" in part})
    print(json.dumps({"torch": torch.backends.cpu.get_cpu_capability(), "blas": blas}))


def merge_shards(args: argparse.Namespace) -> None:
    """Merges the learners in files, and prints the hashes of their sums and scores."""
    import torch

    import onepass

    sums, scores = hashlib.sha256(), hashlib.sha256()
    x = torch.load(f"{args.files[0]}.samples")
    for method in ("ncm", "slda", "ranpac", "kernel-lda"):
        first, *others = [onepass.open(f"{file}-{method}.pt") for file in args.files]
        for other in others:
            first.merge(other)
        sums.update(first.sums_sha256().encode())
        scores.update(first.scores(x).numpy().tobytes())
    print(json.dumps({"sums": sums.hexdigest(), "scores": scores.hexdigest()}))


def call(arguments: list[str], environment: dict[str, str]) -> str:
    command = [sys.executable, __file__, *arguments]
    given = {**os.environ, **environment}
    done = subprocess.run(command, env=given, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def measured(folder: str, sizes: list[str], setting: tuple) -> dict[str, object]:
    """Returns the hashes of a setting, learned and merged in processes of its own."""
    shards, batch, order, environments = setting
    if isinstance(environments, dict):
        environments = [environments] * shards
    files, uses = [], []
    for shard, environment in enumerate(environments):
        files.append(f"{folder}/{shard}")
        given = ["--shards", str(shards), "--shard", str(shard), "--batch", str(batch), *sizes]
        more = [] if order is None else ["--order", str(order)]
        uses.append(json.loads(call(["learn", *given, *more, "--out", files[-1]], environment)))
    hashes = json.loads(call(["merge", *files], environments[0]))
    return {**hashes, "uses": uses}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--inputs", type=int, default=128)
    parts = parser.add_subparsers(dest="part", help="parts of a setting, each in its process")
    learn, merge = parts.add_parser("learn"), parts.add_parser("merge")
    for name in ("--shards", "--shard", "--batch", "--order", "--samples", "--inputs"):
        learn.add_argument(name, type=int)
    learn.add_argument("--out")
    merge.add_argument("files", nargs="+")
    args = parser.parse_args()
    if args.part:
        (learn_shard if args.part == "learn" else merge_shards)(args)
    else:
        compare_settings(["--samples", str(args.samples), "--inputs", str(args.inputs)])


def compare_settings(sizes: list[str]) -> None:
    import tempfile

    expected, differing = None, 0
    for name, setting in SETTINGS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = measured(folder, sizes, setting)
        expected = expected or found["sums"]
        verdict = "equal" if found["sums"] == expected else "differs"
        differing += verdict == "differs"
        print(json.dumps({"setting": name, "verdict": verdict, **found}), flush=True)
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
