/* bench_plan.c: which sizes qkvc bench measures: workloads by name or by sizes, and ranges of one size. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli_problem.h"

enum { CASES_MOST = 1000 };

/* ---- Sizes ---- */

/* "8192", "8k", "1M": a whole number above 0 up to 2^30, in powers of 1024. *end is what follows it. */
static bool read_size(const char *word, int64_t *out, const char **end) {
  char *after;
  if (*word < '0' || *word > '9')
    return false;
  const long long value = strtoll(word, &after, 10);
  const int shift = *after == 'k' ? 10 : *after == 'M' ? 20 : 0;
  *end = after + (shift != 0);
  *out = (int64_t)value << (value <= 1 << 30 ? shift : 0);
  return value > 0 && *out <= 1 << 30;
}

/* "64x1x8k": batch, queries, keys. */
static bool read_sizes(const char *word, bench_case *out) {
  int64_t *const fields[] = {&out->batch, &out->len_q, &out->len_k};
  const char *at = word;
  for (int n = 0; n < 3; n++) {
    if (!read_size(at, fields[n], &at) || *at != (n < 2 ? 'x' : 0))
      return false;
    at += n < 2;
  }
  return true;
}

typedef struct sweep {
  bool of_batch;
  int64_t first, last;
} sweep;

/* "kv=1k..128k", "batch=1..128". */
static bool read_sweep(const char *word, sweep *out) {
  const char *at = strchr(word, '=');
  out->of_batch = !strncmp(word, "batch=", 6);
  if (!at || (!out->of_batch && strncmp(word, "kv=", 3) != 0))
    return false;
  if (!read_size(at + 1, &out->first, &at) || strncmp(at, "..", 2) != 0)
    return false;
  return read_size(at + 2, &out->last, &at) && !*at && out->first <= out->last;
}

/* ---- Cases ---- */

static int add(bench_cases *cases, const bench_case *what) {
  if (cases->count == CASES_MOST) {
    cli_error("more than %d sizes of one spec", CASES_MOST);
    return EXIT_USAGE;
  }
  if (!(cases->count & (cases->count - 1))) { /* room for a power of two */
    bench_case *more = realloc(cases->items, sizeof *more * (cases->count ? 2 * (size_t)cases->count : 1));
    if (!more) {
      cli_error("out of memory");
      return EXIT_FAILED;
    }
    cases->items = more;
  }
  cases->items[cases->count++] = *what;
  return EXIT_OK;
}

static int unknown_workload(const qkv_spec_info *info, const bench_cases *own, const char *word) {
  const char *names[64];
  const int count = own->count < 64 ? own->count : 64;
  char list[512] = "";
  for (int n = 0; n < count; n++) {
    names[n] = own->items[n].name;
    snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", n ? ", " : "", names[n]);
  }
  const char *near = cli_nearest(word, names, count);
  cli_error("%s has no workload '%s'%s%s%s; it has: %s; or give sizes, batch x queries x keys, such as 64x1x8k",
            info->name, word, near ? "; did you mean " : "", near ? near : "", near ? "?" : "", count ? list : "none");
  return EXIT_USAGE;
}

static int own_workloads(const qkv_spec *spec, const qkv_spec_info *info, bench_cases *out) {
  int code = EXIT_OK;
  for (int n = 0; n < info->nworkloads && !code; n++) {
    qkv_workload w = {.size = sizeof w};
    bench_case one = {.batch = 0};
    const qkv_status status = qkv_spec_get_workload(spec, n, &w);
    if (status)
      return cli_fail(info->name, status);
    snprintf(one.name, sizeof one.name, "%.64s", w.name);
    one.batch = w.batch;
    one.len_q = w.len_q;
    one.len_k = w.len_k;
    code = add(out, &one);
  }
  return code;
}

