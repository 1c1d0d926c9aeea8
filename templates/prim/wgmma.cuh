//%% wgmma m64nNk16 with f32 accumulation: d = a b + (accumulate ? d : 0), asynchronously, by the four warps of a
//%% warpgroup.
//%%
//%% Thread t of the warpgroup, w = t / 32, l = t % 32, holds in d[i], i < N / 2: row 16 w + l / 4 + 8 (i / 2 % 2),
//%% column 8 (i / 4) + 2 (l % 4) + i % 2. A in registers: a[0] row 16 w + l / 4, columns 2 (l % 4) and the next; a[1]
//%% row + 8; a[2] columns + 8; a[3] both. Matrices in shared memory are given by descriptors (matrix_descriptor) and
//%% read through the asynchronous proxy. B is K-major; with the suffix _t it is MN-major. From the first issue until
//%% wgmma_wait the thread may not touch d or a.
//% local function rows(count, width, item) -- "item(0), ..., item(width - 1)", ...
//%   local list = {}
//%   for first = 0, count - 1, width do
//%     local row = {}
//%     for i = first, math.min(first + width, count) - 1 do row[#row + 1] = item(i) end
//%     list[#list + 1] = table.concat(row, ", ")
//%   end
//%   return list
//% end
//% for _, format in ipairs{"bf16", "f16"} do
//%   for n = 8, 256, 8 do
//%     for _, form in ipairs{"ss", "ss_t", "rs", "rs_t"} do
//%       local name = "wgmma_m64n" .. n .. "k16_" .. format .. "_" .. form
//%       piece(name, function()
//%         local rs, transposed = form:sub(1, 2) == "rs", form:sub(-2) == "_t" and 1 or 0
//%         local a = rs and "const unsigned *a" or "unsigned long long a"
//%         local count = n // 2
//%         local first = count + (rs and 4 or 1)
//%         local operand = "%" .. count
//%         if rs then operand = ("{%%%d, %%%d, %%%d, %%%d}"):format(count, count + 1, count + 2, count + 3) end
//%         local inputs = rs and '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])' or '"l"(a)'
//%         local flags = rs and "1, 1, " .. transposed or "1, 1, 0, " .. transposed
//%         local registers = rows(count, 16, function(i) return "%" .. i end)
//%         local outputs = rows(count, 8, function(i) return '"+f"(d[' .. i .. '])' end)
//%         local place, major = rs and "registers" or "shared memory", transposed == 1 and "MN" or "K"
// wgmma.mma_async.m64n$(n)k16.f32.$(format): A from $(place), B $(major)-major. | whole warpgroup |
// complete after wgmma_wait | sm_90a
static __device__ __forceinline__ void $(name)(
    float *d, $(a), unsigned long long b, int accumulate) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %$(first + 1), 0;\n"
      " wgmma.mma_async.sync.aligned.m64n$(n)k16.f32.$(format).$(format) {"
      //% for r, row in ipairs(registers) do
      "$(row)$(r < #registers and ", " or "")"
      //% end
      "}, $(operand), %$(first), p, $(flags);\n}"
      //% for r, row in ipairs(outputs) do
      $(r == 1 and ": " or "  ")$(row)$(r < #outputs and "," or "")
      //% end
      : $(inputs), "l"(b), "r"(accumulate));
}
//%       end)
//%     end
//%   end
//% end
//% piece("wgmma_fence", function()
// wgmma.fence: orders the thread's accesses to accumulators and A registers before the wgmma that follow. |
// whole warpgroup | sm_90a
static __device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
//% end)
//% piece("wgmma_commit", function()
// wgmma.commit_group: closes the group of wgmma issued since the last one. | whole warpgroup | sm_90a
static __device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
//% end)
//% for groups = 0, 2 do
//%   piece("wgmma_wait_" .. groups, function()
// wgmma.wait_group: all but the newest $(groups) groups are complete. | whole warpgroup | sm_90a
static __device__ __forceinline__ void wgmma_wait_$(groups)() {
  asm volatile("wgmma.wait_group.sync.aligned $(groups);" ::: "memory");
}
//%   end)
//% end
//% piece("keep_f32", function()
// No instruction: the compiler may not move accesses to this accumulator register across this place. |
// one thread | sm_80
static __device__ __forceinline__ void keep_f32(float &x) { asm volatile("" : "+f"(x)::"memory"); }
//% end)
