/* manifest.c: the text form of a manifest and the sizes it rules.
 *
 *   manifest 5
 *   family attention_forward_sm80
 *   variant 0123456789abcdef0123456789abcdef
 *   schedule tile_m=128,tile_n=64          ("-" when the family has no axes)
 *   arch sm_80
 *   dilation -                             (or 4, or param.NAME)
 *   aligned16 1
 *   params_size 256
 *   launch ENTRY BLOCK SHARED_BYTES BLOCKS_PER_SM CLUSTER PLANS EARLY FACTOR...   a factor is len_q/128
 *   region NAME BYTES ZEROED FACTOR...
 *   field NAME TYPE OFFSET SOURCE
 *   end
 *
 * Reading is safe on any bytes: a tolerant parser fills the struct, then the struct is checked, written again and
 * compared with the input, so that nothing but manifest_write's own output is accepted. */
#include "manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const size_names[SIZE_COUNT] = {"one",      "batch",  "len_q", "len_k",  "tokens_q", "heads_q",
                                                   "heads_kv", "dim_qk", "dim_v", "sm_count",
                                                   "dilation", "residues", "residue_rows"};
static const char *const type_names[] = {"pointer", "i64", "i32", "f32", "tensor_map", "states"};
static const int type_sizes[] = {8, 8, 4, 4, 128, sizeof(manifest_states)};
static const int type_alignments[] = {8, 8, 4, 4, 64, 8};
enum { TYPE_COUNT = 6, REGION_ALIGNMENT = 256, MAX_SIZE = 1 << 30 };

/* ---- sizes ---- */

int field_type_size(field_type t) {
  return type_sizes[t];
}

const char *field_type_name(field_type t) {
  return type_names[t];
}

int field_type_find(const char *name) {
  for (int n = 0; n < TYPE_COUNT; n++)
    if (strcmp(name, type_names[n]) == 0)
      return n;
  return -1;
}

const char *manifest_size_name(manifest_size s) {
  return size_names[s];
}

int manifest_size_find(const char *name) {
  for (int n = 0; n < SIZE_COUNT; n++)
    if (strcmp(name, size_names[n]) == 0)
      return n;
  return -1;
}

void manifest_place_fields(manifest *m) {
  int offset = 0, widest = 8;
  for (int n = 0; n < m->nfields; n++) {
    int alignment = type_alignments[m->fields[n].type];
    offset = (offset + alignment - 1) / alignment * alignment;
    m->fields[n].offset = offset;
    offset += type_sizes[m->fields[n].type];
    widest = alignment > widest ? alignment : widest;
  }
  m->params_size = (offset + widest - 1) / widest * widest;
}

int64_t manifest_rule_value(const manifest_rule *rule, const int64_t sizes[SIZE_COUNT]) {
  int64_t product = 1;
  bool zero = false, overflow = false;
  for (int n = 0; n < rule->count; n++) {
    int64_t size = rule->factors[n].size == SIZE_ONE ? 1 : sizes[rule->factors[n].size], per = rule->factors[n].per;
    if (size < 0)
      return -1;
    zero = zero || size == 0;
    overflow = overflow || __builtin_mul_overflow(product, size / per + (size % per != 0), &product);
  }
  return zero ? 0 : overflow ? -1 : product;
}

int64_t manifest_workspace(const manifest *m, const int64_t sizes[SIZE_COUNT], int64_t offsets[MANIFEST_MAX_REGIONS]) {
  int64_t total = 0;
  for (int n = 0; n < m->nregions; n++) {
    int64_t count = manifest_rule_value(&m->regions[n].count, sizes), bytes;
    offsets[n] = total;
    if (count < 0 || __builtin_mul_overflow(count, (int64_t)m->regions[n].bytes, &bytes) ||
        __builtin_add_overflow(bytes, REGION_ALIGNMENT - 1, &bytes) ||
        __builtin_add_overflow(total, bytes / REGION_ALIGNMENT * REGION_ALIGNMENT, &total))
      return -1;
  }
  return total;
}

/* ---- writing ---- */

static void write_rule(const manifest_rule *rule, text *out) {
  for (int n = 0; n < rule->count; n++)
    text_printf(out, " %s/%d", size_names[rule->factors[n].size], rule->factors[n].per);
  text_puts(out, "\n");
}

void manifest_write(const manifest *m, text *out) {
  text_printf(out, "manifest %d\nfamily %s\nvariant %s\nschedule %s\narch %s\n", MANIFEST_FORMAT, m->family, m->variant_hash,
              *m->schedule ? m->schedule : "-", m->arch);
  text_printf(out, "dilation %s\naligned16 %d\nparams_size %d\n", *m->dilation ? m->dilation : "-", m->aligned16,
              m->params_size);
  for (int n = 0; n < m->nlaunches; n++) {
    const manifest_launch *l = &m->launches[n];
    text_printf(out, "launch %s %d %d %d %d %d %d", l->entry, l->block, l->shared_bytes, l->blocks_per_sm, l->cluster,
                l->plans, l->early);
    write_rule(&l->grid, out);
  }
  for (int n = 0; n < m->nregions; n++) {
    text_printf(out, "region %s %d %d", m->regions[n].name, m->regions[n].bytes, m->regions[n].zeroed);
    write_rule(&m->regions[n].count, out);
  }
  for (int n = 0; n < m->nfields; n++)
    text_printf(out, "field %s %s %d %s\n", m->fields[n].name, type_names[m->fields[n].type], m->fields[n].offset,
                m->fields[n].source);
  text_puts(out, "end\n");
}

/* ---- reading ---- */

typedef struct reader {
  const char *p, *end;
  bool bad;
} reader;

