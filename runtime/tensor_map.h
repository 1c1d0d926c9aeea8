/* tensor_map.h: the limits of tensor maps, the same on every device, and the emulator's encoding. */
#ifndef RUNTIME_TENSOR_MAP_H
#define RUNTIME_TENSOR_MAP_H

#include "device.h"

#define TENSOR_MAP_STRIDE_LIMIT (INT64_C(1) << 40) /* bytes, exclusive; of the hardware */

/* QKV_OK, or QKV_INVALID_ARGUMENT with a message that names the limit that the map breaks. Thread safe. */
qkv_status tensor_map_check(const device_tensor_map *map);

/* What the emulated device encodes: the map in clear. */
typedef struct emu_tensor_map {
  device_tensor_map map;
  uint64_t mark;
} emu_tensor_map;
#define EMU_TENSOR_MAP_MARK 0x70616d726f736e74u
_Static_assert(sizeof(emu_tensor_map) <= DEVICE_TENSOR_MAP_BYTES, "the encoded map is of fixed size");

#endif
