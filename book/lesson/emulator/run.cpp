// Runs one launch of one kernel on the host and says what a GPU would not.
//
// A CUDA thread is a fiber: made once by makecontext, switched by _setjmp and _longjmp at
// barriers and warp operations. One block runs at a time. Every load and store of the kernel
// calls a hook (__tsan_*, see cuda.h) that
//   - checks the address: in a buffer, writable, in shared memory, on the thread's own stack;
//   - counts the bytes of global memory;
//   - looks for races: two accesses of one word by different threads, at least one a write,
//     with no barrier between them.
// host.py compiles this file once, links it with each kernel and reads one JSON line from
// stderr. What a kernel prints goes to stdout.
#define EMULATOR_RUN
#include <errno.h>
#include <link.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include "cuda.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

constexpr int kMaxThreads = 1024, kMaxBuffers = 32;
constexpr size_t kPage = 65536, kStack = 2 * kPage;  // a multiple of any machine's page
constexpr size_t kSlot = size_t(1) << 34;  // address space of one buffer, which lies in its middle

const char *g_kernel = "";

// ---- the report -------------------------------------------------------------------------

char g_json[16384];
size_t g_length = 0;

void put(const char *format, ...) {
    va_list list;
    va_start(list, format);
    int n = vsnprintf(g_json + g_length, sizeof g_json - g_length, format, list);
    va_end(list);
    g_length += size_t(n) < sizeof g_json - g_length ? n : 0;
}

void put_string(const char *key, const char *text) {
    put(", \"%s\": \"", key);
    for (; *text; text++) put((*text == '"' || *text == '\\') ? "\\%c" : "%c", *text);
    put("\"");
}

// The accesses of shared memory by the first block, one record each, where host.py asks for them.
struct Access {
    unsigned pc, offset;
    unsigned short thread;
    unsigned char bytes, write;
};
FILE *g_trace = nullptr;

[[noreturn]] void send() {
    put("}\n");
    fflush(stdout);
    if (g_trace) fflush(g_trace);
    if (write(2, g_json, g_length) < 0) _exit(4);
    _exit(0);
}

// ---- threads, warps, the block ------------------------------------------------------------

enum State { kReady, kAtBarrier, kAtWarp, kDone };

struct Thread {
    jmp_buf context;
    uint3 index;
    State state;
    const char *what, *file;  // the operation it waits at
    int line;
    unsigned mask;
    int source, predicate;
    unsigned long long value, result;
};

struct Warp {
    unsigned ready;      // by position in this warp's order
    unsigned char lane[32], position[32];
    unsigned waiting;    // the lanes that wait at a warp operation
    unsigned tick;       // warp operations released since the last barrier
    unsigned lanes;      // the lanes that exist
};

Thread g_threads[kMaxThreads];
Warp g_warps[kMaxThreads / 32];
int g_warp_order[kMaxThreads / 32];
int g_thread_count, g_warp_count, g_current, g_live, g_arrived;
jmp_buf g_main;
char *g_stacks;
size_t g_stack_low;  // of the current fiber

// Time is counted in barriers: g_now differs before and after a __syncthreads, and between
// blocks; g_block_start is its value when the block began.
unsigned g_now = 0, g_block_start = 0;
unsigned g_who = 0;   // tick << 10 | thread, of the running thread
bool g_detect = true;

void begin_report(const char *kind) {
    g_length = 0;
    put("{\"error\": \"%s\", \"block\": [%u, %u, %u]", kind, blockIdx.x, blockIdx.y, blockIdx.z);
}

void put_thread(const char *key, int thread) {
    uint3 i = g_threads[thread].index;
    put(", \"%s\": [%u, %u, %u]", key, i.x, i.y, i.z);
}

void enter(int thread) {
    g_current = thread;
    threadIdx = g_threads[thread].index;
    g_who = (g_warps[thread >> 5].tick & 0xfffffu) << 10 | unsigned(thread);
    g_stack_low = size_t(g_stacks) + size_t(thread) * (kStack + kPage) + kPage;
}

// Whether two threads wait at the same operation of the same source line.
inline bool same_place(const Thread &a, const Thread &b) {
    return a.line == b.line && (a.what == b.what || !strcmp(a.what, b.what)) &&
           (a.file == b.file || !strcmp(a.file, b.file));
}

// Threads that can never meet: some wait, and what they wait for cannot come.
[[noreturn]] void report_divergence() {
    begin_report("divergence");
    put(", \"groups\": [");
    bool seen[kMaxThreads] = {};
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
        }
        put("%s{\"count\": %d, \"done\": %d", groups++ ? ", " : "", count, a.state == kDone);
        put_thread("thread", i);
        if (a.state != kDone) {
            put_string("what", a.what);
            put_string("file", a.file);
            put(", \"line\": %d", a.line);
        }
        if (a.state == kAtWarp) put(", \"mask\": %u", a.mask);
        put("}");
    }
    put("]");
    send();
}

