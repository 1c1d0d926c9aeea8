/* build_spec.c: the spec of a test case as YAML text, and the parameters its expressions may name.
 *
 * In: a test case. Out: the text given to qkv_spec_load, and the rules that make each parameter's values. A parameter
 * is declared exactly when its name occurs in the score or the mask. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "conformance.h"

static void extents_none(const test_case *c, int64_t shape[4]) {
  (void)c, (void)shape;
}
static void extents_heads(const test_case *c, int64_t shape[4]) {
  shape[0] = c->hq;
}
static void extents_keys(const test_case *c, int64_t shape[4]) {
  shape[0] = c->lk;
}
static void extents_batch_keys(const test_case *c, int64_t shape[4]) {
  shape[0] = c->b, shape[1] = c->lk;
}
static void extents_heads_keys(const test_case *c, int64_t shape[4]) {
  shape[0] = c->hq, shape[1] = c->lk;
}
static void extents_bias(const test_case *c, int64_t shape[4]) {
  shape[0] = c->hq, shape[1] = c->lq, shape[2] = c->lk;
}
static void extents_relative(const test_case *c, int64_t shape[4]) {
  shape[0] = c->hq, shape[1] = 63;
}
static void extents_blocks(const test_case *c, int64_t shape[4]) {
  shape[0] = c->hq, shape[1] = (c->lq + 15) / 16, shape[2] = (c->lk + 15) / 16;
}

/* A number per element that depends on the case's seed. */
static uint64_t key(const test_case *c, uint64_t salt, const int64_t index[4]) {
  uint64_t h = hash_mix((uint64_t)c->seed ^ salt << 32);
  for (int n = 0; n < 4; n++)
    h = hash_mix(h ^ (uint64_t)index[n]);
  return h;
}

static double value_slope(const test_case *c, const int64_t i[4]) {
  return exp2(-8.0 * (double)(i[0] + 1) / (double)c->hq);
}
/* Documents of 5 to 20 keys, in order. */
static double value_document(const test_case *c, const int64_t i[4]) {
  (void)c;
  return (double)((i[0] + i[0] / 25 * 3) / 13);
}
static double value_batch_document(const test_case *c, const int64_t i[4]) {
  (void)c;
  return (double)(i[1] / (7 + 4 * i[0]));
}
static double value_bias(const test_case *c, const int64_t i[4]) {
  return hash_normal(key(c, 1, i));
}
static double value_relative(const test_case *c, const int64_t i[4]) {
  return hash_normal(key(c, 2, i));
}
static double value_key_bias(const test_case *c, const int64_t i[4]) {
  return hash_normal(key(c, 3, i));
}
static double value_window(const test_case *c, const int64_t i[4]) {
  return (void)c, (void)i, 7;
}
/* Dilations. */
static double value_gap3(const test_case *c, const int64_t i[4]) {
  return (void)c, (void)i, 3;
}
static double value_gap0(const test_case *c, const int64_t i[4]) {
  return (void)c, (void)i, 0;
}
static double value_gap_back(const test_case *c, const int64_t i[4]) {
  return (void)c, (void)i, -4;
}
static double value_gap_wide(const test_case *c, const int64_t i[4]) {
  return (void)c, (void)i, 1 << 30;
}
static double value_temperature(const test_case *c, const int64_t i[4]) {
  return (void)c, (void)i, 0.6875;
}
static double value_head_window(const test_case *c, const int64_t i[4]) {
  return (void)c, (double)(1 + 5 * i[0] % 23);
}
static double value_keep(const test_case *c, const int64_t i[4]) {
  return hash_uniform(key(c, 4, i)) < 0.7;
}
static double value_block(const test_case *c, const int64_t i[4]) {
  return hash_uniform(key(c, 5, i)) < 0.6;
}

static const param_rule rules_table[] = {
    {"slope", "f32", "hq", QKV_F32, 1, extents_heads, value_slope},
    {"doc", "i32", "len_k", QKV_I32, 1, extents_keys, value_document},
    {"doc2", "i32", "b, len_k", QKV_I32, 2, extents_batch_keys, value_batch_document},
    {"bias", "f32", "hq, len_q, len_k", QKV_F32, 3, extents_bias, value_bias},
    {"rel", "f32", "hq, 63", QKV_F32, 2, extents_relative, value_relative},
    {"key_bias", "f16", "hq, len_k", QKV_F16, 2, extents_heads_keys, value_key_bias},
    {"w", "i32", "", QKV_I32, 0, extents_none, value_window},
    {"gap3", "i32", "", QKV_I32, 0, extents_none, value_gap3},
    {"gap0", "i32", "", QKV_I32, 0, extents_none, value_gap0},
    {"gap_back", "i32", "", QKV_I32, 0, extents_none, value_gap_back},
    {"gap_wide", "i32", "", QKV_I32, 0, extents_none, value_gap_wide},
    {"temp", "f32", "", QKV_F32, 0, extents_none, value_temperature},
    {"head_w", "i32", "hq", QKV_I32, 1, extents_heads, value_head_window},
    {"keep", "bool", "b, len_k", QKV_BOOL, 2, extents_batch_keys, value_keep},
    {"blocks", "bool", "hq, (len_q + 15) // 16, (len_k + 15) // 16", QKV_BOOL, 3, extents_blocks, value_block},
};

