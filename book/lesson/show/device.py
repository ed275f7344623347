"""What was found here."""



from ..machine import backend as backends
from ..machine import emulator
from ..tables import Table


def device():
    """What was found here, in three lines: where kernels run, versions, and how to do better."""
    found, chosen = backends.probe(), backends.choose()

    ready, reason = emulator.available()
    t = Table("This machine", ["what", "found"])
    if found.gpu:
        v = found.versions
        t.add("live", "kernels run on", f"{v['gpu']}, compute capability {v['compute_capability']}")
        t.add("live", "versions", f"CuPy {v['cupy']}, CUDA {v['cuda']}, NVRTC {v['nvrtc']}, "
              f"driver for CUDA {v['driver_cuda']}")
        t.add("live", "times", "measured here")
        return t
    mark = "emulated" if chosen else "computed"
    t.add(mark, "GPU", f"none used: {found.reason}")
    t.add(mark, "kernels run on",
          "this machine's processor, emulated from the same .cu files" if ready else
          f"nothing: {reason}. NumPy models of both paths stand in")
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    t.add(mark, "versions", f"{versions}; times come from recorded runs")
    return t
