"""What a launch is given: the kernel that is meant, and each value in the type it declares."""

import numpy as np

from ..errors import ArgumentError, LaunchError


def kernel_of(program, name, args):
    """The kernel called ``name``; refuses an unknown one and a wrong number of arguments."""
    label = program.source.label
    if name not in program.kernels:
        if name.isidentifier() and program.template(name):
            raise LaunchError(
                f"{label}: {name} is a template, and no launch finds a template by its name: "
                f"make it a __device__ function of another name, and call that from extern \"C\" "
                f"__global__ void {name}(...)")
        raise LaunchError(f"{label} defines no kernel {name!r}; it defines: "
                          f"{', '.join(program.kernels) or 'none'}")
    kernel = program.kernels[name]
    if kernel.symbol != name:
        raise LaunchError(f'{name} has no C linkage: write extern "C" __global__ before it')
    if len(args) != len(kernel.params):
        raise ArgumentError(f"{name} takes {len(kernel.params)} arguments ({kernel.declared()}), "
                            f"got {len(args)}")
    return kernel


def scalar(kernel, param, value):
    """``value`` as the type that the kernel declares (a Python float would travel as a double)."""
    where = f"{kernel.name}: {param.name}"
    if param.dtype is None:
        raise ArgumentError(f"{where} has type {param.type}; the lesson passes arrays, numbers and "
                            "bool")
    if getattr(value, "shape", ()) != ():
        raise ArgumentError(f"{where} is an array of shape {value.shape}; the kernel declares "
                            f"{param.type}, one number")
    kind = np.dtype(param.dtype)
    try:
        with np.errstate(over="ignore"):
            converted = kind.type(value)
        same = (converted == value or kind.kind == "f") and not isinstance(value, str | None)
    except (TypeError, ValueError, OverflowError):
        same = False
    if not same:  # 0.125 would become 0, and 2**40 something else, without a word
        raise ArgumentError(f"{where} = {value!r} is no {param.type}: the kernel declares "
                            f"({kernel.declared()})")
    return converted


def check_array(kernel, param, value, backend):
    """Refuse an array that the kernel would read as something else."""
    where = f"{kernel.name}: {param.name}"
    if not backend.owns(value):
        raise ArgumentError(f"{where} is {type(value).__module__}.{type(value).__name__}, needs "
                            f"{backend.array_name}: use backend.put({param.name})")
    if param.dtype and value.dtype != param.dtype:
        raise ArgumentError(f"{where} has dtype {value.dtype}, needs {param.dtype}: the kernel "
                            f"declares {param.type}")
    if not value.flags.c_contiguous:
        raise ArgumentError(f"{where} is a view that is not C-contiguous (strides "
                            f"{value.strides}): copy it with .copy()")
