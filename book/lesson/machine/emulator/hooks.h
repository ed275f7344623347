// The hooks that the compiler calls for -fsanitize=thread and for the other sanitizers' checks.
// Neither libtsan nor libubsan is linked.
#pragma once

#include "memory.h"

#define PC size_t(__builtin_return_address(0))

// Loads and stores.
#define HOOKS(bytes) \
    void __tsan_read##bytes(void *p) { access<kRead>(size_t(p), bytes, PC); } \
    void __tsan_write##bytes(void *p) { access<kWrite>(size_t(p), bytes, PC); } \
    void __tsan_volatile_read##bytes(void *p) { access<kRead>(size_t(p), bytes, PC); } \
    void __tsan_volatile_write##bytes(void *p) { access<kWrite>(size_t(p), bytes, PC); } \
    void __tsan_unaligned_read##bytes(void *p) { access<kRead>(size_t(p), bytes, PC); } \
    void __tsan_unaligned_write##bytes(void *p) { access<kWrite>(size_t(p), bytes, PC); }
// A word that is read and written in one statement; clang joins the two.
#define HOOKS_BOTH(bytes) \
    void __tsan_read_write##bytes(void *p) { \
        access<kRead>(size_t(p), bytes, PC); \
        access<kWrite>(size_t(p), bytes, PC); \
    } \
    void __tsan_unaligned_read_write##bytes(void *p) { __tsan_read_write##bytes(p); }

namespace {
void copy(void *to, const void *from, size_t bytes, size_t pc) {
    if (!bytes) return;
    access<kRead>(size_t(from), unsigned(bytes), pc);
    access<kWrite>(size_t(to), unsigned(bytes), pc);
    memmove(to, from, bytes);
}
}  // namespace

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
HOOKS_BOTH(1) HOOKS_BOTH(2) HOOKS_BOTH(4) HOOKS_BOTH(8) HOOKS_BOTH(16)
void __tsan_read_range(void *p, size_t bytes) { access<kRead>(size_t(p), unsigned(bytes), PC); }
void __tsan_write_range(void *p, size_t bytes) { access<kWrite>(size_t(p), unsigned(bytes), PC); }
// What clang++ makes of memcpy() in a kernel, and what cuda.h makes of it for g++.
#define HOOKED_MEMORY(prefix) \
    void *prefix##memcpy(void *to, const void *from, size_t bytes) { \
        copy(to, from, bytes, PC); \
        return to; \
    } \
    void *prefix##memmove(void *to, const void *from, size_t bytes) { \
        copy(to, from, bytes, PC); \
        return to; \
    } \
    void *prefix##memset(void *to, int value, size_t bytes) { \
        if (bytes) access<kWrite>(size_t(to), unsigned(bytes), PC); \
        return memset(to, value, bytes); \
    }
HOOKED_MEMORY(__tsan_)
HOOKED_MEMORY(__emulator_)
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}

// Checks of indices, alignment and integer arithmetic: what C++ leaves undefined.
struct Location { const char *file; unsigned line, column; };
struct Type { unsigned short kind, info; char name[1]; };
struct OutOfBounds { Location at; Type *array, *index; };
struct Mismatch { Location at; Type *type; unsigned char log_alignment, kind; };
struct Overflow { Location at; Type *type; };
struct Shift { Location at; Type *left, *right; };

static void begin_check(const char *kind, const Location &at) {
    begin_report(kind);
    put_thread("thread", g_current);
    put_string("file", at.file);
    put(", \"line\": %u", at.line);
}
static long long number_of(const Type *type, size_t value) {  // as the handlers receive it
    unsigned width = 1u << (type->info >> 1);
    if (width > 64) return *reinterpret_cast<long long *>(value);
    if (width == 64) return (long long)value;
    unsigned long long bits = (unsigned long long)value << (64 - width);
    return type->info & 1 ? (long long)bits >> (64 - width) : (long long)(bits >> (64 - width));
}

void __ubsan_handle_out_of_bounds_abort(OutOfBounds *data, void *index) {
    begin_check("index", data->at);
    put_string("array", data->array->name);
    put(", \"index\": %lld", number_of(data->index, size_t(index)));
    send_error();
}
void __ubsan_handle_divrem_overflow_abort(Overflow *data, void *, void *) {
    begin_check("divide", data->at);
    send_error();
}
void __ubsan_handle_shift_out_of_bounds_abort(Shift *data, void *, void *places) {
    begin_check("shift", data->at);
    put_string("type", data->left->name);
    put(", \"width\": %u, \"places\": %lld", 1u << (data->left->info >> 1),
        number_of(data->right, size_t(places)));
    send_error();
}
void __ubsan_handle_type_mismatch_v1_abort(Mismatch *data, void *address) {
    // The address may lie outside of every buffer too; the access itself will tell.
    begin_check("misaligned", data->at);
    put(", \"alignment\": %u, \"address\": %zu", 1u << data->log_alignment, size_t(address));
    put_string("type", data->type->name);
    size_t a = size_t(address);
    if (a - g_arena < g_arena_bytes) {
        int slot = int((a - g_arena) / kSlot);
        put(", \"buffer\": %d, \"offset\": %lld", slot, (long long)(a - g_buffers[slot].address));
    } else if (in_shared(a)) {
        put(", \"shared\": %zu", a - g_shared);
    }
    send_error();
}
// The names of the handlers that may return.
void __ubsan_handle_out_of_bounds(OutOfBounds *data, void *index) {
    __ubsan_handle_out_of_bounds_abort(data, index);
}
void __ubsan_handle_divrem_overflow(Overflow *data, void *left, void *right) {
    __ubsan_handle_divrem_overflow_abort(data, left, right);
}
void __ubsan_handle_shift_out_of_bounds(Shift *data, void *left, void *right) {
    __ubsan_handle_shift_out_of_bounds_abort(data, left, right);
}
void __ubsan_handle_type_mismatch_v1(Mismatch *data, void *address) {
    __ubsan_handle_type_mismatch_v1_abort(data, address);
}
}
