/* fiber.c: stacks and the context switch: a dozen instructions on x86-64 and aarch64, swapcontext elsewhere.
 *
 * The switch saves what the calling convention says a function must keep; everything else is already saved by the
 * compiler around the call. With AddressSanitizer each switch is announced, because it keeps track of the stack in use.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "fiber.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(FIBER_ASAN)
#undef FIBER_ASAN
#define FIBER_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define FIBER_ASAN 0
#endif

enum { STACK_BYTES = 256 * 1024 }; /* a kernel's frame holds the accumulators; 256 KiB is far above any real one */

bool fiber_stacks_map(fiber_stacks *stacks, int count) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  size_t stride = STACK_BYTES + page;
  void *base = mmap(NULL, stride * (size_t)count + page, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED)
    return false;
  *stacks = (fiber_stacks){base, stride, STACK_BYTES, count};
  for (int i = 0; i <= count; i++)
    if (mprotect(stacks->base + stride * (size_t)i, page, PROT_NONE)) {
      fiber_stacks_unmap(stacks);
      return false;
    }
  return true;
}

void fiber_stacks_unmap(fiber_stacks *stacks) {
  if (stacks->base)
    munmap(stacks->base, stacks->stride * (size_t)stacks->count + (stacks->stride - stacks->usable));
  *stacks = (fiber_stacks){NULL, 0, 0, 0};
}

/* ---- AddressSanitizer ---- */

#if FIBER_ASAN
static fiber *leaving; /* whose bounds the first arrival on another stack learns */

static void announce_switch(fiber *from, const fiber *to, bool for_good) {
  leaving = from;
  __sanitizer_start_switch_fiber(for_good ? NULL : &from->sanitizer_state, to->stack_low, to->stack_size);
}

static void announce_arrival(fiber *arrived) {
  const void *low = NULL;
  size_t size = 0;
  __sanitizer_finish_switch_fiber(arrived->sanitizer_state, &low, &size);
  if (!leaving->stack_size) { /* the host: nobody else knows its bounds */
    leaving->stack_low = (unsigned char *)(uintptr_t)low;
    leaving->stack_size = size;
  }
}

static void forget_frames(const fiber *f) {
  ASAN_UNPOISON_MEMORY_REGION(f->stack_low, f->stack_size);
}
#else
static void announce_switch(fiber *from, const fiber *to, bool for_good) {
  (void)from, (void)to, (void)for_good;
}
static void announce_arrival(fiber *arrived) {
  (void)arrived;
}
static void forget_frames(const fiber *f) {
  (void)f;
}
#endif

/* ---- The switch ---- */

static fiber *entering;           /* the fiber that runs first_run */
static void (*body_of_all)(void); /* every fiber of a block runs the same body, which does not return */

static void first_run(void) {
  announce_arrival(entering);
  body_of_all();
  __builtin_unreachable();
}

#if defined(__x86_64__) && !defined(QKV_FIBER_UCONTEXT)

void fiber_swap_stacks(void **save, void *restore);
__asm__(".text\n"
        ".globl fiber_swap_stacks\n"
        ".hidden fiber_swap_stacks\n"
        ".type fiber_swap_stacks, @function\n"
        "fiber_swap_stacks:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size fiber_swap_stacks, .-fiber_swap_stacks\n");

/* Six registers and the return address; the word above it keeps the stack aligned as after a call. */
static void *first_frame(unsigned char *high) {
  void **sp = (void **)(void *)high;
  *--sp = NULL;
  *--sp = (void *)(uintptr_t)first_run;
  for (int i = 0; i < 6; i++)
    *--sp = NULL;
  return sp;
}
#define FIBER_ASSEMBLER 1

#elif defined(__aarch64__) && !defined(QKV_FIBER_UCONTEXT)

void fiber_swap_stacks(void **save, void *restore);
__asm__(".text\n"
        ".globl fiber_swap_stacks\n"
        ".hidden fiber_swap_stacks\n"
        ".type fiber_swap_stacks, %function\n"
        "fiber_swap_stacks:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x2, sp\n"
        "  str x2, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".size fiber_swap_stacks, .-fiber_swap_stacks\n");

static void *first_frame(unsigned char *high) {
  void **sp = (void **)(void *)(high - 160);
  for (int i = 0; i < 20; i++)
    sp[i] = NULL;
  sp[11] = (void *)(uintptr_t)first_run; /* x30, the link register */
  return sp;
}
#define FIBER_ASSEMBLER 1

#else
#define FIBER_ASSEMBLER 0
#include <ucontext.h>
#endif

#if FIBER_ASSEMBLER

static void swap(fiber *from, fiber *to) {
  fiber_swap_stacks(&from->context, to->context);
}
static void prepare(fiber *f) {
  f->context = first_frame(f->stack_low + f->stack_size);
}
void fiber_free(fiber *f) {
  (void)f;
}

#else

static void swap(fiber *from, fiber *to) {
  if (!from->context)
    from->context = calloc(1, sizeof(ucontext_t));
  swapcontext(from->context, to->context);
}

static void prepare(fiber *f) {
  if (!f->context)
    f->context = calloc(1, sizeof(ucontext_t));
  ucontext_t *context = f->context;
  getcontext(context);
  context->uc_stack.ss_sp = f->stack_low;
  context->uc_stack.ss_size = f->stack_size;
  context->uc_link = NULL;
  makecontext(context, first_run, 0);
}

void fiber_free(fiber *f) {
  free(f->context);
  f->context = NULL;
}

#endif

void fiber_start(fiber *f, const fiber_stacks *stacks, int index, void (*body)(void)) {
  size_t guard = stacks->stride - stacks->usable;
  f->stack_low = stacks->base + stacks->stride * (size_t)index + guard;
  f->stack_size = stacks->usable;
  f->sanitizer_state = NULL;
  forget_frames(f);
  prepare(f);
  body_of_all = body;
}

void fiber_switch(fiber *from, fiber *to) {
  entering = to;
  announce_switch(from, to, false);
  swap(from, to);
  announce_arrival(from);
}

void fiber_leave(fiber *from, fiber *to) {
  entering = to;
  announce_switch(from, to, true);
  swap(from, to);
  __builtin_unreachable(); /* nobody switches back */
}
