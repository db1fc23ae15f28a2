"""What a user writes: typed, validated, units resolved; and the catalogue. Knows no graphs and no time."""

from tracegen.spec.device import Device, Efficiency
from tracegen.spec.job import Job, load_job
from tracegen.spec.model import Model
from tracegen.spec.network import Collectives, Dimension, Network
from tracegen.spec.parallelism import Parallelism
from tracegen.spec.problems import SpecError
from tracegen.spec.supported import supported
from tracegen.spec.workload import Precision, Workload

__all__ = [
    "Collectives",
    "Device",
    "Dimension",
    "Efficiency",
    "Job",
    "Model",
    "Network",
    "Parallelism",
    "Precision",
    "SpecError",
    "Workload",
    "load_job",
    "supported",
]
