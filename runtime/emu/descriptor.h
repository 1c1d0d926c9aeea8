/* descriptor.h: wgmma's 64-bit descriptions of matrices in shared memory. Private to the emulator.
 *
 * A matrix is addressed by 16-byte chunks, 8 elements: K-major, by row (of M or N) and chunk of K; MN-major, by row of
 * K and chunk of M or N. Rows come in eights. With a swizzle of S bytes a row of a panel has S bytes, eight rows make a
 * pattern, and the chunk's address bits are mixed as tensor copies do. */
#ifndef RUNTIME_EMU_DESCRIPTOR_H
#define RUNTIME_EMU_DESCRIPTOR_H

#include "engine.h"

typedef struct matrix {
  uint32_t start;      /* shared address */
  int swizzle;         /* bytes, 0: none */
  uint32_t row_step;   /* from row to row of eight, bytes */
  uint32_t eight_step; /* from eight rows to the next eight */
  uint32_t panel_step; /* from panel to panel of `panel` chunks */
  int panel;
  bool mn_major;
  uint64_t bits;
} matrix;

matrix matrix_decode(uint64_t descriptor, bool mn_major);
/* Offset in the arena of a chunk. */
uint32_t matrix_chunk(const matrix *m, int row, int chunk);
/* Checks the descriptor and notes the read of `chunks` chunks of each of some rows. `name`: A or B. */
void matrix_read(const matrix *m, const emu_actor *actor, const char *name, int first_row, int rows, int first_chunk,
                 int chunks);

#endif
