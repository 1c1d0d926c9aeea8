/* arena.c: memory of one owner, handed out from a list of growing blocks and freed all at once. */
#include "arena.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

struct arena_block {
  arena_block *next;
  size_t size, used; /* of `bytes` */
  _Alignas(max_align_t) unsigned char bytes[];
};

enum { FIRST_BLOCK = 4096, LARGEST_BLOCK = 1 << 16 };

void *(*arena_malloc)(size_t size) = malloc;

arena *arena_new(void) {
  arena *a = arena_malloc(sizeof *a);
  if (a)
    memset(a, 0, sizeof *a);
  return a;
}

void arena_free(arena *a) {
  if (!a)
    return;
  for (arena_block *block = a->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
  free(a);
}

static _Noreturn void out_of_memory(arena *a) {
  longjmp(a->out_of_memory, 1);
}

/* Puts a block with room for `size` bytes in front. A block grows to twice its predecessor, so that small specs stay
 * small and large ones need few calls; an object larger than that gets a block of its own size. */
static arena_block *add_block(arena *a, size_t size) {
  size_t room = FIRST_BLOCK;
  if (a->blocks)
    room = a->blocks->size < LARGEST_BLOCK ? 2 * a->blocks->size : LARGEST_BLOCK;
  if (room < size)
    room = size;
  if (room > SIZE_MAX - sizeof(arena_block))
    out_of_memory(a);
  arena_block *block = arena_malloc(sizeof *block + room);
  if (!block)
    out_of_memory(a);
  *block = (arena_block){.next = a->blocks, .size = room};
  a->blocks = block;
  return block;
}

void *arena_alloc(arena *a, size_t size) {
  const size_t alignment = _Alignof(max_align_t);
  if (size > SIZE_MAX - alignment)
    out_of_memory(a);
  size = size ? (size + alignment - 1) / alignment * alignment : alignment;
  arena_block *block = a->blocks;
  if (!block || block->size - block->used < size)
    block = add_block(a, size);
  void *result = block->bytes + block->used;
  block->used += size;
  return memset(result, 0, size);
}

char *arena_copy(arena *a, const char *bytes, size_t length) {
  if (length == SIZE_MAX)
    out_of_memory(a);
  char *copy = arena_alloc(a, length + 1);
  if (length)
    memcpy(copy, bytes, length);
  return copy;
}

char *arena_vprintf(arena *a, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  int length = text_vsnprintf(NULL, 0, format, args);
  if (length < 0) {
    va_end(again);
    out_of_memory(a);
  }
  char *result = arena_alloc(a, (size_t)length + 1);
  text_vsnprintf(result, (size_t)length + 1, format, again);
  va_end(again);
  return result;
}

char *arena_printf(arena *a, const char *format, ...) {
  va_list args;
  va_start(args, format);
  char *result = arena_vprintf(a, format, args);
  va_end(args);
  return result;
}
