"""What can go wrong in a rank, each with the failure class that says who has to act.

Exceptions only. Whatever is raised here ends the rank; the rank's entry point turns
``failure_class`` into its exit code and its record. Any other exception is the user's code.
Standard library and contracts only.
"""

from lineshaft.contracts.failures import FailureClass


class TrainingFault(Exception):
    """An error of a run whose class is known; the text says what, where and what to do next."""

    failure_class = FailureClass.USER_CODE
    kind = "error"


class DataFault(TrainingFault):
    """Data that cannot be trained on: unreadable, malformed, empty."""

    failure_class = FailureClass.DATA
    kind = "data"


class ConfigFault(TrainingFault):
    """An order that contradicts itself or the model it names."""

    failure_class = FailureClass.CONFIG
    kind = "config"


class NonFinite(TrainingFault):
    """A loss or gradient that is not a number; the weights in memory are not to be kept."""

    failure_class = FailureClass.USER_CODE
    kind = "non_finite"


class StorageFault(TrainingFault):
    """Storage that does not take what must be kept."""

    failure_class = FailureClass.INFRASTRUCTURE
    kind = "storage"


class NoCheckpoint(TrainingFault):
    """No good checkpoint to resume from; a run never starts from zero unless told to."""

    failure_class = FailureClass.INFRASTRUCTURE
    kind = "no_checkpoint"


class Fenced(TrainingFault):
    """A newer attempt owns the run: this one keeps nothing more."""

    failure_class = FailureClass.INFRASTRUCTURE
    kind = "fenced"
