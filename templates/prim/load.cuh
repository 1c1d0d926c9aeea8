//%% Loads of global memory straight into registers.
//% piece("load_16_zfill", function()
// ld.global.nc.L1::no_allocate.v4: 16 bytes, 16-byte aligned, that nothing writes while the kernel runs and that are
// not read again soon; zero, and nothing is read, unless `reads`. | one thread | sm_80
static __device__ __forceinline__ uint4 load_16_zfill(const void *from, bool reads) {
  uint4 value;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
               " @p ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4]; }"
               : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
               : "l"(from), "r"((int)reads));
  return value;
}
//% end)
