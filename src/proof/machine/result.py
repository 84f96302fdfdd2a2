"""The result of a proof, as it is stored in its JSON file."""

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from proof.measure.comparison import Groups, Round, side_medians


@dataclass(frozen=True)
class Failure:
    """A step that failed, the reason, and the last lines of the side's output."""

    side: str
    step: str
    reason: str
    output: list[str] = field(default_factory=list)


@dataclass
class Proof:
    """All that was measured on one machine.

    Args:
        date: Day of the measurement.
        machine: Name of the GPU, or of the CPU.
        model: Name and origin of the model.
        system: The machine and the versions of the software, by name.
        engine: Options of the engine, the same on all sides.
        seconds: Duration of all steps.
        rounds: The rounds of each side: first the starts in their order, then the other steps.
        failures: The steps that failed.
    """

    date: str
    machine: str
    model: str
    system: dict[str, str]
    engine: dict[str, str | int | float | bool]
    seconds: float = 0.0
    rounds: dict[str, list[Round]] = field(default_factory=lambda: {"worker": [], "server": []})
    failures: list[Failure] = field(default_factory=list)

    def sides(self) -> dict[str, Groups]:
        """Return the medians of each side."""
        return side_medians(self.rounds)


FILE_FORMAT = TypeAdapter(Proof)