// The thread that runs next; -1 when the block has ended. Warps take turns in the launch's
// order; within a warp the first lane that can run, in that warp's order.
int pick() {
    int first = 0;
    for (int i = 0; i < g_warp_count; i++) {
        if (g_warp_order[i] == g_current >> 5) first = i;
    }
    for (int i = 0; i < g_warp_count; i++) {
        int at = first + i < g_warp_count ? first + i : first + i - g_warp_count;
        Warp &warp = g_warps[g_warp_order[at]];
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

__attribute__((noinline)) void switch_away() {
    int me = g_current, next = pick_fast();
    enter(next);
    if (next != me && !_setjmp(g_threads[me].context)) _longjmp(g_threads[next].context, 1);
}

inline void make_ready(int thread) {
    Warp &warp = g_warps[thread >> 5];
    g_threads[thread].state = kReady;
    warp.ready |= 1u << warp.position[thread & 31];
}

void (*g_call)(void **);
void *g_arguments[kMaxBuffers];

void fiber() {
    int me = g_current;
    if (!_setjmp(g_threads[me].context)) _longjmp(g_main, 1);
    for (;;) {
        g_call(g_arguments);
        g_threads[me].state = kDone;
        g_live--;
        int next = pick_fast();
        if (next < 0) {
            if (!_setjmp(g_threads[me].context)) _longjmp(g_main, 1);
            continue;
        }
        enter(next);
        if (!_setjmp(g_threads[me].context)) _longjmp(g_threads[next].context, 1);
    }
}

int barrier(const char *what, int predicate, const char *file, int line) {
    Thread &me = g_threads[g_current];
    me.state = kAtBarrier;
    me.what = what;
    me.file = file;
    me.line = line;
    me.predicate = predicate != 0;
    if (++g_arrived == g_thread_count) {
        int count = 0;
        for (int i = 0; i < g_thread_count; i++) {
            Thread &other = g_threads[i];
            if (!same_place(other, me)) report_divergence();
            count += other.predicate;
        }
        for (int i = 0; i < g_thread_count; i++) {
            g_threads[i].result = count;
            make_ready(i);
        }
        for (int w = 0; w < g_warp_count; w++) g_warps[w].tick = 0;
        g_now++;
        g_arrived = 0;
        g_current = g_warp_order[0] * 32;  // start again from the first warp of the order
        int self = int(&me - g_threads), next = pick_fast();
        enter(next);
        if (next != self && !_setjmp(me.context)) _longjmp(g_threads[next].context, 1);
    } else {
        switch_away();
    }
    return int(me.result);
}

// All warp operations order the memory accesses of the lanes that take part. CUDA promises
// that for __syncwarp and, for the lanes named in the mask, for the *_sync operations too in
// practice (they wait for each other); a strict reader would add a __syncwarp.
unsigned long long warp_op(const char *what, unsigned mask, unsigned long long value, int source,
                           int predicate, const char *file, int line) {
    Warp &warp = g_warps[g_current >> 5];
    Thread *lanes = g_threads + (g_current & ~31);
    Thread &me = g_threads[g_current];
    int self = g_current & 31;
    me.state = kAtWarp;
    me.what = what;
    me.file = file;
    me.line = line;
    me.mask = mask;
    me.value = value;
    me.source = source;
    me.predicate = predicate != 0;
    if (!(mask >> self & 1)) {
        begin_report("mask");
        put_thread("thread", g_current);
        put_string("what", what);
        put_string("file", file);
        put(", \"line\": %d, \"mask\": %u, \"lane\": %d", line, mask, self);
        send();
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
        ballot |= unsigned(other.predicate) << __builtin_ctz(rest);
    }
    for (unsigned rest = members; rest; rest &= rest - 1) {
        Thread &other = lanes[__builtin_ctz(rest)];
        if (other.source < 0) {
            other.result = ballot;
            continue;
        }
        // The value of a lane that takes no part is undefined. A NaN, so that using it shows:
        // a reduction may receive such values and never use them.
        other.result = members >> other.source & 1 ? lanes[other.source].value : ~0ull;
    }
    for (unsigned rest = members; rest; rest &= rest - 1)
        make_ready(int(lanes - g_threads) + __builtin_ctz(rest));
    warp.waiting &= ~members;
    warp.tick++;
    switch_away();
    return me.result;
}

// ---- memory -------------------------------------------------------------------------------

struct Word {  // who used four bytes last; a time of 0 means nobody
    unsigned write_time, write_who, write_pc;  // who: tick << 10 | thread
    unsigned read_time, read_who, read_pc;     // who: tick << 12 | spread << 10 | thread
    unsigned read_other;                       // another reader, if spread says that there is one
};
enum Spread { kOne, kLanes, kWarps, kBlocks };  // readers: a thread, or several lanes of one
                                                // warp, or several warps, or several blocks

struct Buffer {
    size_t address, bytes;
    bool read_only;
    Word *words;
};

Buffer g_buffers[kMaxBuffers];
int g_buffer_count;
size_t g_arena, g_arena_bytes;                 // all slots
size_t g_shared, g_shared_bytes;               // the thread_local segment: shared memory
size_t g_dynamic, g_dynamic_bytes, g_dynamic_used;  // the part of it with a size per launch
Word *g_shared_words;
unsigned long long g_loads, g_stores;
unsigned g_last_pc;
unsigned *g_block_starts;  // g_now at the start of each block run, to name a block in a report
unsigned g_blocks_run;
unsigned long long *g_block_ids;

extern "C" char __executable_start, _end;

[[noreturn]] void report_access(const char *kind, bool write, size_t address, unsigned bytes,
                                size_t pc, int buffer = -1) {
    begin_report(kind);
    put_thread("thread", g_current);
    put(", \"write\": %d, \"address\": %zu, \"bytes\": %u, \"pc\": [%zu]", write, address, bytes,
        pc);
    if (buffer >= 0)
        put(", \"buffer\": %d, \"offset\": %lld", buffer,
            (long long)(address - g_buffers[buffer].address));
    send();
}

uint3 block_at(unsigned time) {
    unsigned i = g_blocks_run - 1;
    while (i > 0 && g_block_starts[i] > time) i--;
    unsigned long long id = g_block_ids[i];
    return uint3{unsigned(id % gridDim.x), unsigned(id / gridDim.x % gridDim.y),
                 unsigned(id / gridDim.x / gridDim.y)};
}

// The first race of a block is kept until the block has ended: where the kernel does not get there,
// the divergent barrier or the access that stopped it is what a reader must hear of.
char g_race[sizeof g_json];
size_t g_race_length = 0;

void report_race(bool global, size_t address, int buffer, bool write, size_t pc, bool other_write,
                 unsigned other_time, unsigned other_thread, unsigned other_pc) {
    if (g_race_length) return;
    begin_report("race");
    put_thread("thread", g_current);
    put_thread("other_thread", int(other_thread));
    uint3 block = block_at(other_time);
    put(", \"other_block\": [%u, %u, %u], \"write\": %d, \"other_write\": %d, \"pc\": [%zu, %u]",
        block.x, block.y, block.z, write, other_write, pc, other_pc);
    if (global)
        put(", \"buffer\": %d, \"offset\": %zu", buffer, address - g_buffers[buffer].address);
    else
        put(", \"shared\": %zu", address - g_shared);
    memcpy(g_race, g_json, g_race_length = g_length);
}

void send_race() {
    if (!g_race_length) return;
    memcpy(g_json, g_race, g_length = g_race_length);
    send();
}

// Whether an access at `time` by `thread` (in its `tick`) is unordered with one made now by the
// running thread. Barriers order a block; warp operations order a warp; nothing orders blocks.
template <bool global>
inline bool unordered(unsigned time, unsigned tick, unsigned thread) {
    if (global && time && time < g_block_start) return true;
    if (time != g_now) return false;
    if (thread == unsigned(g_current)) return false;
    if ((thread ^ unsigned(g_current)) >> 5) return true;
    return tick == g_who >> 10;
}

inline void set_spread(Word &w, unsigned spread) {
    w.read_who = (w.read_who & ~(3u << 10)) | spread << 10;
    w.read_other = unsigned(g_current);
}

template <bool global>
inline void note_read(Word &w, size_t address, int buffer, size_t pc) {
    if (w.write_time && unordered<global>(w.write_time, w.write_who >> 10, w.write_who & 1023))
        report_race(global, address, buffer, false, pc, true, w.write_time, w.write_who & 1023,
                    w.write_pc);
    unsigned tick = g_who >> 10, thread = g_who & 1023, who = tick << 12 | thread;
    if (w.read_time == g_now) {
        if (w.read_who == who) return;
        unsigned spread = w.read_who >> 10 & 3, reader = w.read_who & 1023;
        if (spread >= kWarps) return;
        if ((reader ^ thread) >> 5) {
            set_spread(w, kWarps);
            return;
        }
        if (w.read_who >> 12 == tick) {  // several lanes, with no warp operation between
            if (reader != thread) set_spread(w, kLanes);
            return;
        }
    } else if (global && w.read_time && w.read_time < g_block_start) {
        set_spread(w, kBlocks);  // whoever writes now, some other block has read
        return;
    }
    w.read_time = g_now;
    w.read_who = who;
    w.read_pc = unsigned(pc);
}

template <bool global>
inline void note_write(Word &w, size_t address, int buffer, size_t pc) {
    if (w.write_time && unordered<global>(w.write_time, w.write_who >> 10, w.write_who & 1023))
        report_race(global, address, buffer, true, pc, true, w.write_time, w.write_who & 1023,
                    w.write_pc);
    if (w.read_time) {
        unsigned spread = w.read_who >> 10 & 3, tick = w.read_who >> 12;
        unsigned reader = w.read_who & 1023;
        bool race;
        if (spread == kBlocks) {
            race = true;
        } else if (w.read_time != g_now) {
            race = global && w.read_time < g_block_start;
        } else if (spread == kWarps) {
            race = true;
        } else if (spread == kLanes && !((reader ^ unsigned(g_current)) >> 5)) {
            race = tick == g_who >> 10;
        } else {
            race = unordered<global>(w.read_time, tick, reader);
        }
        if (race) {  // name a reader that the writer does not order
            unsigned me = unsigned(g_current);
            if ((spread == kLanes && reader == me) || (spread == kWarps && !((reader ^ me) >> 5)))
                reader = w.read_other;
            report_race(global, address, buffer, true, pc, false, w.read_time, reader, w.read_pc);
        }
    }
    w.write_time = g_now;
    w.write_who = g_who;
    w.write_pc = unsigned(pc);
}

// An address that is in no buffer: a small one is null plus an index, another one is wild.
[[noreturn]] __attribute__((noinline)) void outside(size_t address, unsigned bytes, bool write,
                                                    size_t pc) {
    if (address - g_arena < g_arena_bytes) {
        int buffer = int((address - g_arena) / kSlot);
        report_access("bounds", write, address, bytes, pc, buffer);
    }
    report_access(address < (size_t(1) << 20) ? "null" : "wild", write, address, bytes, pc);
}

template <bool write>
inline void access(size_t address, unsigned bytes, size_t pc) {
    g_last_pc = unsigned(pc);
    if (address - g_shared < g_shared_bytes) {
        size_t offset = address - g_shared;
        if (__builtin_expect(offset + bytes > g_shared_bytes ||
                             (offset - g_dynamic < g_dynamic_bytes &&
                              offset - g_dynamic + bytes > g_dynamic_used), 0)) {
            begin_report("dynamic");
            put_thread("thread", g_current);
            put(", \"write\": %d, \"offset\": %zu, \"used\": %zu, \"pc\": [%zu]", write,
                offset - g_dynamic, g_dynamic_used, pc);
            send();
        }
        if (__builtin_expect(g_trace != nullptr, 0) && g_blocks_run == 1) {
            Access record = {unsigned(pc), unsigned(offset), (unsigned short)g_current,
                             (unsigned char)bytes, write};
            fwrite_unlocked(&record, sizeof record, 1, g_trace);
        }
        if (bytes < 4 || !g_detect) return;  // parts of words are not followed
        for (size_t i = offset / 4; i < (offset + bytes) / 4; i++) {
            if (write) note_write<false>(g_shared_words[i], g_shared + 4 * i, -1, pc);
            else note_read<false>(g_shared_words[i], g_shared + 4 * i, -1, pc);
        }
    } else if (address - g_arena < g_arena_bytes) {
        int slot = int((address - g_arena) / kSlot);
        Buffer &buffer = g_buffers[slot];
        size_t offset = address - buffer.address;
        if (__builtin_expect(offset >= buffer.bytes || offset + bytes > buffer.bytes, 0))
            outside(address, bytes, write, pc);
        if (write) g_stores += bytes;
        else g_loads += bytes;
        if (buffer.read_only) {
            if (write) report_access("const", true, address, bytes, pc, slot);
            return;
        }
        if (bytes < 4 || !g_detect) return;
        for (size_t i = offset / 4; i < (offset + bytes) / 4; i++) {
            if (write) note_write<true>(buffer.words[i], buffer.address + 4 * i, slot, pc);
            else note_read<true>(buffer.words[i], buffer.address + 4 * i, slot, pc);
        }
    } else if (address - g_stack_low < kStack) {
        return;  // the thread's own variables
    } else if (address >= size_t(&__executable_start) && address < size_t(&_end)) {
        return;  // __constant__ and __device__ variables: not followed
    } else {
        outside(address, bytes, write, pc);
    }
}

template <class T> T *atomic(T *address, size_t pc) {
    bool detect = g_detect;
    g_detect = false;
    access<false>(size_t(address), sizeof(T), pc);
    access<true>(size_t(address), sizeof(T), pc);
    g_detect = detect;
    return address;
}

// ---- faults -------------------------------------------------------------------------------

size_t pc_of(void *context) {
    ucontext_t *uc = static_cast<ucontext_t *>(context);
#if defined(__x86_64__)
    return size_t(uc->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return size_t(uc->uc_mcontext.pc);
#else
    (void)uc;
    return 0;
#endif
}

// Two places: where the thread is, and, if that is not in the kernel, its last access.
void on_signal(int number, siginfo_t *info, void *context) {
    const char *kind = number == SIGALRM ? "time" : number == SIGFPE ? "divide" : "fault";
    size_t address = size_t(info->si_addr);
    if (number == SIGSEGV && address - size_t(g_stacks) < kMaxThreads * (kStack + kPage))
        kind = "stack";
    begin_report(kind);
    put_thread("thread", g_current);
    put(", \"address\": %zu, \"pc\": [%zu, %u]", address, pc_of(context) + 1, g_last_pc);
    if (g_threads[g_current].file) {  // the last barrier or warp operation it came to
        put_string("last_file", g_threads[g_current].file);
        put(", \"last_line\": %d", g_threads[g_current].line);
    }
    send();
}

void catch_signals() {
    static char stack[64 * 1024];
    stack_t alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGALRM};
    for (int number : numbers) sigaction(number, &action, nullptr);
}

// ---- the launch ---------------------------------------------------------------------------

[[noreturn]] void fail(const char *what) {
    g_length = 0;
    put("{\"error\": \"internal\"");
    put_string("what", what);
    put_string("why", strerror(errno));
    send();
}

void *map(size_t bytes, int protection) {
    void *p = mmap(nullptr, bytes ? bytes : 1, protection,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail("mmap");
    return p;
}

int find_shared(dl_phdr_info *info, size_t, void *) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
        g_shared = size_t(info->dlpi_tls_data);
        g_shared_bytes = info->dlpi_phdr[i].p_memsz;
    }
    return 1;  // the first entry is the executable itself
}

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

__attribute__((noinline)) void make_fiber(int thread) {
    enter(thread);
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = reinterpret_cast<void *>(g_stack_low);
    // Stacks that end at the same offset of a page would share a few sets of the cache.
    start.uc_stack.ss_size = kStack - size_t(thread % 16) * 256;
    start.uc_link = nullptr;
    makecontext(&start, fiber, 0);
    if (!_setjmp(g_main)) setcontext(&start);
}

__attribute__((noinline)) void run_block(unsigned long long id) {
    blockIdx = uint3{unsigned(id % gridDim.x), unsigned(id / gridDim.x % gridDim.y),
                     unsigned(id / gridDim.x / gridDim.y)};
    // Shared memory starts with no value: NaN shows a read before a write.
    memset(reinterpret_cast<void *>(g_shared), 0xff,
           g_dynamic_bytes ? g_dynamic : g_shared_bytes);
    if (g_dynamic_bytes) {
        size_t end = g_dynamic + g_dynamic_bytes;
        memset(reinterpret_cast<void *>(g_shared + g_dynamic), 0xff, g_dynamic_used);
        memset(reinterpret_cast<void *>(g_shared + end), 0xff, g_shared_bytes - end);
    }
    g_block_start = ++g_now;
    g_block_starts[g_blocks_run] = g_now;
    g_block_ids[g_blocks_run++] = id;
    g_live = g_thread_count;
    g_arrived = 0;
    for (int w = 0; w < g_warp_count; w++) {
        g_warps[w].tick = g_warps[w].waiting = 0;
        g_warps[w].ready = 0;
    }
    for (int i = 0; i < g_thread_count; i++) make_ready(i);
    g_current = g_warp_order[0] * 32;
    enter(pick_fast());
    if (!_setjmp(g_main)) _longjmp(g_threads[g_current].context, 1);
}

long long number(const char *text) { return strtoll(text, nullptr, 10); }

}  // namespace

