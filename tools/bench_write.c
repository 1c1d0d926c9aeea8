/* bench_write.c: rows of qkvc bench as a table for people, as CSV and as JSON. CSV and JSON name their members alike.
 */
#include <math.h>
#include <string.h>

#include "bench.h"
#include "cli_csv.h"
#include "cli_json.h"
#include "cli_table.h"

static double tensor_share(const bench_row *row) {
  return row->flops / row->median / row->peak;
}

static double memory_share(const bench_row *row) {
  return row->bytes / row->median / row->bandwidth;
}

const char *bench_bound(const bench_row *row) {
  if (isnan(tensor_share(row)) || isnan(memory_share(row)))
    return "";
  return tensor_share(row) > memory_share(row) ? "tensor" : "memory";
}

/* ---- For people ---- */

static void real_cell(cli_table *t, double value, const char *format) {
  if (isfinite(value)) {
    char text[48];
    snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
    table_cell(t, format, text);
  } else {
    table_cell(t, "%s", "-");
  }
}

void bench_print(const bench_row *rows, int count) {
  static const char *const heads[] = {"spec", "workload", "batch x q x kv", "family",   "source",     ">us",  ">p10",
                                      ">p90", ">TFLOP/s", ">GB/s",          ">of peak", ">of memory", "bound"};
  cli_table t;
  table_start(&t, sizeof heads / sizeof *heads, heads);
  for (int n = 0; n < count; n++) {
    const bench_row *r = &rows[n];
    table_cell(&t, "%s", r->spec);
    table_cell(&t, "%s", r->what.name);
    table_cell(&t, "%lld x %lld x %lld", (long long)r->what.batch, (long long)r->what.len_q, (long long)r->what.len_k);
    table_cell(&t, "%s", r->family[0] ? r->family : "-");
    table_cell(&t, "%s", strcmp(r->status, "ok") != 0 ? r->status : r->source);
    real_cell(&t, 1e6 * r->median, "%s");
    real_cell(&t, 1e6 * r->p10, "%s");
    real_cell(&t, 1e6 * r->p90, "%s");
    real_cell(&t, 1e-12 * r->flops / r->median, "%s");
    real_cell(&t, 1e-9 * r->bytes / r->median, "%s");
    real_cell(&t, 100 * tensor_share(r), "%s %%");
    real_cell(&t, 100 * memory_share(r), "%s %%");
    table_cell(&t, "%s", bench_bound(r));
    table_row(&t);
  }
  table_print(&t, stdout);
  table_free(&t);
}

/* ---- For programs ---- */

typedef struct member {
  const char *name, *text;
  double value; /* of members without text; NAN: not known */
} member;
enum { MEMBERS = 31 };

static int list_members(const bench_row *r, member out[MEMBERS]) {
  const member members[MEMBERS] = {{"spec", r->spec, 0},
                                   {"workload", r->what.name, 0},
                                   {"phase", r->phase, 0},
                                   {"batch", NULL, (double)r->what.batch},
                                   {"q", NULL, (double)r->what.len_q},
                                   {"kv", NULL, (double)r->what.len_k},
                                   {"heads_q", NULL, r->heads_q},
                                   {"heads_kv", NULL, r->heads_kv},
                                   {"dim_qk", NULL, r->dim_qk},
                                   {"dim_v", NULL, r->dim_v},
                                   {"dtype", r->dtype, 0},
                                   {"family", r->family, 0},
                                   {"schedule", r->schedule, 0},
                                   {"source", r->source, 0},
                                   {"median_us", NULL, 1e6 * r->median},
                                   {"p10_us", NULL, 1e6 * r->p10},
                                   {"p90_us", NULL, 1e6 * r->p90},
                                   {"samples", NULL, r->samples},
                                   {"flops", NULL, r->flops},
                                   {"bytes", NULL, r->bytes},
                                   {"tflops", NULL, 1e-12 * r->flops / r->median},
                                   {"gbps", NULL, 1e-9 * r->bytes / r->median},
                                   {"peak_tflops", NULL, 1e-12 * r->peak},
                                   {"peak_gbps", NULL, 1e-9 * r->bandwidth},
                                   {"tensor_share", NULL, tensor_share(r)},
                                   {"memory_share", NULL, memory_share(r)},
                                   {"bound", bench_bound(r), 0},
                                   {"method", r->method, 0},
                                   {"arch", r->arch, 0},
                                   {"gpu", r->gpu, 0},
                                   {"status", r->status, 0}};
  memcpy(out, members, sizeof members);
  return MEMBERS;
}

/* Whole numbers as such, others in six digits; nothing when it is not known. */
static void csv_number(FILE *out, double value) {
  if (isfinite(value))
    fprintf(out, value == rint(value) && fabs(value) < 1e15 ? "%.0f" : "%.6g", value);
}

void bench_csv(const bench_row *rows, int count, FILE *out) {
  member m[MEMBERS];
  bench_row none = {.median = NAN};
  const int members = list_members(count ? rows : &none, m);
  for (int k = 0; k < members; k++)
    fprintf(out, "%s%s", k ? "," : "", m[k].name);
  fputs(",note\n", out);
  for (int n = 0; n < count; n++) {
    list_members(&rows[n], m);
    for (int k = 0; k < members; k++) {
      fputs(k ? "," : "", out);
      if (m[k].text)
        csv_write(out, m[k].text);
      else
        csv_number(out, m[k].value);
    }
    fputc(',', out);
    csv_write(out, rows[n].note);
    fputc('\n', out);
  }
}

void bench_json(const bench_row *rows, int count, FILE *out) {
  cli_json j = {.stream = out};
  member m[MEMBERS];
  json_open(&j, NULL, '{');
  json_string(&j, "version", qkv_version());
  json_open(&j, "rows", '[');
  for (int n = 0; n < count; n++) {
    const int members = list_members(&rows[n], m);
    json_open(&j, NULL, '{');
    for (int k = 0; k < members; k++)
      if (m[k].text)
        json_string(&j, m[k].name, m[k].text);
      else
        json_real(&j, m[k].name, m[k].value);
    json_string(&j, "note", rows[n].note);
    json_close(&j, '}');
  }
  json_close(&j, ']');
  json_close(&j, '}');
}
