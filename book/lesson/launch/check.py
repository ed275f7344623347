"""What a launch refuses before it starts: arrays that a kernel would read as something else."""

import numpy as np

from ..errors import ArgumentError
from ..problem.problem import Problem


def check(backend, q, k, v, handles):
    """The Problem of backend arrays q, k, v of one shape, (N, 64) or (heads, N, 64), float32.

    handles: the Handles of what will be launched. Raises ArgumentError naming the array, what it
    is and what is needed, or the field of the Problem that is not handled.
    """
    needed = "(N, 64) or (heads, N, 64)" if handles.heads else "(N, 64)"
    for name, array in (("q", q), ("k", k), ("v", v)):
        if not backend.owns(array):
            raise ArgumentError(f"{name} is {type(array).__module__}.{type(array).__name__}, "
                                f"needs {backend.array_name}: use backend.put({name})")
        if array.dtype != np.float32:
            raise ArgumentError(f"{name} has dtype {array.dtype}, needs float32: "
                                f"use {name}.astype('float32')")
        if array.ndim not in (2, 3) or 0 in array.shape:
            raise ArgumentError(f"{name} has shape {array.shape}, needs {needed}")
        if array.shape != q.shape:
            raise ArgumentError(f"{name} has shape {array.shape}, q has {q.shape}: "
                                "they must be equal")
        if not array.flags.c_contiguous:
            raise ArgumentError(f"{name} is a view that is not C-contiguous (strides "
                                f"{array.strides}); a kernel would read its base: copy it with "
                                f"{name}.copy()")
    n, d = q.shape[-2:]
    problem = Problem(n, n, heads=q.shape[0] if q.ndim == 3 else 1, d=d)
    handles.refuse(problem)
    return problem


def check_order(kernel, passed):
    """Refuse a Kernel whose parameters stand in another order than the arguments it will get.

    passed: the arguments' names in their order, in one string; with a * the ones to be written.
    A kernel may have names of its own, but not these names in another order.
    """
    passed = passed.split()
    names = [name.removeprefix("*") for name in passed]
    declared = [param.name.lower() for param in kernel.params]
    usual = [name.lower() for name in names]
    wrong = len(declared) != len(usual) or declared != usual and sorted(declared) == sorted(usual)
    for name, param in zip(passed, kernel.params):
        wrong |= param.pointer == (name in ("n", "scale")) or name[0] == "*" and param.read_only
    if wrong:
        here = [f"{param.name} would get {name}" for name, param in zip(names, kernel.params)
                if param.name.lower() != name.lower()]
        raise ArgumentError(f"{kernel.name} declares ({kernel.declared()}); the lesson passes "
                            f"{', '.join(names)}, in this order: {', '.join(here)}")
