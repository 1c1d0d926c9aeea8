//%% setmaxnreg: moves registers between the warpgroups of a block.
//% for registers = 24, 240, 8 do
//%   piece("registers_increase_" .. registers, function()
// setmaxnreg.inc: this warpgroup's threads go on with $(registers) registers each, once so many are free. |
// whole warpgroup | sm_90a
static __device__ __forceinline__ void registers_increase_$(registers)() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 $(registers);");
}
//%   end)
//%   piece("registers_decrease_" .. registers, function()
// setmaxnreg.dec: this warpgroup's threads keep $(registers) registers each. | whole warpgroup | sm_90a
static __device__ __forceinline__ void registers_decrease_$(registers)() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 $(registers);");
}
//%   end)
//% end
