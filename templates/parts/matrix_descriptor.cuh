//%% Descriptors of wgmma's matrices in shared memory.
//% piece("matrix_descriptor", function()
// A matrix at a shared address. swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes.
// K-major: stride_bytes from 8 rows to the next 8; leading_bytes unused (without swizzle: from 16 bytes of K to the
// next). MN-major: leading_bytes from a panel as wide as the swizzle to the next, stride_bytes from 8 rows of K to the
// next 8.
static __device__ __forceinline__ unsigned long long matrix_descriptor(
    unsigned address, int leading_bytes, int stride_bytes, int swizzle) {
  unsigned low = (address & 0x3ffffu) >> 4 | (unsigned)leading_bytes >> 4 << 16;
  unsigned high = (unsigned)stride_bytes >> 4 | (unsigned)swizzle << 30;
  return (unsigned long long)high << 32 | low;
}
//% end)
//% piece("descriptor_advance", function()
// The matrix `bytes` further on. Only the low half changes; addresses stay below 256 KiB, so nothing carries.
static __device__ __forceinline__ unsigned long long descriptor_advance(unsigned long long descriptor, int bytes) {
  const unsigned low = (unsigned)descriptor + (bytes >> 4);
  return descriptor >> 32 << 32 | low;
}
//% end)
