//%% stmatrix: the fragments of mma and wgmma into 8x8 matrices of 16-bit elements in shared memory; the inverse of
//%% ldmatrix.
//%%
//%% Lane l passes the address of row l % 8 of matrix l / 8 (16-byte aligned); of each matrix it holds the elements
//%% 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; of the transposed one, of column l / 4.
//% for _, trans in ipairs{"", "_trans"} do
//%   local suffix = trans == "" and "" or ".trans"
//%   piece("stmatrix_x4" .. trans, function()
// stmatrix.x4$(suffix).b16. | whole warp | writes shared memory like a plain store | sm_90
static __device__ __forceinline__ void stmatrix_x4$(trans)(
    unsigned address, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4$(suffix).shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r0),
               "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}
//%   end)
//%   piece("stmatrix_x2" .. trans, function()
// stmatrix.x2$(suffix).b16: of the lanes' addresses the first 16 count. | whole warp | like a plain store | sm_90
static __device__ __forceinline__ void stmatrix_x2$(trans)(unsigned address, unsigned r0, unsigned r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2$(suffix).shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r0), "r"(r1)
               : "memory");
}
//%   end)
//% end