/* The next word of the line, copied; bad when there is none or it does not fit. */
static void read_word(reader *r, char *out, size_t size) {
  size_t length = 0;
  while (r->p < r->end && *r->p == ' ')
    r->p++;
  while (r->p + length < r->end && r->p[length] != ' ' && r->p[length] != '\n')
    length++;
  if (length == 0 || length >= size) {
    r->bad = true;
    out[0] = 0;
    return;
  }
  memcpy(out, r->p, length);
  out[length] = 0;
  r->p += length;
}

static int parse_int(reader *r, const char *word) {
  int value = 0;
  for (; *word && !r->bad; word++) {
    r->bad = *word < '0' || *word > '9' || value > MAX_SIZE / 10;
    value = r->bad ? 0 : 10 * value + (*word - '0');
  }
  return value;
}

static int read_number(reader *r) {
  char word[16];
  read_word(r, word, sizeof word);
  return parse_int(r, word);
}

static void read_rule(reader *r, manifest_rule *rule) {
  while (!r->bad && r->p < r->end && *r->p == ' ') {
    char word[64];
    read_word(r, word, sizeof word);
    char *slash = strchr(word, '/');
    if (!slash || rule->count == MANIFEST_MAX_FACTORS) {
      r->bad = true;
      return;
    }
    *slash = 0;
    int size = manifest_size_find(word), per = parse_int(r, slash + 1);
    if (size < 0 || per < 1)
      r->bad = true;
    else
      rule->factors[rule->count++] = (manifest_factor){(manifest_size)size, per};
  }
}

static void read_launch(reader *r, manifest *m) {
  if (m->nlaunches == MANIFEST_MAX_LAUNCHES) {
    r->bad = true;
    return;
  }
  manifest_launch *launch = &m->launches[m->nlaunches++];
  read_word(r, launch->entry, sizeof launch->entry);
  launch->block = read_number(r);
  launch->shared_bytes = read_number(r);
  launch->blocks_per_sm = read_number(r);
  launch->cluster = read_number(r);
  launch->plans = read_number(r);
  launch->early = read_number(r);
  read_rule(r, &launch->grid);
  r->bad = r->bad || launch->block < 1 || launch->cluster < 1 || launch->cluster > MANIFEST_MAX_CLUSTER ||
           launch->plans < 0 || launch->plans > 1 || launch->early < 0 || launch->early > 1;
}

static void read_region(reader *r, manifest *m) {
  if (m->nregions == MANIFEST_MAX_REGIONS) {
    r->bad = true;
    return;
  }
  manifest_region *region = &m->regions[m->nregions++];
  read_word(r, region->name, sizeof region->name);
  region->bytes = read_number(r);
  region->zeroed = read_number(r);
  read_rule(r, &region->count);
  r->bad = r->bad || region->bytes < 1 || region->zeroed > 2;
}

static void read_field(reader *r, manifest *m) {
  if (m->nfields == MANIFEST_MAX_FIELDS) {
    r->bad = true;
    return;
  }
  manifest_field *field = &m->fields[m->nfields++];
  char type[16];
  read_word(r, field->name, sizeof field->name);
  read_word(r, type, sizeof type);
  int number = field_type_find(type);
  r->bad = r->bad || number < 0;
  field->type = number < 0 ? FIELD_POINTER : (field_type)number;
  field->offset = read_number(r);
  read_word(r, field->source, sizeof field->source);
}

static void read_line(reader *r, manifest *m) {
  char key[16];
  read_word(r, key, sizeof key);
  if (strcmp(key, "manifest") == 0)
    r->bad = r->bad || read_number(r) != MANIFEST_FORMAT;
  else if (strcmp(key, "family") == 0)
    read_word(r, m->family, sizeof m->family);
  else if (strcmp(key, "variant") == 0)
    read_word(r, m->variant_hash, sizeof m->variant_hash);
  else if (strcmp(key, "schedule") == 0)
    read_word(r, m->schedule, sizeof m->schedule);
  else if (strcmp(key, "arch") == 0)
    read_word(r, m->arch, sizeof m->arch);
  else if (strcmp(key, "dilation") == 0)
    read_word(r, m->dilation, sizeof m->dilation);
  else if (strcmp(key, "aligned16") == 0)
    m->aligned16 = read_number(r) == 1;
  else if (strcmp(key, "params_size") == 0)
    m->params_size = read_number(r);
  else if (strcmp(key, "launch") == 0)
    read_launch(r, m);
  else if (strcmp(key, "region") == 0)
    read_region(r, m);
  else if (strcmp(key, "field") == 0)
    read_field(r, m);
  else if (strcmp(key, "end") != 0)
    r->bad = true;
  r->bad = r->bad || r->p >= r->end || *r->p != '\n';
  r->p++;
}

/* True when writing m gives exactly these bytes. */
static bool writes_as(const manifest *m, const char *bytes, size_t size) {
  text again = {0};
  manifest_write(m, &again);
  bool same = !again.failed && again.size == size && memcmp(again.bytes, bytes, size) == 0;
  text_free(&again);
  return same;
}

bool manifest_read(const char *bytes, size_t size, manifest *out) {
  manifest *m = calloc(1, sizeof *m);
  if (!m)
    return false;
  reader r = {bytes, bytes + size, false};
  while (!r.bad && r.p < r.end)
    read_line(&r, m);
  if (strcmp(m->schedule, "-") == 0)
    m->schedule[0] = 0;
  if (strcmp(m->dilation, "-") == 0)
    m->dilation[0] = 0;
  manifest_place_fields(m); /* offsets are determined by the types; others would not have been written */
  const bool good = !r.bad && m->nlaunches > 0 && writes_as(m, bytes, size);
  if (good)
    *out = *m;
  free(m);
  return good;
}
