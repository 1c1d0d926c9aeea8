/* fiber.h: a thread of control of its own stack, switched by hand. The GPU threads of a block are fibers on one OS
 * thread.
 *
 * Not thread safe: all fibers and their host run on one OS thread at a time. A fiber that is never resumed holds
 * nothing but its stack, which fiber_start may use again. */
#ifndef RUNTIME_EMU_FIBER_H
#define RUNTIME_EMU_FIBER_H

#include <stdbool.h>
#include <stddef.h>

/* Where a thread of control stands while it does not run. Zero-initialise the host's. */
typedef struct fiber {
  void *context;            /* saved stack pointer (ucontext_t where there is no assembler switch) */
  unsigned char *stack_low; /* lowest usable byte; NULL: the host */
  size_t stack_size;
  void *sanitizer_state; /* AddressSanitizer's own note on the stack */
} fiber;

/* `count` stacks with a guard page below each. */
typedef struct fiber_stacks {
  unsigned char *base;
  size_t stride, usable;
  int count;
} fiber_stacks;

/* Maps address space; pages are committed when touched. False when there is none. */
bool fiber_stacks_map(fiber_stacks *stacks, int count);
void fiber_stacks_unmap(fiber_stacks *stacks);

/* Makes f ready to call body() on stack `index`. body must not return; it leaves through fiber_switch. */
void fiber_start(fiber *f, const fiber_stacks *stacks, int index, void (*body)(void));
/* Saves where `from` stands and continues `to`. Returns when somebody switches back to `from`. */
void fiber_switch(fiber *from, fiber *to);
/* Continues `to` and never comes back: `from` is abandoned. */
void fiber_leave(fiber *from, fiber *to) __attribute__((noreturn));
void fiber_free(fiber *f);

#endif