// Arguments, one word each: memory file descriptor; kernel; grid x y z; block x y z; dynamic
// shared bytes; offset and size of the dynamic part of shared memory; seconds a block may take;
// orders (letters of "ads"); file descriptor for the trace of shared memory, or -1; count of
// buffers, and for each: offset in the file, bytes, 1 if read only; count of arguments, and for
// each: b<buffer>, n (null) or s<hexadecimal bytes>.
int main(int, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);

    char **next = argv + 1;
    int file = int(number(*next++));
    g_kernel = *next++;
    unsigned shape[6];
    for (unsigned &n : shape) n = unsigned(number(*next++));
    gridDim = dim3(shape[0], shape[1], shape[2]);
    blockDim = dim3(shape[3], shape[4], shape[5]);
    g_dynamic_used = size_t(number(*next++));
    g_dynamic = size_t(number(*next++));
    g_dynamic_bytes = size_t(number(*next++));
    double limit = atof(*next++);
    const char *orders = *next++;
    int trace = int(number(*next++));
    if (trace >= 0 && !(g_trace = fdopen(trace, "wb"))) fail("fdopen");

    for (int i = 0; i < emulator::kernel_count; i++)
        if (!strcmp(emulator::kernels[i].name, g_kernel)) g_call = emulator::kernels[i].call;
    if (!g_call) fail("the kernel is not in this program");
    dl_iterate_phdr(find_shared, nullptr);
    g_shared_words = static_cast<Word *>(
        map((g_shared_bytes / 4 + 1) * sizeof(Word), PROT_READ | PROT_WRITE));

    // The first page of the file counts finished blocks, so that the parent sees progress.
    volatile unsigned long long *progress = static_cast<unsigned long long *>(
        mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (progress == MAP_FAILED) fail("mmap of the memory file");

    g_buffer_count = int(number(*next++));
    g_arena_bytes = size_t(g_buffer_count) * kSlot;
    g_arena = size_t(map(g_arena_bytes, PROT_NONE));
    for (int i = 0; i < g_buffer_count; i++) {
        Buffer &b = g_buffers[i];
        off_t offset = off_t(number(*next++));
        b.bytes = size_t(number(*next++));
        b.read_only = number(*next++);
        if (b.bytes > kSlot / 2) fail("a buffer of more than 8 GiB");
        b.address = g_arena + size_t(i) * kSlot + kSlot / 2;
        if (b.bytes && mmap(reinterpret_cast<void *>(b.address), b.bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED, file, offset) == MAP_FAILED)
            fail("mmap of a buffer");
        if (!b.read_only)
            b.words = static_cast<Word *>(
                map((b.bytes / 4 + 1) * sizeof(Word), PROT_READ | PROT_WRITE));
    }

    static unsigned long long scalars[kMaxBuffers];
    int count = int(number(*next++));
    for (int i = 0; i < count; i++) {
        const char *text = *next++;
        g_arguments[i] = &scalars[i];
        if (*text == 'b') {
            scalars[i] = g_buffers[number(text + 1)].address;
        } else if (*text == 's') {
            unsigned char *bytes = reinterpret_cast<unsigned char *>(&scalars[i]);
            for (int k = 0; text[1 + 2 * k]; k++) {
                char pair[3] = {text[1 + 2 * k], text[2 + 2 * k], 0};
                bytes[k] = (unsigned char)strtoul(pair, nullptr, 16);
            }
        }
    }

    g_thread_count = int(blockDim.x * blockDim.y * blockDim.z);
    g_warp_count = (g_thread_count + 31) / 32;
    catch_signals();
    g_stacks = static_cast<char *>(
        map(kMaxThreads * (kStack + kPage) + kPage, PROT_READ | PROT_WRITE));
    for (int i = 0; i <= g_thread_count; i++)
        mprotect(g_stacks + size_t(i) * (kStack + kPage), kPage, PROT_NONE);
    for (int i = 0; i < g_thread_count; i++) {
        unsigned x = unsigned(i) % blockDim.x, rest = unsigned(i) / blockDim.x;
        g_threads[i].index = uint3{x, rest % blockDim.y, rest / blockDim.y};
        g_warps[i / 32].lanes |= 1u << (i % 32);
        make_fiber(i);
    }

    unsigned long long blocks = (unsigned long long)gridDim.x * gridDim.y * gridDim.z;
    g_block_starts = static_cast<unsigned *>(malloc(blocks * sizeof *g_block_starts));
    g_block_ids = static_cast<unsigned long long *>(malloc(blocks * sizeof *g_block_ids));
    unsigned *sequence = static_cast<unsigned *>(malloc(blocks * sizeof *sequence));
    unsigned char **before = static_cast<unsigned char **>(calloc(kMaxBuffers, sizeof(void *)));
    unsigned char **result = static_cast<unsigned char **>(calloc(kMaxBuffers, sizeof(void *)));
    if (!g_block_starts || !g_block_ids || !sequence) fail("memory");
    bool several = orders[1] != 0;
    for (int i = 0; i < g_buffer_count; i++) {
        Buffer &b = g_buffers[i];
        if (b.read_only || !several) continue;
        before[i] = static_cast<unsigned char *>(map(b.bytes, PROT_READ | PROT_WRITE));
        result[i] = static_cast<unsigned char *>(map(b.bytes, PROT_READ | PROT_WRITE));
        memcpy(before[i], reinterpret_cast<void *>(b.address), b.bytes);
    }

    itimerval tick = {};
    tick.it_value.tv_sec = time_t(limit);
    tick.it_value.tv_usec = suseconds_t((limit - double(time_t(limit))) * 1e6);
    unsigned long long loads = 0, stores = 0;
    for (int run = 0; orders[run]; run++) {
        int order = orders[run] == 'a' ? kAscending : orders[run] == 'd' ? kDescending : kShuffled;
        g_random = 88172645463325252ull + run;
        arrange(sequence, unsigned(blocks), order);
        arrange(g_warp_order, unsigned(g_warp_count), order);
        for (int w = 0; w < g_warp_count; w++) {
            arrange(g_warps[w].lane, 32, order);
            for (int p = 0; p < 32; p++) g_warps[w].position[g_warps[w].lane[p]] = (unsigned char)p;
        }
        g_blocks_run = 0;
        g_loads = g_stores = 0;
        if (run) {
            for (int i = 0; i < g_buffer_count; i++) {
                Buffer &b = g_buffers[i];
                if (!b.read_only) memcpy(reinterpret_cast<void *>(b.address), before[i], b.bytes);
                // A new launch, as far as races go.
                if (!b.read_only) madvise(b.words, (b.bytes / 4 + 1) * sizeof(Word), MADV_DONTNEED);
            }
        }
        for (unsigned long long i = 0; i < blocks; i++) {
            setitimer(ITIMER_REAL, &tick, nullptr);
            run_block(sequence[i]);
            send_race();
            ++*progress;
        }
        itimerval off = {};
        setitimer(ITIMER_REAL, &off, nullptr);
        if (!run) {
            loads = g_loads;
            stores = g_stores;
        }
        for (int i = 0; i < g_buffer_count; i++) {
            Buffer &b = g_buffers[i];
            if (b.read_only || !several) continue;
            unsigned char *now = reinterpret_cast<unsigned char *>(b.address);
            if (!run) {
                memcpy(result[i], now, b.bytes);
            } else if (memcmp(result[i], now, b.bytes)) {
                size_t at = 0;
                while (result[i][at] == now[at]) at++;
                g_length = 0;
                put("{\"error\": \"order\", \"buffer\": %d, \"offset\": %zu, \"order\": %d, "
                    "\"first\": \"", i, at, run);
                size_t word = at & ~size_t(7);
                for (size_t k = word; k < word + 8 && k < b.bytes; k++) put("%02x", result[i][k]);
                put("\", \"other\": \"");
                for (size_t k = word; k < word + 8 && k < b.bytes; k++) put("%02x", now[k]);
                put("\"");
                send();
            }
        }
        if (!run) {  // a kernel's own printf is heard once
            fflush(stdout);
            if (!freopen("/dev/null", "w", stdout)) fail("/dev/null");
        }
    }
    g_length = 0;
    put("{\"loads\": %llu, \"stores\": %llu", loads, stores);
    send();
}

