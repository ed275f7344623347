"""The verb ``attention``: one call for a whole Problem, by the best kernel that this device has."""

import sys
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from ..errors import ArgumentError
from ..machine import backend as backends
from ..problem import reference
from ..problem.problem import Problem
from . import ladder, use

PATIENCE_S = 60  # no emulated call may take longer than about this
# Scores that are computed emulated in a second, those of a tile's empty places included.
EMULATED = {"ladder": 2e7 / 256, "use": 1e4}


def attention(q, k, v, *, causal=False, key_lengths=None, scale=None, return_lse=False):
    """softmax(scale q k^T) v in float32, by the fastest kernel that is inside the gate here.

    q: (batch, heads, queries, d), (heads, queries, d) or (queries, d); k, v: the same with as many
    keys as you like, and as many heads, or a number that divides it: query head h then uses kv head
    h // (heads / kv_heads). float32, C-contiguous; d a multiple of 8 up to 128.
    causal: query i sees the keys 0 .. i + keys - queries (aligned to the bottom right, as in
    FlashAttention since 2.1; PyTorch's is_causal aligns to the top left where lengths differ).
    key_lengths: for each batch entry the number of keys that are no padding; what lies behind them
    is not read. scale: 1/sqrt(d) where it is None. A query that sees no key gets zeros.

    Returns an array like q; with ``return_lse`` also the natural log-sum-exp of each row, q's shape
    without d, -inf where no key is seen. Arrays of NumPy, CuPy, or whatever speaks DLPack (PyTorch,
    JAX): the result is of the same kind, on the same device and stream, and inputs on a GPU are not
    copied. Without a GPU kernels run emulated, which is slow, so a problem of more than a minute
    is refused; without a compiler too it is NumPy, in float64.
    Raises ArgumentError for what no kernel takes, naming the argument and the remedy.
    """
    given = {"q": q, "k": k, "v": v}
    kinds = {name: _kind(name, x) for name, x in given.items()}
    if len(set(kinds.values())) > 1:
        raise ArgumentError("q, k and v must be of one kind; they are "
                            + ", ".join(f"{name}: {kind}" for name, kind in kinds.items()))
    chosen = backends.choose()
    live = chosen is not None and chosen.mark == "live"
    with _stream(chosen, q) if live else nullcontext():
        arrays = [_taken(chosen if live else None, name, x) for name, x in given.items()]
        p = describe(*arrays, causal=causal, key_lengths=key_lengths, scale=scale)
        use.refuse(p)
        if live:
            o, lse = _on_the_gpu(chosen, p, arrays, return_lse)
        else:
            o, lse = _on_the_host(chosen, p, arrays, return_lse)
        o = _given_back(o.reshape(arrays[0].shape), q)
        if not return_lse:
            return o
        return o, _given_back(lse.reshape(arrays[0].shape[:-1]), q)


def describe(q, k, v, causal=False, key_lengths=None, scale=None):
    """The Problem of arrays with shapes as ``attention`` takes them. Raises ArgumentError."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dtype != np.float32:
            raise ArgumentError(f"{name} has dtype {x.dtype}, needs float32: use "
                                f"{name}.astype('float32')")
        if x.ndim not in (2, 3, 4) or 0 in x.shape:
            raise ArgumentError(f"{name} has shape {tuple(x.shape)}, needs (batch, heads, N, d), "
                                "(heads, N, d) or (N, d), and no dimension of 0")
        if not x.flags.c_contiguous:
            raise ArgumentError(f"{name} is a view that is not C-contiguous (strides {x.strides}); "
                                f"a kernel would read its base: copy it with {name}.copy()")
    if k.shape != v.shape:
        raise ArgumentError(f"v has shape {tuple(v.shape)}, k has {tuple(k.shape)}: they must be "
                            "equal")
    if q.ndim != k.ndim or q.shape[-1] != k.shape[-1] or q.shape[:-3] != k.shape[:-3]:
        raise ArgumentError(f"k has shape {tuple(k.shape)}, q has {tuple(q.shape)}: as many "
                            "dimensions, the same batch and the same d are needed")
    heads, kv_heads = (x.shape[-3] if x.ndim > 2 else 1 for x in (q, k))
    if not isinstance(causal, bool | np.bool_):
        raise ArgumentError(f"causal = {causal!r}: needs True or False")
    if key_lengths is not None:
        key_lengths = tuple(getattr(key_lengths, "tolist", lambda: key_lengths)())
    return Problem(q.shape[-2], k.shape[-2], q.shape[0] if q.ndim == 4 else 1, heads, kv_heads,
                   q.shape[-1], bool(causal), key_lengths, scale)


def plain(p):
    """Whether the ladder's kernels do a Problem: no mask, whole tiles, d = 64, its own K and V."""
    if p.key_lengths is None:  # then a batch is more heads
        p = replace(p, batch=1, heads=p.batch * p.heads, kv_heads=p.batch * p.kv_heads)
    try:
        ladder.HANDLES.refuse(p)
    except ArgumentError:
        return False
    return True


