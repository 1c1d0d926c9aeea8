/* emu_mutants.h: generated sources with one textual edit each, which the emulator must name by its kind. */
#ifndef TESTS_EMU_MUTANTS_H
#define TESTS_EMU_MUTANTS_H

#include "emu_fixture.h"

#include "gen.h"

/* Every occurrence of `from` becomes `to`. kinds: what the emulator may call it; says: what the message also holds. */
typedef struct mutant {
  const char *fault, *schedule, *from, *to, *kinds, *says;
} mutant;

/* generate: the kernel of a mask and a schedule. run: what is compiled, once. seeds: orders that are tried. */
typedef struct mutant_harness {
  gen_kernel *(*generate)(const char *mask, const char *schedule);
  qkv_status (*run)(const manifest *m, uint64_t seed);
  int seeds;
} mutant_harness;

/* The generated source with every `from` replaced. NULL: there is none. */
static inline char *mutant_edited(const char *source, const char *from, const char *to) {
  text out = {0};
  int count = 0;
  for (const char *next; (next = strstr(source, from)) != NULL; source = next + strlen(from), count++) {
    text_add(&out, source, (size_t)(next - source));
    text_puts(&out, to);
  }
  text_puts(&out, source);
  if (count == 0)
    text_free(&out);
  return out.bytes;
}

/* The source without an edit is clean. */
static inline void mutants_check_clean(const mutant_harness *h, const char *mask, const char *schedule) {
  gen_kernel *k = h->generate(mask, schedule);
  assert_int_equal(fixture_compile(k->source.bytes), 0);
  for (int seed = 0; seed < h->seeds; seed++)
    if (h->run(&k->manifest, (uint64_t)seed))
      fail_msg("%s, %s, seed %d: %s", mask, schedule, seed, error_message());
  image_free(&fixture_image);
  gen_kernel_free(k);
}

/* How many of the seeds report the fault; -1 after a report of something else. */
static inline int mutant_seeds_that_tell(const mutant_harness *h, const mutant *m, const gen_kernel *k) {
  int told = 0;
  for (int seed = 0; seed < h->seeds; seed++) {
    qkv_status status = h->run(&k->manifest, (uint64_t)seed);
    if (status == QKV_OK)
      continue;
    if (!fixture_names(error_message(), m->kinds) || !strstr(error_message(), m->says)) {
      print_error("%s, seed %d: \"%s\", should say \"emu: %s: ... %s\"\n", m->fault, seed, error_message(), m->kinds,
                  m->says);
      return -1;
    }
    told++;
  }
  if (told == 0)
    print_error("%s: no fault in %d seeds\n", m->fault, h->seeds);
  return told;
}

static inline void mutants_check(const mutant_harness *h, const mutant *table, int count, const char *mask) {
  int wrong = 0, told = 0;
  for (int n = 0; n < count; n++) {
    const mutant *m = &table[n];
    gen_kernel *k = h->generate(mask, m->schedule);
    char *source = mutant_edited(k->source.bytes, m->from, m->to);
    if (!source) {
      print_error("%s: the source no longer has \"%s\"\n", m->fault, m->from);
      wrong++;
    } else {
      assert_int_equal(fixture_compile(source), 0);
      int seeds = mutant_seeds_that_tell(h, m, k);
      wrong += seeds <= 0;
      told += seeds;
      image_free(&fixture_image);
      free(source);
    }
    gen_kernel_free(k);
  }
  print_message("%d mutants, named in %d of %d runs\n", count, told, count * h->seeds);
  assert_int_equal(wrong, 0);
}

#endif
