"""Where kernels run: GPUs and the emulator, compilers, launches, clocks, occupancy."""
