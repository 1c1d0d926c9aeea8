/* spec_schema.c: the table of format 1 and looking things up in it. */
#include "spec_schema.h"

#include <string.h>

#include "diag.h"

#define WORDS_DTYPE "f16", "bf16", "f32", "e4m3", "e5m2"
#define INTEGER(low_, high_, step_) .low = low_, .high = high_, .step = step_
#define RESERVED(path_, meaning_)                                                                                      \
  { .path = path_, .kinds = SCHEMA_ANY, .flags = SCHEMA_RESERVED, .meaning = meaning_ }

enum { MAX_HEADS = 1 << 20, MAX_LENGTH = INT32_MAX };

/* Parents stand before their children; keys in the order of the canonical form. */
/* clang-format off */
const schema_row schema_rows[] = {
    {.path = "", .kinds = SCHEMA_MAPPING, .meaning = "a spec"},
    {.path = "qkvc", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(1, 1, 1), .example = "qkvc: 1",
     .meaning = "version of the format"},
    {.path = "name", .kinds = SCHEMA_NAME, .flags = SCHEMA_REQUIRED, .high = 64, .example = "name: llama3_8b",
     .meaning = "names the variant in messages, reports and files; changes nothing that is computed"},

    {.path = "attention", .kinds = SCHEMA_MAPPING, .flags = SCHEMA_REQUIRED,
     .example = "attention: {heads: 8, dim: 64, dtype: bf16}", .meaning = "what is computed"},
    {.path = "attention.heads", .kinds = SCHEMA_INTEGER | SCHEMA_MAPPING, .flags = SCHEMA_REQUIRED,
     INTEGER(1, MAX_HEADS, 1), .example = "heads: {q: 32, kv: 8}",
     .meaning = "query heads and KV heads; one number is both. Query head h reads KV head h // (q / kv)"},
    {.path = "attention.heads.q", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(1, MAX_HEADS, 1),
     .example = "q: 32", .meaning = "query heads, a multiple of kv"},
    {.path = "attention.heads.kv", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(1, MAX_HEADS, 1),
     .example = "kv: 8", .meaning = "KV heads"},
    {.path = "attention.dim", .kinds = SCHEMA_INTEGER | SCHEMA_MAPPING, .flags = SCHEMA_REQUIRED, INTEGER(8, 512, 8),
     .example = "dim: 128",
     .meaning = "head dimensions; one number is both. Each 8 to 256, or one of the pairs 320/256, 512/512, 576/512"},
    {.path = "attention.dim.qk", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(8, 576, 8),
     .example = "qk: 192", .meaning = "head dimension of Q and K"},
    {.path = "attention.dim.v", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(8, 512, 8),
     .example = "v: 128", .meaning = "head dimension of V and O"},
    {.path = "attention.dtype", .kinds = SCHEMA_WORD | SCHEMA_MAPPING, .words = {WORDS_DTYPE}, .fallback = "bf16",
     .meaning = "storage type of Q, K and V, and of O where not given apart; sums are always f32"},
    {.path = "attention.dtype.q", .kinds = SCHEMA_WORD, .flags = SCHEMA_REQUIRED, .words = {WORDS_DTYPE},
     .example = "q: bf16", .meaning = "type of Q"},
    {.path = "attention.dtype.kv", .kinds = SCHEMA_WORD, .words = {WORDS_DTYPE},
     .meaning = "type of K and V; default: that of q"},
    {.path = "attention.dtype.out", .kinds = SCHEMA_WORD, .words = {WORDS_DTYPE},
     .meaning = "type of O; default: that of q, or bf16 where q is e4m3 or e5m2"},
    {.path = "attention.kv_scale", .kinds = SCHEMA_WORD, .words = {"none", "per_head"}, .fallback = "none",
     .meaning = "what is stored of K and V is multiplied by factors given at launch, one each a KV head"},
    {.path = "attention.scale", .kinds = SCHEMA_CONSTANT,
     .meaning = "factor on dot(q, k); default: 1/sqrt(dim.qk). Zero and negative values are allowed"},
    {.path = "attention.softcap", .kinds = SCHEMA_CONSTANT,
     .meaning = "caps scores: s = softcap * tanh(s / softcap); greater than 0. Default: no cap"},
    {.path = "attention.score", .kinds = SCHEMA_EXPRESSION, .fallback = "s",
     .meaning = "the score as an expression over s, the scaled and capped dot product"},
    {.path = "attention.mask", .kinds = SCHEMA_EXPRESSION, .fallback = "true",
     .meaning = "whether query q sees key k, as an expression; a false one is a score of -inf"},
    {.path = "attention.sink", .kinds = SCHEMA_WORD, .words = {"none", "per_head"}, .fallback = "none",
     .meaning = "an extra logit per query head that joins the softmax denominator once, without a value"},
    {.path = "attention.align", .kinds = SCHEMA_WORD, .words = {"bottom_right", "top_left"}, .fallback = "bottom_right",
     .meaning = "position of query row i: i + len_k - len_q, or i"},
    {.path = "attention.params", .kinds = SCHEMA_MAPPING, .high = 32,
     .meaning = "kernel arguments that score and mask may name; a new value compiles nothing"},
    {.path = "attention.params.*", .kinds = SCHEMA_MAPPING, .meaning = "one parameter, named by its key"},
    {.path = "attention.params.*.type", .kinds = SCHEMA_WORD, .flags = SCHEMA_REQUIRED,
     .words = {"i32", "f32", "f16", "bf16", "bool"}, .example = "type: f32",
     .meaning = "storage type; reads as int (i32), bool (bool) or float"},
    {.path = "attention.params.*.shape", .kinds = SCHEMA_LIST, .high = 4, .fallback = "[]",
     .meaning = "extents, outermost first; [] is a scalar, passed by value"},
    {.path = "attention.params.*.shape.[]", .kinds = SCHEMA_EXPRESSION,
     .meaning = "an integer expression over hq, hk, b, len_q, len_k"},
    RESERVED("attention.rope", "rotary positions inside the kernel"),
    RESERVED("attention.select", "sparse selection of keys"),
    RESERVED("attention.backward", "gradients"),

    {.path = "layout", .kinds = SCHEMA_MAPPING, .meaning = "how tensors lie in memory"},
    {.path = "layout.q", .kinds = SCHEMA_WORD, .words = {"dense", "ragged"}, .fallback = "dense",
     .meaning = "dense: [batch, len, heads, dim] with any strides; ragged: sequences packed one after the other"},
    {.path = "layout.kv", .kinds = SCHEMA_WORD | SCHEMA_MAPPING, .words = {"dense", "padded", "ragged"},
     .fallback = "dense",
     .meaning = "the same for K and V; padded: [batch, capacity, heads, dim], each sequence with a length; or paged"},
    {.path = "layout.kv.paged", .kinds = SCHEMA_MAPPING, .flags = SCHEMA_REQUIRED,
     .example = "paged: {page: 16, order: nhd}", .meaning = "K and V in pages that a page table names"},
    {.path = "layout.kv.paged.page", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(1, 256, 1),
     .example = "page: 16", .meaning = "tokens in a page"},
    {.path = "layout.kv.paged.order", .kinds = SCHEMA_WORD, .words = {"nhd", "hnd"}, .fallback = "nhd",
     .meaning = "order inside a page: token, head, dim or head, token, dim"},
    {.path = "layout.kv.paged.table", .kinds = SCHEMA_WORD, .words = {"rows", "csr"}, .fallback = "rows",
     .meaning = "the page table: rows: [batch, columns]; csr: [entries], one sequence after the other"},
    RESERVED("layout.kv.pools", "several KV pools"),

    {.path = "rope", .kinds = SCHEMA_MAPPING,
     .meaning = "rotary positions: what append does to queries and keys. The numbers compile nothing anew"},
    {.path = "rope.dims", .kinds = SCHEMA_INTEGER, INTEGER(2, 576, 2),
     .meaning = "how many dimensions of a head turn, its first ones; default: all of dim.qk"},
    {.path = "rope.style", .kinds = SCHEMA_WORD, .words = {"half", "interleaved"}, .fallback = "half",
     .meaning = "what turns together: half: dimensions d and d + dims / 2 (NeoX); interleaved: 2 d and 2 d + 1 (GPT-J)"},
    {.path = "rope.theta", .kinds = SCHEMA_CONSTANT,
     .meaning = "pair d turns by theta^(-2 d / dims) a position, before scaling; greater than 0. Default: 10000"},
    {.path = "rope.table", .kinds = SCHEMA_WORD, .words = {"false", "true"}, .fallback = "false",
     .meaning = "true: cosines and sines come with a call, as a table of positions, in place of theta and scaling"},
    {.path = "rope.scaling", .kinds = SCHEMA_WORD | SCHEMA_MAPPING, .words = {"none"}, .fallback = "none",
     .meaning = "how frequencies are changed for longer contexts: none, or one of the keys"},
    {.path = "rope.scaling.linear", .kinds = SCHEMA_MAPPING, .example = "linear: {factor: 8}",
     .meaning = "positions divided by a factor"},
    {.path = "rope.scaling.linear.factor", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED, .example = "factor: 8",
     .meaning = "the factor, greater than 0"},
    {.path = "rope.scaling.ntk", .kinds = SCHEMA_MAPPING, .example = "ntk: {factor: 8}",
     .meaning = "theta multiplied by factor^(dims / (dims - 2))"},
    {.path = "rope.scaling.ntk.factor", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED, .example = "factor: 8",
     .meaning = "the factor, greater than 0"},
    {.path = "rope.scaling.yarn", .kinds = SCHEMA_MAPPING, .example = "yarn: {factor: 32, original: 4096}",
     .meaning = "YaRN: slow pairs divided by a factor, fast ones left, a ramp between them"},
    {.path = "rope.scaling.yarn.factor", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED, .example = "factor: 32",
     .meaning = "the factor, greater than 0"},
    {.path = "rope.scaling.yarn.original", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED,
     .example = "original: 4096", .meaning = "the context that the model was trained with, greater than 0"},
    {.path = "rope.scaling.yarn.beta_fast", .kinds = SCHEMA_CONSTANT,
     .meaning = "turns in that context from which on a pair is left as it is. Default: 32"},
    {.path = "rope.scaling.yarn.beta_slow", .kinds = SCHEMA_CONSTANT,
     .meaning = "turns in it up to which a pair is divided by the factor; less than beta_fast. Default: 1"},
    {.path = "rope.scaling.yarn.attention_factor", .kinds = SCHEMA_CONSTANT,
     .meaning = "factor on cosines and sines. Default: 0.1 log(factor) + 1, and 1 for factors up to 1"},
    {.path = "rope.scaling.yarn.truncate", .kinds = SCHEMA_WORD, .words = {"false", "true"}, .fallback = "true",
     .meaning = "whether the ramp begins and ends at whole pairs"},
    {.path = "rope.scaling.llama3", .kinds = SCHEMA_MAPPING,
     .example = "llama3: {factor: 8, low: 1, high: 4, original: 8192}",
     .meaning = "Llama 3.1: pairs of long waves divided by a factor, those of short ones left, a blend between them"},
    {.path = "rope.scaling.llama3.factor", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED, .example = "factor: 8",
     .meaning = "the factor, greater than 0"},
    {.path = "rope.scaling.llama3.low", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED, .example = "low: 1",
     .meaning = "waves in the original context up to which a pair is divided by the factor"},
    {.path = "rope.scaling.llama3.high", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED, .example = "high: 4",
     .meaning = "waves in it from which on a pair is left as it is; greater than low"},
    {.path = "rope.scaling.llama3.original", .kinds = SCHEMA_CONSTANT, .flags = SCHEMA_REQUIRED,
     .example = "original: 8192", .meaning = "the context that the model was trained with, greater than 0"},
    {.path = "append", .kinds = SCHEMA_MAPPING,
     .meaning = "how new keys and values get into the cache: norm, rope, then storage as dtype.kv"},
    {.path = "append.norm", .kinds = SCHEMA_WORD, .words = {"none", "rms"}, .fallback = "none",
     .meaning = "rms: x * weight / sqrt(mean(x^2) + epsilon) over each head of queries and keys, before rope"},
    {.path = "append.epsilon", .kinds = SCHEMA_CONSTANT, .meaning = "epsilon of the norm, at least 0. Default: 1e-6"},
    {.path = "append.slots", .kinds = SCHEMA_WORD, .words = {"mapping", "positions", "lengths"}, .fallback = "mapping",
     .meaning = "where a token goes: mapping: a slot each; positions: a position in its sequence each; lengths: the new "
                "tokens are the last of their sequence"},
    {.path = "append.query", .kinds = SCHEMA_WORD, .words = {"false", "true"}, .fallback = "true",
     .meaning = "whether queries are normalised and turned as well"},

    {.path = "outputs", .kinds = SCHEMA_LIST, .high = 8, .fallback = "[o]", .meaning = "what is written"},
    {.path = "outputs.[]", .kinds = SCHEMA_WORD, .words = {"o", "lse", "lse_with_sink"},
     .meaning = "o; lse: natural logarithm of the sum of exp of the scores, f32; lse_with_sink: with the sink in it"},
    {.path = "deterministic", .kinds = SCHEMA_WORD, .words = {"false", "true", "batch"}, .fallback = "false",
     .meaning = "true: same bits in every run; batch: also whatever else is in the batch"},
    {.path = "schedule", .kinds = SCHEMA_WORD | SCHEMA_MAPPING, .words = {"auto"}, .high = 32, .fallback = "auto",
     .meaning = "axes of the family's schedule (qkvc explain lists them); never change results beyond rounding"},
    {.path = "schedule.*", .kinds = SCHEMA_SETTING, .meaning = "an axis for all phases"},
    {.path = "schedule.prefill", .kinds = SCHEMA_WORD | SCHEMA_MAPPING, .words = {"auto"}, .fallback = "auto",
     .meaning = "axes for many queries a sequence; they override those for all phases"},
    {.path = "schedule.prefill.*", .kinds = SCHEMA_SETTING, .meaning = "an axis"},
    {.path = "schedule.decode", .kinds = SCHEMA_WORD | SCHEMA_MAPPING, .words = {"auto"}, .fallback = "auto",
     .meaning = "axes for few queries a sequence; they override those for all phases"},
    {.path = "schedule.decode.*", .kinds = SCHEMA_SETTING, .meaning = "an axis"},
    {.path = "workloads", .kinds = SCHEMA_LIST, .high = 64, .fallback = "[]",
     .meaning = "shapes to tune, warm up and benchmark; they change nothing that is computed"},
    {.path = "workloads.[]", .kinds = SCHEMA_MAPPING, .meaning = "one shape"},
    {.path = "workloads.[].name", .kinds = SCHEMA_NAME, .flags = SCHEMA_REQUIRED, .high = 64,
     .example = "name: prefill_4k", .meaning = "its name, once in a spec"},
    {.path = "workloads.[].batch", .kinds = SCHEMA_INTEGER, INTEGER(1, MAX_LENGTH, 1), .fallback = "1",
     .meaning = "sequences"},
    {.path = "workloads.[].q", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(1, MAX_LENGTH, 1),
     .example = "q: 4096", .meaning = "query rows a sequence"},
    {.path = "workloads.[].kv", .kinds = SCHEMA_INTEGER, .flags = SCHEMA_REQUIRED, INTEGER(1, MAX_LENGTH, 1),
     .example = "kv: 4096", .meaning = "keys a sequence"},

    RESERVED("recurrence", "linear attention"),
    RESERVED("select", "sparse selection of keys"),
    RESERVED("backward", "gradients"),
    {.path = "x-*", .kinds = SCHEMA_ANY, .meaning = "anything; the only free-form part, and the home of anchors"},
};
/* clang-format on */

