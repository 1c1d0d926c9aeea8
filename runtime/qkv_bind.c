/* qkv_bind.c: where each member of a kernel's parameter struct comes from, by the words of its manifest (manifest.h). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_internal.h"

static const struct map_word {
  const char *word;
  map_tokens tokens;
  bool packed;
} map_words[] = {{".map.", MAP_ALL, false},
                 {".packed_map.", MAP_ALL, true},
                 {".long_map.", MAP_LONG, false},
                 {".short_map.", MAP_SHORT, false},
                 {".clipped_map.", MAP_CLIPPED, false},
                 {".clipped_packed_map.", MAP_CLIPPED, true}};

/* The view that ".long_map.64.128.128" and the like name, or NULL. */
static const struct map_word *find_map(const char *rest) {
  for (size_t n = 0; n < sizeof map_words / sizeof *map_words; n++)
    if (!strncmp(rest, map_words[n].word, strlen(map_words[n].word)))
      return &map_words[n];
  return NULL;
}

/* Whether all sequences have the lengths of q k v o. */
static bool is_dense(const spec *s, int tensor) {
  const sequence_layout l = spec_sequence_layout(s);
  return (tensor == TENSOR_Q || tensor == TENSOR_O ? l.q : l.kv) == QKV_DENSE;
}

/* `rest` after the tensor and the word of its view is "DIMS.TOKENS.SWIZZLE", of a packed one
 * "DIMS.HEADS.TOKENS.SWIZZLE". Only clipped boxes end where a sequence does. */
static int bind_map(const spec *s, const struct map_word *map, const char *rest, field_slot *slot) {
  const int tensor = slot->tensor;
  int used = 0;
  if (tensor > TENSOR_O || (map->tokens != MAP_CLIPPED && !is_dense(s, tensor)))
    return 0;
  if (map->tokens == MAP_CLIPPED && map->packed && is_dense(s, tensor)) /* six dimensions */
    return 0;
  slot->kind = SLOT_MAP;
  slot->tokens = map->tokens;
  slot->dim = call_axis_find(s, tensor, "dim");
  slot->token = call_token_axis(s, tensor);
  slot->head = call_axis_find(s, tensor, "head");
  slot->outer = call_axis_find(s, tensor, "batch");
  if (slot->outer < 0)
    slot->outer = call_axis_find(s, tensor, "page");
  if (!map->packed)
    return sscanf(rest, "%d.%d.%d%n", &slot->box_dims, &slot->box_tokens, &slot->swizzle, &used) == 3 && !rest[used];
  return sscanf(rest, "%d.%d.%d.%d%n", &slot->box_dims, &slot->box_heads, &slot->box_tokens, &slot->swizzle, &used) ==
             4 &&
         !rest[used] && (tensor == TENSOR_Q || tensor == TENSOR_O);
}

/* `rest` after "TENSOR" is "", ".stride.AXIS", ".extent.AXIS" or a map. */
static int bind_tensor(const spec *s, int tensor, const char *rest, field_slot *slot) {
  slot->tensor = tensor;
  slot->kind = SLOT_DATA;
  if (!*rest)
    return 1;
  const struct map_word *map = find_map(rest);
  if (map)
    return bind_map(s, map, rest + strlen(map->word), slot);
  if (!strncmp(rest, ".stride.", 8))
    slot->kind = SLOT_STRIDE;
  else if (!strncmp(rest, ".extent.", 8))
    slot->kind = SLOT_EXTENT;
  else
    return 0;
  slot->index = call_axis_find(s, tensor, rest + 8);
  return slot->index >= 0;
}

static int bind_source(const spec *s, const manifest *m, const char *source, field_slot *slot) {
  int size = manifest_size_find(source);
  if (size >= 0) {
    slot->kind = SLOT_SIZE;
    slot->index = size;
    return 1;
  }
  if (!strcmp(source, "states")) {
    slot->kind = SLOT_STATES;
    return 1;
  }
  if (!strncmp(source, "append.", 7))
    return append_bind(s, source + 7, slot);
  if (!strncmp(source, "workspace.", 10)) {
    slot->kind = SLOT_WORKSPACE;
    for (slot->index = 0; slot->index < m->nregions; slot->index++)
      if (!strcmp(m->regions[slot->index].name, source + 10))
        return 1;
    return 0;
  }
  /* The longest prefix that names a tensor: "param.slope" of "param.slope.stride.0". */
  for (const char *end = source + strlen(source); end > source; end--) {
    if (*end && *end != '.')
      continue;
    int tensor = call_tensor_find(s, source, (size_t)(end - source));
    if (tensor < 0)
      continue;
    if (tensor >= TENSOR_PARAM && s->params[tensor - TENSOR_PARAM].rank == 0 && !*end) {
      slot->kind = SLOT_VALUE;
      slot->index = tensor - TENSOR_PARAM;
      return 1;
    }
    return bind_tensor(s, tensor, end, slot);
  }
  return 0;
}

static int type_fits(const field_slot *slot) {
  int pointer = slot->kind == SLOT_DATA || slot->kind == SLOT_WORKSPACE;
  if (slot->type == FIELD_F32)
    return slot->kind == SLOT_VALUE;
  if (slot->type == FIELD_TENSOR_MAP || slot->kind == SLOT_MAP)
    return slot->type == FIELD_TENSOR_MAP && slot->kind == SLOT_MAP;
  if (slot->type == FIELD_STATES || slot->kind == SLOT_STATES)
    return slot->type == FIELD_STATES && slot->kind == SLOT_STATES;
  return (slot->type == FIELD_POINTER) == pointer;
}

/* "4", "param.NAME" or "". */
static int bind_dilation(const spec *s, op_kernel *k) {
  const char *said = k->manifest.dilation;
  char *end;
  k->dilation = 1;
  k->dilation_param = -1;
  if (!*said)
    return 1;
  int tensor = call_tensor_find(s, said, strlen(said));
  if (tensor >= TENSOR_PARAM) {
    k->dilation_param = tensor - TENSOR_PARAM;
    return s->params[k->dilation_param].rank == 0;
  }
  k->dilation = strtoll(said, &end, 10);
  return !*end && k->dilation >= 1 && k->dilation <= INT32_MAX;
}

qkv_status bind_fields(const spec *s, op_kernel *k) {
  const manifest *m = &k->manifest;
  if (m->params_size < 0 || m->params_size > MANIFEST_MAX_PARAMS)
    return error_set(QKV_INTERNAL, "%s: parameter struct of %d bytes", m->family, m->params_size);
  if (!bind_dilation(s, k))
    return error_set(QKV_INTERNAL, "%s: dilation '%s' is neither a number nor a scalar parameter", m->family,
                     m->dilation);
  for (int n = 0; n < m->nfields; n++) {
    const manifest_field *f = &m->fields[n];
    field_slot *slot = &k->slots[n];
    slot->type = f->type;
    slot->offset = f->offset;
    if (!bind_source(s, m, f->source, slot) || !type_fits(slot) || f->offset < 0 ||
        f->offset + field_type_size(f->type) > m->params_size)
      return error_set(QKV_INTERNAL, "%s: member '%s' cannot be filled from '%s'", m->family, f->name, f->source);
    k->has_maps |= slot->kind == SLOT_MAP;
    k->merges |= slot->kind == SLOT_STATES;
  }
  return QKV_OK;
}
