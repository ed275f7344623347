// Runs one launch of one kernel on the host and says what a GPU would not.
//
//   fibers.h    threads as fibers, warps, barriers, and the order in which they run
//   memory.h    buffers, shared memory, bounds: every load and store comes here
//   races.h     two accesses of one word with nothing between them
//   trace.h     what one block did, for those who want to watch it
//   builtins.h  the CUDA names of cuda.h; arithmetic.h those that name their rounding
//   hooks.h     what the compiler calls at loads, stores and checks
//   table.h     the kernels of this program by name
//   report.h    one JSON line on stderr, which explain.py turns into words
//
// host.py compiles this file once and links it with each kernel. What a kernel prints goes to
// stdout.
#define EMULATOR_RUN
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

#include "fibers.h"
#include "memory.h"
#include "races.h"
#include "report.h"
#include "table.h"

namespace {

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

// On a stack that has run out: the return address that lies on it most often, where a function has
// called itself again and again; 0 if none has.
size_t recursion() {
    const size_t *top = reinterpret_cast<const size_t *>(g_stack_low + kStack);
    const size_t *bottom = reinterpret_cast<const size_t *>(g_stack_low);
    auto is_code = [](size_t word) {
        return word >= size_t(&__executable_start) && word < size_t(&etext);
    };
    size_t most = 0, found = 0;
    int candidates = 0;
    for (const size_t *at = bottom; at < top && candidates < 64; at++) {
        if (!is_code(*at)) continue;
        candidates++;
        size_t count = 0;
        for (const size_t *other = at; other < top; other++) count += *other == *at;
        if (count > most) {
            most = count;
            found = *at;
        }
    }
    return most >= 16 ? found : 0;
}

// Two places: where the thread is, and, if that is not in the kernel, its last access.
void on_signal(int number, siginfo_t *info, void *context) {
    const char *kind = number == SIGPROF ? "time" : number == SIGFPE ? "divide"
                       : number == SIGILL || number == SIGTRAP ? "trap" : "fault";
    size_t address = size_t(info->si_addr), pc = pc_of(context) + 1;
    if (number == SIGSEGV && address - size_t(g_stacks) < kMaxThreads * (kStack + kPage)) {
        kind = "stack";
        if (size_t again = recursion()) {
            kind = "recursion";
            pc = again;
        }
    }
    begin_report(kind);
    put_thread("thread", g_current);
    put(", \"address\": %zu, \"pc\": [%zu, %u]", address, pc, g_last_pc);
    if (g_threads[g_current].file) {  // the last barrier or warp operation it came to
        put_string("last_file", g_threads[g_current].file);
        put(", \"last_line\": %d", g_threads[g_current].line);
    }
    send_error();
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
    const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGPROF};
    for (int number : numbers) sigaction(number, &action, nullptr);
}

// ---- the launch ---------------------------------------------------------------------------

__attribute__((noinline)) void run_block(unsigned id) {
    blockIdx = uint3{id % gridDim.x, id / gridDim.x % gridDim.y, id / gridDim.x / gridDim.y};
    // Shared memory starts with no value. Who reads it is told; what comes of it is NaN.
    memset(reinterpret_cast<void *>(g_shared), 0xff,
           g_dynamic_bytes ? g_dynamic : g_shared_bytes);
    if (g_dynamic_bytes) {
        size_t end = g_dynamic + g_dynamic_bytes;
        memset(reinterpret_cast<void *>(g_shared + g_dynamic), 0xff, g_dynamic_used);
        memset(reinterpret_cast<void *>(g_shared + end), 0xff, g_shared_bytes - end);
    }
    g_block_start = g_interval = ++g_now;
    g_serial++;
    g_full = g_serial << 4 | 15;
    g_seen_first = g_seen_count;
    g_fenced_now = -1;
    g_new_fences = false;
    g_unset_shared.any = false;
    g_block_starts[g_blocks_run] = g_now;
    g_block_ids[g_blocks_run++] = id;
    g_live = g_thread_count;
    g_arrived = 0;
    for (int w = 0; w < g_warp_count; w++) {
        g_warps[w].tick = g_warps[w].waiting = g_warps[w].parked = 0;
        g_warps[w].ready = g_warps[w].positions;
    }
    for (int i = 0; i < g_thread_count; i++) g_rest[i].actives = 0;
    g_current = g_warp_order[0] * 32;
    enter(pick_fast());
    switch_context(g_main, g_contexts[g_current]);
}

long long number(const char *text) { return strtoll(text, nullptr, 10); }

struct Launch {
    int memory;          // file descriptor of the buffers
    double limit;        // seconds a block may take
    const char *orders;  // letters of "ads"
    unsigned block;      // the only one that runs, where it is traced
    volatile unsigned long long *progress;
} g_launch;

