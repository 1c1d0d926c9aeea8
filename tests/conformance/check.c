/* check.c: comparing results, with tolerances derived from number formats (docs/testing.md, "Tolerances"). */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

void verdict_fail(verdict *v, const char *format, ...) {
  if (v->outcome == FAILED)
    return;
  v->outcome = FAILED;
  va_list args;
  va_start(args, format);
  vsnprintf(v->message, sizeof v->message, format, args);
  va_end(args);
}

/* Greatest Euclidean norm of a row. */
static double greatest_norm(const float *data, int64_t rows, int64_t dim) {
  double greatest = 0;
  for (int64_t r = 0; r < rows; r++, data += dim) {
    double sum = 0;
    for (int64_t d = 0; d < dim; d++)
      sum += (double)data[d] * (double)data[d];
    if (sum > greatest)
      greatest = sum;
  }
  return sqrt(greatest);
}

static double unit_roundoff(qkv_dtype dtype) {
  return dtype == QKV_BF16 ? 0x1p-8 : dtype == QKV_F16 ? 0x1p-11 : 0x1p-23;
}

/* Of K or V; 1 where there are none. */
static double scale_of(const float *scales, int64_t head) {
  return scales != NULL ? fabs((double)scales[head]) : 1;
}

static double greatest_scale(const float *scales, int64_t heads) {
  double greatest = scale_of(scales, 0);
  for (int64_t h = 1; h < heads; h++)
    greatest = fmax(greatest, scale_of(scales, h));
  return greatest;
}

/* Weights are rounded as K and V are stored; as the queries are, where those are bytes. */
static qkv_dtype dtype_of_weights(const test_case *c) {
  const qkv_dtype kv = case_dtype_kv(c);
  return kv == QKV_E4M3 || kv == QKV_E5M2 ? (qkv_dtype)c->dtype : kv;
}

/* Whether all keys of every head are equal: then all products of a row are, to the last bit. */
static bool keys_equal(const inputs *in) {
  for (int64_t b = 0; b < in->b; b++)
    for (int64_t t = 1; t < in->lk; t++)
      if (memcmp(in->k + inputs_k_at(in, b, t, 0), in->k + inputs_k_at(in, b, 0, 0),
                 (size_t)(in->hk * in->dim) * sizeof(float)) != 0)
        return false;
  return true;
}

/* How far hyperbolic tangents move a logit that is at most `most` before them: those of bf16 inputs are off by 2^-11 of
 * their value. The scores of the sets have a factor of 2 at most. */
static double tangent_error(const test_case *c, double most) {
  double error = 0;
  if (c->dtype != QKV_BF16)
    return 0;
  if (c->softcap[0])
    error += fmin(most, strtod(c->softcap, NULL)) * 0x1p-11;
  return strstr(c->score, "tanh") ? 2 * (error + 0x1p-11) : error;
}

tolerance tolerance_of(const test_case *c, const inputs *in) {
  double scale = 1 / sqrt((double)c->dim);
  if (c->scale[0])
    scale = fabs(strtod(c->scale, NULL));
  double q = greatest_norm(in->q, in->b * in->lq * in->hq, in->dim);
  double k = greatest_norm(in->k, in->b * in->lk * in->hk, in->dim) * greatest_scale(in->k_scale, in->hk);
  /* |s| <= scale |q| |k|. A few rounded constants and products, and a sum of dim exact products in f32. */
  double logit = scale * q * k * (0x1p-22 + (double)c->dim * 0x1p-26), apart = keys_equal(in) ? 0 : logit;
  double tangents = tangent_error(c, scale * q * k);
  if (c->softcap[0]) {
    double cap = strtod(c->softcap, NULL);
    logit = fmin(logit, cap) + cap * 0x1p-20;
    apart = fmin(apart, cap) + cap * 0x1p-20;
  }
  /* What a score adds: biases of a few units, slopes times distances. */
  if (c->score[0]) {
    logit += (16 + (double)(c->lq + c->lk)) * 0x1p-22;
    apart += (16 + (double)(c->lq + c->lk)) * 0x1p-22;
  }
  logit += tangents, apart += keys_equal(in) ? 0 : tangents;
  return (tolerance){.weights = unit_roundoff(dtype_of_weights(c)) + (double)in->lk * 0x1p-25,
                     .output = unit_roundoff(case_dtype_out(c)),
                     .logit = logit,
                     .apart = apart,
                     .lse = 2e-5 + 0x1p-22 * (double)in->lk};
}

