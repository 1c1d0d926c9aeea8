/* tensor_map.c: the limits of tensor maps: those of cuTensorMapEncodeTiled, which says only that something is wrong,
 * and ours that a swizzled box is exactly as wide as its pattern. */
#include "tensor_map.h"

#include "error.h"

static qkv_status check_shape(const device_tensor_map *map) {
  if (map->element_bytes != 2 && map->element_bytes != 4)
    return error_set(QKV_INVALID_ARGUMENT, "tensor map: elements of %d bytes; 2 and 4 are possible",
                     map->element_bytes);
  if (map->rank < 1 || map->rank > 5)
    return error_set(QKV_INVALID_ARGUMENT, "tensor map: rank %d; 1 to 5 are possible", map->rank);
  for (int d = 0; d < map->rank; d++) {
    if (map->extent[d] < 1 || map->extent[d] > (INT64_C(1) << 32))
      return error_set(QKV_INVALID_ARGUMENT, "tensor map: extent[%d] is %lld; 1 to 2^32 are possible", d,
                       (long long)map->extent[d]);
    if (map->box[d] < 1 || map->box[d] > 256)
      return error_set(QKV_INVALID_ARGUMENT, "tensor map: box[%d] is %d; 1 to 256 are possible", d, map->box[d]);
  }
  return QKV_OK;
}

static qkv_status check_memory(const device_tensor_map *map) {
  if (!map->base || (uintptr_t)map->base % 16)
    return error_set(QKV_INVALID_ARGUMENT, "tensor map: base %p; must be a multiple of 16 and not null", map->base);
  for (int d = 1; d < map->rank; d++) {
    int64_t stride = map->stride_bytes[d - 1];
    if (stride < 0 || stride % 16 || stride >= TENSOR_MAP_STRIDE_LIMIT)
      return error_set(QKV_INVALID_ARGUMENT,
                       "tensor map: stride_bytes[%d] is %lld; must be a multiple of 16, at least 0 and below 2^40",
                       d - 1, (long long)stride);
  }
  return QKV_OK;
}

qkv_status tensor_map_check(const device_tensor_map *map) {
  qkv_status status = check_shape(map);
  if (status == QKV_OK)
    status = check_memory(map);
  if (status != QKV_OK)
    return status;
  int width = map->box[0] * map->element_bytes;
  if (map->swizzle != 0 && map->swizzle != 32 && map->swizzle != 64 && map->swizzle != 128)
    return error_set(QKV_INVALID_ARGUMENT, "tensor map: swizzle of %d bytes; 0, 32, 64 and 128 are possible",
                     map->swizzle);
  if (map->swizzle && width != map->swizzle)
    return error_set(QKV_INVALID_ARGUMENT, "tensor map: box[0] has %d bytes; must be those of the swizzle, %d", width,
                     map->swizzle);
  if (width % 16)
    return error_set(QKV_INVALID_ARGUMENT, "tensor map: box[0] has %d bytes; must be a multiple of 16", width);
  return QKV_OK;
}
