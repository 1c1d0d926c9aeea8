/* cli_problem.c: sizes and tensors of one attention problem.
 * Invariant: host tensors are contiguous and have the shapes that qkv.h states for the chosen sizes. */
#include "cli_problem.h"

#include "cli_sequences.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Sizes ---- */

double problem_dense_flops(const problem *p) {
  const bool lengths = p->slots[SLOT_SEQLENS_K].host.data || p->slots[SLOT_CU_SEQLENS_K].host.data;
  const double pairs = lengths ? sequences_pairs(p) : (double)p->batch * (double)p->len_q * (double)p->len_k;
  return 2.0 * p->info.heads_q * pairs * (p->info.dim_qk + p->info.dim_v);
}

/* The extents of batch and length in a q, k or v file. */
static int file_size(const char *path, int64_t *batch, int64_t *length) {
  npy_array array;
  char error[NPY_ERROR_SIZE];
  if (!npy_read(path, &array, error)) {
    cli_error("%s: %s", path, error);
    return EXIT_USAGE;
  }
  int rank = array.rank;
  if (rank == 3 || rank == 4) {
    *batch = *batch < 0 ? (rank == 4 ? array.shape[0] : 1) : *batch;
    *length = *length < 0 ? array.shape[rank - 3] : *length;
  } else {
    cli_error("%s: has %d dimensions; [batch, length, heads, dim] or [length, heads, dim] is needed", path, rank);
  }
  npy_free(&array);
  return rank == 3 || rank == 4 ? EXIT_OK : EXIT_USAGE;
}

int problem_find_workload(const problem *p, const char *name, qkv_workload *out) {
  const char *names[64] = {NULL};
  int count = p->info.nworkloads < 64 ? p->info.nworkloads : 64;
  for (int n = 0; n < count; n++) {
    *out = (qkv_workload){.size = sizeof *out};
    qkv_status status = qkv_spec_get_workload(p->spec, n, out);
    if (status)
      return cli_fail(NULL, status);
    names[n] = out->name;
    if (!name || !strcmp(out->name, name))
      return EXIT_OK;
  }
  if (!name)
    return -1;
  const char *near = cli_nearest(name, names, count);
  char list[512] = "";
  for (int n = 0; n < count; n++)
    snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", n ? ", " : "", names[n]);
  cli_error("%s has no workload '%s'%s%s%s; it has: %s", p->info.name, name, near ? "; did you mean " : "",
            near ? near : "", near ? "?" : "", count ? list : "none");
  return EXIT_USAGE;
}

void problem_shrink(problem *p) {
  enum { LEAST = 16 };
  const double most = 3e8; /* FLOPs; the emulator does some hundred million a second */
  while (problem_dense_flops(p) > most) {
    if (p->batch > 1)
      p->batch = 1;
    else if (p->len_k >= p->len_q && p->len_k > LEAST) {
      p->len_q = p->len_q == p->len_k ? (p->len_q + 1) / 2 : p->len_q;
      p->len_k = (p->len_k + 1) / 2;
    } else if (p->len_q > LEAST)
      p->len_q = (p->len_q + 1) / 2;
    else
      return;
  }
}

/* Without sizes: the first workload, made small on the emulator. */
static int default_size(problem *p) {
  qkv_workload workload;
  int code = problem_find_workload(p, NULL, &workload);
  if (code > 0)
    return code;
  p->batch = code ? 1 : workload.batch;
  p->len_q = code ? 128 : workload.len_q;
  p->len_k = code ? 128 : workload.len_k;
  if (p->emulated) {
    int64_t before[] = {p->batch, p->len_q, p->len_k};
    problem_shrink(p);
    if (before[0] != p->batch || before[1] != p->len_q || before[2] != p->len_k)
      cli_note("on the emulator workload %s is made small: batch %lld, q %lld, kv %lld; --workload %s runs it in full",
               code ? "" : workload.name, (long long)p->batch, (long long)p->len_q, (long long)p->len_k,
               code ? "" : workload.name);
  }
  return EXIT_OK;
}

