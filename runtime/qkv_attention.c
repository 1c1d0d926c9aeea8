/* qkv_attention.c: the launch path: check, choose among loaded kernels, fill a struct on the stack, launch.
 *
 * Nothing here allocates, locks, waits, compiles, or reads files or the environment; so a call can be captured in a
 * CUDA graph. (A failing call formats a message, which allocates.) */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_internal.h"

qkv_status call_check_maxima(const qkv_op *op, const call_view *call) {
  const struct {
    const char *name;
    int64_t limit, value;
  } rows[] = {{"batch", op->limits.batch, call->sizes[SIZE_BATCH]},
              {"len_q", op->limits.len_q, call->sizes[SIZE_LEN_Q]},
              {"len_k", op->limits.len_k, call->sizes[SIZE_LEN_K]}};
  for (int n = 0; n < 3; n++)
    if (rows[n].limit && rows[n].value > rows[n].limit)
      return error_set(QKV_INVALID_ARGUMENT, "%s is %lld; the op was prepared for at most %lld", rows[n].name,
                       (long long)rows[n].value, (long long)rows[n].limit);
  return QKV_OK;
}

/* Offsets of the regions in the workspace. */
static qkv_status place_workspace(const op_kernel *k, const qkv_attention_args *args, const call_view *call,
                                  int64_t offsets[MANIFEST_MAX_REGIONS]) {
  if (k->manifest.nregions == 0)
    return QKV_OK;
  int64_t bytes = manifest_workspace(&k->manifest, call->sizes, offsets);
  if (bytes < 0 || args->workspace_bytes < (size_t)bytes)
    return error_set(QKV_INVALID_ARGUMENT, "workspace: has %zu bytes, this call needs %lld (qkv_workspace_size)",
                     args->workspace_bytes, (long long)bytes);
  if (bytes > 0 && !args->workspace)
    return error_set(QKV_INVALID_ARGUMENT, "workspace: is NULL");
  if ((uintptr_t)args->workspace % 256)
    return error_set(QKV_INVALID_ARGUMENT, "workspace: must be 256-byte aligned");
  return QKV_OK;
}

static int64_t integer_of(const field_slot *slot, const call_view *call) {
  switch (slot->kind) {
  case SLOT_STRIDE:
    return call->tensors[slot->tensor]->stride[slot->index];
  case SLOT_EXTENT:
    return call->tensors[slot->tensor]->shape[slot->index];
  case SLOT_SIZE:
    return call->sizes[slot->index];
  case SLOT_VALUE:
    return (int64_t)call->values[slot->index];
  default:
    return 0;
  }
}

/* One dimension of a view of a tensor. */
typedef struct view_axis {
  int64_t extent, stride;
  int box;
} view_axis;

static qkv_status encode_map(const qkv_op *op, void *base, qkv_dtype dtype, const view_axis *axes, int rank,
                             int swizzle, char *encoded) {
  int size = dtype_size(dtype);
  device_tensor_map map = {.base = base, .element_bytes = size, .rank = rank, .swizzle = swizzle};
  for (int d = 0; d < rank; d++) {
    map.extent[d] = axes[d].extent;
    map.box[d] = axes[d].box;
    if (map.extent[d] == 0) /* an empty tensor has no map; no kernel looks at it then */
      return QKV_OK;
    if (d > 0) /* an extent of 1 may have any stride; the hardware wants a multiple of 16 */
      map.stride_bytes[d - 1] = map.extent[d] > 1 ? axes[d].stride * size : 16;
  }
  return op->engine->ops->tensor_map(op->engine->device, &map, encoded);
}

/* A view of one tensor as (dim, token / d, token % d, head, batch) with dilation d. When len is no multiple of d the
 * residues below len % d have a token more than the others, which no one view of whole extents holds without promising
 * memory that is not there: so there are two of them. */
static qkv_status fill_residue_map(const qkv_op *op, const field_slot *slot, const call_view *call, char *encoded) {
  const qkv_tensor *t = call->tensors[slot->tensor];
  const int64_t dilation = call->sizes[SIZE_DILATION], len = t->shape[1], more = len % dilation;
  const bool is_long = slot->tokens == MAP_LONG;
  const int64_t tokens = len / dilation + is_long, residues = is_long ? more : dilation;
  return encode_map(op, t->data, t->dtype,
                    (const view_axis[]){{t->shape[3], 1, slot->box_dims},
                                        {tokens, dilation * t->stride[1], slot->box_tokens},
                                        {residues, t->stride[1], 1},
                                        {t->shape[2], t->stride[2], 1},
                                        {t->shape[0], t->stride[0], 1}},
                    5, slot->swizzle, encoded);
}

/* A view of one tensor as (dim, token, head, batch), or packed as (dim, query head of a KV head, token, KV head,
 * batch); a clipped one has (row of the box, token) in the token's place, and no batch where the tensor has none. Row r
 * at token t is token r + t - rows of the tensor: the base lies `rows` tokens before it, and no row that a box has
 * inside of the map does. */
