/* arena.h: one-owner memory for everything a spec, an expression or a kernel description is made of.
 *
 * All objects of one arena live and die together. An allocation never returns NULL: when memory runs out, control goes
 * back to the ARENA_TRY of the entry point that owns the arena, which reports GEN_NO_MEMORY and frees it. So the code
 * between needs no checks, as in Lua. An arena belongs to one thread at a time. */
#ifndef GEN_ARENA_H
#define GEN_ARENA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

typedef struct arena_block arena_block;

typedef struct arena {
  arena_block *blocks;     /* newest first */
  jmp_buf out_of_memory;   /* set by ARENA_TRY */
} arena;

/* True on the first pass; false when an allocation below it failed. Use as `if (!ARENA_TRY(a)) { arena_free(a); ... }`.
 * Locals changed between the two passes must be volatile, as setjmp demands. */
#define ARENA_TRY(a) (setjmp((a)->out_of_memory) == 0)

/* A new, empty arena, or NULL when memory is out. */
arena *arena_new(void);
/* Frees the arena and all it holds. NULL is allowed. */
void arena_free(arena *a);
/* `size` zeroed bytes, aligned for any type. */
void *arena_alloc(arena *a, size_t size);
/* A zero-terminated copy of `length` bytes. */
char *arena_copy(arena *a, const char *bytes, size_t length);
/* printf into the arena. */
char *arena_printf(arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *arena_vprintf(arena *a, const char *format, va_list args);

/* The allocator behind every arena; tests replace it to fail at the n-th call. */
extern void *(*arena_malloc)(size_t size);

#endif
