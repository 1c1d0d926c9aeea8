//%% wgmma m64nNkK with f32 accumulation: d = a b + (accumulate ? d : 0), asynchronously, by the four warps of a
//%% warpgroup. K is 16, or 32, 64 or 128: so many steps of 16 in one statement, which compiles sooner than one by one.
//%%
//%% Thread t of the warpgroup, w = t / 32, l = t % 32, holds in d[i], i < N / 2: row 16 w + l / 4 + 8 (i / 2 % 2),
//%% column 8 (i / 4) + 2 (l % 4) + i % 2. A in registers: a[0] row 16 w + l / 4, columns 2 (l % 4) and the next; a[1]
//%% row + 8; a[2] columns + 8; a[3] both. Matrices in shared memory are given by descriptors (matrix_descriptor) and
//%% read through the asynchronous proxy. Both are K-major; with the suffix _t B is MN-major, with _at A is. From the
//%% first issue until wgmma_wait the thread may not touch d or a.
//%%
//%% Steps follow each other by 4 registers of A, by 32 bytes in a K-major matrix (all within one panel), and by a_step
//%% or b_step bytes in an MN-major one. Of a descriptor only the low half changes, and nothing carries
//%% (descriptor_advance).
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
//%     for _, steps in ipairs{1, 2, 4, 8} do
//%       for _, form in ipairs{"ss", "ss_t", "ss_at", "rs", "rs_t"} do
//%         local name = ("wgmma_m64n%dk%d_%s_%s"):format(n, 16 * steps, format, form)
//%         piece(name, function()
//%           local rs, transposed, a_transposed = form:sub(1, 2) == "rs", form:sub(-2) == "_t", form == "ss_at"
//%           local count, a_count = n // 2, rs and 4 * steps or 1
//%           local a, b, accumulate = n // 2, n // 2 + a_count, n // 2 + a_count + 1 -- numbers of operands
//%           local step = steps > 1 and (transposed or a_transposed) and accumulate + 1 or nil
//%           local step_name = a_transposed and "a_step" or "b_step"
//%           local registers = rows(count, 16, function(i) return "%" .. i end)
//%           local outputs = rows(count, 8, function(i) return '"+f"(d[' .. i .. '])' end)
//%           local inputs = rs and rows(a_count, 8, function(i) return '"r"(a[' .. i .. '])' end) or {'"l"(a)'}
//%           local flags = "1, 1, " .. (rs and "" or a_transposed and "1, " or "0, ") .. (transposed and 1 or 0)
//%           local place = rs and "registers" or a_transposed and "shared memory, MN-major" or "shared memory"
//%           local major = transposed and "MN" or "K"
//%           local parameters = rs and "const unsigned *a" or "unsigned long long a"
//%           parameters = parameters .. ", unsigned long long b, int accumulate"
//%           if step then parameters = parameters .. ", int " .. step_name end
//%           local times = steps > 1 and " times " .. steps or ""
// wgmma.mma_async.m64n$(n)k16.f32.$(format)$(times): A from $(place), B $(major)-major. |
// whole warpgroup | complete after wgmma_wait | sm_90a
static __device__ __forceinline__ void $(name)(
    float *d, $(parameters)) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %$(accumulate), 0;\n"
      //% if steps > 1 then
      " .reg .b64 a, b;\n .reg .b32 a_low, a_high, b_low, b_high, low;\n"
      //%   if not rs then
      " mov.b64 {a_low, a_high}, %$(a);\n"
      //%   end
      " mov.b64 {b_low, b_high}, %$(b);\n"
      //% end
      //% for k = 0, steps - 1 do
      //%   local a_operand, b_operand = "%" .. a, "%" .. b
      //%   if rs then a_operand = "{" .. rows(4, 4, function(i) return "%" .. a + 4 * k + i end)[1] .. "}" end
      //%   if k > 0 then
      //%     if not rs then a_operand = "a"
      //%       if step and a_transposed then
      " mad.lo.u32 low, %$(step), $(k), a_low;\n mov.b64 a, {low, a_high};\n"
      //%       else
      " add.u32 low, a_low, $(2 * k);\n mov.b64 a, {low, a_high};\n"
      //%       end
      //%     end
      //%     b_operand = "b"
      //%     if step and transposed then
      " mad.lo.u32 low, %$(step), $(k), b_low;\n mov.b64 b, {low, b_high};\n"
      //%     else
      " add.u32 low, b_low, $(2 * k);\n mov.b64 b, {low, b_high};\n"
      //%     end
      //%   end
      " wgmma.mma_async.sync.aligned.m64n$(n)k16.f32.$(format).$(format) {"
      //%   for r, row in ipairs(registers) do
      "$(row)$(r < #registers and ", " or "")"
      //%   end
      "}, $(a_operand), $(b_operand), $(k == 0 and "p" or "1"), $(flags);\n$(k == steps - 1 and "}" or "")"
      //% end
      //% for r, row in ipairs(outputs) do
      $(r == 1 and ": " or "  ")$(row)$(r < #outputs and "," or "")
      //% end
      //% for r, row in ipairs(inputs) do
      $(r == 1 and ": " or "  ")$(row),
      //% end
        "l"(b), "r"(accumulate)$(step and ', "r"(' .. step_name .. ' >> 4)' or ""));
}
//%         end)
//%       end
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
