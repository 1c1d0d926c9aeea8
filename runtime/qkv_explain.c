/* qkv_explain.c: what would run for a spec, and why. One structure is gathered and printed as text or as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_tuned_internal.h"
#include "qkv_pool_internal.h"

typedef struct explanation {
  const spec *spec;
  gen_request request;
  gen_choice choices[GEN_MAX_FAMILIES];
  int nchoices;
  gen_kernel *kernel; /* NULL: nothing can run, `why` says it */
  char *why;
  gen_schedule schedule;
  gen_kernel *few; /* for calls of few queries; NULL: there is none */
  char few_reason[DISPATCH_REASON];
  tuned_choice tuned, few_tuned; /* where the schedules are from */
  char unaligned[MANIFEST_NAME]; /* the family for tensors that the kernel cannot take; "": it takes all */
} explanation;

/* What an op holds beside the kernel. */
static qkv_status gather_dispatch(qkv_engine *e, bool for_device, explanation *x) {
  gen_choice choices[GEN_MAX_FAMILIES];
  int count;
  gen_error error = {0};
  gen_request unaligned = x->request;
  qkv_status status =
      dispatch_render_decode(e, x->spec, &x->request, for_device, &x->few, x->few_reason, &x->few_tuned);
  if (status != QKV_OK || !x->kernel->manifest.aligned16)
    return status;
  unaligned.unaligned = true;
  if (gen_choices(x->spec, &unaligned, choices, &count, &error) != GEN_OK)
    return gen_failed(&error);
  for (int n = 0; n < count; n++) { /* the kernel's own family, else the first that can */
    const bool own = !strcmp(choices[n].family, x->kernel->manifest.family);
    if (choices[n].supported && (own || !*x->unaligned))
      strcpy(x->unaligned, choices[n].family);
  }
  return QKV_OK;
}

static qkv_status gather(qkv_engine *e, const qkv_spec *s, const qkv_build_options *given, explanation *x) {
  const compiler_ops *compiler;
  bool for_device;
  gen_error error = {0};
  qkv_status status = build_request(e, given, &x->request, &compiler, &for_device);
  if (status != QKV_OK)
    return status;
  x->spec = s->parsed;
  gen_request every = x->request;
  every.family = NULL;
  if (gen_choices(x->spec, &every, x->choices, &x->nchoices, &error) != GEN_OK)
    return gen_failed(&error);
  status = tuned_render(e, x->spec, &x->request, for_device, &x->kernel, &x->tuned);
  if (status == QKV_OUT_OF_MEMORY || status == QKV_TEMPLATE_ERROR || status == QKV_INTERNAL)
    return status;
  if (status != QKV_OK) {
    x->why = strdup(error_message());
    return x->why ? QKV_OK : error_set(QKV_OUT_OF_MEMORY, "out of memory");
  }
  status = gather_dispatch(e, for_device, x);
  if (status != QKV_OK)
    return status;
  if (x->tuned.entry) {
    x->request.phase = x->tuned.entry->phase;
    x->request.schedule = x->kernel->manifest.schedule;
  }
  x->request.family = x->kernel->manifest.family;
  gen_check_schedule(x->spec, &x->request, &x->schedule, &error); /* resources; left zero when the family cannot tell */
  return QKV_OK;
}

/* FLOPs and bytes of workload n, whose sequences all have its lengths as those of a dense call have. NULL, or why the
 * FLOPs are not known. */
static const char *workload_cost(const qkv_spec *s, int n, double *flops, double *bytes) {
  const double most = 3e7; /* evaluations of the mask, less than a second */
  double pairs = 0;
  const spec_workload *w = &s->parsed->workloads[n];
  spec dense = *s->parsed;
  dense.layout_q = dense.layout_kv = LAYOUT_DENSE;
  const qkv_spec handle = {.parsed = &dense};
  qkv_attention_args args = QKV_ATTENTION_ARGS_INIT;
  args.q = qkv_tensor_dense(NULL, QKV_F32, 4, (int64_t[]){w->batch, w->len_q, s->parsed->heads_q, s->parsed->dim_qk});
  args.k = qkv_tensor_dense(NULL, QKV_F32, 4, (int64_t[]){w->batch, w->len_k, s->parsed->heads_kv, s->parsed->dim_qk});
  *flops = *bytes = 0;
  if (qkv_work(&handle, &args, NULL, bytes) != QKV_OK)
    return "lengths are beyond 2^30";
  if (work_visible(&dense, &args, most, &pairs) != QKV_OK)
    return "the mask depends on parameters";
  if (pairs < 0)
    return "too many keys to ask the mask one by one";
  *flops = 2.0 * (s->parsed->dim_qk + s->parsed->dim_v) * pairs;
  return NULL;
}

