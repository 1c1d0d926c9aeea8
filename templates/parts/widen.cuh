//%% 16 bytes of each format to the f32 that they stand for, in order.
//% local element = { -- of the elements of one 32-bit word
//%   f32 = {"__uint_as_float(word)"},
//%   bf16 = {"bf16_to_f32((unsigned short)word)", "bf16_to_f32((unsigned short)(word >> 16))"},
//%   f16 = {"f16_to_f32((unsigned short)word)", "f16_to_f32((unsigned short)(word >> 16))"},
//%   e4m3 = {"bf16_to_f32((unsigned short)even)", "bf16_to_f32((unsigned short)odd)",
//%           "bf16_to_f32((unsigned short)(even >> 16))", "bf16_to_f32((unsigned short)(odd >> 16))"},
//%   e5m2 = {},
//% }
//% for n = 0, 3 do element.e5m2[n + 1] = "e5m2_to_f32((unsigned char)(word >> " .. 8 * n .. "))" end
//% for format, texts in pairs(element) do
//%   local count = #texts
//%   piece("widen_" .. format, function()
// $(4 * count) $(format) to f32.
static __device__ __forceinline__ void widen_$(format)(float (&to)[$(4 * count)], const uint4 &from) {
  const unsigned words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const unsigned word = words[w];
    //% if format == "e4m3" then
    const unsigned even = e4m3x4_even_to_bf16x2(word), odd = e4m3x4_odd_to_bf16x2(word);
    //% end
    //% for n, text in ipairs(texts) do
    to[$(count > 1 and count .. " * w" or "w")$(n > 1 and " + " .. n - 1 or "")] = $(text);
    //% end
  }
}
//%   end)
//% end
