//%% The kernel's parameter struct and the accessors of declared parameters.
//% piece("qkv_params", function()
// Filled by the runtime in this order with natural alignment. Strides count elements.
struct qkv_params {
  //% for _, field in ipairs(kernel.params) do
  //% local gap = field.ctype:sub(-1) == "*" and "" or " "
  $(field.ctype)$(gap)$(field.name);
  //% end
};
//% end)
//%
//% for _, param in ipairs(variant.params) do
//%   if param.rank > 0 then
//%     local ctype = ({i32 = "int", bool = "bool"})[param.type] or "float"
//%     local arguments, offset = {}, {}
//%     for d = 0, param.rank - 1 do
//%       arguments[#arguments + 1] = "int i" .. d
//%       local extent, stride = "p." .. param.name .. "_extent" .. d, "p." .. param.name .. "_stride" .. d
//%       offset[#offset + 1] = "clamp_index(i" .. d .. ", " .. extent .. ") * " .. stride
//%     end
//%     local element = "p." .. param.name .. "[" .. table.concat(offset, " + ") .. "]"
//%     if param.type == "f16" or param.type == "bf16" then element = param.type .. "_to_f32(" .. element .. ")" end
//%     if param.type == "bool" then element = element .. " != 0" end
//%     piece("param_" .. param.name, function()
// Parameter $(param.name): every index is clamped to its extent, so no value of an index reads outside the tensor.
static __device__ __forceinline__ $(ctype) param_$(param.name)(const qkv_params &p, $(table.concat(arguments, ", "))) {
  return $(element);
}
//%     end)
//%   end
//% end
//% piece("clamp_index", function()
static __device__ __forceinline__ long long clamp_index(int index, int extent) {
  return index < 0 ? 0 : index < extent ? index : extent - 1;
}
//% end)