const int schema_row_count = sizeof schema_rows / sizeof schema_rows[0];

const schema_row *schema_find(const char *path) {
  for (int i = 0; i < schema_row_count; i++)
    if (strcmp(schema_rows[i].path, path) == 0)
      return &schema_rows[i];
  return NULL;
}

const char *schema_key(const schema_row *row) {
  const char *dot = strrchr(row->path, '.');
  return dot ? dot + 1 : row->path;
}

bool schema_is_child(const schema_row *row, const schema_row *parent) {
  size_t length = strlen(parent->path);
  if (length == 0)
    return row->path[0] && !strchr(row->path, '.');
  return strncmp(row->path, parent->path, length) == 0 && row->path[length] == '.' &&
         !strchr(row->path + length + 1, '.');
}

const schema_row *schema_child(const schema_row *parent, const char *key) {
  const schema_row *any = NULL;
  for (int i = 0; i < schema_row_count; i++) {
    const schema_row *row = &schema_rows[i];
    if (!schema_is_child(row, parent))
      continue;
    if (strcmp(schema_key(row), "*") == 0)
      any = row;
    else if (strcmp(schema_key(row), key) == 0)
      return row;
  }
  return any;
}

int schema_keys(const schema_row *row, const char *keys[SCHEMA_MAX_KEYS]) {
  int count = 0;
  for (int i = 0; i < schema_row_count && count < SCHEMA_MAX_KEYS; i++) {
    const char *key = schema_key(&schema_rows[i]);
    if (schema_is_child(&schema_rows[i], row) && !(schema_rows[i].flags & SCHEMA_RESERVED) && !strpbrk(key, "*[") &&
        *key)
      keys[count++] = key;
  }
  return count;
}