/* Greatest |v|, and greatest difference of two values of a column, of one head. */
static void value_range(const inputs *in, int64_t b, int64_t hk, double *greatest, double *spread) {
  *greatest = *spread = 0;
  for (int64_t d = 0; d < in->dimv; d++) {
    double low = INFINITY, high = -INFINITY;
    for (int64_t t = 0; t < in->lk; t++) {
      double x = (double)in->v[inputs_v_at(in, b, t, hk) + d];
      if (x < low)
        low = x;
      if (x > high)
        high = x;
    }
    if (high - low > *spread)
      *spread = high - low;
    *greatest = fmax(*greatest, fmax(fabs(low), fabs(high)));
  }
  if (in->lk == 0)
    *greatest = *spread = 0;
  *greatest *= scale_of(in->v_scale, hk);
  *spread *= scale_of(in->v_scale, hk);
}

static void compare_o(const test_case *c, const inputs *in, const result *got, const result *wanted, double factor,
                      verdict *out) {
  tolerance tol = tolerance_of(c, in);
  double moved = fmin(1, expm1(2 * fmin(tol.apart, 1))); /* weight that logit errors can move between keys */
  double to_sink = c->sink == SINK_ABSENT ? 0 : fmin(1, expm1(2 * fmin(tol.logit, 1)));
  int64_t group = in->hq / in->hk;
  for (int64_t b = 0; b < in->b; b++)
    for (int64_t h = 0; h < in->hq; h++) {
      double greatest, spread;
      value_range(in, b, h / group, &greatest, &spread);
      double absolute = (tol.weights + to_sink + (double)in->lk * 0x1p-26) * greatest + moved * spread;
      for (int64_t i = 0; i < in->lq; i++)
        for (int64_t d = 0; d < in->dimv; d++) {
          int64_t at = ((b * in->lq + i) * in->hq + h) * in->dimv + d;
          double x = (double)got->o[at], y = (double)wanted->o[at];
          double ratio = fabs(x - y) / (factor * (absolute + tol.output * 1.01 * fabs(y)) + 1e-30);
          if (ratio > out->worst)
            out->worst = ratio;
          if (!(ratio <= 1))
            verdict_fail(out,
                         "o[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64
                         "] is %.9g, should be %.9g (%.2f of the tolerance)",
                         b, i, h, d, x, y, ratio);
        }
    }
}

static void compare_lse(const char *name, const inputs *in, const float *got, const float *wanted, const tolerance *tol,
                        double factor, verdict *out) {
  if (got == NULL || wanted == NULL)
    return;
  int64_t at = 0;
  for (int64_t b = 0; b < in->b; b++)
    for (int64_t h = 0; h < in->hq; h++)
      for (int64_t i = 0; i < in->lq; i++, at++) {
        double x = (double)got[at], y = (double)wanted[at];
        if (isinf(y) && x == y)
          continue;
        double ratio = fabs(x - y) / (factor * (tol->lse + tol->logit + 0x1p-22 * fabs(y)));
        if (ratio > out->worst)
          out->worst = ratio;
        if (!(ratio <= 1))
          verdict_fail(out, "%s[%" PRId64 "][%" PRId64 "][%" PRId64 "] is %.9g, should be %.9g (%.2f of the tolerance)",
                       name, b, h, i, x, y, ratio);
      }
}

