"""Times several runs on one GPU: processes with and without CUDA MPS, and streams of one process.

    python benchmarks/sharing.py er --runs 1 2 4 8 12 --set precision=bf16

The ways are `mps` (processes under CUDA MPS), `turns` (processes that take turns on the GPU) and
`streams` (one process with a CUDA stream per run). The script prints one JSON object per way and
number of runs: trained images per second of all runs together.
"""

from __future__ import annotations

import argparse
import json
import time
from multiprocessing import get_context

import torch

from onepass.executors.processes.cuda_mps import cuda_mps_service
from onepass.runs.environment import describe_environment
from onepass.tools.bench import BenchCase, RandomBatches

WARM_UP = 30


def begin(case):
    """Returns a learner whose step has been captured, and its batches."""
    learner, batches = case.learner(), RandomBatches(case)
    learner.prepare(case.shape, batches.x.dtype)
    batches.introduce(learner)
    for _ in range(WARM_UP):
        batches.learn(learner)
    torch.cuda.synchronize()
    return learner, batches


def one_process(case, barrier, answers):
    learner, batches = begin(case)
    barrier.wait()
    began = time.time()
    for _ in range(case.steps):
        batches.learn(learner)
    torch.cuda.synchronize()
    answers.put((began, time.time()))


def processes(case, runs):
    """Returns the seconds from the first start to the last end of the runs, each a process."""
    context = get_context("spawn")
    barrier, answers = context.Barrier(runs), context.Queue()
    workers = [
        context.Process(target=one_process, args=(case, barrier, answers)) for _ in range(runs)
    ]
    for worker in workers:
        worker.start()
    times = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    return max(end for _, end in times) - min(start for start, _ in times)


def streams(case, runs):
    """Returns the seconds that the runs take in one process, each on its own CUDA stream."""
    lanes = [torch.cuda.Stream() for _ in range(runs)]
    learners = []
    for lane in lanes:
        with torch.cuda.stream(lane):
            learners.append(begin(case))
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(case.steps):
        for lane, (learner, batches) in zip(lanes, learners, strict=True):
            with torch.cuda.stream(lane):
                batches.learn(learner)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("method")
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--ways", nargs="+", default=["mps", "turns", "streams"])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--set", dest="pairs", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in given.pairs)
    case = BenchCase(given.method, settings=settings, device="cuda", steps=given.steps)
    images = case.learner().images_per_batch(case.batch).trained
    for way in given.ways:
        for runs in given.runs:
            if way == "mps":
                with cuda_mps_service("cuda"):
                    seconds = processes(case, runs)
            else:
                seconds = processes(case, runs) if way == "turns" else streams(case, runs)
            found = {
                "way": way,
                "runs": runs,
                "images_per_second": runs * case.steps * images / seconds,
            }
            print(
                json.dumps(
                    {"method": case.method, "settings": settings, **found, **describe_environment()}
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
