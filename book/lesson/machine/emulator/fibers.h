// Fibers and their order: the threads of a block, its warps, barriers and warp operations.
//
// A CUDA thread is a fiber: made once, switched at barriers and warp operations. One block runs at
// a time.
#pragma once

#include "context.h"
#include "cuda.h"
#include "report.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

constexpr int kMaxThreads = 1024, kMaxArguments = 32;
constexpr size_t kPage = 65536, kStack = 2 * kPage;  // a multiple of any machine's page

// Of a thread's stack, what starts as NaN at each call of a kernel. g++ 12 and clang++ give each
// variable without a first value a NaN themselves; with older ones this is all.
#if defined(__clang__) || __GNUC__ >= 12
constexpr size_t kFilled = 1024;
#else
constexpr size_t kFilled = 16384;
#endif

enum State : unsigned char { kAtBarrier, kAtWarp, kAtActive, kDone };

// What the last lane to arrive at a warp operation works out for all of them.
enum Operation { kBallot, kShuffle, kMatchAny, kMatchAll, kAdd, kMin, kMax, kAnd, kOr, kXor };

struct alignas(64) Thread {  // what a warp operation reads and writes: one line of a cache
    unsigned long long value, result;
    const char *what, *file;  // the operation it waits at
    Context *context;
    int line;
    unsigned mask;
    uint3 index;
    State state;
    signed char source;
    unsigned char predicate;  // of a shuffle: the bytes of its value
};

struct Rest {  // of a thread
    unsigned actives;  // how often it has passed an __activemask() in this block
    // Times of its last __threadfence_block() and __threadfence(), and of the barrier before each.
    unsigned fence_time[2], fence_interval[2];
};

struct Warp {
    unsigned ready;      // by position in this warp's order
    unsigned char lane[32], position[32];
    unsigned waiting;    // the lanes that wait at a warp operation
    unsigned parked;     // the lanes that wait at __activemask()
    unsigned tick;       // warp operations released since the last barrier
    unsigned lanes;      // the lanes that exist
    unsigned positions;  // the positions of those
};

Thread g_threads[kMaxThreads];
Context g_contexts[kMaxThreads];
Rest g_rest[kMaxThreads];
Warp g_warps[kMaxThreads / 32];
int g_warp_order[kMaxThreads / 32];
int g_thread_count, g_warp_count, g_current, g_live;
// Of the barrier that threads wait at: how many, how many with a predicate, whether elsewhere too.
int g_arrived, g_voted, g_vote;
bool g_apart;
const Thread *g_first;
Context g_main;
char *g_stacks;
size_t g_stack_low;  // of the current fiber

// Time grows at barriers, at fences and between blocks. g_interval is its value after the block's
// last __syncthreads, g_block_start its value when the block began.
unsigned g_now = 0, g_interval = 0, g_block_start = 0;
unsigned g_who = 0;     // tick << 10 | thread, of the running thread
unsigned g_reader = 0;  // tick << 12 | thread: the same, with room for a spread (races.h)

void put_block(const char *key, uint3 index) {
    put("\"%s\": [%u, %u, %u]", key, index.x, index.y, index.z);
}

void put_thread(const char *key, int thread) {
    put(", ");
    put_block(key, g_threads[thread].index);
}

void begin_report(const char *kind) {
    g_length = 0;
    put("{\"error\": \"%s\", ", kind);
    put_block("block", blockIdx);
}

void put_site(const char *what, const char *file, int line) {
    put_string("what", what);
    put_string("file", file);
    put(", \"line\": %d", line);
}

void put_causes();  // memory.h

// Send a report of an error, with what a kernel did before that may be its cause.
[[noreturn]] void send_error() {
    put_causes();
    send();
}

inline __attribute__((always_inline)) void enter(int thread) {
    g_current = thread;
    threadIdx = g_threads[thread].index;
    unsigned tick = g_warps[thread >> 5].tick & 0xfffffu;
    g_who = tick << 10 | unsigned(thread);
    g_reader = tick << 12 | unsigned(thread);
    g_stack_low = size_t(g_stacks) + size_t(thread) * (kStack + kPage) + kPage;
}

// Whether two threads wait at the same operation of the same source line.
inline bool same_place(const Thread &a, const Thread &b) {
    return a.line == b.line && (a.what == b.what || !strcmp(a.what, b.what)) &&
           (a.file == b.file || !strcmp(a.file, b.file));
}