// ---- what cuda.h declares -----------------------------------------------------------------

void __syncthreads(const char *file, int line) { barrier("__syncthreads()", 0, file, line); }
int __syncthreads_count(int p, const char *file, int line) {
    return barrier("__syncthreads_count()", p, file, line);
}
int __syncthreads_and(int p, const char *file, int line) {
    return barrier("__syncthreads_and()", p, file, line) == g_thread_count;
}
int __syncthreads_or(int p, const char *file, int line) {
    return barrier("__syncthreads_or()", p, file, line) != 0;
}
void __syncwarp(unsigned mask, const char *file, int line) {
    warp_op("__syncwarp()", mask, 0, -1, 0, file, line);
}
unsigned __ballot_sync(unsigned mask, int p, const char *file, int line) {
    return unsigned(warp_op("__ballot_sync()", mask, 0, -1, p, file, line));
}
int __any_sync(unsigned mask, int p, const char *file, int line) {
    return warp_op("__any_sync()", mask, 0, -1, p, file, line) != 0;
}
int __all_sync(unsigned mask, int p, const char *file, int line) {
    unsigned lanes = g_warps[g_current >> 5].lanes & mask;
    return unsigned(warp_op("__all_sync()", mask, 0, -1, p, file, line)) == lanes;
}

namespace emulator {
int lane() { return g_current & 31; }
int print(const char *format, ...) {
    static size_t printed = 0;  // as much as a GPU keeps of a launch
    if (printed > size_t(1) << 20) return -1;
    va_list list;
    va_start(list, format);
    int n = vprintf(format, list);
    va_end(list);
    printed += n > 0 ? n : 0;
    return n;
}
unsigned long long shuffle(const char *what, unsigned mask, unsigned long long value, int source,
                           const char *file, int line) {
    return warp_op(what, mask, value, source & 31, 0, file, line);
}
}  // namespace emulator

