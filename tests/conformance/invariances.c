/* invariances.c: judging a case against other runs of itself, where the answer is known without a reference.
 *
 * Each check solves the case, changes something that must not matter (or matters in a known way), and compares bit for
 * bit or within rounding. Where a check is bitwise, the kernel must do the same arithmetic in the same order on both
 * sides. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

/* Pairs of query and key that the reference does in seconds. */
enum { REFERENCE_PAIRS = 1 << 26 };

/* A case with its inputs and the result of its first run. */
typedef struct base {
  session *s;
  const test_case *c;
  inputs in;
  result got;
  verdict *out;
} base;

/* Solves; a failure is the verdict. */
static bool run(session *s, const test_case *c, const inputs *in, result *got, verdict *out) {
  if (solve(s, c, in, got))
    return true;
  char line[CASE_LINE];
  case_print(c, line);
  verdict_fail(out, "%s (in %s)", got->message, line);
  return false;
}

/* Solves the case and, unless it is too large for that, judges it against the reference. */
static bool base_open(base *a, session *s, const test_case *c, verdict *out) {
  *a = (base){.s = s, .c = c, .out = out};
  inputs_make(c, &a->in);
  if (!run(s, c, &a->in, &a->got, out))
    return false;
  if (c->b * c->hq * c->lq * c->lk > REFERENCE_PAIRS)
    return true;
  result wanted;
  if (solve_reference(c, &a->in, &wanted))
    compare_close(c, &a->in, &a->got, &wanted, 1, out);
  else
    verdict_fail(out, "reference: %s", wanted.message);
  result_free(&wanted);
  return out->outcome != FAILED;
}

static void base_close(base *a) {
  inputs_free(&a->in);
  result_free(&a->got);
}

/* Solves another case on other inputs and compares with the base, bitwise or within twice the rounding. */
static void against_base(base *a, const char *what, const test_case *c, const inputs *in, bool bitwise) {
  result got;
  if (run(a->s, c, in, &got, a->out)) {
    if (bitwise)
      compare_equal(what, &got, &a->got, a->out);
    else
      compare_close(c, in, &got, &a->got, 2, a->out);
    if (a->out->outcome == FAILED && strncmp(a->out->message, what, strlen(what)) != 0) {
      char message[MESSAGE_SIZE];
      snprintf(message, sizeof message, "%.400s: %.500s", what, a->out->message);
      memcpy(a->out->message, message, sizeof message);
    }
  }
  result_free(&got);
}

/* ---- The same numbers elsewhere in memory, or computed again ---- */

static void check_repeat(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    against_base(&a, "second run", c, &a.in, true);
    s->reuses = true;
    against_base(&a, "second run on the same workspace, reuse_plan = 1", c, &a.in, true);
    s->reuses = false;
  }
  base_close(&a);
}

/* Every layout gives the bits of the contiguous one when the same kernel reads it, and its value within rounding
 * otherwise; all layouts that need the other kernel agree with each other bitwise. */
static void check_layouts(session *s, const test_case *c, verdict *out) {
  base a;
  result unaligned = {0};
  bool ok = base_open(&a, s, c, out);
  for (int n = 0; ok && layout_names[n] != NULL; n++) {
    if (layouts[n].shared[0] != '\0' || layouts[n].batch_least > 0)
      continue;
    /* Each tensor alone, then all together: a kernel that takes one tensor's strides for another's shows. */
    for (int which = 0; which < 5 && out->outcome != FAILED; which++) {
      test_case other = *c;
      if (which == 0 || which == 4)
        other.layout_q = n;
      if (which == 1 || which == 4)
        other.layout_k = n;
      if (which == 2 || which == 4)
        other.layout_v = n;
      if (which == 3 || which == 4)
        other.layout_o = n;
      result got;
      if (run(s, &other, &a.in, &got, out)) {
        if (got.aligned == a.got.aligned)
          compare_equal(layout_names[n], &got, &a.got, out);
        else if (unaligned.o != NULL)
          compare_equal(layout_names[n], &got, &unaligned, out);
        else
          compare_close(c, &a.in, &got, &a.got, 2, out);
      }
      if (got.o != NULL && got.aligned != a.got.aligned && unaligned.o == NULL)
        unaligned = got;
      else
        result_free(&got);
    }
  }
  result_free(&unaligned);
  base_close(&a);
}