static bool is_name(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

/* Whether `name` occurs in `source` as a whole identifier. */
static bool mentions(const char *source, const char *name) {
  size_t length = strlen(name);
  for (const char *p = source; (p = strstr(p, name)) != NULL; p += length)
    if ((p == source || !is_name(p[-1])) && !is_name(p[length]))
      return true;
  return false;
}

int spec_params(const test_case *c, const param_rule *rules[MAX_PARAMS]) {
  int count = 0;
  for (size_t n = 0; n < sizeof rules_table / sizeof rules_table[0] && count < MAX_PARAMS; n++)
    if (mentions(c->score, rules_table[n].name) || mentions(c->mask, rules_table[n].name))
      rules[count++] = &rules_table[n];
  return count;
}

static void put(char text[SPEC_TEXT], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(char text[SPEC_TEXT], const char *format, ...) {
  size_t used = strlen(text);
  va_list args;
  va_start(args, format);
  vsnprintf(text + used, SPEC_TEXT - used, format, args);
  va_end(args);
}

void spec_build(const test_case *c, char text[SPEC_TEXT]) {
  static const char *const names[] = {"f16", "bf16", "f32", "e4m3", "e5m2"};
  text[0] = '\0';
  put(text, "qkvc: 1\nname: conformance\nattention:\n  heads: {q: %" PRId64 ", kv: %" PRId64 "}\n", c->hq, c->hk);
  put(text, "  dim: {qk: %" PRId64 ", v: %" PRId64 "}\n", c->dim, case_dim_v(c));
  put(text, "  dtype: {q: %s, kv: %s, out: %s}\n", names[c->dtype], names[case_dtype_kv(c)], names[case_dtype_out(c)]);
  if (c->scale[0])
    put(text, "  scale: %s\n", c->scale);
  if (c->softcap[0])
    put(text, "  softcap: %s\n", c->softcap);
  if (c->score[0])
    put(text, "  score: \"%s\"\n", c->score);
  if (c->mask[0])
    put(text, "  mask: \"%s\"\n", c->mask);
  if (c->sink != SINK_ABSENT)
    put(text, "  sink: per_head\n");
  if (c->kv_scale != SCALES_ABSENT)
    put(text, "  kv_scale: per_head\n");
  put(text, "  align: %s\n", c->top_left ? "top_left" : "bottom_right");
  const param_rule *rules[MAX_PARAMS];
  int count = spec_params(c, rules);
  if (count > 0)
    put(text, "  params:\n");
  for (int n = 0; n < count; n++) {
    put(text, "    %s: {type: %s", rules[n]->name, rules[n]->type);
    if (rules[n]->rank > 0) {
      /* Extents are quoted one by one: an expression may hold characters that mean something to YAML. */
      put(text, ", shape: [");
      const char *from = rules[n]->shape;
      while (true) {
        size_t length = strcspn(from, ",");
        put(text, "\"%.*s\"", (int)length, from);
        if (from[length] == '\0')
          break;
        from += length + 1 + strspn(from + length + 1, " ");
        put(text, ", ");
      }
      put(text, "]");
    }
    put(text, "}\n");
  }
  if (c->seq != SEQUENCES_DENSE)
    put(text, "layout: {q: %s, kv: ", sequences_ragged_q(c) ? "ragged" : "dense");
  if (sequences_paged(c))
    put(text, "{paged: {page: %" PRId64 ", order: %s, table: %s}}}\n", c->page, c->order ? "hnd" : "nhd",
        c->table ? "csr" : "rows");
  else if (c->seq != SEQUENCES_DENSE)
    put(text, "%s}\n", sequences_packed_k(c) ? "ragged" : "padded");
  const char *wanted[] = {"o, lse", "o", c->sink != SINK_ABSENT ? "o, lse, lse_with_sink" : "o, lse"};
  put(text, "outputs: [%s]\n", wanted[c->outputs]);
}
