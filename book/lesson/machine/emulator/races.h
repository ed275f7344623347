// Races: two accesses of one word by different threads, at least one a write, that nothing orders.
//
// __syncthreads orders a block, a warp operation a warp. Between blocks, and between the threads of
// a block that use a lock, a fence and an atomic order: what a thread did before its fence comes
// before what another does after an atomic on the word of the first one's next atomic.
#pragma once

#include "fibers.h"
#include "trace.h"

namespace {

struct Word {  // who used four bytes last; a time of 0 means nobody
    unsigned write_time, write_who, write_pc;  // who: tick << 10 | thread
    unsigned read_time, read_who, read_pc;     // who: tick << 12 | spread << 10 | thread
    unsigned read_other;  // another reader, if spread says that there is one; of blocks, its time
    unsigned set;         // shared memory: block << 4 | which of the four bytes have a value
};
enum Spread { kOne, kLanes, kWarps, kBlocks };  // readers: a thread, or several lanes of one
                                                // warp, or several warps, or several blocks

unsigned *g_block_starts;  // g_now at the start of each block run, to name a block in a report
unsigned g_blocks_run;
unsigned *g_block_ids;

unsigned run_of(unsigned time) {  // which block of this run it was that ran at a time
    unsigned low = 0, high = g_blocks_run;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        (g_block_starts[middle] <= time ? low : high) = middle;
    }
    return low;
}

uint3 block_at(unsigned time) {
    unsigned id = g_block_ids[run_of(time)];
    return uint3{id % gridDim.x, id / gridDim.x % gridDim.y, id / gridDim.x / gridDim.y};
}

// ---- fences and atomics -------------------------------------------------------------------

struct Release {  // an atomic after a fence
    size_t place;
    unsigned block, thread;
    unsigned time[2], interval[2];  // of the fence: for the same block, and for other blocks
    int previous;                   // the release at the same place before this one, or -1
    unsigned seen_first, seen_last; // what its block had seen by then
    int fenced;                     // the fences of its block by the last barrier, or -1
    unsigned visited;
};
struct Fenced {  // by scope and thread: the time of its last fence
    unsigned time[2][kMaxThreads];
};
struct Seen {  // an atomic after a release at the same place
    int release;
    unsigned time, who;
};
constexpr unsigned kReleases = 1u << 20, kPlaces = 1u << 21, kFenced = 1u << 16;  // no more are kept

bool g_fences = false;  // in this run so far: without one, atomics order nothing
Release *g_releases;
Seen *g_seen;
int *g_latest, *g_queue;  // the last release by place, a hash table; releases still to look at
unsigned g_release_count, g_seen_count, g_seen_first, g_visit;
Fenced *g_fenced;  // of the barriers after which a block had new fences
unsigned g_fenced_count;
int g_fenced_now = -1;     // of the block that runs
bool g_new_fences = false;  // since the last barrier

inline bool has_seen() { return g_seen_count != g_seen_first; }  // the block that runs

void forget_releases() {  // a new launch
    if (g_release_count) madvise(g_latest, kPlaces * sizeof(int), MADV_DONTNEED);
    g_fences = false;
    g_release_count = g_seen_count = g_seen_first = g_fenced_count = 0;
}

void fence(bool device) {
    Rest &me = g_rest[g_current];
    if (!g_releases) {
        g_releases = map_array<Release>(kReleases);
        g_seen = map_array<Seen>(kReleases);
        g_latest = map_array<int>(kPlaces);
        g_queue = map_array<int>(kReleases);
        g_fenced = map_array<Fenced>(kFenced);
    }
    g_fences = g_new_fences = true;
    for (int scope = 0; scope <= int(device); scope++) {
        me.fence_time[scope] = g_now;
        me.fence_interval[scope] = g_interval;
    }
    g_now++;  // what the thread does from here on is not covered
}

// At a barrier: from here on, what any thread did before its fence is behind an atomic of each.
void keep_fences() {
    if (!g_new_fences || g_fenced_count == kFenced) return;
    g_new_fences = false;
    Fenced &f = g_fenced[g_fenced_now = int(g_fenced_count++)];
    for (int scope = 0; scope < 2; scope++)
        for (int i = 0; i < g_thread_count; i++)
            f.time[scope][i] = g_rest[i].fence_time[scope];
}

int *latest_at(size_t place) {  // holds the release's number + 1, or 0
    unsigned at = unsigned(place * 0x9e3779b97f4a7c15ull >> 43);
    while (g_latest[at] && g_releases[g_latest[at] - 1].place != place) at = (at + 1) % kPlaces;
    return &g_latest[at];
}

