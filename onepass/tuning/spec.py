"""The specification of a search: its job, its space, and the objective that values a trial."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from onepass.base.errors import InputError
from onepass.base.settings import construct
from onepass.evaluation.metrics import FEWEST_POINTS
from onepass.runs.spec import OWN, Job
from onepass.tuning.space import Space

if TYPE_CHECKING:
    from onepass.runs.resources import RunResources
    from onepass.runs.result import Result

OBJECTIVES = ("mean", "accuracy", "anytime")
# Fields of a job that a resumed search may change, or that `description` holds under other names
NOT_COMPARED = (
    *("method", "settings", "seed", "data_root", "probes", "imports", "fingerprint"),
    *("label", "test"),
)


@dataclass(frozen=True)
class SearchSpec:
    """The specification of a search. Every run is the `job` with settings from the `space`. Each
    trial has `seeds` runs, whose seeds count up from that of the job. Its value is their mean
    `objective`: final accuracy, any-time accuracy, or the mean of both, on held-out training data.
    `seed` seeds the sampler."""

    job: Job
    space: Space
    objective: str = "mean"
    seeds: int = 1
    seed: int = 0

    def check(self, resources: RunResources) -> None:
        """Raises an InputError for the first fault that can be found without running: in the
        validation, the settings, the scoring, or an end of the space."""
        job = self.job
        if not 0 < job.validation < 1:
            raise InputError(
                "a search is scored on held-out training data, never on the test set: --validation "
                f"must be above 0 and below 1, not {job.validation}"
            )
        if both := job.settings.keys() & self.space.settings.keys():
            raise InputError(
                f"{min(both)!r} is searched, so it cannot be set too: remove it from [space] or "
                "from the settings"
            )
        stream, learner = job.make(resources.dataset(job))
        every = job.score_every(stream)
        if self.objective != "accuracy" and (every is None or len(stream) // every < FEWEST_POINTS):
            raise InputError(
                f"{job.method!r} is scored too seldom for any-time accuracy: use --objective "
                "accuracy, or score it more often by --every"
            )
        for chosen in self.space.ends():
            tried = replace(job, settings={**job.settings, **chosen})
            construct(type(learner), **tried.arguments(stream))

    def description(self) -> dict[str, Any]:
        """Returns all that a search must share with the one that it resumes; no paths."""
        job = {name: value for name, value in asdict(self.job).items() if name not in NOT_COMPARED}
        return {
            "method": self.job.method,
            "revision": self.job.revision,
            "space": self.space.table,
            "set": self.job.settings,
            **job,
            "every": self.job.known_every,
            "device": self.job.device_kind,
            "dataset": OWN if self.job.has_own_data else self.job.dataset,
            "data_sha256": self.job.data_sha256,
            "objective": self.objective,
            "seeds": self.seeds,
            "seed": self.seed,
        }

    def run_of(self, settings: dict[str, str], number: int) -> Job:
        """Returns the job of a trial's run `number`, counted from 0."""
        chosen = {**self.job.settings, **settings}
        return replace(self.job, settings=chosen, seed=self.job.seed + number)

    def value(self, result: Result) -> float:
        """Returns the objective of one run; its accuracy if it has no any-time accuracy."""
        anytime = result.anytime_accuracy
        if self.objective == "accuracy" or anytime is None:
            return result.accuracy
        return anytime if self.objective == "anytime" else (result.accuracy + anytime) / 2
