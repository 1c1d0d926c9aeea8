//%% Online softmax where rows of the problem are the columns of wgmma's fragments, as parts/column_scores_sm90.cu has
//%% them: a row's keys are spread over the warps of a warpgroup, which must agree on what its output is relative to.
//% local attention = library("attention")
//% local shift_parameter = score.shifts and " const float (&shift)[ROW_TILES][2]," or ""
// What a row's exponentials are relative to: a score close to its maximum so far. It moves only when a score exceeds it
// by more than SLACK, so probabilities stay under 2^$(schedule.slack) and most slices leave the output alone.
//% local slack = schedule.slack / (score.factor * attention.log2e)
constexpr float SLACK = $(f32(math.min(slack, 0x1.fffffep127)));
//% if not score.bounded then
// Above it the rounding of reference * EXP2_SCALE could be off by more than a factor of 2 in the exponential.
constexpr float EXACT_LIMIT = 0x1p+24f;
static __device__ __forceinline__ bool is_large(float reference) {
  return fabsf(reference * EXP2_SCALE) >= EXACT_LIMIT;
}
//% end

// What a warpgroup's exponentials of every row are relative to, in shared memory; -inf: the row has seen no key.
static __device__ __forceinline__ float *references(int warpgroup) {
  return (float *)(shared_arena() + REFERENCES_OFFSET) + warpgroup * TILE_M;
}
// The thread's rows in column n of tiles; and whether it is the one that writes them.
static __device__ __forceinline__ float2 *own_rows(float *rows, int n) { return (float2 *)(rows + 8 * n + own_row()); }
static __device__ __forceinline__ bool writes_rows() { return threadIdx.x % 128 < 4; }

// The rest of the online softmax of a tile's rows over a warpgroup's slices.
struct row_state {
  float sum[ROW_TILES][2]; // of the exponentials, by thread
  //% if not score.bounded then
  bool large; // whether a row of the thread's may have a reference beyond EXACT_LIMIT
  //% end
};

// The references are there behind a barrier.
static __device__ __forceinline__ void start_rows(row_state &rows, int warpgroup) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) {
    if (writes_rows()) *own_rows(references(warpgroup), n) = make_float2(minus_infinity(), minus_infinity());
    rows.sum[n][0] = rows.sum[n][1] = 0.0f;
  }
  //% if not score.bounded then
  rows.large = false;
  //% end
}

static __device__ __forceinline__ void clear_output(float (&output)[DIM_TILES][ROW_TILES][4]) {
#pragma unroll
  for (int m = 0; m < DIM_TILES; ++m)
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) output[m][n][e] = 0.0f;
}

// The warp's maxima of the thread's rows, to where the warpgroup's warps meet.
static __device__ __forceinline__ void leave_maxima(const float (&maximum)[ROW_TILES][2], float *maxima) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) {
    float x = maximum[n][0], y = maximum[n][1];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) { // lanes of the row
      x = fmaxf(x, shuffle_xor_f32(x, step));
      y = fmaxf(y, shuffle_xor_f32(y, step));
    }
    if (threadIdx.x % 32 < 4) *own_rows(maxima + threadIdx.x % 128 / 32 * TILE_M, n) = make_float2(x, y);
  }
}

// Moves the references of rows whose scores exceed them by more than SLACK, and the sums so far with them. Returns
// whether a row moved; then the output so far must be multiplied by `rescale`. Where -inf is the reference, 0 stands
// in. As long as no thread holds a score too high, the rows' maxima are of no interest. Whole warpgroup.
static __device__ __forceinline__ bool move_references(
    const float (&scores)[KEY_TILES][ROW_TILES][4],$(shift_parameter) row_state &rows, float (&rescale)[ROW_TILES][2],
    int warpgroup) {
  float maximum[ROW_TILES][2]; // of the thread's keys
  bool grows = false;
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float x = fmaxf(scores[0][n][e], scores[0][n][2 + e]);
#pragma unroll
      for (int m = 1; m < KEY_TILES; ++m) x = fmaxf(x, fmaxf(scores[m][n][e], scores[m][n][2 + e]));
      maximum[n][e] = x$(score.shifts and " + shift[n][e]" or "");
    }
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) {
    const float2 before = *own_rows(references(warpgroup), n);
    grows |= maximum[n][0] > before.x + SLACK || maximum[n][1] > before.y + SLACK;
  }
  if (!bar_or(OWN_WARPGROUP + warpgroup, 128, grows)) return false;
  float *maxima = (float *)(shared_arena() + COLUMNS_OFFSET) + warpgroup * 4 * TILE_M; // [warp][row]
  leave_maxima(maximum, maxima);
  bar_sync(OWN_WARPGROUP + warpgroup, 128);
  //% if not score.bounded then
  rows.large = false;
  //% end
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) {
    const float2 old = *own_rows(references(warpgroup), n);
    float reference[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float *x = maxima + 8 * n + own_row() + e;
      const float highest = fmaxf(fmaxf(x[0], x[TILE_M]), fmaxf(x[2 * TILE_M], x[3 * TILE_M]));
      // Only a row that asks for it moves: its bits must not depend on the other rows of the tile.
      const float before = e == 0 ? old.x : old.y;
      reference[e] = highest > before + SLACK ? highest : before;
      const float stand_in = reference[e] == minus_infinity() ? 0.0f : reference[e];
      rescale[n][e] = exp2_approx((before - stand_in) * EXP2_SCALE);
      rows.sum[n][e] *= rescale[n][e];
      //% if not score.bounded then
      rows.large |= is_large(stand_in);
      //% end
    }
    maximum[n][0] = reference[0], maximum[n][1] = reference[1];
  }
  bar_sync(OWN_WARPGROUP + warpgroup, 128); // all have read the old references
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n)
    if (writes_rows()) *own_rows(references(warpgroup), n) = make_float2(maximum[n][0], maximum[n][1]);
  bar_sync(OWN_WARPGROUP + warpgroup, 128); // the new ones are there
  return true;
}

// The output so far, relative to the rows' new references.
static __device__ __forceinline__ void rescale_output(
    float (&output)[DIM_TILES][ROW_TILES][4], const float (&rescale)[ROW_TILES][2]) {
#pragma unroll
  for (int m = 0; m < DIM_TILES; ++m)
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) output[m][n][e] *= rescale[n][e % 2];
}

// Scores become probabilities relative to the rows' references, and join the sums.
static __device__ __forceinline__ void exponentiate(
    float (&scores)[KEY_TILES][ROW_TILES][4],$(shift_parameter) row_state &rows, int warpgroup) {
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n) {
    const float2 reference = *own_rows(references(warpgroup), n);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float own = e == 0 ? reference.x : reference.y, stand_in = own == minus_infinity() ? 0.0f : own;
      float offset = $(score.shifts and "(shift[n][e] - stand_in)" or "-stand_in") * EXP2_SCALE; // of the exponent
      //% if not score.bounded then
      if (rows.large) { // rare: subtract first
        const bool large = fabsf(offset) >= EXACT_LIMIT;
        const float first = large ? own$(score.shifts and " - shift[n][e]" or "") : 0.0f;
        offset = large ? 0.0f : offset;
#pragma unroll
        for (int m = 0; m < KEY_TILES; ++m) scores[m][n][e] -= first, scores[m][n][2 + e] -= first;
      }
      //% end
#pragma unroll
      for (int m = 0; m < KEY_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float &s = scores[m][n][2 * half + e];
          s = exp2_approx(fmaf(s, EXP2_SCALE, offset));
          rows.sum[n][e] += s;
        }
    }
  }
}
