//%% What the expression printer calls. The meaning of each is that of the expression language: ints are 32 bits and
//%% wrap, `//` and `%` round towards minus infinity and give 0 for a zero divisor. Signed overflow is undefined in C++,
//%% so what may wrap is computed in unsigned.
//% piece("minus_infinity", function()
static __device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }
//% end)
//% piece("to_f32", function()
static __device__ __forceinline__ float to_f32(int x) { return (float)x; }
//% end)
//% for name, operator in pairs{add = "+", sub = "-", mul = "*"} do
//%   piece(name .. "_i32", function()
// Wraps.
static __device__ __forceinline__ int $(name)_i32(int a, int b) { return (int)((unsigned)a $(operator) (unsigned)b); }
//%   end)
//% end
//% piece("neg_i32", function()
// Wraps.
static __device__ __forceinline__ int neg_i32(int a) { return (int)(0u - (unsigned)a); }
//% end)
//% piece("floor_div_i32", function()
static __device__ __forceinline__ int floor_div_i32(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return neg_i32(a);
  int quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
//% end)
//% piece("floor_mod_i32", function()
static __device__ __forceinline__ int floor_mod_i32(int a, int b) {
  if (b == 0 || b == -1) return 0;
  int remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
//% end)
//% piece("bit_i32", function()
// Bit n of a word; 0 for an n outside 0 to 31.
static __device__ __forceinline__ int bit_i32(int word, int n) {
  return (unsigned)n < 32u ? (int)((unsigned)word >> n & 1u) : 0;
}
//% end)
//% piece("min_i32", function()
static __device__ __forceinline__ int min_i32(int a, int b) { return a < b ? a : b; }
//% end)
//% piece("max_i32", function()
static __device__ __forceinline__ int max_i32(int a, int b) { return a > b ? a : b; }
//% end)
//% piece("abs_i32", function()
static __device__ __forceinline__ int abs_i32(int a) { return a < 0 ? neg_i32(a) : a; }
//% end)
//% piece("min_f32", function()
static __device__ __forceinline__ float min_f32(float a, float b) { return fminf(a, b); }
//% end)
//% piece("max_f32", function()
static __device__ __forceinline__ float max_f32(float a, float b) { return fmaxf(a, b); }
//% end)
//% piece("abs_f32", function()
static __device__ __forceinline__ float abs_f32(float a) { return fabsf(a); }
//% end)
//% piece("exp2_f32", function()
static __device__ __forceinline__ float exp2_f32(float x) { return exp2_approx(x); }
//% end)
//% piece("exp_f32", function()
static __device__ __forceinline__ float exp_f32(float x) { return exp2_approx(x * LOG2E); }
//% end)
//% piece("log_f32", function()
static __device__ __forceinline__ float log_f32(float x) { return log2_approx(x) * LN2; }
//% end)
//% piece("tanh_f32", function()
// 1 - 2 / (exp(2 x) + 1): absolute error about 2^-22 everywhere, two special-function operations.
static __device__ __forceinline__ float tanh_f32(float x) {
  return 1.0f - 2.0f * rcp_approx(exp2_approx(x * (2.0f * LOG2E)) + 1.0f);
}
//% end)
//% piece("sqrt_f32", function()
static __device__ __forceinline__ float sqrt_f32(float x) { return sqrtf(x); }
//% end)
//% piece("floor_i32", function()
// Saturates at the ends of int; NaN gives 0.
static __device__ __forceinline__ int floor_i32(float x) {
  float y = floorf(x);
  if (!(y >= -2147483648.0f)) return y < 0.0f ? -2147483647 - 1 : 0;
  return y >= 2147483648.0f ? 2147483647 : (int)y;
}
//% end)
//%
//%% What box programs call besides: longs, which hold every sum of ints, and floats moved outwards.
//% piece("floor_div_i64", function()
static __device__ __forceinline__ long long floor_div_i64(long long a, long long b) {
  if (b == 0) return 0;
  if (b == -1) return -a;
  long long quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
//% end)
//% piece("floor_mod_i64", function()
static __device__ __forceinline__ long long floor_mod_i64(long long a, long long b) {
  if (b == 0 || b == -1) return 0;
  long long remainder = a % b;
  return remainder != 0 && (remainder < 0) != (b < 0) ? remainder + b : remainder;
}
//% end)
//% piece("min_i64", function()
static __device__ __forceinline__ long long min_i64(long long a, long long b) { return a < b ? a : b; }
//% end)
//% piece("max_i64", function()
static __device__ __forceinline__ long long max_i64(long long a, long long b) { return a > b ? a : b; }
//% end)
//% piece("below_f32", function()
// At most x, even if x is off by `relative` of it and `absolute`; NaN gives -inf.
static __device__ __forceinline__ float below_f32(float x, float relative, float absolute) {
  if (x != x) return minus_infinity();
  return fabsf(x) == -minus_infinity() ? x : x - (fabsf(x) * relative + absolute);
}
//% end)
//% piece("above_f32", function()
// At least x, even if x is off by `relative` of it and `absolute`; NaN gives infinity.
static __device__ __forceinline__ float above_f32(float x, float relative, float absolute) {
  if (x != x) return -minus_infinity();
  return fabsf(x) == -minus_infinity() ? x : x + (fabsf(x) * relative + absolute);
}
//% end)
