/* emu_descriptor.c: decodes and checks wgmma's descriptors. See descriptor.h. */
#include "descriptor.h"

#include <inttypes.h>

matrix matrix_decode(uint64_t descriptor, bool mn_major) {
  static const int swizzles[] = {0, 128, 64, 32};
  uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4, stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
  matrix m = {.start = (uint32_t)(descriptor & 0x3fff) << 4,
              .swizzle = swizzles[descriptor >> 62],
              .eight_step = stride,
              .panel_step = leading,
              .mn_major = mn_major,
              .bits = descriptor};
  m.row_step = m.swizzle ? (uint32_t)m.swizzle : 16;
  m.panel = (int)m.row_step / 16;
  if (!m.swizzle && mn_major) { /* without a swizzle the two strides change places */
    m.eight_step = leading;
    m.panel_step = stride;
  }
  return m;
}

uint32_t matrix_chunk(const matrix *m, int row, int chunk) {
  uint32_t address = m->start + (uint32_t)(row / 8) * m->eight_step + (uint32_t)(row % 8) * m->row_step +
                     (uint32_t)(chunk / m->panel) * m->panel_step + (uint32_t)(chunk % m->panel) * 16;
  uint32_t mask = m->swizzle ? (uint32_t)m->swizzle / 16 - 1 : 0;
  return (address ^ (((address >> 7) & mask) << 4)) - EMU_SHARED_BASE;
}

static void bad(const matrix *m, const char *name, const char *what, unsigned value, unsigned wanted) {
  fault_raise(EMU_FAULT_DESCRIPTOR, "%s of wgmma (0x%016" PRIx64 "): %s %u, must be %u", name, m->bits, what, value,
              wanted);
}

static void check(const matrix *m, const char *name, int rows, int chunks) {
  if (m->bits >> 49 & 7)
    bad(m, name, "a base offset of", (unsigned)(m->bits >> 49 & 7), 0);
  if (m->bits & UINT64_C(0x3ff1c000c000c000) & ~(UINT64_C(7) << 49))
    fault_raise(EMU_FAULT_DESCRIPTOR, "%s of wgmma (0x%016" PRIx64 "): bits are set that have no meaning", name,
                m->bits);
  if (!m->swizzle)
    return;
  unsigned width = (unsigned)m->swizzle, pattern = 8 * width, within = m->start % pattern;
  unsigned used = 16 * (unsigned)(chunks < m->panel ? chunks : m->panel);
  if (within >= width)
    bad(m, name, "it starts in the middle of a swizzle pattern, at byte", within, 0);
  if (within + used > width)
    bad(m, name, "the row ends behind the swizzle, at byte", within + used, width);
  if (rows > 8 && (m->eight_step == 0 || m->eight_step % pattern))
    bad(m, name, "a stride from eight rows to the next eight that is no multiple of the pattern:", m->eight_step,
        pattern);
  if (chunks > m->panel && (m->panel_step == 0 || m->panel_step % pattern))
    bad(m, name, "a leading stride that is no multiple of the pattern:", m->panel_step, pattern);
}

void matrix_read(const matrix *m, const emu_actor *actor, const char *name, int first_row, int rows, int first_chunk,
                 int chunks) {
  check(m, name, first_row + rows, first_chunk + chunks);
  for (int row = first_row; row < first_row + rows; row++)
    for (int chunk = first_chunk; chunk < first_chunk + chunks; chunk++) {
      uint32_t offset = effect_shared(matrix_chunk(m, row, chunk) + EMU_SHARED_BASE, 16, 16, "wgmma");
      shadow_read(actor, offset, 16);
      int layout = shadow_layout(machine_place(), offset);
      if (layout && layout != m->swizzle + 1)
        fault_raise(EMU_FAULT_DESCRIPTOR,
                    "%s of wgmma (0x%016" PRIx64
                    ") has a swizzle of %d bytes, but the copy that wrote offset %u had %d",
                    name, m->bits, m->swizzle, (unsigned)offset, layout - 1);
    }
}