void order_atomic(size_t place, bool shared) {
    if (!g_fences || g_release_count == kReleases || g_seen_count == kReleases) return;
    const Rest &me = g_rest[g_current];
    int *latest = latest_at(place), last = *latest - 1;
    if (last >= 0 && !(shared && g_releases[last].block != g_blocks_run - 1))
        g_seen[g_seen_count++] = {last, g_now, g_who};
    if (me.fence_time[0] < g_block_start && g_fenced_now < 0) return;
    Release &r = g_releases[g_release_count] = {};
    r = {place, g_blocks_run - 1, unsigned(g_current), {}, {}, last, g_seen_first, g_seen_count,
         g_fenced_now, 0};
    for (int scope = 0; scope < 2; scope++) {
        if (me.fence_time[scope] < g_block_start) continue;
        r.time[scope] = me.fence_time[scope];
        r.interval[scope] = me.fence_interval[scope];
    }
    *latest = int(++g_release_count);
}

// Whether what `seen` saw is ordered before the present of a thread of the same block.
bool visible(const Seen &seen, unsigned interval, unsigned who) {
    unsigned thread = seen.who & 1023;
    if (seen.time < interval || thread == (who & 1023)) return true;
    return !((thread ^ who) >> 5 & 31) && seen.who >> 10 != who >> 10;
}

// Whether releases order an access at `time` by `thread` before the running thread's present.
bool released(unsigned time, unsigned thread) {
    unsigned block = run_of(time), here = g_blocks_run - 1, waiting = 0;
    int scope = block == here ? 0 : 1;
    g_visit++;
    for (unsigned i = g_seen_first; i < g_seen_count; i++)
        if (visible(g_seen[i], g_interval, g_who)) g_queue[waiting++] = g_seen[i].release;
    while (waiting) {
        for (int at = g_queue[--waiting]; at >= 0; at = g_releases[at].previous) {
            Release &r = g_releases[at];
            if (r.visited == g_visit) break;
            r.visited = g_visit;
            if (r.block == block && r.time[scope] &&
                (time < r.interval[scope] || (thread == r.thread && time <= r.time[scope])))
                return true;
            if (r.block == block && r.fenced >= 0 && thread < kMaxThreads &&
                time <= g_fenced[r.fenced].time[scope][thread])
                return true;
            int way = r.block == here ? 0 : 1;  // what it had seen itself, before its fence
            for (unsigned i = r.seen_first; r.time[way] && i < r.seen_last; i++) {
                if (g_seen[i].time > r.time[way] || waiting == kReleases) continue;
                if (visible(g_seen[i], r.interval[way], r.thread)) g_queue[waiting++] = g_seen[i].release;
            }
        }
    }
    return false;
}

// ---- reports ------------------------------------------------------------------------------

// The first race of a block is kept until the block has ended: where the kernel does not get there,
// the divergent barrier or the access that stopped it is what a reader must hear of.
// `offset` counts bytes from the start of a buffer, or of shared memory where `buffer` is -1.
char g_race[sizeof g_json];
size_t g_race_length = 0;

void report_race(size_t offset, int buffer, bool write, size_t pc, bool other_write,
                 unsigned other_time, unsigned other_thread, unsigned other_pc,
                 const char *more = "") {
    if (g_race_length) return;
    trace_mark(kTraceRace, buffer < 0 ? kInShared : (signed char)buffer);
    begin_report("race");
    put_thread("thread", g_current);
    put_thread("other_thread", int(other_thread));
    put(", ");
    put_block("other_block", block_at(other_time));
    put(", \"write\": %d, \"other_write\": %d, \"pc\": [%zu, %u]", write, other_write, pc,
        other_pc);
    if (buffer >= 0) put(", \"buffer\": %d, \"offset\": %zu", buffer, offset);
    else put(", \"shared\": %zu", offset);
    put("%s", more);
    memcpy(g_race, g_json, g_race_length = g_length);
}

void send_race() {
    if (!g_race_length) return;
    memcpy(g_json, g_race, g_length = g_race_length);
    send();
}

// Lanes of a warp may store one and the same value to a word by one instruction. A hook comes
// before its store, so whether the value was the same is seen at the next hook.
struct Pending {
    const unsigned *address;
    unsigned value;
    size_t offset, pc;
    int buffer;
    unsigned time, thread;
} g_pending[64];
int g_pending_count = 0;

__attribute__((noinline)) void settle_pending() {
    for (int i = 0; i < g_pending_count; i++) {
        const Pending &p = g_pending[i];
        if (*p.address != p.value)
            report_race(p.offset, p.buffer, true, p.pc, true, p.time, p.thread, unsigned(p.pc),
                        ", \"values\": 1");
    }
    g_pending_count = 0;
}