/* What lies behind the tensors and in their gaps does not matter. */
static void check_guards(session *s, const test_case *c, verdict *out) {
  base a;
  bool ok = base_open(&a, s, c, out);
  for (int kind = GUARD_NAN; ok && kind <= GUARD_ZERO; kind++) {
    test_case other = *c;
    other.guard = kind;
    against_base(&a, "other guard", &other, &a.in, true);
  }
  base_close(&a);
}

/* ---- Parts of a case ---- */

static void slice(float **data, int64_t from, int64_t count) {
  float *part = must_alloc((size_t)count * sizeof(float));
  if (count > 0)
    memcpy(part, *data + from, (size_t)count * sizeof(float));
  free(*data);
  *data = part;
}

/* The result of batch entry b. */
static result result_entry(const result *r, const inputs *in, int64_t b) {
  int64_t o = in->lq * in->hq * in->dimv, rows = in->hq * in->lq;
  return (result){.o = r->o + b * o,
                  .lse = r->lse != NULL ? r->lse + b * rows : NULL,
                  .lse_with_sink = r->lse_with_sink != NULL ? r->lse_with_sink + b * rows : NULL,
                  .o_count = o,
                  .lse_count = rows};
}

/* A batch entry alone gives the bits it gives among others. The case must not depend on b or batch-shaped parameters.
 */
static void check_batch_mates(session *s, const test_case *c, verdict *out) {
  base a;
  bool ok = base_open(&a, s, c, out);
  for (int64_t b = 0; ok && b < c->b && out->outcome != FAILED; b++) {
    test_case one = *c;
    inputs in;
    result got;
    one.b = 1;
    inputs_copy(&a.in, &in);
    in.b = 1;
    if (c->seq != SEQUENCES_DENSE)
      in.lens_q[0] = a.in.lens_q[b], in.lens_k[0] = a.in.lens_k[b];
    slice(&in.q, inputs_q_at(&a.in, b, 0, 0), in.lq * in.hq * in.dim);
    slice(&in.k, inputs_k_at(&a.in, b, 0, 0), in.lk * in.hk * in.dim);
    slice(&in.v, inputs_v_at(&a.in, b, 0, 0), in.lk * in.hk * in.dimv);
    if (run(s, &one, &in, &got, out)) {
      result among = result_entry(&a.got, &a.in, b);
      compare_equal("batch entry alone", &got, &among, out);
    }
    result_free(&got);
    inputs_free(&in);
  }
  base_close(&a);
}

/* The first lens_q[b] rows of entry b, bit for bit. */
static void compare_rows(const char *what, const base *a, int64_t b, const result *alone) {
  const inputs *in = &a->in;
  const int64_t rows = in->lens_q[b], row = in->hq * in->dimv;
  result among = {.o = a->got.o + b * in->lq * row, .o_count = rows * row};
  result one = {.o = alone->o, .o_count = rows * row};
  compare_equal(what, &one, &among, a->out);
  for (int64_t h = 0; h < in->hq && alone->lse != NULL; h++)
    if (memcmp(alone->lse + h * rows, a->got.lse + (b * in->hq + h) * in->lq, (size_t)rows * sizeof(float)) != 0)
      verdict_fail(a->out, "%s: lse of sequence %" PRId64 ", head %" PRId64 " differs", what, b, h);
}

/* Each sequence as a dense call of its own lengths: what lies around it, and how it lies, does not matter to a bit. The
 * case must not depend on b, nor on parameters shaped by lengths. */
static void sequences_alone(base *a) {
  for (int64_t b = 0; b < a->c->b && a->out->outcome != FAILED; b++) {
    test_case one = *a->c;
    inputs in;
    result got;
    one.seq = SEQUENCES_DENSE;
    one.b = 1, one.lq = a->in.lens_q[b], one.lk = a->in.lens_k[b];
    if (one.lq == 0)
      continue;
    inputs_copy(&a->in, &in);
    in.b = 1, in.lq = one.lq, in.lk = one.lk;
    slice(&in.q, inputs_q_at(&a->in, b, 0, 0), in.lq * in.hq * in.dim);
    slice(&in.k, inputs_k_at(&a->in, b, 0, 0), in.lk * in.hk * in.dim);
    slice(&in.v, inputs_v_at(&a->in, b, 0, 0), in.lk * in.hk * in.dimv);
    if (run(a->s, &one, &in, &got, a->out))
      compare_rows("sequence alone", a, b, &got);
    result_free(&got);
    inputs_free(&in);
  }
}