#define PC size_t(__builtin_return_address(0))
#define DEFINE_ATOMIC(name, T, expression) \
    T name(T *address, T value) { \
        T old = *atomic(address, PC); \
        *address = expression; \
        return old; \
    }
DEFINE_ATOMIC(atomicAdd, int, int(unsigned(old) + unsigned(value)))
DEFINE_ATOMIC(atomicAdd, unsigned, old + value)
DEFINE_ATOMIC(atomicAdd, unsigned long long, old + value)
DEFINE_ATOMIC(atomicAdd, float, old + value)
DEFINE_ATOMIC(atomicAdd, double, old + value)
DEFINE_ATOMIC(atomicMax, int, old < value ? value : old)
DEFINE_ATOMIC(atomicMax, unsigned, old < value ? value : old)
DEFINE_ATOMIC(atomicMin, int, value < old ? value : old)
DEFINE_ATOMIC(atomicMin, unsigned, value < old ? value : old)
DEFINE_ATOMIC(atomicExch, int, value)
DEFINE_ATOMIC(atomicExch, unsigned, value)
DEFINE_ATOMIC(atomicExch, float, value)
#define DEFINE_CAS(T) \
    T atomicCAS(T *address, T compare, T value) { \
        T old = *atomic(address, PC); \
        if (old == compare) *address = value; \
        return old; \
    }