void compare_close(const test_case *c, const inputs *in, const result *got, const result *wanted, double factor,
                   verdict *out) {
  tolerance tol = tolerance_of(c, in);
  if (got->lse != NULL || wanted->lse != NULL)
    compare_lse("lse", in, got->lse, wanted->lse, &tol, factor, out);
  compare_lse("lse_with_sink", in, got->lse_with_sink, wanted->lse_with_sink, &tol, factor, out);
  compare_o(c, in, got, wanted, factor, out);
}

static void equal_array(const char *what, const char *name, const float *a, const float *b, int64_t count,
                        verdict *out) {
  if (a == NULL || b == NULL)
    return;
  for (int64_t n = 0; n < count; n++)
    if (memcmp(&a[n], &b[n], sizeof a[n]) != 0) {
      verdict_fail(out, "%s: %s element %" PRId64 " is %.9g and %.9g, should be equal bits", what, name, n,
                   (double)a[n], (double)b[n]);
      return;
    }
}

void compare_equal(const char *what, const result *got, const result *wanted, verdict *out) {
  if (got->o_count != wanted->o_count)
    verdict_fail(out, "%s: results differ in size", what);
  if (out->outcome == FAILED)
    return;
  equal_array(what, "lse", got->lse, wanted->lse, wanted->lse_count, out);
  equal_array(what, "lse_with_sink", got->lse_with_sink, wanted->lse_with_sink, wanted->lse_count, out);
  equal_array(what, "o", got->o, wanted->o, wanted->o_count, out);
}

void check_reference(session *s, const test_case *c, verdict *out) {
  inputs in;
  result got = {0}, wanted = {0};
  inputs_make(c, &in);
  if (!solve(s, c, &in, &got))
    verdict_fail(out, "%s", got.message);
  else if (!solve_reference(c, &in, &wanted))
    verdict_fail(out, "reference: %s", wanted.message);
  else
    compare_close(c, &in, &got, &wanted, 1, out);
  result_free(&got);
  result_free(&wanted);
  inputs_free(&in);
}

/* Whether a run that failed did so as the case expects. */
static bool is_refusal(const test_case *c, qkv_status status) {
  bool refused = status == QKV_UNSUPPORTED || status == QKV_INVALID_ARGUMENT || status == QKV_BAD_SCHEDULE;
  if (c->expect == EXPECT_BAD_SPEC)
    return status == QKV_BAD_SPEC;
  return (c->expect == EXPECT_REFUSAL || c->expect == EXPECT_OK_OR_REFUSAL) && (refused || status == QKV_BAD_SPEC);
}

/* A case that must be refused, with a message. */
static void check_refusal(session *s, const test_case *c, verdict *out) {
  inputs in;
  result got;
  inputs_make(c, &in);
  bool ok = solve(s, c, &in, &got);
  if (ok || got.status == QKV_OK)
    verdict_fail(out, ok ? "was not refused" : "%s", got.message);
  else if (!is_refusal(c, got.status))
    verdict_fail(out, "refused in another way: %s", got.message);
  else if (strlen(got.message) < 20)
    verdict_fail(out, "refused without a reason");
  result_free(&got);
  inputs_free(&in);
}

void check_case(session *s, const test_case *c, verdict *out) {
  *out = (verdict){.outcome = PASSED};
  if (c->expect == EXPECT_BAD_SPEC || c->expect == EXPECT_REFUSAL) {
    check_refusal(s, c, out);
    return;
  }
  if (c->expect == EXPECT_OK_OR_REFUSAL) {
    verdict refusal = {.outcome = PASSED};
    check_refusal(s, c, &refusal);
    if (refusal.outcome == PASSED)
      return;
  }
  checks[c->check].run(s, c, out);
  if (c->fault == FAULT_NONE)
    return;
  if (s->engine != NULL)
    verdict_fail(out, "fault= is for --device reference");
  else if (out->outcome == FAILED)
    *out = (verdict){.outcome = PASSED};
  else
    verdict_fail(out, "the planted fault was not noticed (worst %.3f of the tolerance)", out->worst);
}