/* Sequences alone, in other pages, padded instead of in pages or packed, with other poison behind their ends. */
static void check_sequences(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    test_case other = *c;
    for (int kind = GUARD_NAN; kind <= GUARD_ZERO && out->outcome != FAILED; kind++) {
      other.guard = kind, other.shuffle = c->shuffle + kind;
      against_base(&a, "other pages and poison", &other, &a.in, true);
    }
    other = *c;
    other.seq = sequences_ragged_q(c) ? SEQUENCES_RAGGED_PADDED : SEQUENCES_PADDED;
    if (out->outcome != FAILED)
      against_base(&a, "padded", &other, &a.in, true);
    sequences_alone(&a);
  }
  base_close(&a);
}

/* Grouped heads give the bits of as many KV heads with repeated K and V. */
static void check_repeated_heads(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    test_case many = *c;
    inputs in;
    many.hk = c->hq;
    inputs_copy(&a.in, &in);
    in.hk = in.hq;
    free(in.k);
    free(in.v);
    in.k = must_alloc((size_t)(in.b * in.lk * in.hq * in.dim) * sizeof(float));
    in.v = must_alloc((size_t)(in.b * in.lk * in.hq * in.dimv) * sizeof(float));
    for (int64_t b = 0; b < in.b; b++)
      for (int64_t t = 0; t < in.lk; t++)
        for (int64_t h = 0; h < in.hq; h++) {
          int64_t hk = h / (c->hq / c->hk);
          memcpy(in.k + inputs_k_at(&in, b, t, h), a.in.k + inputs_k_at(&a.in, b, t, hk),
                 (size_t)in.dim * sizeof(float));
          memcpy(in.v + inputs_v_at(&in, b, t, h), a.in.v + inputs_v_at(&a.in, b, t, hk),
                 (size_t)in.dimv * sizeof(float));
        }
    against_base(&a, "repeated KV heads", &many, &in, true);
    inputs_free(&in);
  }
  base_close(&a);
}

/* The last row of a prefill is the only row of a decode step (bottom-right alignment). */
static void check_decode(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    test_case step = *c;
    inputs in;
    result got;
    step.lq = 1;
    inputs_copy(&a.in, &in);
    in.lq = 1;
    for (int64_t b = 0; b < in.b; b++)
      memcpy(in.q + inputs_q_at(&in, b, 0, 0), a.in.q + inputs_q_at(&a.in, b, c->lq - 1, 0),
             (size_t)(in.hq * in.dim) * sizeof(float));
    if (run(s, &step, &in, &got, out)) {
      result last = {.o = must_alloc((size_t)got.o_count * sizeof(float)), .o_count = got.o_count};
      for (int64_t b = 0; b < in.b; b++)
        memcpy(last.o + b * in.hq * in.dimv, a.got.o + ((b + 1) * c->lq - 1) * in.hq * in.dimv,
               (size_t)(in.hq * in.dimv) * sizeof(float));
      float *lse = got.lse;
      got.lse = NULL; /* compared through o only */
      compare_close(&step, &in, &got, &last, 2, out);
      got.lse = lse;
      free(last.o);
    }
    result_free(&got);
    inputs_free(&in);
  }
  base_close(&a);
}

/* ---- What a row does not see ---- */

/* visible[((b * hq + h) * lq + i) * lk + k], read off the reference: with q = 0 and v one-hot, o shows the keys seen.
 */
static bool *visibility(const test_case *c, const inputs *in, verdict *out) {
  bool *visible = must_alloc((size_t)(in->b * in->hq * in->lq * in->lk));
  test_case probe = *c;
  probe.dim = 8, probe.dimv = 256, probe.hk = 1;
  probe.score[0] = probe.softcap[0] = probe.scale[0] = '\0';
  probe.sink = SINK_ABSENT;
  probe.outputs = OUTPUTS_O;
  probe.dtype = QKV_F32, probe.kv = probe.out = 0;
  for (int64_t first = 0; first < in->lk && out->outcome != FAILED; first += 256) {
    inputs marks;
    result seen;
    inputs_make(&probe, &marks);
    memset(marks.q, 0, (size_t)(marks.b * marks.lq * marks.hq * marks.dim) * sizeof(float));
    for (int64_t n = 0; n < marks.b * marks.lk * 256; n++) {
      int64_t k = n / 256 % marks.lk;
      marks.v[n] = k - first == n % 256;
    }
    if (!solve_reference(&probe, &marks, &seen))
      verdict_fail(out, "visibility: %s", seen.message);
    for (int64_t n = 0; n < seen.o_count && seen.o != NULL; n++) {
      int64_t k = first + n % 256, h = n / 256 % in->hq, i = n / 256 / in->hq % in->lq, b = n / 256 / in->hq / in->lq;
      if (k < in->lk)
        visible[((b * in->hq + h) * in->lq + i) * in->lk + k] = seen.o[n] > 0;
    }
    result_free(&seen);
    inputs_free(&marks);
  }
  return visible;
}