/* What --workload asks for; without it the spec's own, or `most` of them. */
static int choose(const qkv_spec_info *info, const bench_cases *own, const cli_list *words, int most,
                  bench_cases *out) {
  int code = EXIT_OK;
  for (int n = 0; n < words->count && !code; n++) {
    bench_case sizes;
    int at = 0;
    while (at < own->count && strcmp(own->items[at].name, words->items[n]) != 0)
      at++;
    if (at < own->count) {
      code = add(out, &own->items[at]);
    } else if (read_sizes(words->items[n], &sizes)) {
      snprintf(sizes.name, sizeof sizes.name, "%.40s", words->items[n]);
      code = add(out, &sizes);
    } else {
      code = unknown_workload(info, own, words->items[n]);
    }
  }
  for (int n = 0; !words->count && n < own->count && n < most && !code; n++)
    code = add(out, &own->items[n]);
  if (!code && !out->count) {
    cli_error("%s has no workloads; --workload gives sizes, batch x queries x keys, such as 64x1x8k", info->name);
    code = EXIT_USAGE;
  }
  return code;
}

/* A base's sizes with one of them doubled from first to last. Queries that are as many as the keys stay so. */
static int add_sweep(const bench_case *base, const sweep *range, bench_cases *out) {
  int code = EXIT_OK;
  for (int64_t size = range->first; !code; size = 2 * size < range->last ? 2 * size : range->last) {
    bench_case one = *base;
    if (range->of_batch) {
      one.batch = size;
    } else {
      one.len_k = size;
      one.len_q = base->len_q == base->len_k ? size : base->len_q;
    }
    const bool whole = size % 1024 == 0;
    snprintf(one.name, sizeof one.name, "%.64s/%s=%lld%s", base->name, range->of_batch ? "batch" : "kv",
             (long long)(whole ? size / 1024 : size), whole ? "k" : "");
    code = add(out, &one);
    if (size == range->last)
      break;
  }
  return code;
}

static int add_sweeps(const bench_cases *bases, const cli_list *words, bench_cases *out) {
  int code = EXIT_OK;
  for (int n = 0; n < words->count && !code; n++) {
    sweep range;
    if (!read_sweep(words->items[n], &range)) {
      cli_error("--sweep takes kv=FIRST..LAST or batch=FIRST..LAST, such as kv=1k..128k, not '%s'", words->items[n]);
      return EXIT_USAGE;
    }
    for (int b = 0; b < bases->count && !code; b++)
      code = add_sweep(&bases->items[b], &range, out);
  }
  return code;
}

/* The spec's own workloads are of GPUs: the emulator would take hours. */
static void shrink(const qkv_spec_info *info, bench_cases *cases) {
  for (int n = 0; n < cases->count; n++) {
    bench_case *one = &cases->items[n];
    problem p = {.info = *info, .batch = one->batch, .len_q = one->len_q, .len_k = one->len_k};
    problem_shrink(&p);
    if (p.batch != one->batch || p.len_q != one->len_q || p.len_k != one->len_k)
      cli_note("on the emulator workload %s of %s is made small: batch %lld, q %lld, kv %lld", one->name, info->name,
               (long long)p.batch, (long long)p.len_q, (long long)p.len_k);
    one->batch = p.batch;
    one->len_q = p.len_q;
    one->len_k = p.len_k;
  }
}

int bench_plan(const qkv_spec *spec, bool emulated, const bench_request *request, bench_cases *out) {
  qkv_spec_info info = {.size = sizeof info};
  qkv_spec_get_info(spec, &info);
  bench_cases own = {0}, bases = {0};
  *out = (bench_cases){0};
  int code = own_workloads(spec, &info, &own);
  if (!code && emulated)
    shrink(&info, &own);
  if (!code)
    code = choose(&info, &own, &request->workloads, request->sweeps.count ? 1 : CASES_MOST, &bases);
  if (!code && request->sweeps.count) {
    code = add_sweeps(&bases, &request->sweeps, out);
    free(bases.items);
  } else {
    *out = bases;
  }
  free(own.items);
  return code;
}