void map_buffer(Buffer &b, int slot, off_t offset) {
    if (b.bytes > kSlot / 2) fail("a buffer of more than 8 GiB");
    b.address = g_arena + size_t(slot) * kSlot + kSlot / 2;
    if (b.bytes && mmap(reinterpret_cast<void *>(b.address), b.bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, g_launch.memory, offset) == MAP_FAILED)
        fail("mmap of a buffer");
    if (!b.read_only)
        b.words = map_array<Word>(b.bytes / 4 + 1);
}

// Arguments, one word each: memory file descriptor; kernel; grid x y z; block x y z; dynamic
// shared bytes; offset and size of the dynamic part of shared memory; seconds a block may take;
// orders (letters of "ads"); file descriptor for a trace (trace.h), or -1, its block and
// warp (-1: all); count of buffers, and for each: offset in the file, bytes, 1 if read only, kind
// (f float, d double, - other); count of arguments, and for each: b<buffer>, n (null) or s<hexadecimal bytes>.
void read_launch(char **next) {
    g_launch.memory = int(number(*next++));
    const char *kernel = *next++;
    unsigned shape[6];
    for (unsigned &n : shape) n = unsigned(number(*next++));
    gridDim = dim3(shape[0], shape[1], shape[2]);
    blockDim = dim3(shape[3], shape[4], shape[5]);
    g_dynamic_used = size_t(number(*next++));
    g_dynamic = size_t(number(*next++));
    g_dynamic_bytes = size_t(number(*next++));
    g_launch.limit = atof(*next++);
    g_launch.orders = *next++;
    int trace = int(number(*next++));
    if (trace >= 0 && !(g_trace = fdopen(trace, "wb"))) fail("fdopen");
    g_launch.block = unsigned(number(*next++));
    g_trace_warp = int(number(*next++));

    for (int i = 0; i < __emulator::kernel_count; i++)
        if (!strcmp(__emulator::kernels[i].name, kernel)) g_call = __emulator::kernels[i].call;
    if (!g_call) fail("the kernel is not in this program");
    dl_iterate_phdr(find_shared, nullptr);
    g_shared_words = map_array<Word>(g_shared_bytes / 4 + 1);

    // The first page of the file counts finished blocks, so that the parent sees progress.
    g_launch.progress = static_cast<unsigned long long *>(
        mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, g_launch.memory, 0));
    if (g_launch.progress == MAP_FAILED) fail("mmap of the memory file");

    g_buffer_count = int(number(*next++));
    g_arena_bytes = size_t(g_buffer_count) * kSlot;
    void *arena = mmap(reinterpret_cast<void *>(kArena), g_arena_bytes + 1, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) fail("mmap");
    g_arena = size_t(arena);
    for (int i = 0; i < g_buffer_count; i++) {
        off_t offset = off_t(number(*next++));
        g_buffers[i].bytes = size_t(number(*next++));
        g_buffers[i].read_only = number(*next++);
        g_buffers[i].kind = **next++;
        map_buffer(g_buffers[i], i, offset);
    }

    static unsigned long long scalars[kMaxArguments];
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
}

// ---- runs and their results ---------------------------------------------------------------

// What each buffer held before the launch, and after its first run.
unsigned char *g_before[kMaxArguments], *g_result[kMaxArguments];
unsigned long long g_first_loads, g_first_stores;

struct {  // elements that differ between orders by rounding alone
    unsigned long long count;
    int buffer;
    size_t offset;
    double first, other;
} g_rounding;

template <class Use> void each_written_buffer(Use use) {
    for (int i = 0; i < g_buffer_count; i++)
        if (!g_buffers[i].read_only)
            use(i, g_buffers[i], reinterpret_cast<unsigned char *>(g_buffers[i].address));
}

unsigned char *copy_of(const void *from, size_t bytes) {
    unsigned char *to = map_array<unsigned char>(bytes);
    memcpy(to, from, bytes);
    return to;
}

void save() {
    each_written_buffer([](int i, Buffer &b, unsigned char *now) {
        g_before[i] = copy_of(now, b.bytes);
        g_result[i] = map_array<unsigned char>(b.bytes);
    });
    for (Section &s : g_variables) s.before = copy_of(s.start, size_t(s.stop - s.start));
}

void restore() {
    each_written_buffer([](int i, Buffer &b, unsigned char *now) {
        memcpy(now, g_before[i], b.bytes);
        // A new launch, as far as races go.
        madvise(b.words, (b.bytes / 4 + 1) * sizeof(Word), MADV_DONTNEED);
    });
    for (Section &s : g_variables) memcpy(s.start, s.before, size_t(s.stop - s.start));
    forget_releases();
}

