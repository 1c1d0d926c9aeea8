//%% Scores to probabilities for fragments of mma: score and mask expressions, online softmax, the last division.
//%%
//%% With g = lane / 4 and t = lane % 4, element e of column tile n and row tile r is row 16 r + g + 8 (e / 2) of the
//%% warp and key 8 n + 2 t + e % 2 of the tile.
//% local attention = library("attention")
//% local cap = variant.softcap > 0 and (" with s capped at %g"):format(variant.softcap) or ""
//% local shift_parameter = score.shifts and " const float (&shift)[ROW_TILES][2]," or ""
//% local packed = kernel.layout.packed
//% local headroom = kernel.layout.headroom -- powers of 2 between 1 and the probability of a row's maximum
//% local at_row = packed and "\npacked_row warp_row," or " int warp_row," -- of a parameter list
//% local view = attention.view(mask, variant)
//% local where = at_row .. (view.also ~= "" and "\n" or " ") .. view.parameter .. "," -- likewise, and the place
//% local names = {q = "q", k = "k", i = "i", h = packed and "head" or "h", hk = "hk", b = "b", len_q = view.whole_q,
//%   len_k = view.whole_k}
//% local position = view.whole_position
//% local function loops(symbols)
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        //% if packed and (symbols.i or symbols.q or symbols.h) then
        const packed_row row = warp_row + (16 * r + lane / 4 + e / 2 * 8);
        //%   if symbols.h then
        const int head = h + row.head();
        //%   end
        //% end
        //% if symbols.i or symbols.q then
        const int i = $(view.row(packed and "row.query()" or "warp_row + 16 * r + lane / 4 + e / 2 * 8"));
        //% end
        //% if symbols.q then
        const int q = i + $(position);
        //% end
        //% if symbols.k then
        //%   if mask.dilation then
        const int key = tile * TILE_N + 8 * n + lane % 4 * 2 + e % 2;
        [[maybe_unused]] const int k = $(view.key("key"));
        //%   else
        const int k = tile * TILE_N + 8 * n + lane % 4 * 2 + e % 2;
        //%   end
        //% end
//% end
//% if score.shifts or not score.is_product then
//%   local symbols = {s = "s", k = "k", first_key = "first_key", column = "column"}
//%   for symbol, name in pairs(names) do symbols[symbol] = symbols[symbol] or name end
//%   local steps = cuda_score_steps(packed, symbols, "[r][half]")
//%   local rows, columns, elements = steps.row_symbols, steps.column_symbols, steps.value_symbols
//%   local function define_row(symbols, indent)
//%     if packed and (symbols.i or symbols.q or symbols.h) then
$(indent)const packed_row row = warp_row + (16 * r + lane / 4 + 8 * half);
//%       if symbols.h then
$(indent)const int head = h + row.head();
//%       end
//%     end
//%     if symbols.i or symbols.q then
$(indent)const int i = $(view.row(packed and "row.query()" or "warp_row + 16 * r + lane / 4 + 8 * half"));
//%     end
//%     if symbols.q then
$(indent)const int q = i + $(position);
//%     end
//%   end
// Products to scores, in units of EXP2_SCALE: $(variant.score_text)$(cap).
//%   if score.shifts then
// What is the same for all keys of a lane's row is not added but goes to `shift`.
//%   end
static __device__ __forceinline__ void transform_scores(
    float (&scores)[ROW_TILES][N_TILES][4],
    //% if score.shifts then
    float (&shift)[ROW_TILES][2],
    //% end
    const qkv_params &p, int tile,$(where) int h, int hk, int b, int lane) {
  //% if steps.once_symbols.first_key or rows.first_key or columns.k or elements.k then
  const int first_key = $(view.key("tile * TILE_N + lane % 4 * 2")); // of those the lane has
  //% end
  //% for _, step in ipairs(steps.once) do
  const $(step.type) $(step.name) = $(step.text);
  //% end
  //% for _, step in ipairs(steps.rows) do
  $(step.type) $(step.name)[ROW_TILES][2];
  //% end
  //% if score.shifts or #steps.rows > 0 then
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      //% define_row(rows, "      ")
      //% for _, step in ipairs(steps.rows) do
      $(step.name)[r][half] = $(step.text);
      //% end
      //% if score.shifts then
      shift[r][half] = $(steps.shift);
      //% end
    }
  //% end
  //% if not score.is_product then
