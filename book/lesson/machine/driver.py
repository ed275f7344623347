"""What CuPy does not pass on: a launch that may start before the one before it has ended.

Programmatic dependent launch, CUDA driver API, ``cuLaunchKernelEx``: the attribute is of the
launch, and a graph that is captured keeps it.
"""

import ctypes

import numpy as np

from ..errors import LaunchError

_PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int),
                ("rest", ctypes.c_char * 60)]


class _Config(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x",
                                                    "block_y", "block_z", "shared")),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(_Attribute)),
                ("count", ctypes.c_uint)]


def words(args):
    """A kernel's arguments as NumPy scalars: of an array its address, of None a null pointer."""
    return [np.array(x) if isinstance(x, np.generic)
            else np.array(0 if x is None else x.data.ptr, np.uint64) for x in args]


def launch_early(function, grid, block, args, shared, stream):
    """Launch a CUfunction (its address) so that it may overlap the launch before it.

    args: CuPy arrays and NumPy scalars of the declared types. Raises LaunchError.
    """
    library = ctypes.WinDLL("nvcuda") if hasattr(ctypes, "WinDLL") else ctypes.CDLL("libcuda.so.1")
    attribute = _Attribute(_PROGRAMMATIC, b"", 1, b"")
    config = _Config(*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3], shared, stream,
                     ctypes.pointer(attribute), 1)
    kept = words(args)
    pointers = (ctypes.c_void_p * len(kept))(*(x.ctypes.data for x in kept))
    error = library.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), pointers,
                                     None)
    if error:
        raise LaunchError(f"a launch with grid {tuple(grid)} and block {tuple(block)} failed: CUDA "
                          f"driver error {error}")