/* Bytes of the keys and values of so many tokens in one layer. */
static long long kv_bytes(const spec *s, int64_t tokens) {
  return (long long)(pool_part_bytes(s, POOL_KEYS, tokens) + pool_part_bytes(s, POOL_VALUES, tokens));
}

static double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

/* ---- Text ---- */

static void print_families(const explanation *x, text *out) {
  text_puts(out, "families, in order of dispatch\n");
  for (int n = 0; n < x->nchoices; n++) {
    const gen_choice *c = &x->choices[n];
    int chosen = x->kernel && !strcmp(c->family, x->kernel->manifest.family);
    text_printf(out, "  %c %-28s %s\n", chosen ? '*' : ' ', c->family,
                !c->supported ? c->reason
                : chosen      ? "chosen"
                              : "could run it too");
  }
}

static void print_kernel(const explanation *x, text *out) {
  const manifest *m = &x->kernel->manifest;
  text_printf(out, "kernel for %s\n  schedule  %s\n  tensors   %s\n", m->arch, m->schedule,
              m->aligned16 ? "16-byte aligned q k v o; a second kernel takes all others" : "any alignment and strides");
  if (x->schedule.resources.threads)
    text_printf(
        out, "  estimate  %d threads, %lld bytes of shared memory, %d registers for accumulators and operands\n",
        x->schedule.resources.threads, (long long)x->schedule.resources.shared_bytes, x->schedule.resources.registers);
  for (int n = 0; n < m->nlaunches; n++) {
    const manifest_launch *l = &m->launches[n];
    text_printf(out, "  launch    %s: %d threads, %d bytes of dynamic shared memory, grid", l->entry, l->block,
                l->shared_bytes);
    for (int f = 0; f < l->grid.count; f++) {
      text_printf(out, "%s %s", f ? " x" : "", manifest_size_name(l->grid.factors[f].size));
      if (l->grid.factors[f].per > 1)
        text_printf(out, "/%d", l->grid.factors[f].per);
    }
    if (l->cluster > 1)
      text_printf(out, " clusters of %d blocks", l->cluster);
    text_puts(out, "\n");
  }
  for (int n = 0; n < m->nregions; n++)
    text_printf(out, "  workspace %s\n", m->regions[n].name);
}

/* Which of an op's kernels a call takes, why there are so many, and where their schedules are from. */
static void print_dispatch(const explanation *x, text *out) {
  const char *family = x->kernel->manifest.family;
  char few[32];
  snprintf(few, sizeof few, "max_len_q up to %lld", (long long)dispatch_few(x->spec));
  text_puts(out, "dispatch\n");
  if (x->few)
    text_printf(out, "  %-20s %s, %s\n", few, x->few->manifest.family, x->few->manifest.schedule);
  text_printf(out, "  %-20s %s\n", x->few ? "other calls" : "all calls", family);
  if (*x->unaligned)
    text_printf(out, "  %-20s %s, whatever max_len_q\n", "unaligned tensors", x->unaligned);
  text_printf(out, "  %-20s %s: %s\n", "why", x->few ? "few queries have a kernel" : "one kernel", x->few_reason);
  text_puts(out, "schedules\n");
  if (x->few)
    text_printf(out, "  %-20s %s\n", few, x->few_tuned.reason);
  text_printf(out, "  %-20s %s\n", x->few ? "other calls" : "all calls", x->tuned.reason);
}

/* Each line of `lines`, indented. */
static void print_indented(const char *lines, text *out) {
  for (const char *line = lines; line && *line;) {
    size_t length = strcspn(line, "\n");
    text_puts(out, "  ");
    text_add(out, line, length);
    text_puts(out, "\n");
    line += length + (line[length] == '\n');
  }
}

