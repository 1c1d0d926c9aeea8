//%% The two products of a slice for a few rows, number by number.
//% local widen = "widen_" .. variant.dtype_kv
// scores = Q K^T of the keys that the lane group has, in all of its lanes.
static __device__ __forceinline__ void multiply_query_key(
    float (&scores)[TILE_M][KEYS], const float (&query)[TILE_M][K_STEPS][CHUNK], const uint4 (&key)[KEYS][K_STEPS]) {
#pragma unroll
  for (int n = 0; n < KEYS; ++n) { // of the lane's dimensions
#pragma unroll
    for (int r = 0; r < TILE_M; ++r) scores[r][n] = 0.0f;
#pragma unroll
    for (int step = 0; step < K_STEPS; ++step) {
      float chunk[CHUNK];
      $(widen)(chunk, key[n][step]);
#pragma unroll
      for (int r = 0; r < TILE_M; ++r)
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) scores[r][n] = fmaf(query[r][step][e], chunk[e], scores[r][n]);
    }
  }
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2) // and of the other lanes'
#pragma unroll
    for (int r = 0; r < TILE_M; ++r)
#pragma unroll
      for (int n = 0; n < KEYS; ++n) scores[r][n] += shuffle_xor_f32(scores[r][n], distance);
}

// output += P V of the keys that the lane group has, in the lane's columns.
static __device__ __forceinline__ void multiply_probability_value(
    float (&output)[TILE_M][V_STEPS][CHUNK], const float (&probabilities)[TILE_M][KEYS],
    const uint4 (&value)[KEYS][V_STEPS]) {
#pragma unroll
  for (int n = 0; n < KEYS; ++n)
#pragma unroll
    for (int step = 0; step < V_STEPS; ++step) {
      float chunk[CHUNK];
      $(widen)(chunk, value[n][step]);
#pragma unroll
      for (int r = 0; r < TILE_M; ++r)
#pragma unroll
        for (int e = 0; e < CHUNK; ++e) output[r][step][e] = fmaf(probabilities[r][n], chunk[e], output[r][step][e]);
    }
}
