"""Plans of short trainings on one thread."""

from coe.store.kinds import TrainingPlan


def plan(data, work=None, **more):
    usual = {"epochs": 1, "batch": 8, "learning_rate": 1e-3, "threads": 1}
    return TrainingPlan(**{"data": data, "work": work or data, **usual, **more})


def silent(*_):
    """Hear nothing of the progress."""