DEFINE_CAS(int)
DEFINE_CAS(unsigned)

// The entry points that the compiler calls for -fsanitize=thread. libtsan is not linked.
#define HOOKS(bytes) \
    void __tsan_read##bytes(void *p) { access<false>(size_t(p), bytes, PC); } \
    void __tsan_write##bytes(void *p) { access<true>(size_t(p), bytes, PC); } \
    void __tsan_volatile_read##bytes(void *p) { access<false>(size_t(p), bytes, PC); } \
    void __tsan_volatile_write##bytes(void *p) { access<true>(size_t(p), bytes, PC); } \
    void __tsan_unaligned_read##bytes(void *p) { access<false>(size_t(p), bytes, PC); } \
    void __tsan_unaligned_write##bytes(void *p) { access<true>(size_t(p), bytes, PC); }
// A word that is read and written in one statement; clang joins the two.
#define HOOKS_BOTH(bytes) \
    void __tsan_read_write##bytes(void *p) { \
        access<false>(size_t(p), bytes, PC); \
        access<true>(size_t(p), bytes, PC); \
    } \
    void __tsan_unaligned_read_write##bytes(void *p) { __tsan_read_write##bytes(p); }

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
HOOKS_BOTH(1) HOOKS_BOTH(2) HOOKS_BOTH(4) HOOKS_BOTH(8) HOOKS_BOTH(16)
void __tsan_read_range(void *p, size_t bytes) { access<false>(size_t(p), unsigned(bytes), PC); }
void __tsan_write_range(void *p, size_t bytes) { access<true>(size_t(p), unsigned(bytes), PC); }
void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    access<false>(size_t(from), unsigned(bytes), PC);
    access<true>(size_t(to), unsigned(bytes), PC);
    return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    access<false>(size_t(from), unsigned(bytes), PC);
    access<true>(size_t(to), unsigned(bytes), PC);
    return memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes) {
    access<true>(size_t(to), unsigned(bytes), PC);
    return memset(to, value, bytes);
}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}

