//%% Adds up what blocks left in their slots of rows that several of them share, for the last of the blocks
//%% (split_merge_blocks.cu) or the kernel behind (split_combine.cu).
//% local groups = kernel.layout.part_groups
// PARTS_AT_ONCE parts of a row, four columns of it.
struct part_group {
  row_part part[PARTS_AT_ONCE];
  float4 value[PARTS_AT_ONCE];
};

// Loads parts from number `begin` on, in place of those beyond the last the last, without branches, so that all loads
// are on their way together.
static __device__ __forceinline__ void load_parts(
    const qkv_params &p, const work_item &work, const row_shares &shares, unsigned begin, int tile_row, int column,
    part_group &group) {
#pragma unroll
  for (int n = 0; n < PARTS_AT_ONCE; ++n) {
    const unsigned slot = slot_of(work, shares.first_team, min(begin + n, shares.parts - 1));
    const long long row = (long long)slot * TILE_M + tile_row;
    group.part[n] = ((const row_part *)p.partial_states)[row];
    group.value[n] = *(const float4 *)(p.partial_outputs + row * DIM_V + column);
  }
}

//% if groups > 1 then
constexpr int GROUPS = $(groups); // of parts, in flight together: what registers have room for

// Four columns of a row that is complete: the parts that the blocks left, in the order of the keys, become the output.
static __device__ __forceinline__ void merge_slots(
    const qkv_params &p, const work_item &work, const row_shares &shares, int tile_row, int column) {
  part_group group[GROUPS];
#pragma unroll
  for (int n = 0; n < GROUPS; ++n)
    if (n * PARTS_AT_ONCE < shares.parts) load_parts(p, work, shares, n * PARTS_AT_ONCE, tile_row, column, group[n]);
  row_part all = {minus_infinity(), 0.0f};
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (unsigned begin = 0; begin < shares.parts; begin += GROUPS * PARTS_AT_ONCE)
#pragma unroll
    for (int n = 0; n < GROUPS; ++n) { // a group is added while those behind it are on their way
      const unsigned first = begin + n * PARTS_AT_ONCE, next = first + GROUPS * PARTS_AT_ONCE;
      if (first < shares.parts) add_parts(all, sum, group[n].part, group[n].value, shares.parts - first);
      if (next < shares.parts) load_parts(p, work, shares, next, tile_row, column, group[n]);
    }
  finish_row(p, work, tile_row, column, sum, all);
}
//% else
// Four columns of a row that is complete: the parts that the blocks left, in the order of the keys, become the output.
static __device__ __forceinline__ void merge_slots(
    const qkv_params &p, const work_item &work, const row_shares &shares, int tile_row, int column) {
  row_part all = {minus_infinity(), 0.0f};
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  for (unsigned begin = 0; begin < shares.parts; begin += PARTS_AT_ONCE) {
    part_group group;
    load_parts(p, work, shares, begin, tile_row, column, group);
    add_parts(all, sum, group.part, group.value, shares.parts - begin);
  }
  finish_row(p, work, tile_row, column, sum, all);
}
//% end