bool schema_is_free_form(const char *key) {
  return strncmp(key, "x-", 2) == 0;
}

#define TABLES_PASSED(table_)                                                                                          \
  "page tables are arguments of a call; the spec has their form: `layout: {kv: {paged: {page: 16, table: " table_ "}}}`"
#define LENGTHS_PASSED(layout_)                                                                                        \
  "lengths are arguments of a call; the spec says how sequences lie: `layout: " layout_ "`"

#define SCALES_PASSED                                                                                                  \
  "scales of K and V are arguments of a call; the spec says that there are some: `kv_scale: per_head`"

/* Words of other libraries. */
static const struct {
  const char *key, *advice;
} foreign_keys[] = {
    {"head_dim", "the key is dim: `dim: 128`"},
    {"head_size", "the key is dim: `dim: 128`"},
    {"num_heads", "the key is heads: `heads: {q: 32, kv: 8}`"},
    {"n_heads", "the key is heads: `heads: {q: 32, kv: 8}`"},
    {"num_kv_heads", "KV heads are part of heads: `heads: {q: 32, kv: 8}`"},
    {"n_kv_heads", "KV heads are part of heads: `heads: {q: 32, kv: 8}`"},
    {"causal", "causality is a mask: `mask: causal`"},
    {"is_causal", "causality is a mask: `mask: causal`"},
    {"window", "a window is a mask: `mask: window(1023, 0)`, distances to the left and right"},
    {"window_left", "a window is a mask: `mask: window(1023, 0)`, distances to the left and right"},
    {"window_size", "a window is a mask: `mask: window(1023, 0)`, distances to the left and right"},
    {"sliding_window", "a window of W tokens is a mask: `mask: window(W - 1, 0)`"},
    {"softmax_scale", "the key is scale"},
    {"sm_scale", "the key is scale"},
    {"logits_soft_cap", "the key is softcap"},
    {"logit_softcap", "the key is softcap"},
    {"soft_cap", "the key is softcap"},
    {"k_descale", SCALES_PASSED},
    {"v_descale", SCALES_PASSED},
    {"alibi", "a bias is part of the score: `score: s + slope[h] * (k - q)` with slope under params"},
    {"bias", "a bias is part of the score: `score: s + bias[h, i, k]` with bias under params"},
    {"page_size", "pages are part of the layout: `layout: {kv: {paged: {page: 16}}}`"},
    {"block_size", "pages are part of the layout: `layout: {kv: {paged: {page: 16}}}`"},
    {"block_table", TABLES_PASSED("rows")},
    {"page_table", TABLES_PASSED("rows")},
    {"page_indptr", TABLES_PASSED("csr")},
    {"kv_indptr", TABLES_PASSED("csr")},
    {"kv_layout", "the order inside a page is part of the layout: `layout: {kv: {paged: {page: 16, order: nhd}}}`"},
    {"cu_seqlens", LENGTHS_PASSED("{q: ragged, kv: ragged}")},
    {"cu_seqlens_q", LENGTHS_PASSED("{q: ragged, kv: ragged}")},
    {"cu_seqlens_k", LENGTHS_PASSED("{q: ragged, kv: ragged}")},
    {"qo_indptr", LENGTHS_PASSED("{q: ragged, kv: ragged}")},
    {"seqlens_k", LENGTHS_PASSED("{kv: padded}")},
    {"cache_seqlens", LENGTHS_PASSED("{kv: padded}")},
    {"seqused_k", LENGTHS_PASSED("{kv: padded}")},
    {"sinks", "the key is sink: `sink: per_head`"},
    {"return_lse", "outputs are a list: `outputs: [o, lse]`"},
    {"batch_invariant", "the key is deterministic: `deterministic: batch`"},
    {"rope_theta", "theta is part of rope: `rope: {theta: 500000}`"},
    {"rope_base", "the key is theta: `rope: {theta: 500000}`"},
    {"rotary_dim", "rotated dimensions are part of rope: `rope: {dims: 64}`"},
    {"rope_scaling", "scaling is part of rope: `rope: {scaling: {linear: {factor: 8}}}`"},
    {"rope_type", "the kind of scaling is a key: `scaling: {yarn: {factor: 32, original: 4096}}`"},
    {"is_neox", "the key is style: half (NeoX) or interleaved (GPT-J)"},
    {"is_neox_style", "the key is style: half (NeoX) or interleaved (GPT-J)"},
    {"low_freq_factor", "the key is low: `llama3: {factor: 8, low: 1, high: 4, original: 8192}`"},
    {"high_freq_factor", "the key is high: `llama3: {factor: 8, low: 1, high: 4, original: 8192}`"},
    {"original_max_position_embeddings", "the key is original: `yarn: {factor: 32, original: 4096}`"},
    {"mscale", "the key is attention_factor: `yarn: {factor: 40, original: 4096, attention_factor: 1}`"},
    {"slot_mapping", "slots are an argument of a call; the spec says what they are: `append: {slots: mapping}`"},
    {"qk_norm", "norms of queries and keys are part of append: `append: {norm: rms}`"},
    {"version", "the version of the format is the key qkvc: `qkvc: 1`"},
};

