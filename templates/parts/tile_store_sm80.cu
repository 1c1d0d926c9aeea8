//%% The output leaves the registers: through the warp's own rows of shared memory as whole 16-byte chunks, or directly
//%% where the element is 4 bytes or the tensor is not aligned.
//% local dtype = variant.dtype_out
//% local view = library("attention").view(mask, variant)
//% local o_row = (mask.dilation and "(view.first_row + i * " .. view.dilation .. ")" or "i") .. " * p.o_stride_token"
//% local o_begin = view.sequences and "output_row(p, view, 0, h)" or "b * p.o_stride_batch + h * p.o_stride_head"
//% local staged = dtype ~= "f32" and not request.unaligned
//% if staged then
// O by way of shared memory (the warp's rows of Q, which nobody else reads), so that rows are written in whole chunks.
static __device__ __forceinline__ void store_output(
    const qkv_params &p, float (&output)[ROW_TILES][V_TILES][4], unsigned char *rows, int warp_row, int h, int b,
    int lane$(view.also)) {
  warp_sync(); // every lane is done with Q
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < V_TILES; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *(unsigned *)(rows + ((16 * r + lane / 4 + 8 * half) * PITCH_Q + 8 * n + lane % 4 * 2) * 2) =
            pack_$(dtype)x2(output[r][n][2 * half], output[r][n][2 * half + 1]);
  warp_sync();
  unsigned short *o = p.o + $(o_begin);
  for (int chunk = lane; chunk < 16 * ROW_TILES * V_TILES; chunk += 32) {
    const int row = chunk / V_TILES, column = chunk % V_TILES * 8, i = warp_row + row;
    if (i < $(view.len_q))
      *(uint4 *)(o + $(o_row) + column) = *(const uint4 *)(rows + (row * PITCH_Q + column) * 2);
  }
}
//% else
// O straight from the registers.
static __device__ __forceinline__ void store_output(
    const qkv_params &p, float (&output)[ROW_TILES][V_TILES][4], unsigned char *rows, int warp_row, int h, int b,
    int lane$(view.also)) {
  auto *o = p.o + $(o_begin);
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < V_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = warp_row + 16 * r + lane / 4 + e / 2 * 8, column = 8 * n + lane % 4 * 2 + e % 2;
        //% local value = dtype == "f32" and "output[r][n][e]" or "f32_to_" .. dtype .. "(output[r][n][e])"
        //% local step = request.unaligned and " * p.o_stride_dim" or ""
        if (i < $(view.len_q)) o[$(o_row) + column$(step)] = $(value);
      }
}
//% end