#pragma unroll
  for (int n = 0; n < N_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      //% if columns.k or elements.k then
      const int k = first_key + $(mask.dilation and "(8 * n + e) * " .. view.dilation or "8 * n + e");
      //% end
      //% if columns.column or elements.column then
      //%   local column = mask.dilation and "(float)(8 * n + e) * " .. view.dilation or "8 * n + e"
      const float column = $(column); // k - first_key
      //% end
      //% for _, step in ipairs(steps.columns) do
      const $(step.type) $(step.name) = $(step.text);
      //% end
#pragma unroll
      for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          //% define_row(elements, "          ")
          //% if elements.s then
          const float s = scores[r][n][2 * half + e]; // the product
          //% end
          scores[r][n][2 * half + e] = $(steps.value);
        }
    }
  //% end
}

//% end
// Hides what a row may not see, and keys past the end.
//% local parts = kernel.layout.parts -- of the mask, which lie in shared memory by key
//% local before_tile = parts > 0 and "\nconst unsigned char *parts, " or " "
static __device__ __forceinline__ void mask_scores(
    float (&scores)[ROW_TILES][N_TILES][4], const qkv_params &p,$(before_tile)int tile,$(where) int h,
    int hk, int b, int lane) {
  //% if mask.by_limits then
  //%   local row_names = attention.names(view, {q = "q", h = names.h, hk = "hk", b = "b", len_q = view.len_q,
  //%     len_k = view.len_k})
  //%   local sees = {}
  const int first_key = tile * TILE_N + lane % 4 * 2; // of those the lane has
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      //%   if packed then
      [[maybe_unused]] const packed_row row = warp_row + (16 * r + lane / 4 + 8 * half);
      //%     if variant.mask_symbols.h then
      const int head = h + row.head();
      //%     end
      [[maybe_unused]] const int q = row.query() + $(view.position);
      //%   else
      [[maybe_unused]] const int q = warp_row + 16 * r + lane / 4 + 8 * half + $(view.position);
      //%   end
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
      for (int n = 0; n < N_TILES; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = 8 * n + e; // from first_key on
          if (!($(table.concat(sees, " || ")))) scores[r][n][2 * half + e] = minus_infinity();
        }
    }
}
  //% elseif mask.form == "all" then
  //%   loops({k = true})
        //% if mask.dilation then
        if (key >= view.len_k) scores[r][n][e] = minus_infinity();
        //% else
        if (k >= $(view.len_k)) scores[r][n][e] = minus_infinity();
        //% end
      }
}
  //% else
  //%   local symbols = variant.mask_symbols
  //%   local rest = mask.rest_symbols
  //%   local function row_values(indent) -- what the mask names of the row that r and half say
  //%     if packed and (symbols.i or symbols.q or symbols.h) then
$(indent)const packed_row row = warp_row + (16 * r + lane / 4 + 8 * half);
  //%       if symbols.h then
$(indent)[[maybe_unused]] const int head = h + row.head();
  //%       end
  //%     end
  //%     if symbols.i or symbols.q then
  //%       local row = packed and "row.query()" or "warp_row + 16 * r + lane / 4 + 8 * half"
$(indent)[[maybe_unused]] const int i = $(view.row(row));
  //%     end
  //%     if symbols.q then
$(indent)[[maybe_unused]] const int q = i + $(position);
  //%     end
  //%   end
  //%   if #mask.rows > 0 then
  // What depends on the row alone.
  //%     for n, type in ipairs(mask.rows) do
  $(type) row_$(n)_of[ROW_TILES][2];
  //%     end
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      //% row_values("      ")
      //%     for n in ipairs(mask.rows) do
      row_$(n)_of[r][half] = $(cuda_mask_part("row", n, names));
      //%     end
    }
  //%   end
#pragma unroll
  for (int n = 0; n < N_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      //%   if mask.dilation then
      const int key = tile * TILE_N + 8 * n + lane % 4 * 2 + e;
      [[maybe_unused]] const int k = $(view.key("key"));
      //%   else
      const int k = tile * TILE_N + 8 * n + lane % 4 * 2 + e;
      //%   end
      //%   for n, type in ipairs(mask.keys) do
      //%     if parts > 0 then
      //%       local stored = type == "float" and "float" or "int"
      const $(type) key_$(n) = ((const $(stored) *)parts)[$(n - 1) * TILE_N + 8 * n + lane % 4 * 2 + e];
      //%     else
      const $(type) key_$(n) = $(cuda_mask_part("key", n, names));
      //%     end
      //%   end
#pragma unroll
      for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          //% row_values("          ")
          //%   for n, type in ipairs(mask.rows) do
          const $(type) row_$(n) = row_$(n)_of[r][half];
          //%   end
          const bool sees = $(mask.dilation and "key" or "k") < $(view.len_k) & ($(cuda_mask_rest(names)));
          if (!sees) scores[r][n][2 * half + e] = minus_infinity();
        }
    }
}
  //% end

