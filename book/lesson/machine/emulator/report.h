// What a launch reports: one JSON object, a line of stderr, which messages.py turns into words.
#pragma once

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace {

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
    for (; *text; text++) {
        if ((unsigned char)*text < ' ') put("\\u%04x", (unsigned char)*text);
        else put((*text == '"' || *text == '\\') ? "\\%c" : "%c", *text);
    }
    put("\"");
}

FILE *g_trace = nullptr;
void end_trace();  // trace.h

// What a kernel prints is heard once, in the first run of a launch, and up to a limit.
constexpr size_t kPrinted = size_t(1) << 16;
bool g_heard = true;
size_t g_printed = 0, g_cut_bytes = 0, g_cut_lines = 0;

[[noreturn]] void send() {
    if (g_cut_bytes) put(", \"cut_bytes\": %zu, \"cut_lines\": %zu", g_cut_bytes, g_cut_lines);
    put("}\n");
    fflush(stdout);
    end_trace();
    if (write(2, g_json, g_length) < 0) _exit(4);
    _exit(0);
}

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

template <class T> T *map_array(size_t count) {
    return static_cast<T *>(map(count * sizeof(T), PROT_READ | PROT_WRITE));
}

}  // namespace
