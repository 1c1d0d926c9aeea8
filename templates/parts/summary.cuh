//%% What a box program asks of a tensor parameter: the least and the greatest element, or the set of labels (bit e % 64
//%% for element e), over a range of indices along one axis. The lanes of a warp look together, so all pass the same.
//%% Indices are clamped as ever; a range whose first index is beyond its last is empty.
//% local params = {}
//% for _, param in ipairs(variant.params) do params[param.name] = param end
//% local summaries, known = {}, {} -- each parameter and axis once
//% for _, summary in ipairs(mask.summaries) do
//%   local name = summary.param .. "_" .. summary.axis
//%   if not known[name] then summaries[#summaries + 1] = summary end
//%   known[name] = true
//% end
//% for _, summary in ipairs(summaries) do
//%   local name, param = summary.param .. "_" .. summary.axis, params[summary.param]
//%   local parameters, arguments = {}, {}
//%   for d = 0, param.rank - 1 do
//%     local moves = d == summary.axis
//%     parameters[d + 1], arguments[d + 1] = moves and "int first, int last" or "int i" .. d, moves and "n" or "i" .. d
//%   end
//%   local list = table.concat(parameters, ", ")
//%   local element = "param_" .. summary.param .. "(p, " .. table.concat(arguments, ", ") .. ")"
//%   local extent = "p." .. summary.param .. "_extent" .. summary.axis
//%   local float = param.type ~= "i32" and param.type ~= "bool"
//%   for kind, way in pairs{least = {first = float and "-minus_infinity()" or "2147483647", nan = "minus_infinity()",
//%     two = float and "fminf" or "min", lanes = "warp_min_i32"}, greatest = {first = float and "minus_infinity()" or
//%     "-2147483647 - 1", nan = "-minus_infinity()", two = float and "fmaxf" or "max", lanes = "warp_max_i32"}} do
//%     piece(kind .. "_" .. name, function()
// The $(kind) $(summary.param) for an index of axis $(summary.axis) from first to last.
static __device__ __forceinline__ $(float and "float" or "int") $(kind)_$(name)(
    const qkv_params &p, $(list)) {
  $(float and "float" or "int") result = $(way.first);
  if (first > last) return result;
  first = min(max(first, 0), $(extent) - 1), last = min(max(last, 0), $(extent) - 1);
  for (int n = first + (int)threadIdx.x % 32; n <= last; n += 32) {
    //%   if float then
    const float x = $(element);
    result = $(way.two)(result, x == x ? x : $(way.nan));
    //%   else
    result = $(way.two)(result, (int)$(element));
    //%   end
  }
  //%   if float then
  for (int lanes = 16; lanes > 0; lanes /= 2) result = $(way.two)(result, shuffle_xor_f32(result, lanes));
  return result;
  //%   else
  return $(way.lanes)(result);
  //%   end
}
//%     end)
//%   end
//%   piece("labels_" .. name, function()
// The labels $(summary.param) for an index of axis $(summary.axis) from first to last.
static __device__ __forceinline__ unsigned long long labels_$(name)(
    const qkv_params &p, $(list)) {
  unsigned long long labels = 0;
  if (first > last) return labels;
  first = min(max(first, 0), $(extent) - 1), last = min(max(last, 0), $(extent) - 1);
  for (int n = first + (int)threadIdx.x % 32; n <= last; n += 32) labels |= 1ull << ($(element) & 63);
  return (unsigned long long)warp_or_i32((unsigned)(labels >> 32)) << 32 | warp_or_i32((unsigned)labels);
}
//%   end)
//% end
