//%% A kernel that is set up while those before it on the stream still run (a launch with early = 1).
//% piece("grid_dependency_wait", function()
// griddepcontrol.wait: goes on when the kernels before this one have ended and what they wrote is visible. Before it no
// global memory may be read or written. | each thread | sm_90
static __device__ __forceinline__ void grid_dependency_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
//% end)
//% piece("grid_dependency_release", function()
// griddepcontrol.launch_dependents: once all blocks have called it, the next kernel, if it waits by itself, may be set
// up beside this one. | each block | sm_90
static __device__ __forceinline__ void grid_dependency_release() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
//% end)
