/* emu_mutants.h: generated sources with one textual edit each, which the emulator must name by its kind. */
#ifndef TESTS_EMU_MUTANTS_H
#define TESTS_EMU_MUTANTS_H

#include "emu_fixture.h"

#include "gen.h"

/* Every occurrence of `from` becomes `to`. kinds: what the emulator may call it; says: what the message also holds. */
typedef struct mutant {
  const char *fault, *schedule, *from, *to, *kinds, *says;
} mutant;

/* What a parameter of the kernel has, by its source in the manifest. */
typedef struct mutant_value {
  const char *source;
  int64_t number;    /* of a number; rows of a tensor with a map, whose source is its letter */
  size_t size;       /* of a pointer's memory; 0: a number */
  const void *bytes; /* what is there before the call; NULL: poison */
} mutant_value;

/* A mask and a schedule. */
typedef struct mutant_kind {
  const char *mask, *schedule;
} mutant_kind;

/* One family on one small problem. */
typedef struct mutant_harness {
  const char *spec, *family; /* the spec with %s in place of its mask */
  int heads, dim;            /* of tensors with maps: bf16 [rows, heads, dim] */
  int grid, grid_behind;     /* blocks of the first launch, at least a cluster; of those behind it */
  const mutant_value *values;
  int nvalues;
} mutant_harness;

enum { MUTANT_SEEDS = 4, MUTANT_VALUES = 32 };

/* ---- Generating and running ---- */

static inline gen_kernel *mutant_generate(const mutant_harness *h, const char *mask, const char *schedule) {
  arena *memory = arena_new();
  diags d;
  spec *s = NULL;
  gen_kernel *k = NULL;
  gen_error error = {0};
  text yaml = {0};
  text_printf(&yaml, h->spec, mask);
  diags_init(&d, memory, "<test>", yaml.bytes, yaml.size);
  assert_true(spec_parse(yaml.bytes, yaml.size, &d, &s));
  gen_request request = {.arch = arch_find("sm_90a"), .family = h->family, .schedule = schedule};
  if (gen_render(s, &request, &k, &error) != GEN_OK)
    fail_msg("%s: %s", schedule, error.message);
  spec_free(s);
  arena_free(memory);
  text_free(&yaml);
  return k;
}

/* bf16 numbers from 0.5 to 2, either sign. */
static inline void mutant_fill(uint16_t *to, int count, uint64_t *random) {
  for (int n = 0; n < count; n++)
    to[n] = (uint16_t)(0x3f00 | (fixture_random(random) & 0x80ff));
}

/* A map of a tensor as the runtime makes it: columns, rows, heads, batch. shape: the part of the source behind the
 * letter. */
static inline void mutant_map(const mutant_harness *h, const fixture *f, void *base, int64_t rows, const char *shape,
                              unsigned char *to) {
  device_tensor_map map = {.base = base,
                           .element_bytes = 2,
                           .rank = 4,
                           .extent = {h->dim, rows, h->heads, 1},
                           .stride_bytes = {2 * h->heads * h->dim, 2 * h->dim, 16},
                           .box = {1, 1, 1, 1}};
  assert_int_equal(sscanf(shape, ".map.%d.%d.%d", &map.box[0], &map.box[1], &map.swizzle), 3);
  assert_int_equal(device_emu.tensor_map(f->d, &map, to), QKV_OK);
}

/* The parameter struct by the manifest; memory[n] is that of value n. */
static inline void mutant_params(const mutant_harness *h, const fixture *f, const manifest *m, void *const *memory,
                                 unsigned char *params) {
  for (int n = 0; n < m->nfields; n++) {
    const manifest_field *field = &m->fields[n];
    const size_t length = field->type == FIELD_TENSOR_MAP ? 1 : strlen(field->source);
    int v = 0;
    while (v < h->nvalues &&
           (strlen(h->values[v].source) != length || strncmp(field->source, h->values[v].source, length) != 0))
      v++;
    if (v == h->nvalues)
      fail_msg("no value for the parameter %s", field->source);
    unsigned char *to = params + field->offset;
    const void *from = field->type == FIELD_POINTER ? (const void *)&memory[v] : &h->values[v].number;
    if (field->type == FIELD_TENSOR_MAP)
      mutant_map(h, f, memory[v], h->values[v].number, field->source + length, to);
    else
      memcpy(to, from, (size_t)field_type_size(field->type));
  }
}

/* Runs the compiled source once. */
static inline qkv_status mutant_run(const mutant_harness *h, const manifest *m, uint64_t seed) {
  static _Alignas(64) unsigned char params[MANIFEST_MAX_PARAMS];
  void *memory[MUTANT_VALUES] = {NULL};
  fixture f = fixture_open(seed);
  assert_true(h->nvalues <= MUTANT_VALUES);
  for (int n = 0; n < h->nvalues; n++)
    if (h->values[n].size)
      memory[n] = fixture_upload(&f, h->values[n].bytes, h->values[n].size);
  mutant_params(h, &f, m, memory, params);
  qkv_status status = QKV_OK;
  for (int n = 0; n < m->nlaunches && status == QKV_OK; n++) {
    const manifest_launch *l = &m->launches[n];
    device_kernel *k;
    assert_int_equal(device_emu.kernel(f.d, f.m, l->entry, l->block, l->shared_bytes, l->cluster, &k), QKV_OK);
    const int first = h->grid > l->cluster ? h->grid : l->cluster;
    const device_launch launch = {.grid = n == 0 ? first : h->grid_behind,
                                  .block = l->block,
                                  .shared_bytes = l->shared_bytes,
                                  .params = params,
                                  .params_size = (size_t)m->params_size,
                                  .cluster = l->cluster,
                                  .early = l->early == 1};
    status = device_emu.launch(f.d, k, &launch, NULL);
  }
  for (int n = 0; n < h->nvalues; n++)
    if (memory[n])
      device_emu.free(f.d, memory[n]);
  fixture_close(&f);
  return status;
}

/* ---- Checks ---- */

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

/* Sources without an edit are clean. */
static inline void mutants_check_clean(const mutant_harness *h, const mutant_kind *kinds, int count) {
  for (int n = 0; n < count; n++) {
    gen_kernel *k = mutant_generate(h, kinds[n].mask, kinds[n].schedule);
    assert_int_equal(fixture_compile(k->source.bytes), 0);
    for (int seed = 0; seed < MUTANT_SEEDS; seed++)
      if (mutant_run(h, &k->manifest, (uint64_t)seed))
        fail_msg("%s, %s, seed %d: %s", kinds[n].mask, kinds[n].schedule, seed, error_message());
    image_free(&fixture_image);
    gen_kernel_free(k);
  }
}

/* How many of the seeds report the fault; -1 after a report of something else. */
static inline int mutant_seeds_that_tell(const mutant_harness *h, const mutant *m, const gen_kernel *k) {
  int told = 0;
  for (int seed = 0; seed < MUTANT_SEEDS; seed++) {
    qkv_status status = mutant_run(h, &k->manifest, (uint64_t)seed);
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
    print_error("%s: no fault in %d seeds\n", m->fault, MUTANT_SEEDS);
  return told;
}

static inline void mutants_check(const mutant_harness *h, const mutant *table, int count, const char *mask) {
  int wrong = 0, told = 0;
  for (int n = 0; n < count; n++) {
    const mutant *m = &table[n];
    gen_kernel *k = mutant_generate(h, mask, m->schedule);
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
  print_message("%d mutants, named in %d of %d runs\n", count, told, count * MUTANT_SEEDS);
  assert_int_equal(wrong, 0);
}

#endif