static void print_text(const qkv_spec *s, const explanation *x, text *out) {
  text mask = {0}, score = {0};
  text_printf(out, "%s: %d query heads, %d KV heads, dim %d/%d\n", x->spec->name, x->spec->heads_q, x->spec->heads_kv,
              x->spec->dim_qk, x->spec->dim_v);
  text_printf(out, "K and V of a layer: %lld bytes a token", kv_bytes(x->spec, 1));
  if (x->spec->layout_kv == LAYOUT_PAGED)
    text_printf(out, ", %lld a page of %d", kv_bytes(x->spec, x->spec->page_size), x->spec->page_size);
  text_puts(out, "\n");
  print_families(x, out);
  if (x->kernel) {
    print_kernel(x, out);
    print_dispatch(x, out);
  } else {
    text_printf(out, "no kernel: %s\n", x->why);
  }
  text_puts(out, "mask\n");
  gen_explain_mask(x->spec, &mask);
  print_indented(mask.bytes, out);
  text_free(&mask);
  text_puts(out, "score\n");
  gen_explain_score(x->spec, &score);
  print_indented(score.bytes, out);
  text_free(&score);
  if (x->spec->nworkloads)
    text_puts(out, "workloads                        batch    len_q    len_k       GFLOP         MB  FLOP/byte\n");
  for (int n = 0; n < x->spec->nworkloads; n++) {
    const spec_workload *w = &x->spec->workloads[n];
    double flops, bytes;
    const char *unknown = workload_cost(s, n, &flops, &bytes);
    const struct {
      double value;
      int digits, width;
    } columns[] = {{flops * 1e-9, 3, 12}, {bytes * 1e-6, 2, 11}, {ratio(flops, bytes), 1, 11}};
    text_printf(out, "  %-28s %8lld %8lld %8lld", w->name, (long long)w->batch, (long long)w->len_q,
                (long long)w->len_k);
    for (int c = 0; c < 3; c++) {
      text number = {0};
      if (!unknown || c == 1)
        text_fixed(&number, columns[c].value, columns[c].digits);
      text_printf(out, "%*s", columns[c].width, number.bytes ? number.bytes : "?");
      text_free(&number);
    }
    if (unknown)
      text_printf(out, "  (%s)", unknown);
    text_puts(out, "\n");
  }
}

/* ---- JSON ---- */

static void json_pair(text *out, const char *key, const char *value) {
  text_printf(out, "\"%s\": ", key);
  text_json_string(out, value);
}

static void json_kernel(const explanation *x, text *out) {
  const manifest *m = &x->kernel->manifest;
  text_puts(out, "{");
  json_pair(out, "family", m->family);
  text_puts(out, ", ");
  json_pair(out, "arch", m->arch);
  text_puts(out, ", ");
  json_pair(out, "schedule", m->schedule);
  text_puts(out, ", ");
  json_pair(out, "schedule_from", x->tuned.reason);
  text_printf(out,
              ", \"aligned16\": %s, \"variant_hash\": \"%s\", \"estimate\": {\"threads\": %d, \"shared_bytes\": %lld, "
              "\"registers\": %d}, \"launches\": [",
              m->aligned16 ? "true" : "false", m->variant_hash, x->schedule.resources.threads,
              (long long)x->schedule.resources.shared_bytes, x->schedule.resources.registers);
  for (int n = 0; n < m->nlaunches; n++) {
    const manifest_launch *l = &m->launches[n];
    text_puts(out, n ? ", {" : "{");
    json_pair(out, "entry", l->entry);
    text_printf(out, ", \"threads\": %d, \"shared_bytes\": %d, \"cluster\": %d, \"grid\": [", l->block, l->shared_bytes,
                l->cluster);
    for (int f = 0; f < l->grid.count; f++)
      text_printf(out, "%s{\"size\": \"%s\", \"per\": %d}", f ? ", " : "", manifest_size_name(l->grid.factors[f].size),
                  l->grid.factors[f].per);
    text_puts(out, "]}");
  }
  text_puts(out, "]}");
}

