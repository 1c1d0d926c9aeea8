//%% Votes of a warp.
//% piece("vote_any", function()
// vote.sync.any: 1 in every lane when the predicate holds in one. | whole warp | sm_80
static __device__ __forceinline__ int vote_any(int predicate) {
  int result;
  asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff; selp.b32 %0, 1, 0, q; }"
               : "=r"(result)
               : "r"(predicate));
  return result;
}
//% end)
