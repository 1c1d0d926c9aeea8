/* spec_read.c: the plain fields of a spec and the relations between them. */
#include "spec_read.h"

#include <string.h>

#include "spec_check.h"

typedef struct reader {
  spec *spec;
  diags *diags;
  const tree_node *root;
} reader;

/* ---- Access ---- */

static const tree_node *get(const tree_node *mapping, const char *key) {
  return mapping && mapping->kind == TREE_MAPPING ? tree_get(mapping, key) : NULL;
}

static bool is_scalar(const tree_node *node) {
  return node && node->kind == TREE_SCALAR && !node->absent;
}

/* The value of a node or, without one, the default of the row; 0 where the row refuses it or there is neither. */
static int64_t integer(const char *path, const tree_node *node) {
  const schema_row *row = schema_find(path);
  const char *value = is_scalar(node) ? node->value : node ? NULL : row->fallback;
  int64_t result;
  return value && spec_integer(row, value, &result) ? result : 0;
}

/* The word's index in the row, -1 where the row refuses it or there is neither value nor default. */
static int word(const char *path, const tree_node *node) {
  const schema_row *row = schema_find(path);
  const char *value = is_scalar(node) ? node->value : node ? NULL : row->fallback;
  return value ? spec_word(row, value) : -1;
}

static diag_span start_of(const tree_node *node) {
  return node->kind == TREE_SCALAR ? node->at : (diag_span){node->at.offset, 1};
}

/* ---- attention ---- */

/* `key: n` or `key: {first: n, second: m}`. */
static void read_pair(const tree_node *node, const char *const paths[3], int *first, int *second) {
  if (is_scalar(node))
    *first = *second = (int)integer(paths[0], node);
  else if (node && node->kind == TREE_MAPPING) {
    *first = (int)integer(paths[1], get(node, strrchr(paths[1], '.') + 1));
    *second = (int)integer(paths[2], get(node, strrchr(paths[2], '.') + 1));
  }
}

static void read_heads(reader *r, const tree_node *node) {
  static const char *const paths[] = {"attention.heads", "attention.heads.q", "attention.heads.kv"};
  spec *s = r->spec;
  read_pair(node, paths, &s->heads_q, &s->heads_kv);
  if (s->heads_q == 0 || s->heads_kv == 0 || s->heads_q % s->heads_kv == 0)
    return;
  int below = s->heads_q / s->heads_kv * s->heads_kv;
  diag_add(r->diags, DIAG_CONFLICT, start_of(node), "%d query heads cannot share %d KV heads evenly", s->heads_q,
           s->heads_kv);
  if (below > 0)
    diag_hint(r->diags, "heads.q must be a multiple of heads.kv, such as %d or %d", below, below + s->heads_kv);
  else
    diag_hint(r->diags, "heads.q must be a multiple of heads.kv; are the two swapped?");
}

enum { DIM_LIMIT = 256 };

static void read_dim(reader *r, const tree_node *node) {
  static const char *const paths[] = {"attention.dim", "attention.dim.qk", "attention.dim.v"};
  static const int wide[][2] = {{320, 256}, {512, 512}, {576, 512}};
  spec *s = r->spec;
  read_pair(node, paths, &s->dim_qk, &s->dim_v);
  if (s->dim_qk == 0 || s->dim_v == 0 || (s->dim_qk <= DIM_LIMIT && s->dim_v <= DIM_LIMIT))
    return;
  for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
    if (s->dim_qk == wide[i][0] && s->dim_v == wide[i][1])
      return;
  diag_add(r->diags, DIAG_OUT_OF_RANGE, start_of(node), "head dimensions qk %d and v %d are not supported together",
           s->dim_qk, s->dim_v);
  diag_hint(r->diags, "each may be 8 to 256 in steps of 8; beyond that only the pairs 320/256, 512/512 and 576/512");
}

static bool is_fp8(int dtype) {
  return dtype == DTYPE_E4M3 || dtype == DTYPE_E5M2;
}