def planned(backend, p, arrays, lse=False):
    """The Plan for a Problem on a backend: the ladder's choice, or the kernel for any Problem."""
    if not lse and plain(p):
        heads = (p.batch * p.heads, p.queries, p.d)
        which = "fastest" if backend.mark == "live" else "best"
        return ladder.plan(backend, which, *(x.reshape(heads) for x in arrays))
    return use.plan(backend, p, *arrays, lse=lse)


def _on_the_gpu(backend, p, arrays, lse):
    """(output, log-sum-exp or None), enqueued on the current stream."""
    if not isinstance(arrays[0], np.ndarray):
        made = planned(backend, p, arrays, lse)
        made.enqueue()
        return made.output, getattr(made, "lse", None)
    made = planned(backend, p, [backend.put(x) for x in arrays], lse)
    made.enqueue()
    return backend.get(made.output), backend.get(made.lse) if lse else None


def _on_the_host(backend, p, arrays, lse):
    if backend is None:
        found = reference.attention(*arrays, problem=p)
        return found.o.astype(np.float32), found.lse.astype(np.float32)
    rows = use.form(backend, p.d).bm
    whole = [-(-x // to) * to for x, to in ((p.queries, rows), (p.keys, use.BN))]
    scores = p.batch * p.heads * whole[0] * whole[1]
    rate = EMULATED["ladder" if plain(p) and not lse else "use"]
    if scores > PATIENCE_S * rate:
        raise ArgumentError(
            f"{p}: without a GPU that takes about {scores / rate / 60:,.0f} minutes, emulated; "
            f"take fewer queries or keys, or a GPU ({backends.probe().reason})")
    made = planned(backend, p, [backend.put(x) for x in arrays], lse)
    o = made.run()
    return o, backend.get(made.lse) if lse else None


def _kind(name, x):
    """'numpy', 'cupy', or the package of another array that speaks DLPack."""
    package = type(x).__module__.partition(".")[0]
    if isinstance(x, np.ndarray):
        return "numpy"
    if hasattr(x, "__dlpack__"):
        return package
    raise ArgumentError(f"{name} is {type(x).__module__}.{type(x).__name__}, needs an array of "
                        "NumPy or CuPy, or one with DLPack (PyTorch, JAX): use "
                        f"numpy.array({name}, 'float32')")


def _taken(backend, name, x):
    """An array as NumPy's, or as CuPy's where it lives on the GPU; never a copy."""
    if isinstance(x, np.ndarray):
        return x
    device = x.__dlpack_device__()[0]
    if device == 1:  # kDLCPU
        return np.from_dlpack(_detached(x))
    if backend is None:
        raise ArgumentError(f"{name} lives on a device that the lesson does not reach: "
                            f"{backends.probe().reason}")
    if device != 2:  # kDLCUDA
        raise ArgumentError(f"{name} lives on a device of DLPack's type {device}; the lesson reads "
                            "the memory of a CUDA GPU, or of the host")
    array = x if backend.owns(x) else backend.cupy.from_dlpack(_detached(x))
    if not backend.owns(array):
        raise ArgumentError(f"{name} lives on GPU {array.device.id}, and the current one is "
                            f"{backend.device.id}: choose it with cupy.cuda.Device")
    return array


def _detached(x):
    """A PyTorch tensor without its graph: attention here has no backward pass."""
    return x.detach() if hasattr(x, "detach") else x


def _given_back(array, like):
    """``array`` as the kind of ``like``, in the same memory."""
    if isinstance(like, np.ndarray) or isinstance(array, type(like)):
        return array
    if hasattr(like, "__array_namespace__"):  # the array API standard; PyTorch has not got it
        return like.__array_namespace__().from_dlpack(array)
    return sys.modules[type(like).__module__.partition(".")[0]].from_dlpack(array)


def _stream(backend, like):
    """A context in which launches go to the stream that ``like``'s package uses now."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor) and like.is_cuda:
        return backend.cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    return nullcontext()
