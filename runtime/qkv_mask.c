/* qkv_mask.c: a mask for the user: pair by pair, and cut into tiles as kernels cut it. */
#include <stdlib.h>
#include <string.h>

#include "qkv_internal.h"

#define DEFAULT_MOST 3e8 /* pairs: a square of 16384, some ten seconds */

reference_position call_position(const spec *s, const qkv_attention_args *args, int64_t b, int64_t h, int64_t i) {
  const sequence q = call_sequence(s, args, b);
  return (reference_position){.q = s->align == ALIGN_BOTTOM_RIGHT ? i + q.len_k - q.len_q : i,
                              .i = i,
                              .h = h,
                              .hk = h / (s->heads_q / s->heads_kv),
                              .b = b,
                              .len_q = q.len_q,
                              .len_k = q.len_k};
}

int64_t call_dilation(const problem_eval *p, const expr *modulus) {
  const reference_position none = {0};
  int64_t m = modulus ? (int64_t)problem_value(p, modulus, &none, 0) : 1;
  return m < 0 ? -m : m > 0 ? m : 1;
}

/* How many of n tokens there are from `first` on, `step` apart. */
static int64_t count_from(int64_t first, int64_t n, int64_t step) {
  return n > first ? (n - first - 1) / step + 1 : 0;
}

reference_position call_residue_position(const spec *s, const qkv_attention_args *args, int64_t b, int64_t h,
                                         int64_t first_row, int64_t n, int64_t dilation) {
  reference_position at = call_position(s, args, b, h, first_row);
  at.all_q = at.len_q;
  at.all_k = at.len_k;
  at.dilation = dilation;
  at.residue = (at.q % dilation + dilation) % dilation;
  at.q = (at.q - at.residue) / dilation + n;
  at.i = n;
  at.len_q = count_from(first_row, at.all_q, dilation);
  at.len_k = count_from(at.residue, at.all_k, dilation);
  return at;
}

/* Sizes, parameters, and whether there is such an entry and head; *out as call_check_params has it. */
static qkv_status check(const spec *s, const qkv_attention_args *args, int64_t batch, int64_t head,
                        qkv_attention_args *out) {
  qkv_status status = call_check_params(s, args, out);
  if (status != QKV_OK)
    return status;
  if (batch < 0 || batch >= call_batch(s, args))
    return error_set(QKV_INVALID_ARGUMENT, "batch entry %lld is not there: the batch has %lld", (long long)batch,
                     (long long)call_batch(s, args));
  if (head < 0 || head >= s->heads_q)
    return error_set(QKV_INVALID_ARGUMENT, "query head %lld is not there: the spec has %d", (long long)head,
                     s->heads_q);
  return QKV_OK;
}

qkv_status qkv_visible(const qkv_spec *handle, const qkv_attention_args *given, int64_t batch, int64_t head,
                       unsigned char *visible) {
  qkv_attention_args args;
  if (!handle || !given || !visible)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !handle ? "spec" : !given ? "args" : "visible");
  qkv_status status = check(handle->parsed, given, batch, head, &args);
  if (status != QKV_OK)
    return status;
  const problem_eval eval = {handle->parsed, &args};
  const int64_t len_q = call_sequence(handle->parsed, &args, batch).len_q;
  for (int64_t i = 0; i < len_q; i++) {
    reference_position at = call_position(handle->parsed, &args, batch, head, i);
    for (at.k = 0; at.k < at.len_k; at.k++)
      *visible++ = problem_value(&eval, handle->parsed->mask, &at, 0) != 0;
  }
  return QKV_OK;
}

/* Queries and keys of a tile of the kernel that would run; zero when it has no tiles. */
static qkv_status kernel_tile(qkv_engine *e, const spec *s, const qkv_build_options *opt, int64_t *tile_q,
                              int64_t *tile_k) {
  const compiler_ops *compiler;
  gen_request request = {0};
  bool for_device;
  gen_kernel *kernel = NULL;
  if (!e)
    return error_set(QKV_INVALID_ARGUMENT, "engine is NULL, and the map has no tile");
  qkv_status status = build_request(e, opt, &request, &compiler, &for_device);
  if (status == QKV_OK)
    status = tuned_render(e, s, &request, for_device, &kernel, NULL);
  if (status != QKV_OK)
    return status;
  const manifest *m = &kernel->manifest;
  const char *keys = strstr(m->schedule, "tile_n=");
  *tile_q = *tile_k = 0;
  for (int n = 0; n < m->nlaunches; n++)
    for (int f = 0; f < m->launches[n].grid.count; f++)
      if (m->launches[n].grid.factors[f].size == SIZE_LEN_Q || m->launches[n].grid.factors[f].size == SIZE_RESIDUE_ROWS)
        *tile_q = m->launches[n].grid.factors[f].per;
  *tile_k = keys ? atoll(keys + strlen("tile_n=")) : 0;
  if (*tile_q <= 0 || *tile_k <= 0)
    status =
        error_set(QKV_INVALID_ARGUMENT, "%s has no tiles: say which, by tile_q and tile_k (qkvc: --tile)", m->family);
  gen_kernel_free(kernel);
  return status;
}

qkv_status qkv_map_mask(qkv_engine *engine, const qkv_spec *handle, const qkv_build_options *opt,
                        const qkv_attention_args *given_args, qkv_mask_map *given) {
  qkv_attention_args resolved;
  const qkv_attention_args *args = &resolved;
  if (!handle || !given_args || !given)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !handle ? "spec" : !given_args ? "args" : "map");
  qkv_mask_map map = {0};
  qkv_status status = struct_take(&map, sizeof map, given, "map");
  if (status == QKV_OK)
    status = check(handle->parsed, given_args, map.batch, map.head, &resolved);
  if (status != QKV_OK)
    return status;
  if (map.tile_q < 0 || map.tile_k < 0 || !map.tile_q != !map.tile_k)
    return error_set(QKV_INVALID_ARGUMENT, "map.tile_q and map.tile_k must both be positive, or both 0");
  mask_tiling tiling = {.batch = map.batch, .head = map.head, .tile_q = map.tile_q, .tile_k = map.tile_k};
  text analysis = {0};
  if (!map.tile_q)
    status = kernel_tile(engine, handle->parsed, opt, &tiling.tile_q, &tiling.tile_k);
  if (status == QKV_OK)
    status = mask_tiles(handle->parsed, args, map.most > 0 ? map.most : DEFAULT_MOST, &tiling);
  map.analysis = NULL;
  if (status == QKV_OK) {
    gen_explain_mask(handle->parsed, &analysis);
    status = text_give(&analysis, &map.analysis);
  }
  if (status != QKV_OK) {
    free(tiling.planned);
    free(tiling.actual);
    return status;
  }
  map.tile_q = tiling.tile_q;
  map.tile_k = tiling.tile_k;
  map.dilation = tiling.dilation;
  map.rows = tiling.rows;
  map.columns = tiling.columns;
  map.planned = tiling.planned;
  map.actual = tiling.actual;
  map.visible = tiling.visible;
  return struct_give(given, &map, sizeof map, "map");
}

void qkv_mask_map_free(qkv_mask_map *map) {
  if (!map || map->size < sizeof *map)
    return;
  free(map->planned);
  free(map->actual);
  free(map->analysis);
  map->planned = map->actual = NULL;
  map->analysis = NULL;
}
