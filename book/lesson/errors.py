"""What a reader sees when something is wrong: one message, no pages of traceback."""


class LessonError(Exception):
    """An error whose message says what was got, what is needed, and what to do."""

    def _render_traceback_(self):
        """Tell IPython to print the message alone: the frames of the lesson would hide it."""
        return [f"{type(self).__name__}: {self}"]


class ArgumentError(LessonError, ValueError):
    """An argument cannot be used; refused before anything runs."""


class CompileError(LessonError):
    """The compiler refused a kernel source."""


class LaunchError(LessonError):
    """A kernel did not run to its end: out of bounds, divergent barrier, time limit, ..."""


class RaceError(LaunchError):
    """A result depends on the order in which threads run."""


class UndefinedError(LaunchError):
    """A result hangs on a value that nobody has written, or that CUDA leaves undefined."""


class InputError(LessonError):
    """A kernel changed one of its inputs."""


class GateError(LessonError):
    """A result is outside the gate."""


class EvidenceError(LessonError):
    """A recorded file is damaged, of another version, or stale."""
