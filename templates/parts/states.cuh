//%% What a merge reads and writes, as gen/manifest.h lays it out (manifest_states).
//% piece("qkv_state", function()
// Output and LSE of attention over some keys. Strides count elements.
struct qkv_state {
  void *o;
  float *lse; // of the merged state: may be NULL, then it is not written
  long long o_stride_batch, o_stride_token, o_stride_head;
  long long lse_stride_batch, lse_stride_token, lse_stride_head;
  int o_stride_dim;
  unsigned short dtype; // 0: f16; STATE_BF16, STATE_F32
  unsigned short wide;  // rows are contiguous and 16-byte aligned
};
//% end)
//% piece("qkv_states", function()
struct qkv_states {
  long long count; // of in
  qkv_state out, in[48];
};
//% end)
//% for dtype, number in pairs{BF16 = 1, F32 = 2} do
//%   piece("STATE_" .. dtype, function()
constexpr int STATE_$(dtype) = $(number);
//%   end)
//% end