void settle() {
    if (__builtin_expect(g_pending_count, 0)) settle_pending();
}

// ---- the detector -------------------------------------------------------------------------

// Whether an access at `time` by `thread` (in its `tick`) is unordered with one made now by the
// running thread.
template <bool global>
inline bool unordered(unsigned time, unsigned tick, unsigned thread) {
    if (time < g_interval) {
        if (!global || time >= g_block_start) return false;
    } else {
        if (thread == unsigned(g_current)) return false;
        if (!((thread ^ unsigned(g_current)) >> 5) && tick != g_who >> 10) return false;
    }
    return !(has_seen() && released(time, thread));
}

inline void set_spread(Word &w, unsigned spread, unsigned other) {
    w.read_who = (w.read_who & ~(3u << 10)) | spread << 10;
    w.read_other = other;
}

// Whether a read tells nothing new: this thread has read the word at this time, or two lanes of its
// warp, or two warps, have since the last barrier. A race with a write before has been told then.
inline bool read_says_nothing(const Word &w) {
    if (w.read_time < g_interval) return false;
    unsigned apart = w.read_who ^ g_reader;
    return (apart == 0 && w.read_time == g_now) || (apart & ~31u) == kLanes << 10 ||
           (w.read_who >> 10 & 3) >= kWarps;
}

template <bool global>
inline void note_read(Word &w, size_t offset, int buffer, size_t pc) {
    unsigned tick = g_who >> 10, thread = g_who & 1023, who = g_reader;
    unsigned spread = w.read_who >> 10 & 3, reader = w.read_who & 1023;
    if (read_says_nothing(w)) return;
    if (w.write_time && unordered<global>(w.write_time, w.write_who >> 10, w.write_who & 1023))
        report_race(offset, buffer, false, pc, true, w.write_time, w.write_who & 1023,
                    w.write_pc);
    if (w.read_time >= g_interval) {
        if (w.read_who == who) {
            w.read_time = g_now;
            return;
        }
        bool apart = (reader ^ thread) >> 5;
        if ((apart || w.read_who >> 12 == tick) &&  // lanes with no warp operation between count
            !(has_seen() && released(w.read_time, reader))) {
            if (apart || reader != thread) set_spread(w, apart ? kWarps : kLanes, thread);
            return;
        }
    } else if (global && w.read_time && w.read_time < g_block_start &&
               !(has_seen() && spread != kBlocks && released(w.read_time, reader))) {
        set_spread(w, kBlocks, g_now);  // whoever writes now, some other block has read
        return;
    }
    w.read_time = g_now;
    w.read_who = who;
    w.read_pc = unsigned(pc);
}

// `word` is the memory itself, with what it held before this write.
template <bool global>
inline void note_write(Word &w, const unsigned *word, size_t offset, int buffer, size_t pc) {
    unsigned me = g_who & 1023;
    if (w.write_time && unordered<global>(w.write_time, w.write_who >> 10, w.write_who & 1023)) {
        unsigned writer = w.write_who & 1023;
        bool together = w.write_pc == unsigned(pc) && w.write_time >= g_interval &&
                        !((writer ^ me) >> 5);
        if (together && g_pending_count < int(sizeof g_pending / sizeof *g_pending))
            g_pending[g_pending_count++] = {word, *word, offset, pc, buffer, w.write_time, writer};
        else
            report_race(offset, buffer, true, pc, true, w.write_time, writer, w.write_pc);
    }
    if (w.read_time) {
        unsigned spread = w.read_who >> 10 & 3, tick = w.read_who >> 12;
        unsigned reader = w.read_who & 1023;
        bool race;
        if (spread == kBlocks) {
            race = !(has_seen() && released(w.read_time, reader) &&
                     (w.read_other >= g_block_start || released(w.read_other, 1024)));
        } else if (w.read_time < g_interval) {
            race = unordered<global>(w.read_time, tick, reader);
        } else if (spread == kWarps) {
            race = true;
        } else if (spread == kLanes && !((reader ^ me) >> 5)) {
            race = tick == g_who >> 10;
        } else {
            race = unordered<global>(w.read_time, tick, reader);
        }
        if (race) {  // name a reader that the writer does not order
            if ((spread == kLanes && reader == me) || (spread == kWarps && !((reader ^ me) >> 5)))
                reader = w.read_other;
            report_race(offset, buffer, true, pc, false, w.read_time, reader, w.read_pc);
        }
    }
    w.write_time = g_now;
    w.write_who = g_who;
    w.write_pc = unsigned(pc);
}

}  // namespace