static void json_dispatch(const explanation *x, text *out) {
  text_puts(out, "{");
  if (x->few) {
    text_printf(out, "\"few\": {\"max_len_q\": %lld, ", (long long)dispatch_few(x->spec));
    json_pair(out, "family", x->few->manifest.family);
    text_puts(out, ", ");
    json_pair(out, "schedule", x->few->manifest.schedule);
    text_puts(out, ", ");
    json_pair(out, "schedule_from", x->few_tuned.reason);
    text_puts(out, "}, ");
  } else {
    text_puts(out, "\"few\": null, ");
  }
  json_pair(out, "family", x->kernel->manifest.family);
  text_puts(out, ", ");
  json_pair(out, "unaligned", *x->unaligned ? x->unaligned : x->kernel->manifest.family);
  text_puts(out, ", ");
  json_pair(out, "why", x->few_reason);
  text_puts(out, "}");
}

static void print_json(const qkv_spec *s, const explanation *x, text *out) {
  text notes = {0};
  text_puts(out, "{");
  json_pair(out, "name", x->spec->name);
  text_printf(out, ", \"kv\": {\"token_bytes\": %lld, ", kv_bytes(x->spec, 1));
  if (x->spec->layout_kv == LAYOUT_PAGED)
    text_printf(out, "\"page\": %d, \"page_bytes\": %lld}", x->spec->page_size, kv_bytes(x->spec, x->spec->page_size));
  else
    text_puts(out, "\"page\": null, \"page_bytes\": null}");
  text_puts(out, ", \"families\": [");
  for (int n = 0; n < x->nchoices; n++) {
    text_puts(out, n ? ", {" : "{");
    json_pair(out, "family", x->choices[n].family);
    text_printf(out, ", \"supported\": %s, ", x->choices[n].supported ? "true" : "false");
    json_pair(out, "reason", x->choices[n].reason);
    text_puts(out, "}");
  }
  text_puts(out, "], \"kernel\": ");
  if (x->kernel)
    json_kernel(x, out);
  else
    text_puts(out, "null");
  text_puts(out, ", \"dispatch\": ");
  if (x->kernel)
    json_dispatch(x, out);
  else
    text_puts(out, "null");
  text_puts(out, ", ");
  json_pair(out, "error", x->why ? x->why : "");
  gen_explain_mask(x->spec, &notes);
  text_puts(out, ", ");
  json_pair(out, "mask", notes.bytes ? notes.bytes : "");
  text_clear(&notes);
  gen_explain_score(x->spec, &notes);
  text_puts(out, ", ");
  json_pair(out, "score", notes.bytes ? notes.bytes : "");
  text_free(&notes);
  text_puts(out, ", \"workloads\": [");
  for (int n = 0; n < x->spec->nworkloads; n++) {
    const spec_workload *w = &x->spec->workloads[n];
    double flops, bytes;
    const char *unknown = workload_cost(s, n, &flops, &bytes);
    text_puts(out, n ? ", {" : "{");
    json_pair(out, "name", w->name);
    text_printf(out, ", \"batch\": %lld, \"len_q\": %lld, \"len_k\": %lld, \"flops\": ", (long long)w->batch,
                (long long)w->len_q, (long long)w->len_k);
    if (!unknown)
      text_double(out, flops);
    else
      text_puts(out, "null");
    text_puts(out, ", \"bytes\": ");
    text_double(out, bytes);
    text_puts(out, "}");
  }
  text_puts(out, "]}\n");
}

qkv_status qkv_explain(qkv_engine *e, const qkv_spec *s, const qkv_build_options *opt, int json, char **out) {
  if (!e || !s || !out)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !e ? "engine" : !s ? "spec" : "out");
  *out = NULL;
  explanation *x = calloc(1, sizeof *x);
  if (!x)
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  qkv_status status = gather(e, s, opt, x);
  if (status == QKV_OK) {
    text t = {0};
    if (json)
      print_json(s, x, &t);
    else
      print_text(s, x, &t);
    status = text_give(&t, out);
  }
  gen_kernel_free(x->kernel);
  gen_kernel_free(x->few);
  free(x->why);
  free(x);
  return status;
}