static void read_dtype(reader *r, const tree_node *node) {
  bool mapping = node && node->kind == TREE_MAPPING;
  int q = mapping ? word("attention.dtype.q", get(node, "q")) : word("attention.dtype", node);
  const tree_node *kv = get(node, "kv"), *out = get(node, "out");
  r->spec->dtype_q = q < 0 ? DTYPE_BF16 : (spec_dtype)q;
  int value = kv ? word("attention.dtype.kv", kv) : q;
  r->spec->dtype_kv = value < 0 ? DTYPE_BF16 : (spec_dtype)value;
  value = out ? word("attention.dtype.out", out) : is_fp8(q) ? DTYPE_BF16 : q;
  r->spec->dtype_out = value < 0 ? DTYPE_BF16 : (spec_dtype)value;
}

static void read_attention(reader *r, const tree_node *node) {
  spec *s = r->spec;
  read_heads(r, get(node, "heads"));
  read_dim(r, get(node, "dim"));
  read_dtype(r, get(node, "dtype"));
  int kv_scale = word("attention.kv_scale", get(node, "kv_scale"));
  s->kv_scale = kv_scale == KV_SCALE_PER_HEAD ? KV_SCALE_PER_HEAD : KV_SCALE_NONE;
  s->sink = word("attention.sink", get(node, "sink")) == SINK_PER_HEAD ? SINK_PER_HEAD : SINK_NONE;
  s->align = word("attention.align", get(node, "align")) == ALIGN_TOP_LEFT ? ALIGN_TOP_LEFT : ALIGN_BOTTOM_RIGHT;
  spec_read_expressions(s, node, r->diags);
}

/* ---- layout, outputs, deterministic ---- */

static void read_pages(spec *s, const tree_node *paged) {
  s->page_size = (int)integer("layout.kv.paged.page", get(paged, "page"));
  s->page_order = word("layout.kv.paged.order", get(paged, "order")) == PAGE_HND ? PAGE_HND : PAGE_NHD;
  int table = word("layout.kv.paged.table", get(paged, "table"));
  s->page_table = table == PAGE_TABLE_CSR ? PAGE_TABLE_CSR : PAGE_TABLE_ROWS;
}

static void read_layout(reader *r, const tree_node *node) {
  static const spec_layout layouts_q[] = {LAYOUT_DENSE, LAYOUT_RAGGED}; /* in the order of the row's words */
  spec *s = r->spec;
  const tree_node *q = get(node, "q"), *kv = get(node, "kv");
  bool paged = kv && kv->kind == TREE_MAPPING;
  int word_q = word("layout.q", q), layout_kv = paged ? LAYOUT_PAGED : word("layout.kv", kv);
  s->layout_q = word_q < 0 ? LAYOUT_DENSE : layouts_q[word_q];
  s->layout_kv = layout_kv < 0 ? LAYOUT_DENSE : (spec_layout)layout_kv;
  if (paged)
    read_pages(s, get(kv, "paged"));
  bool ragged_q = s->layout_q == LAYOUT_RAGGED, ragged_kv = s->layout_kv == LAYOUT_RAGGED;
  bool legal = ragged_q ? s->layout_kv != LAYOUT_DENSE : !ragged_kv;
  if (word_q < 0 || layout_kv < 0 || legal)
    return;
  diag_add(r->diags, DIAG_CONFLICT, start_of(ragged_q ? q : kv), "layout.%s is ragged but layout.%s is dense",
           ragged_q ? "q" : "kv", ragged_q ? "kv" : "q");
  diag_hint(r->diags, ragged_q ? "make layout.kv ragged, padded or paged"
                               : "make layout.q ragged too; keys behind dense queries are dense, padded or paged");
}

