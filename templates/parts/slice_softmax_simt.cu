//%% Scores to probabilities, of which each lane group has its own: score and mask expressions, online softmax. Element
//%% [r][n] is row r of the tile and key first_key + n LANE_GROUPS, the same in all lanes of the group.
//% local attention = library("attention")
//% local cap = variant.softcap > 0 and (" with s capped at %g"):format(variant.softcap) or ""
//% local shift_parameter = score.shifts and " const float (&shift)[TILE_M]," or ""
//% local view = attention.view(mask, variant)
//% local names = {q = "q", k = "k", i = "i", h = "head", hk = "hk", b = "b", len_q = view.whole_q,
//%   len_k = view.whole_k}
//% local function define_row(symbols, indent) -- what `symbols` name of row r
//%   if symbols.i or symbols.q or symbols.h then
$(indent)const packed_row row = first_row + r;
//%     if symbols.h then
$(indent)[[maybe_unused]] const int head = h + row.head();
//%     end
//%   end
//%   if symbols.i or symbols.q then
$(indent)[[maybe_unused]] const int i = row.query();
//%   end
//%   if symbols.q then
$(indent)[[maybe_unused]] const int q = i + $(view.whole_position);
//%   end
//% end
//% if score.shifts or not score.is_product then
//%   local symbols = {s = "s", k = "k", first_key = "first_key", column = "column"}
//%   for symbol, name in pairs(names) do symbols[symbol] = symbols[symbol] or name end
//%   local steps = cuda_score_steps(true, symbols, "[r]")
//%   local columns, elements = steps.column_symbols, steps.value_symbols
// Products to scores, in units of EXP2_SCALE: $(variant.score_text)$(cap).
//%   if score.shifts then
// What is the same for all keys of a lane's row is not added but goes to `shift`.
//%   end
static __device__ __forceinline__ void transform_scores(
    float (&scores)[TILE_M][KEYS],
    //% if score.shifts then
    float (&shift)[TILE_M],
    //% end
    const qkv_params &p, int first_key, packed_row first_row, $(view.parameter), int h, int hk, int b) {
  //% for _, step in ipairs(steps.once) do
  const $(step.type) $(step.name) = $(step.text);
  //% end
  //% for _, step in ipairs(steps.rows) do
  $(step.type) $(step.name)[TILE_M];
  //% end
  //% if score.shifts or #steps.rows > 0 then
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) {
    //% define_row(steps.row_symbols, "    ")
    //% for _, step in ipairs(steps.rows) do
    $(step.name)[r] = $(step.text);
    //% end
    //% if score.shifts then
    shift[r] = $(steps.shift);
    //% end
  }
  //% end
  //% if not score.is_product then
#pragma unroll
  for (int n = 0; n < KEYS; ++n) {
    //% if columns.k or elements.k then
    const int k = first_key + n * LANE_GROUPS;
    //% end
    //% if columns.column or elements.column then
    const float column = n * LANE_GROUPS; // k - first_key
    //% end
    //% for _, step in ipairs(steps.columns) do
    const $(step.type) $(step.name) = $(step.text);
    //% end
#pragma unroll
    for (int r = 0; r < TILE_M; ++r) {
      //% define_row(elements, "      ")
      //% if elements.s then
      const float s = scores[r][n]; // the product
      //% end
      scores[r][n] = $(steps.value);
    }
  }
  //% end
}

//% end
// Hides what a row may not see, and keys past the end.
static __device__ __forceinline__ void mask_scores(
    float (&scores)[TILE_M][KEYS], const qkv_params &p, int first_key, packed_row first_row, $(view.parameter), int h,
    int hk, int b) {
  //% if mask.by_limits then
  //%   local row_names = attention.names(view, {q = "q", h = "head", hk = "hk", b = "b", len_q = view.len_q,
  //%     len_k = view.len_k})
  //%   local sees = {}
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) {
    [[maybe_unused]] const packed_row row = first_row + r;
    //%   if variant.mask_symbols.h then
    const int head = h + row.head();
    //%   end
    [[maybe_unused]] const int q = row.query() + $(view.position);
    //%   for n = 1, mask.intervals do
    //%     local number = mask.intervals > 1 and n or ""
    //%     local low, high = cuda_interval_side(n, "low", row_names), cuda_interval_side(n, "high", row_names)
    //%     local condition = "key < high" .. number
    //%     if low ~= "0" then
    const int low$(number) = $(low) - first_key;
    //%       condition = "key >= low" .. number .. " && " .. condition
    //%     end
    const int high$(number) = $(high) - first_key;
    //%     sees[n] = mask.intervals > 1 and "(" .. condition .. ")" or condition
    //%   end
#pragma unroll
    for (int n = 0; n < KEYS; ++n) {
      const int key = n * LANE_GROUPS; // from first_key on
      if (!($(table.concat(sees, " || ")))) scores[r][n] = minus_infinity();
    }
  }
  //% elseif mask.form == "all" then
#pragma unroll
  for (int n = 0; n < KEYS; ++n)
    if (first_key + n * LANE_GROUPS >= $(view.len_k))