// The same for -fsanitize=bounds,alignment: an index past the end of an array with a known
// size, and a vector access at an address that a GPU refuses.
struct Location { const char *file; unsigned line, column; };
struct Type { unsigned short kind, info; char name[1]; };
struct OutOfBounds { Location at; Type *array, *index; };
struct Mismatch { Location at; Type *type; unsigned char log_alignment, kind; };

void __ubsan_handle_out_of_bounds_abort(OutOfBounds *data, void *index) {
    begin_report("index");
    put_thread("thread", g_current);
    put_string("file", data->at.file);
    put(", \"line\": %u", data->at.line);
    put_string("array", data->array->name);
    bool is_signed = data->index->info & 1;
    unsigned width = 1u << (data->index->info >> 1);
    long long value = (long long)(size_t)index;
    if (is_signed && width < 64) value = (long long)((unsigned long long)value << (64 - width)) >> (64 - width);
    put(", \"index\": %lld", value);
    send();
}
void __ubsan_handle_out_of_bounds(OutOfBounds *data, void *index) {
    __ubsan_handle_out_of_bounds_abort(data, index);
}
void __ubsan_handle_type_mismatch_v1_abort(Mismatch *data, void *address) {
    // The address may lie outside of every buffer too; the access itself will tell.
    begin_report("misaligned");
    put_thread("thread", g_current);
    put_string("file", data->at.file);
    put(", \"line\": %u, \"alignment\": %u, \"address\": %zu", data->at.line,
        1u << data->log_alignment, size_t(address));
    put_string("type", data->type->name);
    size_t a = size_t(address);
    if (a - g_arena < g_arena_bytes) {
        int slot = int((a - g_arena) / kSlot);
        put(", \"buffer\": %d, \"offset\": %lld", slot, (long long)(a - g_buffers[slot].address));
    } else if (a - g_shared < g_shared_bytes) {
        put(", \"shared\": %zu", a - g_shared);
    }
    send();
}
void __ubsan_handle_type_mismatch_v1(Mismatch *data, void *address) {
    __ubsan_handle_type_mismatch_v1_abort(data, address);
}
}
