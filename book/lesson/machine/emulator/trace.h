// What one block does, record by record: where backend.py asks for it, and in no other launch.
//
// Of the warp that is watched (of all, where none is named) each access and each warp operation of
// each lane is written down, in the order in which the lanes came to it. Of the other warps it is
// counted how often they passed each instruction from one barrier to the next.
#pragma once

#include "fibers.h"

namespace {

// The first three are those of Kind in memory.h. trace.py knows the same names.
enum Traced : unsigned char {
    kTraceRead, kTraceWrite, kTraceAtomic, kTraceShuffle, kTraceVote, kTraceBarrier, kTraceReleased,
    kTraceCount, kTraceRace, kTraceUnset
};
enum Place : signed char { kInShared = -1, kNowhere = -2 };  // or the number of a buffer

struct __attribute__((packed)) Record {
    // Bytes from the start of its place; of a shuffle the lane that is asked, of a count how often.
    long long offset;
    unsigned pc;  // after the call of the hook
    unsigned short thread, bytes;  // of a count: what is counted, by its number in Traced
    Traced kind;
    signed char place;
};

int g_trace_warp = -1;  // -1: all warps

constexpr unsigned kCounters = 1024;  // instructions of a kernel that use memory; no more are counted
unsigned g_counted[kCounters], g_passed[kCounters][kMaxThreads];
Traced g_what[kCounters];

void write_record(Record record) { fwrite_unlocked(&record, sizeof record, 1, g_trace); }

__attribute__((noinline)) void trace(Traced kind, signed char place, long long offset,
                                     unsigned bytes, size_t pc) {
    if (g_trace_warp < 0 || g_current >> 5 == g_trace_warp) {
        unsigned most = 0xffff;
        return write_record({offset, unsigned(pc), (unsigned short)g_current,
                             (unsigned short)(bytes < most ? bytes : most), kind, place});
    }
    unsigned at = unsigned(pc) * 0x9e3779b1u >> 22;
    for (unsigned tried = 0; tried < kCounters; tried++, at = (at + 1) % kCounters) {
        if (g_counted[at] && g_counted[at] != unsigned(pc)) continue;
        g_counted[at] = unsigned(pc);
        g_what[at] = kind;
        g_passed[at][g_current]++;
        return;
    }
}

void trace_operation(Traced kind, long long lane, size_t pc) {
    if (g_trace) trace(kind, kNowhere, lane, 0, pc);
}

// A race or a read of what has no value: the first of them is where a reader stops to watch.
void trace_mark(Traced kind, signed char place) {
    if (g_trace) write_record({0, 0, (unsigned short)g_current, 0, kind, place});
}

// How often the busiest lane of each other warp has passed each instruction since the last time.
void write_counts() {
    for (unsigned at = 0; at < kCounters; at++) {
        for (int first = 0; g_counted[at] && first < g_thread_count; first += 32) {
            unsigned most = 0;
            for (int i = first; i < first + 32; i++) {
                if (g_passed[at][i] > most) most = g_passed[at][i];
                g_passed[at][i] = 0;
            }
            if (most)
                write_record({most, g_counted[at], (unsigned short)first, g_what[at], kTraceCount,
                              kNowhere});
        }
    }
}

void trace_released() {
    if (!g_trace) return;
    write_counts();
    write_record({0, 0, 0, 0, kTraceReleased, kNowhere});
}

void end_trace() {
    if (!g_trace) return;
    write_counts();
    fflush(g_trace);
}

}  // namespace