const char *schema_advice(const char *key) {
  enum { COUNT = sizeof foreign_keys / sizeof foreign_keys[0] };
  const char *keys[COUNT];
  for (int i = 0; i < COUNT; i++)
    keys[i] = foreign_keys[i].key;
  const char *near = diag_nearest(key, keys, COUNT);
  for (int i = 0; near && i < COUNT; i++)
    if (strcmp(foreign_keys[i].key, near) == 0)
      return foreign_keys[i].advice;
  return NULL;
}

static void describe_words(const schema_row *row, text *out) {
  int count = 0;
  while (row->words[count])
    count++;
  for (int i = 0; i < count; i++)
    text_printf(out, "%s%s", i == 0 ? "" : i == count - 1 ? " or " : ", ", row->words[i]);
}

static void describe_mapping(const schema_row *row, text *out) {
  const char *keys[SCHEMA_MAX_KEYS];
  int count = schema_keys(row, keys);
  text_puts(out, "a mapping");
  if (schema_child(row, "*"))
    return;
  for (int i = 0; i < count; i++)
    text_printf(out, "%s%s", i > 0 ? ", " : count > 1 ? " with the keys " : " with the key ", keys[i]);
}

void schema_describe(const schema_row *row, text *out) {
  static const unsigned kinds[] = {SCHEMA_INTEGER, SCHEMA_WORD,    SCHEMA_NAME, SCHEMA_CONSTANT, SCHEMA_EXPRESSION,
                                   SCHEMA_SETTING, SCHEMA_MAPPING, SCHEMA_LIST, SCHEMA_ANY};
  int part = 0;
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    if (!(row->kinds & kinds[i]))
      continue;
    text_puts(out, part++ == 0 ? "" : row->words[0] && row->words[1] ? ", or " : " or ");
    switch (kinds[i]) {
    case SCHEMA_INTEGER:
      if (row->low == row->high)
        text_printf(out, "%lld", (long long)row->low);
      else
        text_printf(out, "an integer from %lld to %lld", (long long)row->low, (long long)row->high);
      if (row->step > 1)
        text_printf(out, " in steps of %lld", (long long)row->step);
      break;
    case SCHEMA_WORD:
      describe_words(row, out);
      break;
    case SCHEMA_NAME:
      text_printf(out, "a word of a-z 0-9 _ that starts with a letter, at most %lld characters", (long long)row->high);
      break;
    case SCHEMA_CONSTANT:
      text_puts(out, "a constant such as 0.125 or 1/sqrt(128)");
      break;
    case SCHEMA_EXPRESSION:
      text_puts(out, "an expression");
      break;
    case SCHEMA_SETTING:
      text_puts(out, "an integer or a word");
      break;
    case SCHEMA_MAPPING:
      describe_mapping(row, out);
      break;
    case SCHEMA_LIST:
      text_puts(out, "a list");
      break;
    default:
      text_puts(out, "anything");
      break;
    }
  }
}