/* Replaces the chosen keys, and compares the rows that see none of them. `in_values`: V as well. */
static void perturb(base *a, const bool *visible, const bool *chosen, float key, bool in_values, const char *what) {
  const inputs *in = &a->in;
  inputs changed;
  result got;
  inputs_copy(in, &changed);
  for (int64_t n = 0; n < in->b * in->lk * in->hk; n++) {
    if (!chosen[n / in->hk % in->lk])
      continue;
    for (int64_t d = 0; d < in->dim; d++)
      changed.k[n * in->dim + d] = key;
    for (int64_t d = 0; d < in->dimv && in_values; d++)
      changed.v[n * in->dimv + d] = key;
  }
  if (run(a->s, a->c, &changed, &got, a->out)) {
    for (int64_t row = 0; row < in->b * in->hq * in->lq; row++) {
      int64_t i = row % in->lq, h = row / in->lq % in->hq, b = row / in->lq / in->hq;
      bool touched = false;
      for (int64_t k = 0; k < in->lk; k++)
        touched |= chosen[k] && visible[row * in->lk + k];
      if (touched)
        continue;
      int64_t at = ((b * in->lq + i) * in->hq + h) * in->dimv;
      if (memcmp(got.o + at, a->got.o + at, (size_t)in->dimv * sizeof(float)) != 0 ||
          (got.lse != NULL && memcmp(got.lse + row, a->got.lse + row, sizeof(float)) != 0))
        verdict_fail(a->out,
                     "%s: row b=%" PRId64 " h=%" PRId64 " i=%" PRId64
                     " changed, though it sees none of them (o %.9g, was %.9g)",
                     what, b, h, i, (double)got.o[at], (double)a->got.o[at]);
    }
  }
  result_free(&got);
  inputs_free(&changed);
}

/* Keys that a row does not see do not reach its bits: large numbers in K and V, NaN in K. (NaN in V of a key that a
 * neighbour row sees is 0 * NaN in the tensor core; only memory past the end is protected from that.) */
static void check_invisible(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    bool *visible = visibility(c, &a.in, out), *chosen = must_alloc((size_t)c->lk);
    for (int trial = 0; trial < 4 && out->outcome != FAILED; trial++) {
      for (int64_t k = 0; k < c->lk; k++) {
        uint64_t noise = hash_mix((uint64_t)(c->seed + trial * 1000 + k));
        bool by_trial[] = {k >= c->lk - c->lk / 3, k < c->lk / 3, noise % 8 == 0, k == (int64_t)(noise % 7)};
        chosen[k] = by_trial[trial];
      }
      perturb(&a, visible, chosen, 60000, true, "invisible keys set to 60000");
      perturb(&a, visible, chosen, NAN, false, "invisible keys set to NaN");
    }
    free(visible);
    free(chosen);
  }
  base_close(&a);
}

/* ---- Equal specs ---- */

/* Windows that cover everything give the bits of causal, with its schedule. Bottom-right alignment, so that lk - 1 is far
 * enough. */
static void check_wide_window(session *s, const test_case *unpinned, verdict *out) {
  base a;
  test_case pinned = *unpinned, *c = &pinned;
  if (!pin_schedule(s, c)) {
    verdict_fail(out, "no family can do it");
    return;
  }
  bool ok = base_open(&a, s, c, out);
  const int64_t widths[] = {c->lk + c->lq, c->lk + 1, c->lk, c->lk - 1, -1};
  for (int n = 0; ok && n < 5 && out->outcome != FAILED; n++) {
    test_case other = *c;
    snprintf(other.mask, sizeof other.mask, "window(%" PRId64 ", 0)", widths[n]);
    against_base(&a, other.mask, &other, &a.in, true);
  }
  base_close(&a);
}

