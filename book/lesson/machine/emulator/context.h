// Where a fiber stands: switched from one stack to another.
//
// On x86-64 a switch pushes the registers that a function must keep, and changes the stack. Other
// machines take _setjmp and _longjmp, on stacks made by makecontext.
#pragma once

#include <stddef.h>

#if defined __x86_64__ && !defined EMULATOR_PORTABLE

struct Context {
    void *stack;  // where the registers lie
};

// Both at file scope, so that no compiler adds anything to them.
extern "C" void __emulator_switch(Context *from, Context *to);
__asm__(R"(
    .text
    .type __emulator_switch, @function
__emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size __emulator_switch, .-__emulator_switch
)");

inline void switch_context(Context &from, Context &to) { __emulator_switch(&from, &to); }

// A context that begins in `entry`, which never returns.
inline void make_context(Context &made, void *stack, size_t bytes, void (*entry)()) {
    size_t top = (size_t(stack) + bytes) & ~size_t(15);
    void **at = reinterpret_cast<void **>(top);
    *--at = nullptr;  // where entry would return to; a function begins 8 bytes past 16
    *--at = reinterpret_cast<void *>(entry);
    for (int i = 0; i < 6; i++) *--at = nullptr;
    made.stack = at;
}

#else

#include <setjmp.h>
#include <ucontext.h>

struct Context {
    jmp_buf registers;
};

// Not inlined: no function that calls _setjmp is.
__attribute__((noinline)) static void switch_context(Context &from, Context &to) {
    if (!_setjmp(from.registers)) _longjmp(to.registers, 1);
}

static Context *g_making, *g_maker;
static void (*g_entry)();

static void begin_context() {
    void (*entry)() = g_entry;
    switch_context(*g_making, *g_maker);
    entry();
}

__attribute__((noinline)) static void make_context(Context &made, void *stack, size_t bytes,
                                                   void (*entry)()) {
    Context here;
    g_making = &made;
    g_maker = &here;
    g_entry = entry;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = stack;
    start.uc_stack.ss_size = bytes;
    start.uc_link = nullptr;
    makecontext(&start, begin_context, 0);
    if (!_setjmp(here.registers)) setcontext(&start);
}

#endif
