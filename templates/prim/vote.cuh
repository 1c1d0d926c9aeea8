//%% Votes and reductions of a warp.
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
//% piece("vote_ballot", function()
// vote.sync.ballot: bit l tells whether the predicate holds in lane l. | whole warp | sm_80
static __device__ __forceinline__ unsigned vote_ballot(int predicate) {
  unsigned result;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
               : "=r"(result)
               : "r"(predicate));
  return result;
}
//% end)
//% for name, operation in pairs{add = "add.s32", min = "min.s32", max = "max.s32", ["or"] = "or.b32"} do
//%   local ctype = name == "or" and "unsigned" or "int"
//%   piece("warp_" .. name .. "_i32", function()
// redux.sync.$(operation) over the lanes. | whole warp | sm_80
static __device__ __forceinline__ $(ctype) warp_$(name)_i32($(ctype) value) {
  $(ctype) result;
  asm volatile("redux.sync.$(operation) %0, %1, 0xffffffff;" : "=r"(result) : "r"(value));
  return result;
}
//%   end)
//% end
