//%% Pieces of the softmax that do not depend on a tile's shape.
//% local attention = library("attention")
//% piece("LOG2E", function()
constexpr float LOG2E = $(f32(attention.log2e)); // from natural logarithms to those of base 2
//% end)
//% piece("LN2", function()
constexpr float LN2 = $(f32(attention.ln2)); // from base 2 to natural logarithms
//% end)
//% piece("log_add", function()
// log(exp(a) + exp(b)), -inf included.
static __device__ __forceinline__ float log_add(float a, float b) {
  const float high = fmaxf(a, b), low = fminf(a, b);
  return high == minus_infinity() ? high : high + log_f32(1.0f + exp_f32(low - high));
}
//% end)