// Threads that cannot meet as the kernel wants them to: some wait, and what they wait for does not
// come; or all wait, at different barriers.
[[noreturn]] void report_divergence() {
    begin_report("divergence");
    put(", \"groups\": [");
    bool seen[kMaxThreads] = {}, split = false;
    for (int i = 0, groups = 0; i < g_thread_count && groups < 8; i++) {
        if (seen[i]) continue;
        Thread &a = g_threads[i];
        int count = 0;
        for (int j = i; j < g_thread_count; j++) {
            Thread &b = g_threads[j];
            bool same = a.state == b.state &&
                        (a.state == kDone ||
                         (same_place(a, b) && (a.state != kAtWarp || a.mask == b.mask)));
            if (same) seen[j] = true, count++;
            else if (i / 32 == j / 32) split = true;
        }
        put("%s{\"count\": %d, \"done\": %d", groups++ ? ", " : "", count, a.state == kDone);
        put_thread("thread", i);
        if (a.state != kDone) put_site(a.what, a.file, a.line);
        if (a.state == kAtWarp) put(", \"mask\": %u", a.mask);
        put("}");
    }
    put("], \"split\": %d", split);  // whether the lanes of one warp wait apart
    send_error();
}

inline void make_ready(int thread) {
    Warp &warp = g_warps[thread >> 5];
    warp.ready |= 1u << warp.position[thread & 31];
}

// The lanes of a warp that have come to one __activemask(), when no other lane can run: they are
// the ones that a GPU would call active together. Of several such groups the one that is behind.
void release_active(int first_thread) {
    Warp &warp = g_warps[first_thread >> 5];
    Thread *lanes = g_threads + first_thread;
    Rest *rests = g_rest + first_thread;
    int behind = __builtin_ctz(warp.parked);
    for (unsigned rest = warp.parked; rest; rest &= rest - 1) {
        int lane = __builtin_ctz(rest);
        if (rests[lane].actives < rests[behind].actives) behind = lane;
    }
    const Thread first = lanes[behind];
    unsigned together = 0;
    for (unsigned rest = warp.parked; rest; rest &= rest - 1)
        if (same_place(lanes[__builtin_ctz(rest)], first)) together |= rest & -rest;
    warp.parked &= ~together;
    for (unsigned rest = together; rest; rest &= rest - 1) {
        lanes[__builtin_ctz(rest)].result = together;
        rests[__builtin_ctz(rest)].actives++;
        make_ready(first_thread + __builtin_ctz(rest));
    }
}

// The thread that runs next; -1 when the block has ended. Warps take turns in the launch's
// order, from the current one or from the one after it; within a warp the first lane that can
// run, in that warp's order.
int pick(bool after = false) {
    int first = 0;
    for (int i = 0; i < g_warp_count; i++) {
        if (g_warp_order[i] == g_current >> 5) first = i + after;
    }
    for (int i = 0; i < g_warp_count; i++) {
        int at = first + i < g_warp_count ? first + i : first + i - g_warp_count;
        Warp &warp = g_warps[g_warp_order[at]];
        if (!warp.ready && warp.parked) release_active(g_warp_order[at] * 32);
        if (!warp.ready) continue;
        int position = __builtin_ctz(warp.ready);
        warp.ready &= warp.ready - 1;
        return g_warp_order[at] * 32 + warp.lane[position];
    }
    if (!g_live) return -1;
    report_divergence();
}

inline int pick_fast() {  // the same, when the current warp has somebody to run
    Warp &warp = g_warps[g_current >> 5];
    if (!warp.ready) return pick();
    int position = __builtin_ctz(warp.ready);
    warp.ready &= warp.ready - 1;
    return (g_current & ~31) + warp.lane[position];
}

inline void switch_to(int next) {
    int me = g_current;
    enter(next);
    if (next != me) switch_context(*g_threads[me].context, *g_threads[next].context);
}

inline void switch_away() { switch_to(pick_fast()); }

void (*g_call)(void **);
void *g_arguments[kMaxArguments];

// Bytes of 0xff are a NaN, for float and double. A store is as wide as it can be, and no call.
__attribute__((noinline)) void fill_stack() {
    typedef unsigned long long Pair __attribute__((vector_size(16)));
    size_t end = (size_t(__builtin_frame_address(0)) - 256) & ~size_t(15);
    for (size_t at = end - kFilled; at < end; at += sizeof(Pair)) {
        *reinterpret_cast<Pair *>(at) = Pair{~0ull, ~0ull};
        __asm__ volatile("" ::: "memory");
    }
}

void settle();          // races.h
void keep_fences();     // races.h
void trace_released();  // trace.h

