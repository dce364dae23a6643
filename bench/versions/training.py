from statistics import mean

from swarm import TrainJob

from .steps import Step, measure


class Measured:
    rounds = 8
    repeat = number = min_run_count = 1
    warmup_time = 0
    timeout = 300

    def __init__(self) -> None:
        self._charged_s = 0.0

    def timer(self) -> float:
        return self._charged_s


class Training(Measured):
    def setup_cache(self) -> list[Step]:
        return measure(
            TrainJob(engine="local", project_name="bench", batch_size=16, num_repeat=4, max_response_length=64, lr=1e-6)
        )

    def time_sampler(self, steps: list[Step]) -> None:
        self._charged_s += mean(step.sampling.worker for step in steps)

    def time_learner(self, steps: list[Step]) -> None:
        self._charged_s += mean(step.learning.worker for step in steps)

    def time_server(self, steps: list[Step]) -> None:
        self._charged_s += mean(step.sampling.server for step in steps)


class ControlPlane(Measured):
    def setup_cache(self) -> list[Step]:
        return measure(
            TrainJob(engine="fake", project_name="bench", batch_size=16, num_repeat=8, max_response_length=8)
        )

    def time_server(self, steps: list[Step]) -> None:
        self._charged_s += mean(step.sampling.server + step.learning.server for step in steps)

    def time_client(self, steps: list[Step]) -> None:
        self._charged_s += mean(step.sampling.client + step.learning.client for step in steps)