static int decide_size(problem *p, const problem_request *r) {
  int64_t batch = r->batch, len_q = r->len_q, len_k = r->len_k;
  int code = EXIT_OK;
  if (r->workload) {
    qkv_workload workload;
    if (batch >= 0 || len_q >= 0 || len_k >= 0 || r->q_file || r->k_file || r->v_file) {
      cli_error("--workload gives the sizes; it does not go with --batch, --q, --kv or files");
      return EXIT_USAGE;
    }
    if ((code = problem_find_workload(p, r->workload, &workload)) != EXIT_OK)
      return code;
    batch = workload.batch;
    len_q = workload.len_q;
    len_k = workload.len_k;
  }
  if (r->q_file && (code = file_size(r->q_file, &batch, &len_q)) != EXIT_OK)
    return code;
  const char *kv_file = r->k_file ? r->k_file : r->v_file;
  if (kv_file && (code = file_size(kv_file, &batch, &len_k)) != EXIT_OK)
    return code;
  if (batch < 0 && len_q < 0 && len_k < 0)
    return default_size(p);
  if (len_q < 0 && len_k < 0) {
    cli_error("--batch needs --q or --kv beside it");
    return EXIT_USAGE;
  }
  p->batch = batch < 0 ? 1 : batch;
  p->len_q = len_q < 0 ? len_k : len_q;
  p->len_k = len_k < 0 ? len_q : len_k;
  if (p->emulated && problem_dense_flops(p) > 1e10)
    cli_note("%.1f GFLOP on the emulator may take many minutes; smaller sizes take seconds",
             1e-9 * problem_dense_flops(p));
  return EXIT_OK;
}

/* What only dense problems have, or only others. */
static int check_lengths(const problem *p, const problem_request *r) {
  if (!sequences_any(p) && r->lengths) {
    cli_error("--lengths: all sequences of %s have the same lengths", p->info.name);
    return EXIT_USAGE;
  }
  if (r->lengths && strcmp(r->lengths, "mixed") != 0 && strcmp(r->lengths, "full") != 0) {
    cli_error("--lengths takes mixed or full, not '%s'", r->lengths);
    return EXIT_USAGE;
  }
  if (sequences_any(p) && (r->q_file || r->k_file || r->v_file)) {
    cli_error("files hold dense q, k and v; sequences of %s have lengths of their own", p->info.name);
    return EXIT_USAGE;
  }
  return EXIT_OK;
}

int problem_size(problem *p, const problem_request *r) {
  int code = check_lengths(p, r);
  if (!code)
    code = decide_size(p, r);
  if (code || !sequences_any(p))
    return code;
  code = sequences_make(p, r);
  qkv_attention_args args = problem_mask_args(p);
  qkv_status status = code ? QKV_OK : qkv_check_sequences(p->spec, &args);
  return status ? cli_fail("lengths and pages", status) : code;
}

int problem_open(problem *p, const char *path, const problem_request *r) {
  qkv_status status = cli_open_compiler(&p->engine);
  if (status)
    return cli_fail(NULL, status);
  if ((status = qkv_spec_load(p->engine, path, &p->spec)) != QKV_OK)
    return cli_fail_spec(path, status);
  p->info.size = sizeof p->info;
  qkv_spec_get_info(p->spec, &p->info);
  problem_request sizes = *r;
  sizes.lengths = sequences_any(p) ? "full" : NULL;
  return problem_size(p, &sizes);
}

/* ---- Host tensors ---- */

static int out_of_memory(const char *name) {
  cli_error("out of memory for %s", name);
  return EXIT_FAILED;
}

/* Contiguous host memory for a slot. The element count is bounded first, so that no product wraps. */
static int add(problem *p, int slot, const char *name, qkv_dtype dtype, int rank, const int64_t *shape) {
  problem_tensor *t = &p->slots[slot];
  snprintf(t->name, sizeof t->name, "%s", name);
  double count = 1;
  for (int d = 0; d < rank; d++)
    count *= (double)shape[d];
  if (count > 1e12)
    return out_of_memory(name);
  t->host = tensor_allocate(dtype, rank, shape);
  return t->host.data ? EXIT_OK : out_of_memory(name);
}

static int load_file(problem *p, int slot, const char *path, const problem_request *r) {
  npy_array array;
  char error[NPY_ERROR_SIZE];
  bool ok = npy_read(path, &array, error);
  if (ok) {
    ok = tensor_from_npy(&array, r->bits16 != 0, &p->slots[slot].host, error);
    npy_free(&array);
  }
  if (ok)
    return EXIT_OK;
  cli_error("%s for %s: %s", path, p->slots[slot].name, error);
  return EXIT_USAGE;
}

