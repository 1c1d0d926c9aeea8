/* qkv_spec.c: specs for the user: load, check, ask. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_internal.h"

enum { FILE_LIMIT = 4 << 20 }; /* bytes read of a file; the parser's own limit is lower and gives the message */

/* The whole file, into t. */
static qkv_status read_file(const char *path, text *t) {
  FILE *f = fopen(path, "rbe");
  char piece[8192];
  size_t n;
  if (!f)
    return error_set(QKV_IO, "cannot open spec '%s': %s", path, strerror(errno));
  while (t->size < FILE_LIMIT && (n = fread(piece, 1, sizeof piece, f)) > 0)
    text_add(t, piece, n);
  int failed = ferror(f), error = errno;
  fclose(f);
  if (failed)
    return error_set(QKV_IO, "cannot read spec '%s': %s", path, strerror(error));
  return t->failed ? error_set(QKV_OUT_OF_MEMORY, "out of memory") : QKV_OK;
}

/* Parses; the message of a failure is all diagnostics. d's arena is the caller's. */
static qkv_status parse(const char *file, const char *bytes, size_t size, int json, arena *memory, spec **out) {
  diags d;
  text message = {0};
  if (!ARENA_TRY(memory))
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  diags_init(&d, memory, file, bytes, size);
  if (spec_parse(bytes, size, &d, out))
    return QKV_OK;
  if (d.count == 0)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (json)
    diags_json(&d, &message);
  else
    diags_print(&d, &message);
  qkv_status status = error_set(QKV_BAD_SPEC, "%s", message.bytes ? message.bytes : "bad spec");
  text_free(&message);
  return status;
}