void fiber() {
    int me = g_current;
    for (;;) {
        fill_stack();
        g_call(g_arguments);
        settle();
        g_threads[me].state = kDone;
        g_live--;
        int next = pick_fast();
        if (next < 0) {
            switch_context(g_contexts[me], g_main);
        } else {
            enter(next);
            switch_context(g_contexts[me], g_contexts[next]);
        }
    }
}

void wait_at(State state, const char *what, const char *file, int line) {
    Thread &me = g_threads[g_current];
    settle();
    me.state = state;
    me.what = what;
    me.file = file;
    me.line = line;
}

int barrier(const char *what, int predicate, const char *file, int line) {
    Thread &me = g_threads[g_current];
    wait_at(kAtBarrier, what, file, line);
    if (!g_arrived) {
        g_first = &me;
        g_voted = 0;
        g_apart = false;
    }
    g_voted += predicate != 0;
    g_apart |= !same_place(*g_first, me);
    if (++g_arrived == g_thread_count) {
        if (g_apart) report_divergence();
        keep_fences();
        trace_released();
        g_vote = g_voted;  // read by all before any can complete the next barrier
        for (int w = 0; w < g_warp_count; w++) {
            g_warps[w].tick = 0;
            g_warps[w].ready = g_warps[w].positions;
        }
        g_interval = ++g_now;
        g_arrived = 0;
        g_current = g_warp_order[0] * 32;  // start again from the first warp of the order
        int next = pick_fast();
        enter(next);
        if (&g_threads[next] != &me) switch_context(*me.context, g_contexts[next]);
    } else {
        switch_away();
    }
    return g_vote;
}

// A value that CUDA leaves undefined is NaN here, as a float and as a double. Where a kernel has
// received one, its launch is run again with very large and with very small values in its place:
// a result that changes has used it.
enum Undefined { kNan, kLarge, kSmall };
int g_undefined = kNan;

unsigned long long undefined(unsigned bytes) {
    static const unsigned long long values[2][2] = {{0x7f7fffffu, 0x7fefffffffffffffull},
                                                    {0xff7fffffu, 0xffefffffffffffffull}};
    return g_undefined == kNan ? ~0ull : values[g_undefined - kLarge][bytes > 4];
}

struct {  // the first such value of a launch
    bool any;
    uint3 block;
    int thread, source, lanes;
    unsigned mask;
    const char *what, *file;
    int line;
} g_received;

unsigned long long combine(Operation operation, unsigned members, const Thread *lanes) {
    unsigned long long total = lanes[__builtin_ctz(members)].value;
    for (unsigned rest = members & (members - 1); rest; rest &= rest - 1) {
        unsigned long long value = lanes[__builtin_ctz(rest)].value;
        // min and max compare as signed numbers; __emulator::reduce() has made them comparable.
        long long a = (long long)total, b = (long long)value;
        switch (operation) {
            case kAdd: total += value; break;
            case kMin: total = b < a ? value : total; break;
            case kMax: total = b > a ? value : total; break;
            case kAnd: total &= value; break;
            case kOr: total |= value; break;
            default: total ^= value; break;
        }
    }
    return total;
}

__attribute__((noinline)) void receive_undefined(Thread &lane, unsigned lanes) {
    lane.result = undefined(lane.predicate);  // of so many bytes
    if (!g_received.any)
        g_received = {true, blockIdx, int(&lane - g_threads), lane.source,
                      __builtin_popcount(lanes), lane.mask, lane.what, lane.file, lane.line};
}

// The results of what is no shuffle.
void share(Operation operation, unsigned members, unsigned ballot, Thread *lanes) {
    unsigned long long total = operation >= kAdd ? combine(operation, members, lanes) : ballot;
    for (unsigned rest = members; rest; rest &= rest - 1) {
        Thread &other = lanes[__builtin_ctz(rest)];
        other.result = total;
        if (operation != kMatchAny && operation != kMatchAll) continue;
        unsigned equal = 0;
        for (unsigned each = members; each; each &= each - 1)
            if (lanes[__builtin_ctz(each)].value == other.value) equal |= each & -each;
        other.result = operation == kMatchAny || equal == members ? equal : 0;
    }
}