// What a row's exponentials are relative to: a score close to its maximum so far. It moves only when a score exceeds it
// by more than SLACK, so probabilities stay under 2^$(schedule.slack + headroom) and most tiles leave the output alone.
//% local function in_scores(powers) return f32(math.min(powers / (score.factor * attention.log2e), 0x1.fffffep127)) end
constexpr float SLACK = $(in_scores(schedule.slack + headroom));
//% if headroom > 0 then
// It moves to so much below the maximum, whose probability is then 2^$(headroom).
constexpr float HEADROOM = $(in_scores(headroom));
//% end
//% if not score.bounded then
// Above it the rounding of reference * EXP2_SCALE could be off by more than a factor of 2 in the exponential.
constexpr float EXACT_LIMIT = 0x1p+24f;
static __device__ __forceinline__ bool is_large(float reference) {
  return fabsf(reference * EXP2_SCALE) >= EXACT_LIMIT;
}
//% end

// The online softmax of a warp's rows.
struct row_state {
  float reference[ROW_TILES][2]; // what the exponentials are relative to; -inf: the row has seen no key
  float sum[ROW_TILES][2];       // of them, by lane: four lanes share a row
  //% if not score.bounded then
  bool large; // whether a row of the warp may have a reference beyond EXACT_LIMIT
  //% end
};

static __device__ __forceinline__ void start_rows(row_state &rows) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) rows.reference[r][half] = minus_infinity(), rows.sum[r][half] = 0.0f;
  //% if not score.bounded then
  rows.large = false;
  //% end
}

static __device__ __forceinline__ void clear_output(float (&output)[ROW_TILES][V_TILES][4]) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < V_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) output[r][n][e] = 0.0f;
}

// Moves the references of rows whose scores exceed them by more than SLACK, and the sums so far with them. Returns
// whether a row of the warp moved; then the output so far must be multiplied by `rescale`. Where -inf is the reference,
// 0 stands in. As long as no lane holds a score too high, the rows' maxima are of no interest.
static __device__ __forceinline__ bool move_references(
    const float (&scores)[ROW_TILES][N_TILES][4],$(shift_parameter) row_state &rows,
    float (&rescale)[ROW_TILES][2]) {
  float maximum[ROW_TILES][2]; // of rows g and g + 8, in this lane's columns
  bool grows = false;
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = scores[r][0][2 * half], y = scores[r][0][2 * half + 1]; // two chains are sooner done than one
#pragma unroll
      for (int n = 1; n < N_TILES; ++n)
        x = fmaxf(x, scores[r][n][2 * half]), y = fmaxf(y, scores[r][n][2 * half + 1]);
      maximum[r][half] = fmaxf(x, y)$(score.shifts and " + shift[r][half]" or "");
      //% if headroom > 0 then
      grows |= maximum[r][half] - rows.reference[r][half] > SLACK; // P's format has no room for a rounded sum
      //% else
      grows |= maximum[r][half] > rows.reference[r][half] + SLACK;
      //% end
    }
  if (!vote_any(grows)) return false;
  //% if not score.bounded then
  bool large = false;
  //% end
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = maximum[r][half];
      x = fmaxf(x, shuffle_xor_f32(x, 1)); // the four lanes of a row
      x = fmaxf(x, shuffle_xor_f32(x, 2));
      // Only a row that asks for it moves: its bits must not depend on the other rows of the warp.
      //% if headroom > 0 then
      const float before = rows.reference[r][half], reference = x - before > SLACK ? x - HEADROOM : before;
      //% else
      const float before = rows.reference[r][half], reference = x > before + SLACK ? x : before;
      //% end
      const float stand_in = reference == minus_infinity() ? 0.0f : reference;
      rescale[r][half] = exp2_approx((before - stand_in) * EXP2_SCALE);
      rows.reference[r][half] = reference;
      rows.sum[r][half] *= rescale[r][half];
      //% if not score.bounded then
      large |= is_large(stand_in);
      //% end
    }
  //% if not score.bounded then
  rows.large = vote_any(large);
  //% end
  return true;
}

// The output so far, relative to the rows' new references.
static __device__ __forceinline__ void rescale_output(
    float (&output)[ROW_TILES][V_TILES][4], const float (&rescale)[ROW_TILES][2]) {
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < V_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) output[r][n][e] *= rescale[r][e / 2];
}

