// The kernels of a program by name, which build.py writes for each.
#pragma once

namespace __emulator {
struct Kernel {
    const char *name;
    void (*call)(void **arguments);
};
extern const Kernel kernels[];
extern const int kernel_count;
}  // namespace __emulator