// All warp operations order the memory accesses of the lanes that take part. CUDA promises
// that for __syncwarp and, for the lanes named in the mask, for the *_sync operations too in
// practice (they wait for each other); a strict reader would add a __syncwarp.
unsigned long long warp_op(const char *what, Operation operation, unsigned mask,
                           unsigned long long value, int source, int predicate, const char *file,
                           int line) {
    Warp &warp = g_warps[g_current >> 5];
    Thread *lanes = g_threads + (g_current & ~31);
    Thread &me = g_threads[g_current];
    int self = g_current & 31;
    wait_at(kAtWarp, what, file, line);
    me.mask = mask;
    me.value = value;
    me.source = (signed char)source;
    me.predicate = (unsigned char)predicate;
    if (!(mask >> self & 1)) {
        begin_report("mask");
        put_thread("thread", g_current);
        put_site(what, file, line);
        put(", \"mask\": %u, \"lane\": %d", mask, self);
        send_error();
    }
    unsigned members = mask & warp.lanes, ballot = 0;
    warp.waiting |= 1u << self;
    if (members & ~warp.waiting) {
        switch_away();  // the last lane to arrive does the work for all
        return me.result;
    }
    for (unsigned rest = members; rest; rest &= rest - 1) {
        Thread &other = lanes[__builtin_ctz(rest)];
        if (other.mask != mask || !same_place(other, me)) {  // they wait elsewhere: for ever
            switch_away();
            return me.result;
        }
        if (operation != kShuffle) ballot |= unsigned(other.predicate) << __builtin_ctz(rest);
        else if (members >> other.source & 1) other.result = lanes[other.source].value;
        else receive_undefined(other, unsigned(warp.lanes));
    }
    if (operation != kShuffle) share(operation, members, ballot, lanes);
    if (members == warp.lanes) warp.ready = warp.positions;
    else for (unsigned rest = members; rest; rest &= rest - 1)
        make_ready(int(lanes - g_threads) + __builtin_ctz(rest));
    warp.waiting &= ~members;
    warp.tick++;
    switch_away();
    return me.result;
}

unsigned active_mask(const char *file, int line) {
    wait_at(kAtActive, "__activemask()", file, line);
    g_warps[g_current >> 5].parked |= 1u << (g_current & 31);
    int me = g_current;
    switch_away();
    return unsigned(g_threads[me].result);
}

void let_others_run() {
    settle();
    make_ready(g_current);
    switch_to(pick(true));
}

// ---- orders -------------------------------------------------------------------------------

unsigned long long g_random = 1;
unsigned random_below(unsigned n) {  // xorshift
    g_random ^= g_random << 13;
    g_random ^= g_random >> 7;
    g_random ^= g_random << 17;
    return unsigned(g_random % n);
}

enum Order { kAscending, kDescending, kShuffled };

template <class T> void arrange(T *items, unsigned n, int order) {
    for (unsigned i = 0; i < n; i++) items[i] = T(order == kDescending ? n - 1 - i : i);
    for (unsigned i = n; order == kShuffled && i > 1; i--) {
        unsigned j = random_below(i);
        T item = items[i - 1];
        items[i - 1] = items[j];
        items[j] = item;
    }
}

// The order of one run: of blocks (`sequence`), of warps, and of the lanes of each warp.
void arrange_all(unsigned *sequence, unsigned blocks, int run, char letter) {
    int order = letter == 'a' ? kAscending : letter == 'd' ? kDescending : kShuffled;
    g_random = 88172645463325252ull + run;
    arrange(sequence, blocks, order);
    arrange(g_warp_order, unsigned(g_warp_count), order);
    for (int w = 0; w < g_warp_count; w++) {
        arrange(g_warps[w].lane, 32, order);
        g_warps[w].positions = 0;
        for (int p = 0; p < 32; p++) {
            int lane = g_warps[w].lane[p];
            g_warps[w].position[lane] = (unsigned char)p;
            g_warps[w].positions |= (g_warps[w].lanes >> lane & 1) << p;
        }
    }
}

// ---- making them --------------------------------------------------------------------------

void make_fibers() {
    g_thread_count = int(blockDim.x * blockDim.y * blockDim.z);
    g_warp_count = (g_thread_count + 31) / 32;
    g_stacks = map_array<char>(kMaxThreads * (kStack + kPage) + kPage);
    for (int i = 0; i <= g_thread_count; i++)
        mprotect(g_stacks + size_t(i) * (kStack + kPage), kPage, PROT_NONE);
    for (int i = 0; i < g_thread_count; i++) {
        unsigned x = unsigned(i) % blockDim.x, rest = unsigned(i) / blockDim.x;
        g_threads[i].index = uint3{x, rest % blockDim.y, rest / blockDim.y};
        g_warps[i / 32].lanes |= 1u << (i % 32);
        g_threads[i].context = &g_contexts[i];
        enter(i);
        // Stacks that end at the same offset of a page would share a few sets of the cache.
        make_context(g_contexts[i], reinterpret_cast<void *>(g_stack_low),
                     kStack - size_t(i % 16) * 256, fiber);
    }
}

}  // namespace