/* From the file when there is one, else random. Each slot has a stream of its own. */
static int fill(problem *p, int slot, const char *path, const problem_request *r) {
  if (path)
    return load_file(p, slot, path, r);
  if (sequences_any(p) && slot <= SLOT_V)
    sequences_fill(p, (problem_slot)slot, r->seed * SLOT_COUNT + (uint64_t)slot);
  else
    tensor_fill_random(&p->slots[slot].host, r->seed * SLOT_COUNT + (uint64_t)slot);
  if (slot == SLOT_K_SCALE || slot == SLOT_V_SCALE) /* positive, around 1 */
    for (int64_t n = 0; n < tensor_count(&p->slots[slot].host); n++)
      ((float *)p->slots[slot].host.data)[n] = exp2f(((float *)p->slots[slot].host.data)[n] / 2);
  return EXIT_OK;
}

/* The text after "name=" in the --param options, NULL when there is none. */
static const char *param_text(const problem_request *r, const char *name) {
  const char *found = NULL;
  size_t length = strlen(name);
  for (int n = 0; n < r->params.count; n++)
    if (!strncmp(r->params.items[n], name, length) && r->params.items[n][length] == '=')
      found = r->params.items[n] + length + 1;
  return found;
}

static int scalar_param(problem *p, int slot, qkv_dtype dtype, const char *text, const problem_request *r) {
  problem_tensor *t = &p->slots[slot];
  if (!text) {
    t->value = dtype == QKV_I32    ? (double)(p->len_k / 2)
               : dtype == QKV_BOOL ? 1
                                   : random_normal(r->seed * SLOT_COUNT + (uint64_t)slot, 0);
    cli_note("parameter %s is not given: %s=%.9g", t->name, t->name, t->value);
    return EXIT_OK;
  }
  bool integer = dtype == QKV_I32 || dtype == QKV_BOOL;
  if (!cli_parse_real(text, &t->value) || (integer && t->value != rint(t->value)) || fabs(t->value) > 3e38 ||
      (integer && fabs(t->value) > INT32_MAX)) {
    cli_error("--param %s=%s: a number of type %s is needed", t->name, text, dtype_word(dtype));
    return EXIT_USAGE;
  }
  return EXIT_OK;
}

static int add_param(problem *p, int n, const problem_request *r) {
  qkv_param_info param = {.size = sizeof param};
  qkv_status status = qkv_spec_get_param(p->spec, n, &param);
  int64_t shape[4] = {0};
  if (!status)
    status = qkv_spec_param_shape(p->spec, n, p->batch, p->len_q, p->len_k, shape);
  if (status)
    return cli_fail(NULL, status);
  int slot = SLOT_PARAMS + n;
  const char *text = param_text(r, param.name);
  snprintf(p->slots[slot].name, sizeof p->slots[slot].name, "%s", param.name);
  if (!param.rank)
    return scalar_param(p, slot, param.dtype, text, r);
  int code = add(p, slot, param.name, param.dtype, param.rank, shape);
  return code ? code : fill(p, slot, text, r);
}

/* Every --param must name a declared parameter. */
static int check_param_names(problem *p, const problem_request *r) {
  const char *names[SLOT_COUNT] = {NULL};
  for (int n = 0; n < p->info.nparams; n++)
    names[n] = p->slots[SLOT_PARAMS + n].name;
  for (int i = 0; i < r->params.count; i++) {
    char word[64];
    const char *item = r->params.items[i], *equals = strchr(item, '=');
    if (!equals) {
      cli_error("--param takes name=value or name=file.npy, not '%s'", item);
      return EXIT_USAGE;
    }
    snprintf(word, sizeof word, "%.*s", (int)(equals - item), item);
    int n = 0;
    while (n < p->info.nparams && strcmp(names[n], word) != 0)
      n++;
    if (n < p->info.nparams)
      continue;
    const char *near = cli_nearest(word, names, p->info.nparams);
    cli_error("%s has no parameter '%s'%s%s%s", p->info.name, word, near ? "; did you mean " : "", near ? near : "",
              near ? "?" : "");
    return EXIT_USAGE;
  }
  return EXIT_OK;
}

int problem_fill_params(problem *p, const problem_request *r) {
  int code = EXIT_OK;
  if (p->info.nparams > SLOT_COUNT - SLOT_PARAMS) {
    cli_error("specs have at most %d parameters here", SLOT_COUNT - SLOT_PARAMS);
    return EXIT_FAILED;
  }
  for (int n = 0; n < p->info.nparams && !code; n++)
    code = add_param(p, n, r);
  return code ? code : check_param_names(p, r);
}

