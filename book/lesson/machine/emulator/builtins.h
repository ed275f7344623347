// What a compiled kernel calls: the CUDA names that cuda.h declares.
#pragma once

#include "arithmetic.h"
#include "memory.h"

#define PC size_t(__builtin_return_address(0))

void __syncthreads(const char *file, int line) {
    trace_operation(kTraceBarrier, 0, PC);
    barrier("__syncthreads()", 0, file, line);
}
int __syncthreads_count(int p, const char *file, int line) {
    trace_operation(kTraceBarrier, 0, PC);
    return barrier("__syncthreads_count()", p, file, line);
}
int __syncthreads_and(int p, const char *file, int line) {
    trace_operation(kTraceBarrier, 0, PC);
    return barrier("__syncthreads_and()", p, file, line) == g_thread_count;
}
int __syncthreads_or(int p, const char *file, int line) {
    trace_operation(kTraceBarrier, 0, PC);
    return barrier("__syncthreads_or()", p, file, line) != 0;
}
void __syncwarp(unsigned mask, const char *file, int line) {
    trace_operation(kTraceVote, 0, PC);
    warp_op("__syncwarp()", kBallot, mask, 0, 0, 0, file, line);
}
unsigned __ballot_sync(unsigned mask, int p, const char *file, int line) {
    trace_operation(kTraceVote, 0, PC);
    return unsigned(warp_op("__ballot_sync()", kBallot, mask, 0, 0, p != 0, file, line));
}
int __any_sync(unsigned mask, int p, const char *file, int line) {
    trace_operation(kTraceVote, 0, PC);
    return warp_op("__any_sync()", kBallot, mask, 0, 0, p != 0, file, line) != 0;
}
int __all_sync(unsigned mask, int p, const char *file, int line) {
    trace_operation(kTraceVote, 0, PC);
    unsigned lanes = g_warps[g_current >> 5].lanes & mask;
    return unsigned(warp_op("__all_sync()", kBallot, mask, 0, 0, p != 0, file, line)) == lanes;
}
unsigned __activemask(const char *file, int line) { return active_mask(file, line); }

void __threadfence_block() { fence(false); }
void __threadfence() { fence(true); }
void __threadfence_system() { fence(true); }

namespace __emulator {

int lane() { return g_current & 31; }

unsigned long long shuffle(const char *what, unsigned mask, unsigned long long value,
                           unsigned bytes, int source, const char *file, int line) {
    trace_operation(kTraceShuffle, source & 31, PC);
    return warp_op(what, kShuffle, mask, value, source & 31, int(bytes), file, line);
}
unsigned match(bool all, unsigned mask, unsigned long long value, const char *file, int line) {
    trace_operation(kTraceVote, 0, PC);
    return unsigned(all ? warp_op("__match_all_sync()", kMatchAll, mask, value, 0, 0, file, line)
                        : warp_op("__match_any_sync()", kMatchAny, mask, value, 0, 0, file, line));
}
unsigned long long reduce(Reduction operation, const char *what, unsigned mask,
                          unsigned long long value, const char *file, int line) {
    trace_operation(kTraceVote, 0, PC);
    return warp_op(what, Operation(kAdd + operation), mask, value, 0, 0, file, line);
}

void failed(const char *condition, const char *file, int line) {
    begin_report("assertion");
    put_thread("thread", g_current);
    put_site(condition, file, line);
    send_error();
}
void trapped(const char *what, const char *file, int line) {
    begin_report("trap");
    put_thread("thread", g_current);
    put_site(what, file, line);
    send_error();
}

}  // namespace __emulator

// In place of the C library's, for this program: a GPU keeps a part of what a launch prints, and
// so does this. The rest is counted.
extern "C" int printf(const char *format, ...) {
    va_list list;
    va_start(list, format);
    char text[1024];
    int n = vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (!g_heard || n <= 0) return n;
    size_t length = size_t(n) < sizeof text ? size_t(n) : sizeof text - 1;
    if (g_printed + length <= kPrinted && !g_cut_bytes) {
        fwrite(text, 1, length, stdout);
        g_printed += length;
    } else {
        g_cut_bytes += length;
        for (size_t i = 0; i < length; i++) g_cut_lines += text[i] == '\n';
    }
    return n;
}

long long clock64() {
    static long long calls = 0;
    g_asked_clock = true;
    return ++calls;
}
void __nanosleep(unsigned) { let_others_run(); }
unsigned __isShared(const void *p) { return in_shared(size_t(p)); }
unsigned __isGlobal(const void *p) { return in_buffers(size_t(p)); }

#define DEFINE_ATOMIC(name, T, expression) \
    T name(T *address, T value) { \
        T old = *atomic(address, PC); \
        *address = expression; \
        return old; \
    }
#define DEFINE_ATOMIC_SUM(T) \
    T atomicAdd(T *address, T value) { \
        T old = *atomic(address, PC); \
        note_sum(size_t(address), old, value); \
        *address = old + value; \
        return old; \
    }
#define DEFINE_ATOMIC_INTEGERS(T) \
    DEFINE_ATOMIC(atomicExch, T, value) \
    DEFINE_ATOMIC(atomicMax, T, old < value ? value : old) \
    DEFINE_ATOMIC(atomicMin, T, value < old ? value : old)
#define DEFINE_ATOMIC_BITS(T) \
    DEFINE_ATOMIC(atomicAnd, T, old & value) \
    DEFINE_ATOMIC(atomicOr, T, old | value) \
    DEFINE_ATOMIC(atomicXor, T, old ^ value)
DEFINE_ATOMIC(atomicAdd, int, int(unsigned(old) + unsigned(value)))
DEFINE_ATOMIC(atomicAdd, unsigned, old + value)
DEFINE_ATOMIC(atomicAdd, unsigned long long, old + value)
DEFINE_ATOMIC_SUM(float)
DEFINE_ATOMIC_SUM(double)
DEFINE_ATOMIC(atomicSub, int, int(unsigned(old) - unsigned(value)))
DEFINE_ATOMIC(atomicSub, unsigned, old - value)
DEFINE_ATOMIC_INTEGERS(int)
DEFINE_ATOMIC_INTEGERS(unsigned)
DEFINE_ATOMIC_INTEGERS(unsigned long long)
DEFINE_ATOMIC(atomicExch, float, value)
DEFINE_ATOMIC(atomicMax, long long, old < value ? value : old)
DEFINE_ATOMIC(atomicMin, long long, value < old ? value : old)
DEFINE_ATOMIC(atomicInc, unsigned, old >= value ? 0 : old + 1)
DEFINE_ATOMIC(atomicDec, unsigned, old == 0 || old > value ? value : old - 1)
DEFINE_ATOMIC_BITS(int)
DEFINE_ATOMIC_BITS(unsigned)
DEFINE_ATOMIC_BITS(unsigned long long)
#define DEFINE_CAS(T, note) \
    T atomicCAS(T *address, T compare, T value) { \
        T old = *atomic(address, PC); \
        if (old != compare) return old; \
        *address = value; \
        note; \
        return old; \
    }
DEFINE_CAS(int, note_sum_of_bits<float>(address, old, value))
DEFINE_CAS(unsigned, note_sum_of_bits<float>(address, old, value))
DEFINE_CAS(unsigned long long, note_sum_of_bits<double>(address, old, value))
DEFINE_CAS(unsigned short, )