[[noreturn]] void report_order(int run, int buffer, size_t offset) {
    const Buffer &b = g_buffers[buffer];
    g_length = 0;
    put("{\"error\": \"%s\", \"buffer\": %d, \"offset\": %zu, \"order\": %d",
        g_undefined == kNan ? "order" : "undefined", buffer, offset, run);
    size_t word = offset & ~size_t(7), end = word + 8 < b.bytes ? word + 8 : b.bytes;
    const unsigned char *bytes[] = {g_result[buffer], reinterpret_cast<unsigned char *>(b.address)};
    for (int which = 0; which < 2; which++) {  // in hexadecimal
        put(which ? "\", \"other\": \"" : ", \"first\": \"");
        for (size_t k = word; k < end; k++) put("%02x", bytes[which][k]);
    }
    put("\"");
    send_error();
}

// A buffer whose bytes differ from those of the first run.
template <class T> void compare_numbers(int run, int buffer, const unsigned char *now) {
    Buffer &b = g_buffers[buffer];
    for (size_t at = 0; at + sizeof(T) <= b.bytes; at += sizeof(T)) {
        if (!memcmp(g_result[buffer] + at, now + at, sizeof(T))) continue;
        T first, other;
        memcpy(&first, g_result[buffer] + at, sizeof(T));
        memcpy(&other, now + at, sizeof(T));
        if (!g_sum_count || !by_rounding(b, at / 4, first, other))
            report_order(run, buffer, at);
        if (!g_rounding.count++)
            g_rounding = {1, buffer, at, first, other};
    }
}

void compare(int run) {
    each_written_buffer([run](int i, Buffer &b, unsigned char *now) {
        if (!run) {
            memcpy(g_result[i], now, b.bytes);
        } else if (memcmp(g_result[i], now, b.bytes)) {
            if (b.kind == 'f') return compare_numbers<float>(run, i, now);
            if (b.kind == 'd') return compare_numbers<double>(run, i, now);
            size_t at = 0;
            while (g_result[i][at] == now[at]) at++;
            report_order(run, i, at);
        }
    });
}

// A kernel that has read an element with no value has used it if its mark is in what it wrote.
void check_outputs() {
    if (!g_unset_buffer.any) return;
    each_written_buffer([](int, Buffer &b, unsigned char *now) {
        for (size_t i = 0; b.kind != '-' && i < b.bytes / 4; i++) {
            bool written = b.words[i].write_time || b.words[i].set;
            if (written && (reinterpret_cast<unsigned *>(now)[i] & ~kSign) == kNoValue)
                send_unset("unset_buffer", g_unset_buffer);
        }
    });
}

void run_grid(const unsigned *sequence, unsigned blocks) {
    itimerval tick = {}, off = {};  // of processor time: a busy machine changes no verdict
    tick.it_value.tv_sec = time_t(g_launch.limit);
    tick.it_value.tv_usec = suseconds_t((g_launch.limit - double(time_t(g_launch.limit))) * 1e6);
    g_blocks_run = 0;
    g_run++;
    g_loads = g_stores = 0;
    g_unset_buffer.any = false;
    for (unsigned i = 0; i < blocks; i++) {
        setitimer(ITIMER_PROF, &tick, nullptr);
        run_block(sequence[i]);
        send_race();
        send_unset("unset", g_unset_shared);
        ++*g_launch.progress;
    }
    setitimer(ITIMER_PROF, &off, nullptr);
    check_outputs();
}

void run_once(unsigned *sequence, unsigned blocks, int run, bool several) {
    if (run) restore();
    run_grid(sequence, blocks);
    if (several) compare(run);
    if (run) return;
    g_first_loads = g_loads;
    g_first_stores = g_stores;
    g_heard = false;  // a kernel's own printf is heard once
}

}  // namespace

int main(int, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    read_launch(argv + 1);
    catch_signals();
    make_fibers();

    unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    g_block_starts = map_array<unsigned>(blocks);
    g_block_ids = map_array<unsigned>(blocks);
    unsigned *sequence = map_array<unsigned>(blocks);
    const char *orders = g_launch.orders;
    bool several = orders[1] != 0;
    if (several) save();
    int run = 0;
    for (; orders[run]; run++) {
        arrange_all(sequence, blocks, run, orders[run]);
        if (g_trace) sequence[0] = g_launch.block;
        run_once(sequence, g_trace ? 1 : blocks, run, several);
    }
    // Lanes that have received undefined values: do the results hang on them?
    for (int value = kLarge; several && g_received.any && value <= kSmall; value++) {
        g_undefined = value;
        arrange_all(sequence, blocks, 0, orders[0]);
        run_once(sequence, blocks, run++, several);
    }
    g_length = 0;
    put("{\"loads\": %llu, \"stores\": %llu, \"clock\": %d", g_first_loads, g_first_stores,
        g_asked_clock);
    if (g_rounding.count)
        put(", \"rounding\": {\"count\": %llu, \"buffer\": %d, \"offset\": %zu, \"first\": %.17g, "
            "\"other\": %.17g}", g_rounding.count, g_rounding.buffer, g_rounding.offset,
            g_rounding.first, g_rounding.other);
    send();
}

#include "builtins.h"
#include "hooks.h"