// Scores become probabilities relative to the rows' references, and join the sums.
static __device__ __forceinline__ void exponentiate(
    float (&scores)[ROW_TILES][N_TILES][4],$(shift_parameter) row_state &rows) {
  float offset[ROW_TILES][2]; // of the exponent
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float stand_in = rows.reference[r][half] == minus_infinity() ? 0.0f : rows.reference[r][half];
      offset[r][half] = $(score.shifts and "(shift[r][half] - stand_in)" or "-stand_in") * EXP2_SCALE;
    }
  //% if not score.bounded then
  if (rows.large) { // rare: subtract first
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const bool large = fabsf(offset[r][half]) >= EXACT_LIMIT;
        const float first = large ? rows.reference[r][half]$(score.shifts and " - shift[r][half]" or "") : 0.0f;
        offset[r][half] = large ? 0.0f : offset[r][half];
#pragma unroll
        for (int n = 0; n < N_TILES; ++n) scores[r][n][2 * half] -= first, scores[r][n][2 * half + 1] -= first;
      }
  }
  //% end
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        scores[r][n][e] = exp2_approx(fmaf(scores[r][n][e], EXP2_SCALE, offset[r][e / 2]));
      }
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
    for (int n = 0; n < N_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) rows.sum[r][e / 2] += scores[r][n][e];
}

//% if not kernel.layout.flat then
// Divides by the denominator (the sink joins it here, once) and writes LSE.
static __device__ __forceinline__ void finish_rows(
    const qkv_params &p, float (&output)[ROW_TILES][V_TILES][4], const row_state &rows,$(at_row) int h, int b,
    int lane$(view.also)) {
  //% local lse = variant.outputs.lse or variant.outputs.lse_with_sink
  //% local exists = packed and ("row.exists(%s)"):format(view.sequences and "view" or "p") or "i < " .. view.len_q
  //% if variant.sink == "per_head" and not packed then
  const float sink = p.sink[h * p.sink_stride_head];
  //% end
#pragma unroll
  for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      //% if packed and (lse or variant.sink == "per_head") then
      const packed_row row = warp_row + (16 * r + lane / 4 + 8 * half);
      const int head = h + row.head();
      //% end
      //% if packed and variant.sink == "per_head" then
      const float sink = p.sink[head * p.sink_stride_head];
      //% end
      float sum = rows.sum[r][half];
      sum += shuffle_xor_f32(sum, 1);
      sum += shuffle_xor_f32(sum, 2);
      const bool empty = rows.reference[r][half] == minus_infinity();
      //% if variant.sink == "per_head" then
      const float denominator = sum + exp2_approx(fmaf(sink, LOG2E, -(rows.reference[r][half] * EXP2_SCALE)));
      //% else
      const float denominator = sum;
      //% end
      const float inverse = empty ? 0.0f : rcp_approx(denominator);
#pragma unroll
      for (int n = 0; n < V_TILES; ++n) {
        output[r][n][2 * half] *= inverse;
        output[r][n][2 * half + 1] *= inverse;
      }
      //% if lse then
      //% if mask.dilation then
      const int row = warp_row + 16 * r + lane / 4 + 8 * half, i = $(view.row("row"));
      if (lane % 4 == 0 && row < view.len_q) {
      //% else
      const int i = $(packed and "row.query()" or "warp_row + 16 * r + lane / 4 + 8 * half");
      if (lane % 4 == 0 && $(exists)) {
      //% end
        const float lse = empty ? minus_infinity() : fmaf(rows.reference[r][half], EXP2_SCALE, log2_approx(sum)) * LN2;
        //% if view.sequences and variant.outputs.lse then
        p.lse[lse_row(p, view, i, $(names.h))] = lse;
        //% elseif variant.outputs.lse then
        p.lse[b * p.lse_stride_batch + $(names.h) * p.lse_stride_head + i * p.lse_stride_token] = lse;
        //% end
        //% if view.sequences and variant.outputs.lse_with_sink then
        p.lse_with_sink[lse_with_sink_row(p, view, i, $(names.h))] = log_add(lse, sink);
        //% elseif variant.outputs.lse_with_sink then
        p.lse_with_sink[b * p.lse_with_sink_stride_batch + $(names.h) * p.lse_with_sink_stride_head +
                        i * p.lse_with_sink_stride_token] = log_add(lse, sink);
        //% end
      }
      //% end
    }
  }
}
//% end