int problem_shape(const problem *p, problem_slot slot, int64_t shape[4]) {
  const qkv_spec_info *s = &p->info;
  const struct {
    problem_slot slot;
    int rank;
    int64_t shape[4];
  } rows[] = {{SLOT_Q, 4, {p->batch, p->len_q, s->heads_q, s->dim_qk}},
              {SLOT_K, 4, {p->batch, p->len_k, s->heads_kv, s->dim_qk}},
              {SLOT_V, 4, {p->batch, p->len_k, s->heads_kv, s->dim_v}},
              {SLOT_SINK, 1, {s->heads_q}},
              {SLOT_K_SCALE, 1, {s->heads_kv}},
              {SLOT_V_SCALE, 1, {s->heads_kv}},
              {SLOT_O, 4, {p->batch, p->len_q, s->heads_q, s->dim_v}},
              {SLOT_LSE, 3, {p->batch, s->heads_q, p->len_q}},
              {SLOT_LSE_WITH_SINK, 3, {p->batch, s->heads_q, p->len_q}}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    if (rows[n].slot != slot)
      continue;
    if (sequences_any(p) && rows[n].rank > 1)
      return sequences_shape(p, slot, shape);
    memcpy(shape, rows[n].shape, sizeof rows[n].shape);
    return rows[n].rank;
  }
  return 0;
}

int problem_fill(problem *p, const problem_request *r) {
  const qkv_spec_info *s = &p->info;
  const bool scales_given = r->k_scale_file || r->v_scale_file;
  if ((r->sink_file && !s->has_sink) || (scales_given && !s->has_kv_scale)) {
    const bool sink_only = r->sink_file && !s->has_sink;
    cli_error("%s: %s has no %s", sink_only ? "--sink-file" : "--k-scale-file, --v-scale-file", s->name,
              sink_only ? "sink" : "kv_scale");
    return EXIT_USAGE;
  }
  const bool tokens = !r->no_tokens;
  const struct {
    int slot;
    bool wanted;
    const char *name;
    qkv_dtype dtype;
    const char *file;
    bool output;
  } rows[] = {{SLOT_Q, tokens, "q", s->dtype_q, r->q_file, false},
              {SLOT_K, tokens, "k", s->dtype_kv, r->k_file, false},
              {SLOT_V, tokens, "v", s->dtype_kv, r->v_file, false},
              {SLOT_SINK, s->has_sink, "sink", QKV_F32, r->sink_file, false},
              {SLOT_K_SCALE, s->has_kv_scale, "k_scale", QKV_F32, r->k_scale_file, false},
              {SLOT_V_SCALE, s->has_kv_scale, "v_scale", QKV_F32, r->v_scale_file, false},
              {SLOT_O, tokens, "o", s->dtype_out, NULL, true},
              {SLOT_LSE, tokens && s->wants_lse, "lse", QKV_F32, NULL, true},
              {SLOT_LSE_WITH_SINK, tokens && s->wants_lse_with_sink, "lse_with_sink", QKV_F32, NULL, true}};
  int code = EXIT_OK;
  for (size_t n = 0; n < sizeof rows / sizeof *rows && !code; n++) {
    if (!rows[n].wanted)
      continue;
    int64_t shape[4];
    code = add(p, (int)rows[n].slot, rows[n].name, rows[n].dtype, problem_shape(p, (problem_slot)rows[n].slot, shape),
               shape);
    qkv_tensor *host = &p->slots[rows[n].slot].host;
    if (!code && rows[n].output) /* all bits set is a NaN in every float format */
      memset(host->data, 0xFF, (size_t)tensor_count(host) * (size_t)dtype_bytes(host->dtype));
    else if (!code)
      code = fill(p, (int)rows[n].slot, rows[n].file, r);
  }
  return code ? code : problem_fill_params(p, r);
}

/* ---- Device tensors ---- */

static size_t host_bytes(const problem_tensor *t) {
  return (size_t)tensor_count(&t->host) * (size_t)dtype_bytes(t->host.dtype);
}

