//%% ldmatrix: 8x8 matrices of 16-bit elements from shared memory into the fragments of mma.
//%%
//%% Lane l of the warp passes the address of row l % 8 of matrix l / 8 (16-byte aligned). Of each matrix, lane l
//%% receives the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; of the transposed one, of column l / 4.
//% local forms = {{count = 1, regs = "{%0}"}, {count = 2, regs = "{%0, %1}"}, {count = 4, regs = "{%0, %1, %2, %3}"}}
//% for _, form in ipairs(forms) do
//%   for _, trans in ipairs{"", "_trans"} do
//%     local name = "ldmatrix_x" .. form.count .. trans
//%     local suffix = trans == "" and "" or ".trans"
//%     local outputs = {}
//%     for r = 0, form.count - 1 do outputs[#outputs + 1] = '"=r"(r[' .. r .. '])' end
//%     piece(name, function()
// ldmatrix.x$(form.count)$(suffix).b16. | whole warp | reads shared memory like a plain load | sm_80
static __device__ __forceinline__ void $(name)(unsigned *r, unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x$(form.count)$(suffix).shared.b16 $(form.regs), [%$(form.count)];"
               : $(table.concat(outputs, ", "))
               : "r"(address)
               : "memory");
}
//%     end)
//%   end
//% end
