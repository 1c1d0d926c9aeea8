// wgmma_faults.cu: small kernels for sm_90a, each with one fault that ptxas answers with an advisory. FAULT, defined in front
// of this file, is the fault's name; without one `k` is clean. They are compiled and never run.
typedef unsigned long long u64;

#define ACCUMULATORS(d) \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])

__device__ __forceinline__ void mma(float (&d)[8], u64 a, u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;"
               : ACCUMULATORS(d)
               : "l"(a), "l"(b));
}
__device__ __forceinline__ void mma_rs(float (&d)[8], const unsigned (&a)[4], u64 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, 1, 1, 1, 0;"
               : ACCUMULATORS(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int groups> __device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}
__device__ __forceinline__ void store(float *out, const float (&d)[8]) {
  for (int i = 0; i < 8; i++)
    out[threadIdx.x * 8 + i] = d[i];
}

#ifdef CALLED
__device__ __noinline__ void multiply(float *out, u64 a, u64 b) {
  float d[8] = {};
  fence();
  mma(d, a, b);
  commit();
  wait<0>();
  store(out, d);
}
#endif

#ifndef BOUNDS
#define BOUNDS __launch_bounds__(128, 1)
#endif

extern "C" __global__ void BOUNDS k(float *out, u64 a, u64 b, int n) {
  float d[8] = {};
#if defined READ // accumulators leave the registers while wgmma is in flight
  fence();
  mma(d, a, b);
  commit();
  out[9999 + threadIdx.x] = d[0];
  wait<0>();
  fence();
#elif defined WRITTEN // an accumulator is written between two wgmma of a stage
  fence();
  mma(d, a, b);
  d[0] = out[n];
#elif defined CONDITIONAL // a wgmma under a condition, its accumulators used in the next round
  float e[8] = {};
  for (int i = 0; i < n; i++) {
    fence();
    mma(d, a + i, b);
    commit();
    if (i > 0)
      mma(e, a + 2, b + i);
    commit();
    wait<1>();
    for (int j = 0; j < 8; j++)
      d[j] *= 2.0f;
    wait<0>();
    for (int j = 0; j < 8; j++)
      e[j] *= d[j];
  }
  store(out + n, e);
  fence();
#elif defined OPERAND // A's registers change before the wait
  unsigned x[4] = {1, 2, 3, 4};
  for (int i = 0; i < n; i++) {
    fence();
    mma_rs(d, x, b + i);
    commit();
    for (int j = 0; j < 4; j++)
      x[j] += __float_as_int(out[i * 4 + j]);
  }
  wait<0>();
  fence();
#elif defined CALLED // a function is called while wgmma is in flight
  multiply(out + n, a, b);
  fence();
  mma(d, a, b);
  commit();
  multiply(out + n + 1, a, b);
#elif defined POINTER // the same through a pointer
  fence();
  mma(d, a, b);
  ((void (*)(int))a)(n);
#elif defined INCREASE // also without bounds, where ptxas does not know how many registers there are to begin with
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  fence();
#elif defined DECREASE_AND_CALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  ((void (*)(int))a)(n);
  fence();
#elif defined DECREASE_TOO_FAR || defined SPILL // more values at once than 24 registers hold, or 64 under wide bounds
#ifdef DECREASE_TOO_FAR
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
#endif
  float x[64];
  for (int i = 0; i < 64; i++)
    x[i] = out[i * n];
  asm volatile("" ::: "memory");
  for (int i = 0; i < 64; i++)
    out[i * n + 1] = x[i * 7 % 64] * x[(i * 13 + 1) % 64];
  fence();
#elif defined UNUSED
  int unused;
  fence();
#else
  fence();
#endif
  mma(d, a + 2, b + 2);
  commit();
  wait<0>();
  store(out, d);
}