static qkv_status fill_map(const qkv_op *op, const field_slot *slot, const call_view *call, char *encoded) {
  const qkv_tensor *t = call->tensors[slot->tensor];
  const spec *s = op->spec->parsed;
  const int64_t group = s->heads_q / s->heads_kv, step = t->stride[slot->token], heads = t->shape[slot->head];
  const bool clipped = slot->tokens == MAP_CLIPPED, packed = slot->box_heads > 0;
  view_axis axes[5];
  int rank = 0;
  uintptr_t base = (uintptr_t)t->data;
  if (slot->tokens == MAP_LONG || slot->tokens == MAP_SHORT)
    return fill_residue_map(op, slot, call, encoded);
  if (t->shape[slot->token] == 0) /* see encode_map */
    return QKV_OK;
  axes[rank++] = (view_axis){t->shape[slot->dim], 1, slot->box_dims};
  if (packed)
    axes[rank++] = (view_axis){group, t->stride[slot->head], slot->box_heads};
  if (clipped) {
    base -= (uintptr_t)(slot->box_tokens * step * dtype_size(t->dtype));
    axes[rank++] = (view_axis){slot->box_tokens, step, slot->box_tokens};
  }
  axes[rank++] = clipped ? (view_axis){t->shape[slot->token] + 1, step, 1}
                         : (view_axis){t->shape[slot->token], step, slot->box_tokens};
  axes[rank++] = packed ? (view_axis){heads / group, group * t->stride[slot->head], 1}
                        : (view_axis){heads, t->stride[slot->head], 1};
  if (slot->outer >= 0)
    axes[rank++] = (view_axis){t->shape[slot->outer], t->stride[slot->outer], 1};
  return encode_map(op, (void *)base, t->dtype, axes, rank, slot->swizzle, encoded);
}

static qkv_status fill_field(const qkv_op *op, const manifest_field *field, const field_slot *slot,
                             const call_view *call, char *workspace, const int64_t *offsets, char *params) {
  const spec *s = op->spec->parsed;
  void *pointer;
  int64_t wide;
  int32_t narrow;
  float real;
  switch (slot->type) {
  case FIELD_POINTER:
    pointer = slot->kind == SLOT_DATA ? call->tensors[slot->tensor]->data : workspace + offsets[slot->index];
    memcpy(params + slot->offset, &pointer, sizeof pointer);
    return QKV_OK;
  case FIELD_I64:
    wide = integer_of(slot, call);
    memcpy(params + slot->offset, &wide, sizeof wide);
    return QKV_OK;
  case FIELD_I32:
    wide = integer_of(slot, call);
    if (wide < INT32_MIN || wide > INT32_MAX)
      return error_set(QKV_INVALID_ARGUMENT, "%s: %s is %lld, which this kernel holds in 32 bits",
                       slot->kind == SLOT_SIZE ? "size" : call_tensor_name(s, slot->tensor), field->source,
                       (long long)wide);
    narrow = (int32_t)wide;
    memcpy(params + slot->offset, &narrow, sizeof narrow);
    return QKV_OK;
  case FIELD_TENSOR_MAP:
    return fill_map(op, slot, call, params + slot->offset);
  case FIELD_STATES:
    memcpy(params + slot->offset, call->states, sizeof *call->states);
    return QKV_OK;
  case FIELD_F32:
    real = (float)call->values[slot->index];
    memcpy(params + slot->offset, &real, sizeof real);
    return QKV_OK;
  }
  return error_set(QKV_INTERNAL, "unknown field type");
}

static qkv_status grid_too_large(const manifest_launch *l, const int64_t sizes[SIZE_COUNT]) {
  text product = {0};
  for (int n = 0; n < l->grid.count; n++) {
    const manifest_factor *f = &l->grid.factors[n];
    text_printf(&product, "%s%s %lld", n ? " x " : "", manifest_size_name(f->size), (long long)sizes[f->size]);
    if (f->per > 1)
      text_printf(&product, " / %d", f->per);
  }
  qkv_status status = error_set(QKV_INVALID_ARGUMENT,
                                "the grid of %s (%s) exceeds 2147483647 blocks; split the call along batch or len_q",
                                l->entry, product.bytes ? product.bytes : "?");
  text_free(&product);
  return status;
}

static qkv_status zero_regions(const qkv_op *op, const op_kernel *k, const call_view *call, char *workspace,
                               const int64_t *offsets, bool planned, qkv_stream stream) {
  for (int n = 0; n < k->manifest.nregions; n++) {
    const manifest_region *region = &k->manifest.regions[n];
    if (!region->zeroed || (region->zeroed == 2 && planned))
      continue;
    size_t bytes = (size_t)(region->bytes * manifest_rule_value(&region->count, call->sizes));
    if (bytes == 0)
      continue;
    qkv_status status = op->engine->ops->set_zero(op->engine->device, workspace + offsets[n], bytes, stream);
    if (status != QKV_OK)
      return error_context(status, "workspace: ");
  }
  return QKV_OK;
}