/* Without a mask the order of keys does not matter, beyond rounding. */
static void check_permuted_keys(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    inputs in;
    inputs_copy(&a.in, &in);
    for (int64_t b = 0; b < in.b; b++)
      for (int64_t t = 0; t < in.lk; t++) {
        int64_t from = in.lk - 1 - t;
        memcpy(in.k + inputs_k_at(&in, b, t, 0), a.in.k + inputs_k_at(&in, b, from, 0),
               (size_t)(in.hk * in.dim) * sizeof(float));
        memcpy(in.v + inputs_v_at(&in, b, t, 0), a.in.v + inputs_v_at(&in, b, from, 0),
               (size_t)(in.hk * in.dimv) * sizeof(float));
      }
    against_base(&a, "keys in reverse order", c, &in, false);
    inputs_free(&in);
  }
  base_close(&a);
}

/* A constant added to every logit of a row moves lse by it and leaves o. */
static void check_shifted_logits(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    test_case other = *c;
    snprintf(other.score, sizeof other.score, "(%.100s) + 3 * (i %% 5) - 7", c->score[0] ? c->score : "s");
    result got;
    if (run(s, &other, &a.in, &got, out)) {
      for (int64_t n = 0; n < got.lse_count && got.lse != NULL; n++)
        got.lse[n] -= (float)(3 * (n % c->lq % 5) - 7);
      compare_close(&other, &a.in, &got, &a.got, 2, out);
    }
    result_free(&got);
  }
  base_close(&a);
}

/* A sink of -inf is no sink. */
static void check_no_sink(session *s, const test_case *c, verdict *out) {
  base a;
  if (base_open(&a, s, c, out)) {
    test_case other = *c;
    inputs in;
    other.sink = SINK_ABSENT;
    inputs_make(&other, &in);
    against_base(&a, "without the sink", &other, &in, false);
    inputs_free(&in);
  }
  base_close(&a);
}

/* ---- Other kernels of the same spec ---- */

/* Any two legal schedules agree, of every family that can do the case. */
static void check_schedules(session *s, const test_case *c, verdict *out) {
  enum { ON_A_GPU = 12, ON_AN_EMULATOR = 4 };
  base a;
  char families[MAX_FAMILIES][TEXT_FIELD], texts[ON_A_GPU][TEXT_FIELD], what[2 * TEXT_FIELD];
  int count = base_open(&a, s, c, out) ? families_of(s, c, a.got.aligned, families) : 0;
  if (count == 0)
    verdict_fail(out, "no family can do it");
  for (int f = 0; f < count; f++) {
    int schedules = schedules_of(s, c, a.got.aligned, families[f], s->emulated ? ON_AN_EMULATOR : ON_A_GPU, texts);
    if (schedules == 0)
      verdict_fail(out, "%s: no schedule is legal", families[f]);
    for (int n = 0; n < schedules && out->outcome != FAILED; n++) {
      test_case other = *c;
      memcpy(other.family, families[f], TEXT_FIELD);
      memcpy(other.sched, texts[n], TEXT_FIELD);
      snprintf(what, sizeof what, "%.64s %.255s", families[f], texts[n]);
      against_base(&a, what, &other, &a.in, false);
    }
  }
  base_close(&a);
}

/* Every fused family agrees with the textbook one. */
static void check_families(session *s, const test_case *c, verdict *out) {
  static const char textbook[] = "attention_naive";
  base a;
  test_case naive = *c;
  char families[MAX_FAMILIES][TEXT_FIELD];
  snprintf(naive.family, sizeof naive.family, textbook);
  a = (base){.s = s, .c = &naive, .out = out};
  inputs_make(c, &a.in);
  int count = run(s, &naive, &a.in, &a.got, out) ? families_of(s, c, a.got.aligned, families) : 0;
  if (count < 2)
    verdict_fail(out, "only %d families can do it", count);
  for (int f = 0; f < count && out->outcome != FAILED; f++) {
    test_case other = *c;
    if (strcmp(families[f], textbook) == 0)
      continue;
    memcpy(other.family, families[f], TEXT_FIELD);
    against_base(&a, families[f], &other, &a.in, false);
  }
  base_close(&a);
}

