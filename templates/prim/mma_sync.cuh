//%% mma.sync m16n8k16 with f32 accumulation.
//%%
//%% With g = lane / 4 and t = lane % 4: a holds rows g, g + 8 and columns 2t, 2t + 1 (+ 8 for a[2], a[3]) of the 16x16
//%% A; b0, b1 hold rows 2t, 2t + 1 (+ 8 for b1) of column g of the 16x8 B; d holds rows g (d[0], d[1]) and g + 8 (d[2],
//%% d[3]) and columns 2t, 2t + 1 of the 16x8 D.
//% for _, format in ipairs{"bf16", "f16"} do
//%   piece("mma_m16n8k16_" .. format, function()
// mma.sync.m16n8k16.f32.$(format): d += a b. | whole warp | sm_80
static __device__ __forceinline__ void mma_m16n8k16_$(format)(float *d, const unsigned *a, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.$(format).$(format).f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
//%   end)
//% end