#pragma unroll
      for (int r = 0; r < TILE_M; ++r) scores[r][n] = minus_infinity();
  //% else
  //%   if #mask.rows > 0 then
  // What depends on the row alone.
  //%     for n, type in ipairs(mask.rows) do
  $(type) row_$(n)_of[TILE_M];
  //%     end
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) {
    //% define_row(variant.mask_symbols, "    ")
    //%   for n in ipairs(mask.rows) do
    row_$(n)_of[r] = $(cuda_mask_part("row", n, names));
    //%   end
  }
  //%   end
#pragma unroll
  for (int n = 0; n < KEYS; ++n) {
    const int k = first_key + n * LANE_GROUPS;
    //%   for n, type in ipairs(mask.keys) do
    const $(type) key_$(n) = $(cuda_mask_part("key", n, names));
    //%   end
#pragma unroll
    for (int r = 0; r < TILE_M; ++r) {
      //% define_row(variant.mask_symbols, "      ")
      //%   for n, type in ipairs(mask.rows) do
      const $(type) row_$(n) = row_$(n)_of[r];
      //%   end
      const bool sees = k < $(view.len_k) & ($(cuda_mask_rest(names)));
      if (!sees) scores[r][n] = minus_infinity();
    }
  }
  //% end
}

// What a row's exponentials are relative to: a score close to its maximum so far. It moves only when a score exceeds it
// by more than SLACK, so probabilities stay under 2^$(schedule.slack) and most slices leave the output alone.
//% local slack = schedule.slack / (score.factor * attention.log2e)
constexpr float SLACK = $(f32(math.min(slack, 0x1.fffffep127)));

// The online softmax of the rows over a lane group's keys.
struct row_state {
  float reference[TILE_M]; // what the exponentials are relative to; -inf: the row has seen no key
  float sum[TILE_M];       // of them
};

static __device__ __forceinline__ void start_rows(row_state &rows) {
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) rows.reference[r] = minus_infinity(), rows.sum[r] = 0.0f;
}

static __device__ __forceinline__ void clear_output(float (&output)[TILE_M][V_STEPS][CHUNK]) {
#pragma unroll
  for (int r = 0; r < TILE_M; ++r)
#pragma unroll
    for (int step = 0; step < V_STEPS; ++step)
#pragma unroll
      for (int e = 0; e < CHUNK; ++e) output[r][step][e] = 0.0f;
}

// Moves the references of rows whose scores exceed them by more than SLACK, and the sums so far with them. Returns
// whether a row of the warp moved; then the output so far must be multiplied by `rescale`. Where -inf is the reference,
// 0 stands in.
static __device__ __forceinline__ bool move_references(
    const float (&scores)[TILE_M][KEYS],$(shift_parameter) row_state &rows, float (&rescale)[TILE_M]) {
  float maximum[TILE_M];
  bool grows = false;
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) {
    maximum[r] = scores[r][0];
#pragma unroll
    for (int n = 1; n < KEYS; ++n) maximum[r] = fmaxf(maximum[r], scores[r][n]);
    //% if score.shifts then
    maximum[r] += shift[r];
    //% end
    grows |= maximum[r] > rows.reference[r] + SLACK;
  }
  if (!vote_any(grows)) return false;
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) {
    // Only a row that asks for it moves: its bits must not depend on the other rows of the warp.
    const float before = rows.reference[r], reference = maximum[r] > before + SLACK ? maximum[r] : before;
    const float stand_in = reference == minus_infinity() ? 0.0f : reference;
    rescale[r] = exp2_approx((before - stand_in) * EXP2_SCALE);
    rows.reference[r] = reference;
    rows.sum[r] *= rescale[r];
  }
  return true;
}

// The output so far, relative to the rows' new references.
static __device__ __forceinline__ void rescale_output(
    float (&output)[TILE_M][V_STEPS][CHUNK], const float (&rescale)[TILE_M]) {
#pragma unroll
  for (int r = 0; r < TILE_M; ++r)
#pragma unroll
    for (int step = 0; step < V_STEPS; ++step)
#pragma unroll
      for (int e = 0; e < CHUNK; ++e) output[r][step][e] *= rescale[r];
}

// Scores become probabilities relative to the rows' references, and join the sums.
static __device__ __forceinline__ void exponentiate(
    float (&scores)[TILE_M][KEYS],$(shift_parameter) row_state &rows) {
#pragma unroll
  for (int r = 0; r < TILE_M; ++r) {
    const float stand_in = rows.reference[r] == minus_infinity() ? 0.0f : rows.reference[r];
    //% if score.shifts then
    const float zero = stand_in - shift[r]; // the value whose exponential is 1
    //% else
    const float zero = stand_in; // the score whose exponential is 1
    //% end
#pragma unroll
    for (int n = 0; n < KEYS; ++n) {
      scores[r][n] = exp2_approx((scores[r][n] - zero) * EXP2_SCALE); // exact differences, however large the scores
      rows.sum[r] += scores[r][n];
    }
  }
}