int problem_upload(problem *p, bool unaligned) {
  for (int slot = 0; slot < SLOT_COUNT; slot++) {
    problem_tensor *t = &p->slots[slot];
    if (!t->host.data)
      continue;
    size_t bytes = host_bytes(t), shift = unaligned ? (size_t)dtype_bytes(t->host.dtype) : 0;
    qkv_status status = qkv_alloc(p->engine, bytes + shift + 16, &t->allocation);
    t->device = t->host;
    t->device.data = (char *)t->allocation + shift;
    if (!status && bytes)
      status = qkv_copy_to_device(p->engine, t->device.data, t->host.data, bytes);
    if (status)
      return cli_fail(t->name, status);
  }
  return EXIT_OK;
}

static int copy_outputs(problem *p, bool to_host) {
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++) {
    problem_tensor *t = &p->slots[slot];
    size_t bytes = t->host.data ? host_bytes(t) : 0;
    if (!bytes)
      continue;
    qkv_status status = to_host ? qkv_copy_to_host(p->engine, t->host.data, t->device.data, bytes)
                                : qkv_copy_to_device(p->engine, t->device.data, t->host.data, bytes);
    if (status)
      return cli_fail(t->name, status);
  }
  return EXIT_OK;
}

int problem_download(problem *p) {
  return copy_outputs(p, true);
}

int problem_poison(problem *p) {
  for (int slot = SLOT_O; slot <= SLOT_LSE_WITH_SINK; slot++)
    if (p->slots[slot].host.data)
      memset(p->slots[slot].host.data, 0xFF, host_bytes(&p->slots[slot]));
  return copy_outputs(p, false);
}

/* Parameters, arrays and maxima. */
static void set_common(problem *p, qkv_attention_args *args, bool device) {
  for (int n = 0; n < p->info.nparams; n++) {
    const problem_tensor *t = &p->slots[SLOT_PARAMS + n];
    p->values[device][n].tensor = device ? t->device : t->host;
    p->values[device][n].value = t->value;
  }
  args->params = p->values[device];
  args->nparams = p->info.nparams;
  args->max_len_q = p->info.layout_q == QKV_DENSE ? 0 : p->len_q;
  args->max_len_k = p->info.layout_kv == QKV_DENSE ? 0 : p->len_k;
}

static void set_tensors(const problem *p, qkv_attention_args *args, bool device) {
  qkv_tensor *const targets[SLOT_PARAMS] = {&args->q,
                                            &args->k,
                                            &args->v,
                                            &args->sink,
                                            &args->o,
                                            &args->lse,
                                            &args->lse_with_sink,
                                            &args->cu_seqlens_q,
                                            &args->cu_seqlens_k,
                                            &args->seqlens_k,
                                            &args->page_table,
                                            &args->page_indptr,
                                            &args->k_scale,
                                            &args->v_scale};
  for (int slot = 0; slot < SLOT_PARAMS; slot++)
    *targets[slot] = device ? p->slots[slot].device : p->slots[slot].host;
}

qkv_attention_args problem_args(problem *p, bool device) {
  qkv_attention_args args = QKV_ATTENTION_ARGS_INIT;
  set_tensors(p, &args, device);
  set_common(p, &args, device);
  return args;
}

qkv_attention_args problem_mask_args(problem *p) {
  qkv_attention_args args = QKV_ATTENTION_ARGS_INIT;
  const qkv_spec_info *s = &p->info;
  int64_t q[] = {p->batch, p->len_q, s->heads_q, s->dim_qk}, k[] = {p->batch, p->len_k, s->heads_kv, s->dim_qk};
  const bool own = sequences_any(p);
  const int rank_q = own ? sequences_shape(p, SLOT_Q, q) : 4, rank_k = own ? sequences_shape(p, SLOT_K, k) : 4;
  set_tensors(p, &args, false);
  args.q = qkv_tensor_dense(NULL, s->dtype_q, rank_q, q);
  args.k = qkv_tensor_dense(NULL, s->dtype_kv, rank_k, k);
  set_common(p, &args, false);
  return args;
}

void problem_clear(problem *p) {
  for (int slot = 0; slot < SLOT_COUNT; slot++) {
    if (p->slots[slot].allocation)
      qkv_free(p->engine, p->slots[slot].allocation);
    free(p->slots[slot].host.data);
  }
  memset(p->slots, 0, sizeof p->slots);
}

void problem_free(problem *p) {
  problem_clear(p);
  qkv_spec_free(p->spec);
  qkv_close(p->engine);
}
