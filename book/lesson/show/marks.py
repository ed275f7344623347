"""Where a number comes from, in words: the mark of a run, and what the mark refers to."""



from ..text.edits import edited, note


def mark_of(backend):
    """The mark of a run on ``backend``; the NumPy model (no backend) is computed."""
    return backend.mark if backend is not None else "computed"


def where(backend, *names):
    """What a run's mark refers to, and the edits in the sources it ran (all, or ``names``)."""
    if backend is None:
        return "NumPy models, not the kernels: there is neither a GPU nor a C++ compiler here"
    return "; ".join(filter(None, (backend.describe(), note(*names))))


NO_EVIDENCE = "no recorded run fits these kernels: times need a GPU (python -m lesson record)"


def origin(item):
    """What a recorded number refers to."""
    return f"{item.gpu}, {item.day}" + (", unedited kernels" if edited() else "")


NO_BENCH = ("no recorded run of the ladder fits these kernels: times need a GPU "
            "(python -m lesson bench)")
NO_TENSOR = ("no recorded run of the rungs on tensor cores fits these kernels: times need a GPU "
             "(python -m lesson record)")
NO_USE = ("no recorded run of the kernels for any problem fits them: times need a GPU "
          "(python -m lesson record)")
NO_LONG = ("no recorded run of the long sequences fits these kernels: they need a GPU "
           "(lesson.long_runs(\"run\"))")
