//%% Score and mask expressions where rows of the problem are the columns of wgmma's fragments: parts/tile_softmax.cu,
//%% transposed.
//%%
//%% Element e of 64-key tile m and 8-row column n is key 64 m + 8 (e / 2) + own_key() of the slice and row
//%% 8 n + e % 2 + own_row() of the tile. A row's keys are spread over eight lanes of each of the warpgroup's warps.
//% local attention = library("attention")
//% local cap = variant.softcap > 0 and (" with s capped at %g"):format(variant.softcap) or ""
//% local view = attention.view(mask, variant)
//% local position = view.whole_position
//% local names = {q = "q", k = "k", i = "i", h = "head", hk = "hk", b = "b", len_q = view.whole_q,
//%   len_k = view.whole_k}
//% local where = " packed_row first_row, " .. view.parameter .. ", int h, int hk, int b" -- of a parameter list
//% local function define_row(symbols, indent)
//%   if symbols.i or symbols.q or symbols.h then
$(indent)const packed_row row = first_row + (8 * n + e + own_row());
//%   end
//%   if symbols.h then
$(indent)[[maybe_unused]] const int head = h + row.head();
//%   end
//%   if symbols.i or symbols.q then
$(indent)[[maybe_unused]] const int i = row.query();
//%   end
//%   if symbols.q then
$(indent)[[maybe_unused]] const int q = i + $(position);
//%   end
//% end
static __device__ __forceinline__ int own_key() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
static __device__ __forceinline__ int own_row() { return threadIdx.x % 4 * 2; }

//% if variant.kv_scale == "per_head" then
// The products of K as it is stored become those of K.
static __device__ __forceinline__ void scale_products(float (&scores)[KEY_TILES][ROW_TILES][4], float k_scale) {
#pragma unroll
  for (int m = 0; m < KEY_TILES; ++m)
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[m][n][e] *= k_scale;
}

//% end
//% if score.shifts or not score.is_product then
//%   local symbols = {s = "s", k = "k", first_key = "first_key", column = "column"}
//%   for symbol, name in pairs(names) do symbols[symbol] = symbols[symbol] or name end
//%   local steps = cuda_score_steps(true, symbols, "[n][e]")
//%   local rows, columns, elements = steps.row_symbols, steps.column_symbols, steps.value_symbols
// Products to scores, in units of EXP2_SCALE: $(variant.score_text)$(cap).
//%   if score.shifts then
// What is the same for all of a thread's keys of a row is not added but goes to `shift`.
//%   end
static __device__ __forceinline__ void transform_scores(
    float (&scores)[KEY_TILES][ROW_TILES][4],
    //% if score.shifts then
    float (&shift)[ROW_TILES][2],
    //% end
    const qkv_params &p, int slice,$(where)) {
  //% if steps.once_symbols.first_key or rows.first_key or columns.k or elements.k then
  const int first_key = slice * TILE_N + own_key(); // of those the thread has
  //% end
  //% for _, step in ipairs(steps.once) do
  const $(step.type) $(step.name) = $(step.text);
  //% end
  //% for _, step in ipairs(steps.rows) do
  $(step.type) $(step.name)[ROW_TILES][2];
  //% end
  //% if score.shifts or #steps.rows > 0 then
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      //% define_row(rows, "      ")
      //% for _, step in ipairs(steps.rows) do
      $(step.name)[n][e] = $(step.text);
      //% end
      //% if score.shifts then
      shift[n][e] = $(steps.shift);
      //% end
    }
  //% end
  //% if not score.is_product then
#pragma unroll
  for (int m = 0; m < KEY_TILES; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      //% if columns.k or elements.k then
      const int k = first_key + (64 * m + 8 * half);
      //% end
      //% if columns.column or elements.column then
      const float column = 64 * m + 8 * half; // k - first_key
      //% end
      //% for _, step in ipairs(steps.columns) do
      const $(step.type) $(step.name) = $(step.text);
      //% end
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          //% define_row(elements, "          ")
          //% if elements.s then
          const float s = scores[m][n][2 * half + e]; // the product
          //% end
          scores[m][n][2 * half + e] = $(steps.value);
        }
    }
  //% end
}

//% end
// Hides what a row may not see, and keys past the end.
static __device__ __forceinline__ void mask_scores(
    float (&scores)[KEY_TILES][ROW_TILES][4], const qkv_params &p, int slice,$(where)) {
  const int first_key = slice * TILE_N + own_key(); // of those the thread has
  //% if mask.by_limits then
  //%   local row_names = attention.names(view, {q = "q", h = "head", hk = "hk", b = "b", len_q = view.len_q,
  //%     len_k = view.len_k})
  //%   local sees = {}
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      //% define_row({q = true, h = variant.mask_symbols.h}, "      ")
      //% for interval = 1, mask.intervals do
      //%   local number = mask.intervals > 1 and interval or ""
      //%   local low = cuda_interval_side(interval, "low", row_names)
      //%   local high = cuda_interval_side(interval, "high", row_names)
      //%   local condition = "key < high" .. number
      //%   if low ~= "0" then
      const int low$(number) = $(low) - first_key;
      //%     condition = "key >= low" .. number .. " && " .. condition
      //%   end
      const int high$(number) = $(high) - first_key;
      //%   sees[interval] = mask.intervals > 1 and "(" .. condition .. ")" or condition
      //% end
#pragma unroll
      for (int m = 0; m < KEY_TILES; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int key = 64 * m + 8 * half; // from first_key on
          if (!($(table.concat(sees, " || ")))) scores[m][n][2 * half + e] = minus_infinity();
        }
    }
  //% elseif mask.form == "all" then
#pragma unroll
  for (int m = 0; m < KEY_TILES; ++m)
#pragma unroll
    for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (first_key + 64 * m + e / 2 * 8 >= $(view.len_k)) scores[m][n][e] = minus_infinity();
  //% else
  //%   if #mask.rows > 0 then
  // What depends on the row alone.
  //%     for part, type in ipairs(mask.rows) do
  $(type) row_$(part)_of[ROW_TILES][2];
  //%     end
#pragma unroll
  for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      //% define_row(variant.mask_symbols, "      ")
      //%     for part in ipairs(mask.rows) do
      row_$(part)_of[n][e] = $(cuda_mask_part("row", part, names));
      //%     end
    }
  //%   end
#pragma unroll
  for (int m = 0; m < KEY_TILES; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = first_key + (64 * m + 8 * half);
      //%   for part, type in ipairs(mask.keys) do
      const $(type) key_$(part) = $(cuda_mask_part("key", part, names));
      //%   end
#pragma unroll
      for (int n = 0; n < ROW_TILES; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          //% define_row(variant.mask_symbols, "          ")
          //%   for part, type in ipairs(mask.rows) do
          const $(type) row_$(part) = row_$(part)_of[n][e];
          //%   end
          const bool sees = k < $(view.len_k) & ($(cuda_mask_rest(names)));
          if (!sees) scores[m][n][2 * half + e] = minus_infinity();
        }
    }
  //% end
}
