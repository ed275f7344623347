// Memory and its bounds: buffers, shared memory, a thread's own stack. Every load and store of the
// kernel comes to access(): it checks the address and that what is read has a value, counts the
// bytes of global memory, and hands the words to races.h.
#pragma once

#include <link.h>

#include "fibers.h"
#include "races.h"

namespace {

// Address space of one buffer, which lies in its middle. Where the system lets them, all buffers
// lie at the same addresses in every run.
constexpr size_t kSlot = size_t(1) << 34, kArena = size_t(1) << 44;

// Two NaNs in one, a float and half of a double: what backend.py fills an output with before a
// launch. Arithmetic on it hands it on.
constexpr unsigned kNoValue = 0x7ff97a5e, kSign = 0x80000000u;

struct Sum {  // what atomics have added to one word: how often, and the magnitudes
    double total;
    unsigned count, serial;
};

struct Buffer {
    size_t address, bytes;
    bool read_only;
    char kind;  // 'f' of float, 'd' of double, '-' of something else
    Word *words;
    Sum *sums;
};

Buffer g_buffers[kMaxArguments];
int g_buffer_count;
size_t g_arena, g_arena_bytes;                 // all slots
size_t g_shared, g_shared_bytes;               // the thread_local segment: shared memory
size_t g_dynamic, g_dynamic_bytes, g_dynamic_used;  // the part of it with a size per launch
Word *g_shared_words;
Sum *g_shared_sums;
unsigned g_serial, g_full;  // of the block that runs, in all runs; as Word::set of a whole word
unsigned long long g_loads, g_stores;
unsigned g_last_pc;

bool g_asked_clock = false;

extern "C" char __executable_start, etext, _end;

// The sections that backend.py puts a kernel's __device__ variables into; the linker knows where
// they begin and end.
extern "C" {
#define SECTION(name) \
    extern unsigned char __start___emulator_##name __attribute__((weak)); \
    extern unsigned char __stop___emulator_##name __attribute__((weak));
SECTION(data)
SECTION(bss)
}
struct Section { unsigned char *start, *stop, *before; };
Section g_variables[] = {{&__start___emulator_data, &__stop___emulator_data, nullptr},
                         {&__start___emulator_bss, &__stop___emulator_bss, nullptr}};

// ---- reads of what has no value -----------------------------------------------------------

struct Unset {
    bool any;
    uint3 block;
    int thread, buffer;  // buffer -1: shared memory
    size_t offset, pc;
    bool atomic;
};
Unset g_unset_shared, g_unset_buffer;  // the first of a block, the first of a run

void note_unset(Unset &first, int buffer, size_t offset, size_t pc, bool atomic) {
    if (first.any) return;
    first = {true, blockIdx, g_current, buffer, offset, pc, atomic};
    trace_mark(kTraceUnset, buffer < 0 ? kInShared : (signed char)buffer);
}

void put_unset(const Unset &u) {
    put_block("block", u.block);
    put_thread("thread", u.thread);
    put(", \"atomic\": %d, \"pc\": [%zu]", u.atomic, u.pc);
    if (u.buffer < 0) put(", \"shared\": %zu", u.offset);
    else put(", \"buffer\": %d, \"offset\": %zu", u.buffer, u.offset);
}

void put_received() {
    put_block("block", g_received.block);
    put_thread("thread", g_received.thread);
    put_site(g_received.what, g_received.file, g_received.line);
    put(", \"mask\": %u, \"source\": %d, \"lanes\": %d", g_received.mask, g_received.source,
        g_received.lanes);
}

// What a kernel had done before an error that may be the cause of it.
void put_causes() {
    if (g_unset_shared.any) {
        put(", \"unset\": {");
        put_unset(g_unset_shared);
        put("}");
    } else if (g_unset_buffer.any) {
        put(", \"unset\": {");
        put_unset(g_unset_buffer);
        put("}");
    }
    if (g_received.any) {
        put(", \"received\": {");
        put_received();
        put("}");
    }
}

void send_unset(const char *kind, const Unset &u) {
    if (!u.any) return;
    g_length = 0;
    put("{\"error\": \"%s\", ", kind);
    put_unset(u);
    send();
}

// ---- bounds -------------------------------------------------------------------------------

[[noreturn]] void report_access(const char *kind, bool write, size_t address, unsigned bytes,
                                size_t pc, int buffer = -1) {
    begin_report(kind);
    put_thread("thread", g_current);
    put(", \"write\": %d, \"address\": %zu, \"bytes\": %u, \"pc\": [%zu]", write, address, bytes,
        pc);
    if (buffer >= 0)
        put(", \"buffer\": %d, \"offset\": %lld", buffer,
            (long long)(address - g_buffers[buffer].address));
    send_error();
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

[[noreturn]] __attribute__((noinline)) void outside_dynamic(size_t offset, bool write, size_t pc) {
    begin_report("dynamic");
    put_thread("thread", g_current);
    put(", \"write\": %d, \"offset\": %zu, \"used\": %zu, \"pc\": [%zu]", write,
        offset - g_dynamic, g_dynamic_used, pc);
    send_error();
}

// ---- every access -------------------------------------------------------------------------

enum Kind { kRead, kWrite, kAtomic };  // atomics are checked and counted, but never called a race

template <Kind kind>
__attribute__((noinline)) void use_shared(size_t offset, unsigned bytes, size_t pc) {
    unsigned full = g_full;
    if (__builtin_expect(offset + bytes > g_shared_bytes ||
                         (offset - g_dynamic < g_dynamic_bytes &&
                          offset - g_dynamic + bytes > g_dynamic_used), 0))
        outside_dynamic(offset, kind != kRead, pc);
    if (__builtin_expect((offset | bytes) & 3, 0)) {  // parts of words: not followed for races
        for (size_t i = offset / 4, end = (offset + bytes + 3) / 4; i < end; i++) {
            Word &w = g_shared_words[i];
            unsigned first = i * 4 < offset ? unsigned(offset - i * 4) : 0;
            unsigned last = i * 4 + 4 > offset + bytes ? unsigned(offset + bytes - i * 4) : 4;
            unsigned part = ((1u << last) - 1) & ~((1u << first) - 1);
            unsigned set = w.set >> 4 == full >> 4 ? w.set : full & ~15u;
            if (kind != kWrite && part & ~set)
                note_unset(g_unset_shared, -1, i * 4 + first, pc, kind == kAtomic);
            if (kind != kRead) w.set = set | part;
        }
        return;
    }
    for (size_t i = offset / 4; i < (offset + bytes) / 4; i++) {
        Word &w = g_shared_words[i];
        if (kind != kWrite && __builtin_expect(w.set != full, 0))
            note_unset(g_unset_shared, -1, 4 * i, pc, kind == kAtomic);
        if (kind != kRead) w.set = full;
        if (kind == kRead) note_read<false>(w, 4 * i, -1, pc);
        if (kind == kWrite)
            note_write<false>(w, reinterpret_cast<const unsigned *>(g_shared + 4 * i), 4 * i, -1,
                              pc);
    }
}

template <Kind kind>
inline void use_buffer(Buffer &buffer, int slot, size_t offset, unsigned bytes, size_t pc) {
    if (kind != kWrite) g_loads += bytes;
    if (kind != kRead) g_stores += bytes;
    if (bytes < 4) {
        if (buffer.read_only && kind != kRead)
            report_access("const", true, buffer.address + offset, bytes, pc, slot);
        return;
    }
    const unsigned *words = reinterpret_cast<const unsigned *>(buffer.address);
    if (kind != kWrite && buffer.kind != '-')
        for (size_t i = offset / 4; i < (offset + bytes) / 4; i++)
            if (__builtin_expect(words[i] == kNoValue, 0))
                note_unset(g_unset_buffer, slot, 4 * i, pc, kind == kAtomic);
    if (buffer.read_only) {
        if (kind != kRead) report_access("const", true, buffer.address + offset, bytes, pc, slot);
        return;
    }
    for (size_t i = offset / 4; i < (offset + bytes) / 4; i++) {
        Word &w = buffer.words[i];
        if (kind == kRead) note_read<true>(w, 4 * i, slot, pc);
        if (kind == kWrite) note_write<true>(w, words + i, 4 * i, slot, pc);
        if (kind == kAtomic) w.set = 1;  // written, though by no thread that a race could name
    }
}

// What is not in shared memory.
template <Kind kind>
__attribute__((noinline)) void use_other(size_t address, unsigned bytes, size_t pc) {
    if (address - g_arena < g_arena_bytes) {
        int slot = int((address - g_arena) / kSlot);
        Buffer &buffer = g_buffers[slot];
        size_t offset = address - buffer.address;
        if (__builtin_expect(offset >= buffer.bytes || offset + bytes > buffer.bytes, 0))
            outside(address, bytes, kind != kRead, pc);
        use_buffer<kind>(buffer, slot, offset, bytes, pc);
    } else if (address - g_stack_low < kStack) {
        return;  // the thread's own variables
    } else if (address >= size_t(&__executable_start) && address < size_t(&_end)) {
        return;  // __constant__ and __device__ variables: not followed
    } else {
        outside(address, bytes, kind != kRead, pc);
    }
}

// The thread's own variables, constants and __device__ variables are no part of a trace.
__attribute__((noinline)) void trace_access(Kind kind, size_t address, unsigned bytes, size_t pc) {
    if (address - g_shared < g_shared_bytes)
        return trace(Traced(kind), kInShared, (long long)(address - g_shared), bytes, pc);
    if (address - g_stack_low < kStack ||
        (address >= size_t(&__executable_start) && address < size_t(&_end))) return;
    size_t slot = (address - g_arena) / kSlot;
    bool known = address - g_arena < g_arena_bytes;
    trace(Traced(kind), known ? (signed char)slot : kNowhere,
          known ? (long long)(address - g_buffers[slot].address) : 0, bytes, pc);
}

template <Kind kind>
inline __attribute__((always_inline)) void access(size_t address, unsigned bytes, size_t pc) {
    g_last_pc = unsigned(pc);
    settle();
    if (__builtin_expect(g_trace != nullptr, 0)) trace_access(kind, address, bytes, pc);
    size_t offset = address - g_shared;
    if (offset >= g_shared_bytes) return use_other<kind>(address, bytes, pc);
    if (kind == kRead && bytes == 4 && !(offset & 3)) {  // most accesses
        const Word &w = g_shared_words[offset / 4];
        if (w.set == g_full && read_says_nothing(w)) return;
    }
    use_shared<kind>(offset, bytes, pc);
}

bool in_shared(size_t address) { return address - g_shared < g_shared_bytes; }
bool in_buffers(size_t address) {
    return address - g_arena < g_arena_bytes ||
           (address >= size_t(&__executable_start) && address < size_t(&_end));
}

template <class T> T *atomic(T *address, size_t pc) {
    access<kAtomic>(size_t(address), sizeof(T), pc);
    order_atomic(size_t(address), in_shared(size_t(address)));
    return address;
}

// ---- sums by atomics ----------------------------------------------------------------------

// Adding floats in another order rounds in another way: by at most 2 n eps times the sum of the
// magnitudes, for n numbers. What is computed from such sums may differ as much.
unsigned g_sum_count, g_run;  // of the word that was added to most often; which run this is
double g_sum_scale;           // the largest sum of magnitudes

void note_sum(size_t address, double old, double value) {
    bool shared = in_shared(address);
    if (!shared && address - g_arena >= g_arena_bytes) return;
    Buffer *buffer = shared ? nullptr : &g_buffers[(address - g_arena) / kSlot];
    Sum *&sums = shared ? g_shared_sums : buffer->sums;
    if (!sums) sums = map_array<Sum>((shared ? g_shared_bytes : buffer->bytes) / 4 + 1);
    Sum &sum = sums[(address - (shared ? g_shared : buffer->address)) / 4];
    unsigned serial = shared ? g_serial : g_run + 1;
    if (sum.serial != serial) sum = {__builtin_fabs(old), 1, serial};
    sum.total += __builtin_fabs(value);
    sum.count++;
    if (sum.count > g_sum_count) g_sum_count = sum.count;
    if (sum.total > g_sum_scale) g_sum_scale = sum.total;
}

// The same where a kernel adds by atomicCAS, on the bits of a float or a double.
template <class Number, class Bits> void note_sum_of_bits(const Bits *address, Bits old, Bits now) {
    size_t at = size_t(address);
    if (at - g_arena >= g_arena_bytes) return;
    if (g_buffers[(at - g_arena) / kSlot].kind != (sizeof(Number) == 4 ? 'f' : 'd')) return;
    Number before, after;
    memcpy(&before, &old, sizeof before);
    memcpy(&after, &now, sizeof after);
    if (__builtin_isfinite(before) && __builtin_isfinite(after)) note_sum(at, before, after - before);
}

// Whether two results of two orders differ by rounding alone.
bool by_rounding(const Buffer &b, size_t word, double first, double other) {
    double eps = b.kind == 'f' ? 0x1p-24 : 0x1p-53, larger = __builtin_fabs(first);
    if (__builtin_fabs(other) > larger) larger = __builtin_fabs(other);
    double allowed = 2 * g_sum_count * eps * (g_sum_scale + larger);
    if (b.sums && b.sums[word].count) allowed = 2 * b.sums[word].count * eps * b.sums[word].total;
    return __builtin_fabs(first - other) <= allowed || (first != first && other != other);
}

int find_shared(dl_phdr_info *info, size_t, void *) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
        g_shared = size_t(info->dlpi_tls_data);
        g_shared_bytes = info->dlpi_phdr[i].p_memsz;
    }
    return 1;  // the first entry is the executable itself
}

}  // namespace