static void read_outputs(reader *r, const tree_node *node) {
  const schema_row *row = schema_find("outputs.[]");
  if (!node || node->kind != TREE_SEQUENCE) {
    r->spec->outputs = OUTPUT_O;
    return;
  }
  bool sure = true;
  for (const tree_entry *e = node->first; e; e = e->next) {
    int output = is_scalar(e->value) ? spec_word(row, e->value->value) : -1;
    unsigned bit = output < 0 ? 0 : 1u << output;
    if (r->spec->outputs & bit)
      diag_add(r->diags, DIAG_DUPLICATE_KEY, e->value->at, "output '%s' is listed twice", e->value->value);
    if (bit == OUTPUT_LSE_WITH_SINK && r->spec->sink == SINK_NONE) {
      diag_add(r->diags, DIAG_CONFLICT, e->value->at, "output lse_with_sink needs a sink, and attention.sink is none");
      diag_hint(r->diags, "ask for lse, or add `sink: per_head` to attention");
    }
    r->spec->outputs |= bit;
    sure = sure && bit;
  }
  if (sure && !(r->spec->outputs & OUTPUT_O)) {
    diag_add(r->diags, DIAG_CONFLICT, start_of(node), "outputs lacks o");
    diag_hint(r->diags, "every kernel writes o: `outputs: [o, lse]`");
  }
}

/* ---- schedule, workloads ---- */

static void read_schedule(reader *r, const char *phase, const tree_node *node) {
  if (!node || node->kind != TREE_MAPPING)
    return;
  spec *s = r->spec;
  for (const tree_entry *e = node->first; e; e = e->next) {
    const char *key = e->key->value;
    bool is_phase = !phase && (strcmp(key, "prefill") == 0 || strcmp(key, "decode") == 0);
    if (is_phase)
      read_schedule(r, key, e->value);
    else if (!spec_is_name(key, SPEC_NAME_MAX - 1)) {
      diag_add(r->diags, DIAG_UNKNOWN_KEY, e->key->at, "%s cannot name a schedule axis", spec_quote(s->memory, key));
      diag_hint(r->diags, "axes are words of a-z 0-9 _, such as tile_m");
    } else if (s->nschedule == SPEC_MAX_SCHEDULE) {
      diag_add(r->diags, DIAG_OUT_OF_RANGE, e->key->at, "the schedule has more than %d fields", SPEC_MAX_SCHEDULE);
      return;
    } else if (is_scalar(e->value))
      s->schedule[s->nschedule++] = (spec_schedule_field){phase, key, e->value->value, e->key->at};
  }
}

static void read_workloads(reader *r, const tree_node *node) {
  if (!node || node->kind != TREE_SEQUENCE || node->count > SPEC_MAX_WORKLOADS)
    return;
  spec *s = r->spec;
  for (const tree_entry *e = node->first; e; e = e->next) {
    const tree_node *name = get(e->value, "name");
    spec_workload *w = &s->workloads[s->nworkloads++];
    w->name = is_scalar(name) ? name->value : "";
    w->batch = integer("workloads.[].batch", get(e->value, "batch"));
    w->len_q = integer("workloads.[].q", get(e->value, "q"));
    w->len_k = integer("workloads.[].kv", get(e->value, "kv"));
    for (int i = 0; i < s->nworkloads - 1 && *w->name; i++)
      if (strcmp(s->workloads[i].name, w->name) == 0) {
        diag_add(r->diags, DIAG_DUPLICATE_KEY, name->at, "two workloads are named %s", spec_quote(s->memory, w->name));
        break;
      }
  }
}

void spec_read(spec *s, const tree_node *root, diags *d) {
  if (root->kind != TREE_MAPPING)
    return;
  reader r = {s, d, root};
  const tree_node *name = get(root, "name");
  s->name = is_scalar(name) ? name->value : "";
  read_attention(&r, get(root, "attention"));
  read_layout(&r, get(root, "layout"));
  spec_read_append(s, root, d);
  read_outputs(&r, get(root, "outputs"));
  int deterministic = word("deterministic", get(root, "deterministic"));
  s->deterministic = deterministic < 0 ? DETERMINISTIC_NO : (spec_deterministic)deterministic;
  read_schedule(&r, NULL, get(root, "schedule"));
  read_workloads(&r, get(root, "workloads"));
}
