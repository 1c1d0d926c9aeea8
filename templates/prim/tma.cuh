//%% Bulk copies between global and shared memory by the copy engine. Tensor copies move the box of a tensor map, whose
//%% first element is at coordinates c0 (innermost) and on, in elements; c0 counts whole 16 bytes. What lies outside of
//%% the tensor reads as zero and is not written. Coordinates of a load may be negative, those of a store may not.
//%% Shared addresses are 128-byte aligned. The engine accesses shared memory through the asynchronous proxy: what
//%% threads wrote needs fence_proxy_async before.
//% piece("tensor_map", function()
// An encoded tensor map: 128 opaque bytes inside of the kernel's __grid_constant__ parameters. | - | sm_90
struct __align__(64) tensor_map { unsigned long long opaque[16]; };
//% end)
//% piece("tma_prefetch", function()
// prefetch.tensormap: fetches the map itself. | one thread | sm_90
static __device__ __forceinline__ void tma_prefetch(const tensor_map *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
//% end)
//% for rank = 2, 5 do
//%   local parameters, operands, load, store, multicast = {}, {}, {}, {}, {}
//%   for d = 0, rank - 1 do
//%     parameters[#parameters + 1] = "int c" .. d
//%     operands[#operands + 1] = '"r"(c' .. d .. ')'
//%     load[#load + 1] = "%" .. 3 + d
//%     store[#store + 1] = "%" .. 2 + d
//%   end
//%   parameters, operands = table.concat(parameters, ", "), table.concat(operands, ", ")
//%   load, store = table.concat(load, ", "), table.concat(store, ", ")
//%   piece("tma_load_" .. rank .. "d", function()
// cp.async.bulk.tensor.$(rank)d to shared memory: the whole box's bytes count on the mbarrier. |
// one thread | visible after mbar_wait | sm_90
static __device__ __forceinline__ void tma_load_$(rank)d(
    unsigned to, const tensor_map *map, unsigned mbar, $(parameters)) {
  asm volatile("cp.async.bulk.tensor.$(rank)d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
               "[%1, {$(load)}], [%2];" ::"r"(to),
               "l"(map), "r"(mbar), $(operands)
               : "memory");
}
//%   end)
//%   piece("tma_store_" .. rank .. "d", function()
// cp.async.bulk.tensor.$(rank)d to global memory, in the thread's bulk group. |
// one thread | reads until bulk_wait_read | sm_90
static __device__ __forceinline__ void tma_store_$(rank)d(
    const tensor_map *map, unsigned from, $(parameters)) {
  asm volatile("cp.async.bulk.tensor.$(rank)d.global.shared::cta.tile.bulk_group [%0, {$(store)}], "
               "[%1];" ::"l"(map), "r"(from), $(operands)
               : "memory");
}
//%   end)
//% end
//% for rank = 4, 5 do
//%   local parameters, operands, from = {}, {}, {}
//%   for d = 0, rank - 1 do
//%     parameters[#parameters + 1] = "int c" .. d
//%     operands[#operands + 1] = '"r"(c' .. d .. ')'
//%     from[#from + 1] = "%" .. 3 + d
//%   end
//%   parameters, operands = table.concat(parameters, ", "), table.concat(operands, ", ")
//%   from = table.concat(from, ", ")
//%   local load = "cp.async.bulk.tensor." .. rank .. "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
//%   local name = "tma_load_" .. rank .. "d"
//%   piece("tma_load_" .. rank .. "d_evict_last", function()
// $(name) with the hint that L2 keeps the box rather than others. | one thread | visible after mbar_wait | sm_90
static __device__ __forceinline__ void tma_load_$(rank)d_evict_last(
    unsigned to, const tensor_map *map, unsigned mbar, $(parameters)) {
  const unsigned long long policy = 0x14f0000000000000ull; // what createpolicy.fractional.L2::evict_last of 1.0 makes
  asm volatile("$(load).L2::cache_hint [%0], "
               "[%1, {$(from)}], [%2], %$(rank + 3);" ::"r"(to),
               "l"(map), "r"(mbar), $(operands), "l"(policy)
               : "memory");
}
//%   end)
//%   piece("tma_load_" .. rank .. "d_multicast", function()
// The same to this offset in every block of cta_mask, each with its own mbarrier at this offset. | one thread | sm_90
static __device__ __forceinline__ void tma_load_$(rank)d_multicast(
    unsigned to, const tensor_map *map, unsigned mbar, $(parameters), unsigned short cta_mask) {
  asm volatile("$(load).multicast::cluster "
               "[%0], [%1, {$(from)}], [%2], %$(rank + 3);" ::"r"(to),
               "l"(map), "r"(mbar), $(operands), "h"(cta_mask)
               : "memory");
}
//%   end)
//%   piece("tma_load_" .. rank .. "d_multicast_evict_last", function()
// tma_load_$(rank)d_multicast with the hint that L2 keeps the box rather than others. |
// one thread | visible after mbar_wait | sm_90
static __device__ __forceinline__ void tma_load_$(rank)d_multicast_evict_last(
    unsigned to, const tensor_map *map, unsigned mbar, $(parameters), unsigned short cta_mask) {
  const unsigned long long policy = 0x14f0000000000000ull; // what createpolicy.fractional.L2::evict_last of 1.0 makes
  asm volatile("$(load).multicast::cluster"
               ".L2::cache_hint [%0], [%1, {$(from)}], [%2], %$(rank + 3), %$(rank + 4);" ::"r"(to),
               "l"(map), "r"(mbar), $(operands), "h"(cta_mask), "l"(policy)
               : "memory");
}
//%   end)
//% end
//% piece("bulk_load", function()
// cp.async.bulk to shared memory: contiguous bytes, a multiple of 16, both addresses 16-byte aligned. |
// one thread | visible after mbar_wait | sm_90
static __device__ __forceinline__ void bulk_load(unsigned to, const void *from, int bytes, unsigned mbar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(mbar)
               : "memory");
}
//% end)
//% piece("bulk_commit", function()
// cp.async.bulk.commit_group: closes the thread's group of bulk stores. | one thread | sm_90
static __device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
//% end)
//% for groups = 0, 1 do
//%   piece("bulk_wait_read_" .. groups, function()
// cp.async.bulk.wait_group.read: all but the newest $(groups) groups have read their shared memory. |
// one thread; others need a barrier | sm_90
static __device__ __forceinline__ void bulk_wait_read_$(groups)() {
  asm volatile("cp.async.bulk.wait_group.read $(groups);" ::: "memory");
}
//%   end)
//% end
//% piece("bulk_wait_0", function()
// cp.async.bulk.wait_group: all groups are complete, their writes visible to the thread. | one thread | sm_90
static __device__ __forceinline__ void bulk_wait_0() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
//% end)