/* A query head's rows have the same bits whether or not they share tiles with the other heads of its group. */
static void check_packed(session *s, const test_case *c, verdict *out) {
  base a;
  test_case other = *c;
  char *pack = strstr(other.sched, "pack=1");
  if (!pack)
    verdict_fail(out, "the schedule does not say pack=1");
  else if (base_open(&a, s, c, out)) {
    pack[5] = '0';
    against_base(&a, "unpacked", &other, &a.in, true);
  }
  if (pack)
    base_close(&a);
}

/* For shapes too large for the reference as a whole: the last rows of a few heads against the reference. Bottom-right
 * alignment, and no parameter or sink. */
static void check_sampled(session *s, const test_case *c, verdict *out) {
  inputs in;
  result got;
  inputs_make(c, &in);
  bool ok = run(s, c, &in, &got, out);
  const int64_t entries[] = {0, c->b / 2, c->b - 1}, heads[] = {0, c->hq / 2, c->hq - 1};
  int64_t rows = c->lq < 64 ? c->lq : 64, group = c->hq / c->hk;
  for (int n = 0; ok && n < 9 && out->outcome != FAILED; n++) {
    int64_t b = entries[n / 3], h = heads[n % 3], hk = h / group;
    test_case part = *c;
    part.b = part.hq = part.hk = 1;
    part.lq = rows;
    inputs few = {.b = 1, .lq = rows, .lk = c->lk, .hq = 1, .hk = 1, .dim = in.dim, .dimv = in.dimv};
    few.q = must_alloc((size_t)(rows * in.dim) * sizeof(float));
    few.k = must_alloc((size_t)(c->lk * in.dim) * sizeof(float));
    few.v = must_alloc((size_t)(c->lk * in.dimv) * sizeof(float));
    result slice_got = {.o_count = rows * in.dimv, .lse_count = rows};
    slice_got.o = must_alloc((size_t)slice_got.o_count * sizeof(float));
    slice_got.lse = got.lse != NULL ? must_alloc((size_t)rows * sizeof(float)) : NULL;
    for (int64_t i = 0; i < rows; i++) {
      int64_t row = c->lq - rows + i;
      memcpy(few.q + i * in.dim, in.q + inputs_q_at(&in, b, row, h), (size_t)in.dim * sizeof(float));
      memcpy(slice_got.o + i * in.dimv, got.o + ((b * c->lq + row) * c->hq + h) * in.dimv,
             (size_t)in.dimv * sizeof(float));
      if (got.lse != NULL)
        slice_got.lse[i] = got.lse[(b * c->hq + h) * c->lq + row];
    }
    for (int64_t t = 0; t < c->lk; t++) {
      memcpy(few.k + t * in.dim, in.k + inputs_k_at(&in, b, t, hk), (size_t)in.dim * sizeof(float));
      memcpy(few.v + t * in.dimv, in.v + inputs_v_at(&in, b, t, hk), (size_t)in.dimv * sizeof(float));
    }
    result wanted;
    if (solve_reference(&part, &few, &wanted))
      compare_close(&part, &few, &slice_got, &wanted, 1, out);
    else
      verdict_fail(out, "reference: %s", wanted.message);
    result_free(&wanted);
    result_free(&slice_got);
    inputs_free(&few);
  }
  result_free(&got);
  inputs_free(&in);
}

// clang-format off
#define CHECKS(X)                                                                                                      \
  X("reference", check_reference)                                                                                      \
  X("repeat", check_repeat)                                                                                            \
  X("layouts", check_layouts)                                                                                          \
  X("guards", check_guards)                                                                                            \
  X("batch_mates", check_batch_mates)                                                                                  \
  X("sequences", check_sequences)                                                                                      \
  X("repeated_heads", check_repeated_heads)                                                                            \
  X("decode", check_decode)                                                                                            \
  X("invisible", check_invisible)                                                                                      \
  X("wide_window", check_wide_window)                                                                                  \
  X("permuted_keys", check_permuted_keys)                                                                              \
  X("shifted_logits", check_shifted_logits)                                                                            \
  X("no_sink", check_no_sink)                                                                                          \
  X("schedules", check_schedules)                                                                                      \
  X("families", check_families)                                                                                        \
  X("packed", check_packed)                                                                                            \
  X("sampled", check_sampled)

// clang-format on
#define RULE(name, function) {name, function},
#define NAME(name, function) name,
const check_rule checks[] = {CHECKS(RULE)};
const char *const check_names[] = {CHECKS(NAME) NULL};