static qkv_status launch_all(const qkv_op *op, const op_kernel *k, const call_view *call, const char *params,
                             bool planned, qkv_stream stream) {
  qkv_engine *e = op->engine;
  for (int n = 0; n < k->manifest.nlaunches; n++) {
    const manifest_launch *l = &k->manifest.launches[n];
    if (l->plans && planned)
      continue;
    device_launch launch = {.grid = manifest_rule_value(&l->grid, call->sizes),
                            .block = l->block,
                            .cluster = l->cluster,
                            .early = l->early == 1,
                            .shared_bytes = l->shared_bytes,
                            .params = params,
                            .params_size = (size_t)k->manifest.params_size};
    if (launch.grid < 0 || launch.grid > INT32_MAX / l->cluster)
      return grid_too_large(l, call->sizes);
    int64_t resident = (int64_t)l->blocks_per_sm * op->engine->info.sm_count / l->cluster;
    if (l->blocks_per_sm > 0 && launch.grid > resident)
      launch.grid = resident > 0 ? resident : 1;
    launch.grid *= l->cluster;
    if (launch.grid == 0) /* a launch over an extent that is 0 has nothing to do */
      continue;
    qkv_status status = e->ops->launch(e->device, k->kernels[n], &launch, stream);
    if (status != QKV_OK)
      return error_context(status, "launching %s: ", l->entry);
    e->launches++;
  }
  return QKV_OK;
}

qkv_status call_launch(const qkv_op *op, const op_kernel *k, const call_view *call, char *workspace,
                       const int64_t *offsets, bool planned, qkv_stream stream) {
  _Alignas(64) char params[MANIFEST_MAX_PARAMS];
  memset(params, 0, (size_t)k->manifest.params_size); /* padding is defined too */
  for (int n = 0; n < k->manifest.nfields; n++) {
    qkv_status status = fill_field(op, &k->manifest.fields[n], &k->slots[n], call, workspace, offsets, params);
    if (status != QKV_OK)
      return status;
  }
  qkv_status status = zero_regions(op, k, call, workspace, offsets, planned, stream);
  return status == QKV_OK ? launch_all(op, k, call, params, planned, stream) : status;
}

/* What a dilation makes of the sizes; see mask_residue.h for its parameter. */
static void size_residues(const op_kernel *k, call_view *call) {
  const int64_t m = k->dilation_param >= 0 ? (int64_t)call->values[k->dilation_param] : k->dilation;
  const int64_t dilation = m < 0 ? -m : m > 0 ? m : 1, len_q = call->sizes[SIZE_LEN_Q];
  call->sizes[SIZE_DILATION] = dilation;
  call->sizes[SIZE_RESIDUES] = dilation < len_q ? dilation : len_q;
  call->sizes[SIZE_RESIDUE_ROWS] = len_q / dilation + (len_q % dilation != 0);
}

/* A clamped index finds nothing in an empty parameter: the op's zero stands in for it. */
static void replace_empty(const qkv_op *op, call_view *call) {
  const spec *s = op->spec->parsed;
  for (int n = 0; n < s->nparams; n++)
    for (int d = 0; d < s->params[n].rank; d++)
      if (call->tensors[TENSOR_PARAM + n]->shape[d] == 0)
        call->tensors[TENSOR_PARAM + n] = &op->zero;
}

qkv_status qkv_attention(const qkv_op *op, const qkv_attention_args *args, qkv_stream stream) {
  call_view call = {0};
  const op_kernel *k;
  int64_t offsets[MANIFEST_MAX_REGIONS] = {0};
  if (!op || !args)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", op ? "args" : "op");
  if (op->primary->merges)
    return error_set(QKV_INVALID_ARGUMENT, "the op was prepared for phase merge: call qkv_merge");
  if (op->appends)
    return error_set(QKV_INVALID_ARGUMENT, "the op was prepared for phase append: call qkv_append");
  qkv_status status = call_check(op->spec->parsed, &op->limits, args, 0, &call);
  if (status == QKV_OK)
    status = call_check_maxima(op, &call);
  if (status != QKV_OK || call.empty)
    return status;
  call.sizes[SIZE_SM_COUNT] = op->engine->info.sm_count;
  status = dispatch_choose(op, &call, &k);
  if (status == QKV_OK)
    size_residues(k, &call);
  if (status == QKV_OK)
    status = place_workspace(k, args, &call, offsets);
  if (status != QKV_OK)
    return status;
  if (op->engine->debug_checks)
    status = debug_check_attention(op, args, &call, stream);
  if (status != QKV_OK)
    return status;
  replace_empty(op, &call);
  return call_launch(op, k, &call, args->workspace, offsets, args->reuse_plan, stream);
}