qkv_status qkv_spec_check(const char *path_or_text, int json, qkv_spec **out) {
  if (out)
    *out = NULL;
  if (!path_or_text || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", out ? "path_or_text" : "out");
  int is_text = strchr(path_or_text, '\n') != NULL;
  text bytes = {0};
  qkv_status status = QKV_OK;
  if (is_text)
    text_puts(&bytes, path_or_text);
  else
    status = read_file(path_or_text, &bytes);
  qkv_spec *s = calloc(1, sizeof *s);
  arena *memory = arena_new();
  if (status == QKV_OK && (!s || !memory || bytes.failed))
    status = error_set(QKV_OUT_OF_MEMORY, "out of memory");
  if (status == QKV_OK)
    status =
        parse(is_text ? "<text>" : path_or_text, bytes.bytes ? bytes.bytes : "", bytes.size, json, memory, &s->parsed);
  arena_free(memory);
  text_free(&bytes);
  if (status != QKV_OK) {
    free(s);
    return status;
  }
  s->uses = 1;
  *out = s;
  return QKV_OK;
}

qkv_status qkv_spec_load(qkv_engine *engine, const char *path_or_text, qkv_spec **out) {
  (void)engine;
  return qkv_spec_check(path_or_text, 0, out);
}

void spec_retain(const qkv_spec *s) {
  ((qkv_spec *)(uintptr_t)s)->uses++;
}

void qkv_spec_free(qkv_spec *s) {
  if (!s || --s->uses > 0)
    return;
  spec_free(s->parsed);
  free(s);
}

qkv_dtype dtype_of_spec(spec_dtype t) {
  static const qkv_dtype dtypes[DTYPE_COUNT] = {[DTYPE_F16] = QKV_F16,
                                                [DTYPE_BF16] = QKV_BF16,
                                                [DTYPE_F32] = QKV_F32,
                                                [DTYPE_E4M3] = QKV_E4M3,
                                                [DTYPE_E5M2] = QKV_E5M2};
  return dtypes[t];
}

sequence_layout spec_sequence_layout(const spec *s) {
  static const qkv_layout layouts[] = {[LAYOUT_DENSE] = QKV_DENSE,
                                       [LAYOUT_PADDED] = QKV_PADDED,
                                       [LAYOUT_RAGGED] = QKV_RAGGED,
                                       [LAYOUT_PAGED] = QKV_PAGED};
  return (sequence_layout){.q = layouts[s->layout_q],
                           .kv = layouts[s->layout_kv],
                           .page_size = s->page_size,
                           .page_order = s->page_order == PAGE_HND ? QKV_PAGE_HND : QKV_PAGE_NHD,
                           .page_table = s->page_table == PAGE_TABLE_CSR ? QKV_PAGE_TABLE_CSR : QKV_PAGE_TABLE_ROWS};
}

qkv_dtype dtype_of_param(param_type t) {
  static const qkv_dtype dtypes[] = {[PARAM_I32] = QKV_I32,
                                     [PARAM_F32] = QKV_F32,
                                     [PARAM_F16] = QKV_F16,
                                     [PARAM_BF16] = QKV_BF16,
                                     [PARAM_BOOL] = QKV_BOOL};
  return dtypes[t];
}

void spec_extents(const spec *s, int n, int64_t batch, int64_t len_q, int64_t len_k, int64_t shape[4]) {
  expr_env env = {.symbol = {[EXPR_B] = batch, [EXPR_LEN_Q] = len_q, [EXPR_LEN_K] = len_k}};
  env.symbol[EXPR_H] = s->heads_q;
  env.symbol[EXPR_HK] = s->heads_kv;
  for (int d = 0; d < s->params[n].rank; d++)
    shape[d] = (int64_t)expr_eval(s->params[n].shape[d], &env);
}

void qkv_spec_get_info(const qkv_spec *handle, qkv_spec_info *out) {
  static const spec none = {.name = ""};
  const spec *s = handle ? handle->parsed : &none;
  const qkv_spec_info info = {.name = s->name,
                              .heads_q = s->heads_q,
                              .heads_kv = s->heads_kv,
                              .dim_qk = s->dim_qk,
                              .dim_v = s->dim_v,
                              .dtype_q = dtype_of_spec(s->dtype_q),
                              .dtype_kv = dtype_of_spec(s->dtype_kv),
                              .dtype_out = dtype_of_spec(s->dtype_out),
                              .wants_lse = (s->outputs & OUTPUT_LSE) != 0,
                              .wants_lse_with_sink = (s->outputs & OUTPUT_LSE_WITH_SINK) != 0,
                              .has_sink = s->sink != SINK_NONE,
                              .nparams = s->nparams,
                              .nworkloads = s->nworkloads,
                              .layout_q = spec_sequence_layout(s).q,
                              .layout_kv = spec_sequence_layout(s).kv,
                              .page_size = s->page_size,
                              .page_order = spec_sequence_layout(s).page_order,
                              .page_table = spec_sequence_layout(s).page_table,
                              .has_kv_scale = s->kv_scale != KV_SCALE_NONE,
                              .has_append = s->append.given};
  struct_give(out, &info, sizeof info, "out");
}

static qkv_status check_number(const qkv_spec *s, int n, int count, const char *what) {
  if (!s)
    return error_set(QKV_INVALID_ARGUMENT, "spec is NULL");
  if (n < 0 || n >= count)
    return error_set(QKV_INVALID_ARGUMENT, "no %s %d: '%s' has %d", what, n, s->parsed->name, count);
  return QKV_OK;
}

qkv_status qkv_spec_get_param(const qkv_spec *s, int n, qkv_param_info *out) {
  qkv_status status = check_number(s, n, s ? s->parsed->nparams : 0, "parameter");
  if (status != QKV_OK)
    return status;
  const expr_param *p = &s->parsed->params[n];
  const qkv_param_info info = {.name = p->name, .dtype = dtype_of_param(p->type), .rank = p->rank};
  return struct_give(out, &info, sizeof info, "out");
}

qkv_status qkv_spec_param_shape(const qkv_spec *s, int n, int64_t batch, int64_t len_q, int64_t len_k,
                                int64_t shape[4]) {
  qkv_status status = check_number(s, n, s ? s->parsed->nparams : 0, "parameter");
  if (status == QKV_OK)
    spec_extents(s->parsed, n, batch, len_q, len_k, shape);
  return status;
}

qkv_status qkv_spec_get_workload(const qkv_spec *s, int n, qkv_workload *out) {
  qkv_status status = check_number(s, n, s ? s->parsed->nworkloads : 0, "workload");
  if (status != QKV_OK)
    return status;
  const spec_workload *w = &s->parsed->workloads[n];
  const qkv_workload workload = {.name = w->name, .batch = w->batch, .len_q = w->len_q, .len_k = w->len_k};
  return struct_give(out, &workload, sizeof workload, "out");
}

qkv_status qkv_spec_canonical(const qkv_spec *s, char **out) {
  text t = {0};
  if (!s || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", s ? "out" : "spec");
  spec_canonical(s->parsed, &t);
  return text_give(&t, out);
}

qkv_status qkv_spec_json(const qkv_spec *s, char **out) {
  text t = {0};
  if (!s || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", s ? "out" : "spec");
  spec_json(s->parsed, &t);
  return text_give(&t, out);
}

qkv_status qkv_json_schema(char **out) {
  text t = {0};
  if (!out)
    return error_set(QKV_INVALID_ARGUMENT, "out is NULL");
  spec_json_schema(&t);
  return text_give(&t, out);
}
