//%% New keys and values into the cache; see kv_append_sm80.lua.
//% local attention = library("attention")
//% local layout, append, rope = kernel.layout, variant.append, variant.rope
//% local width, mapped = layout.width, append.slots == "mapping"
//% local unaligned = request.unaligned
//% local step_parameter = unaligned and ", long long step" or ""
//% local step = unaligned and " * step" or nil
//% local words = {[16] = "uint4", [8] = "uint2", [4] = "unsigned", [2] = "unsigned short", [1] = "unsigned char"}
//% header()

//% local heads = {}
//% for n, kind in ipairs(layout.kinds) do
//%   if not kind.whole then heads[kind.heads] = kind.rows end
//% end
//% for name, count in pairs(heads) do
constexpr int $(name) = $(count);
//% end
constexpr int WIDTH = $(width); // elements of a chunk
//% local odd = rope and rope.dims // width % 2 == 1 -- the last unit that turns has one chunk
//% if rope and (rope.table or odd or layout.qk.rest_units > 0) then
constexpr int PAIRS = $(rope.dims // 2); // that turn
//% end
//% if rope then
constexpr int TURNED_UNITS = $(layout.qk.turned_units); // of two chunks of a row
//% end
constexpr int ROWS = $(schedule.rows); // heads that a lane has in flight
constexpr int WARPS = $(schedule.warps); // of a token
constexpr int TOKENS = $(schedule.tokens); // of a block
constexpr int BLOCKS = $(layout.blocks); // of an SM, at least
//% local counts = {}
//% for n = 1, #layout.kinds - 1 do counts[n] = layout.kinds[n].count .. " = " .. layout.kinds[n].shares end
//% local once = layout.shares == schedule.warps -- a share a warp
//% if not once then counts[#counts + 1] = "SHARES = " .. layout.shares end
constexpr int $(table.concat(counts, ", ")); // of a token

//% primitives()

//% pieces()

//% local load_words = width * layout.bytes.q // 4
//% local at_once = not unaligned and load_words > 0
//% local vector = variant.dtype_q == "f32" and ({[4] = "float4", [2] = "float2", [1] = "float"})[load_words]
//%                or words[4 * load_words]
// A chunk of new keys, values or queries as it is loaded.
struct chunk {
  //% if at_once then
  $(vector) all;
  //% else
  $(layout.ctype.q) all[WIDTH];
  //% end
};

static __device__ __forceinline__ void load_chunk(chunk &c, const $(layout.ctype.q) *from$(step_parameter)) {
  //% if at_once then
  c.all = *(const $(vector) *)from;
  //% else
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) c.all[e] = from[e$(step or "")];
  //% end
}

// Its elements.
static __device__ __forceinline__ void unpack_chunk(float (&x)[WIDTH], const chunk &c) {
  //% if not at_once then
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) x[e] = $(attention.to_float(variant.dtype_q, "c.all[e]"));
  //% else
  //%   for n = 0, load_words - 1 do
  //%     local word = load_words == 1 and "c.all" or "c.all." .. ("xyzw"):sub(n + 1, n + 1)
  //%     if variant.dtype_q == "f32" then
  x[$(n)] = $(word);
  //%     else
  x[$(2 * n)] = $(variant.dtype_q)_to_f32((unsigned short)$(word));
  x[$(2 * n + 1)] = $(variant.dtype_q)_to_f32((unsigned short)($(word) >> 16));
  //%     end
  //%   end
  //% end
}

//% local function store(dtype, size, step)
//%   local count = width * size // 4 -- words
//%   local function e4m3(e)
//%     return "pack_e4m3(x[" .. e .. "], x[" .. e + 1 .. "])"
//%   end
//%   local function word(n)
//%     if dtype == "f32" then return "__float_as_uint(x[" .. n .. "])" end
//%     if dtype == "e4m3" then return e4m3(4 * n) .. " | (unsigned)" .. e4m3(4 * n + 2) .. " << 16" end
//%     return "pack_" .. dtype .. "x2(x[" .. 2 * n .. "], x[" .. 2 * n + 1 .. "])"
//%   end
//%   if step or count == 0 then
//%     local element = attention.from_float(dtype, "x[e]")
//%     if dtype == "e4m3" then element = "(unsigned char)pack_e4m3(x[e], 0.0f)" end
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) to[e$(step or "")] = $(element);
//%   elseif count == 1 then
  *(unsigned *)to = $(word(0));
//%   else
//%     local list = {}
//%     for n = 0, count - 1 do list[#list + 1] = word(n) end
  *($(words[4 * count]) *)to = make_$(words[4 * count])(
      $(table.concat(list, ",\n")));
//%   end
//% end
//% local stores = {{"store_chunk", variant.dtype_kv, layout.ctype.kv, layout.bytes.kv}}
//% local two = append.query and variant.dtype_q ~= variant.dtype_kv
//% if two then stores[2] = {"store_query", variant.dtype_q, layout.ctype.q, layout.bytes.q} end
//% for n, form in ipairs(stores) do
// A chunk of $(n == 2 and "queries" or append.query and not two and "the cache or of queries" or "the cache").
static __device__ __forceinline__ void $(form[1])($(form[3]) *to, const float (&x)[WIDTH]$(step_parameter)) {
  //% store(form[2], form[4], step)
}

//% end
//% if rope then
// How far a token's pairs have turned, of a lane's chunks.
struct rotation {
  float cosine[$(layout.qk.steps)][WIDTH], sine[$(layout.qk.steps)][WIDTH];
};

//%   if not rope.table then
//%     local exact = variant.dtype_q == "f32" or variant.dtype_kv == "f32"
// Cosine and sine of position * frequency. The product, in turns, is held as a sum of two floats until its whole part
// is gone, so that what is left is as exact for far positions as for near ones.
static __device__ __forceinline__ void turn(float position, float frequency, float &cosine, float &sine) {
  constexpr float TURNS = $(f32(0.15915494309189535)), TURNS_REST = $(f32(6.420638326565253e-09)); // 1 / (2 pi)
  const float angle = position * frequency, angle_rest = fmaf(position, frequency, -angle);
  const float whole = floorf(angle * TURNS + 0.5f);
  const float part = fmaf(angle_rest, TURNS, fmaf(angle, TURNS_REST, fmaf(angle, TURNS, -whole)));
  //% if exact then
  cosine = cospif(2.0f * part);
  sine = sinpif(2.0f * part);
  //% else
  constexpr float TURN = $(f32(6.283185307179586)); // in radians
  cosine = cos_approx(TURN * part);
  sine = sin_approx(TURN * part);
  //% end
}

//%   end
//%   local limits = {}
//%   if layout.qk.lanes * layout.qk.steps > layout.qk.turned_units then limits = {"unit >= TURNED_UNITS"} end
//%   if odd then limits[#limits + 1] = "pair >= PAIRS" end
//%   if not rope.table then
// The frequencies of a lane's pairs; `member` is the lane's number among those of a row.
static __device__ __forceinline__ void load_frequencies(
    const qkv_params &p, float (&frequencies)[$(layout.qk.steps)][WIDTH], int member) {
#pragma unroll
  for (int step = 0; step < $(layout.qk.steps); ++step) {
    const int unit = $(layout.qk.lanes) * step + member;
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
      //% if rope.interleaved then
      const int pair = (unit + e / (WIDTH / 2) * TURNED_UNITS) * (WIDTH / 2) + e % (WIDTH / 2);
      //% else
      const int pair = unit * WIDTH + e;
      //% end
      //% if #limits > 0 then
      if ($(table.concat(limits, " || "))) continue;
      //% end
      frequencies[step][e] = p.frequencies[pair];
    }
  }
}

//%   end
// The rotation of the token at `position`.
static __device__ __forceinline__ void find_rotation(
//%   if rope.table then
    const qkv_params &p, rotation &r, int position, int member) {
  const int row = min(max(position, 0), p.cos_sin_positions - 1); // stays in the table
  const float *table = p.cos_sin + row * p.cos_sin_stride_position;
//%   else
    const qkv_params &p, rotation &r, const float (&frequencies)[$(layout.qk.steps)][WIDTH], int position, int member) {
//%   end
#pragma unroll
  for (int step = 0; step < $(layout.qk.steps); ++step) {
    //% if rope.table or #limits > 0 then
    const int unit = $(layout.qk.lanes) * step + member;
    //% end
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
      //% local named = rope.table or odd
      //% if named and rope.interleaved then
      const int pair = (unit + e / (WIDTH / 2) * TURNED_UNITS) * (WIDTH / 2) + e % (WIDTH / 2);
      //% elseif named then
      const int pair = unit * WIDTH + e;
      //% end
      //% if #limits > 0 then
      if ($(table.concat(limits, " || "))) continue;
      //% end
      //% if rope.table then
      r.cosine[step][e] = table[pair];
      r.sine[step][e] = table[PAIRS + pair];
      //% else
      turn((float)position, frequencies[step][e], r.cosine[step][e], r.sine[step][e]);
      r.cosine[step][e] *= p.rope_factor;
      r.sine[step][e] *= p.rope_factor;
      //% end
    }
  }
}

// Turns the two chunks of a unit.
static __device__ __forceinline__ void turn_unit(float (&first)[WIDTH], float (&second)[WIDTH],
                                                 const float (&cosine)[WIDTH], const float (&sine)[WIDTH]) {
  //% if rope.interleaved then
#pragma unroll
  for (int e = 0; e < WIDTH; e += 2) {
    const float x0 = first[e], y0 = first[e + 1], x1 = second[e], y1 = second[e + 1];
    const int n = e / 2, m = n + WIDTH / 2; // pairs of the first, of the second chunk
    first[e] = x0 * cosine[n] - y0 * sine[n];
    first[e + 1] = y0 * cosine[n] + x0 * sine[n];
    second[e] = x1 * cosine[m] - y1 * sine[m];
    second[e + 1] = y1 * cosine[m] + x1 * sine[m];
  }
  //% else
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) {
    const float x = first[e], y = second[e];
    first[e] = x * cosine[e] - y * sine[e];
    second[e] = y * cosine[e] + x * sine[e];
  }
  //% end
}

//% end
//% local function chunks_of(name, m, what)
// Where the two chunks of unit `unit` of a row of $(what) lie; -1: there is none.
static __device__ __forceinline__ int2 chunks_of_$(name)(int unit) {
  //% if m.turned_units > 0 then
  //%   local second = "(unit + TURNED_UNITS) * WIDTH"
  //%   if odd then second = "unit + 1 < TURNED_UNITS ? " .. second .. " : -1" end
  if (unit < TURNED_UNITS) return make_int2(unit * WIDTH, $(second));
  //% end
  //% if m.rest_units > 0 then
  //%   local begin = m.turned > 0 and "2 * PAIRS + " or ""
  const int rest = unit$(m.turned_units > 0 and " - TURNED_UNITS" or "");
  //%   local second = begin .. "(rest + " .. m.rest_units .. ") * WIDTH"
  //%   if m.rest_chunks % 2 == 1 then second = "rest + 1 < " .. m.rest_units .. " ? " .. second .. " : -1" end
  if (rest < $(m.rest_units)) return make_int2($(begin)rest * WIDTH, $(second));
  //% end
  return make_int2(-1, -1);
}

//% end
//% chunks_of("qk", layout.qk, append.query and "queries or keys" or "keys")
//% chunks_of("v", layout.v, "values")
//% for _, kind in ipairs(layout.kinds) do
//%   local m, from, to = kind.shape, kind.from, kind.to
//%   local turned, normed = kind.turns and rope, kind.turns and append.norm
//%   local scaled = variant.kv_scale == "per_head" and kind.cached
//%   local whole = kind.whole
//%   local place = mapped and "" or " const token_place &place,"
// A share of the token's $(kind.name): $(m.groups) times ROWS heads. What it needs of memory is asked for before
// anything is waited for.
static __device__ __forceinline__ void append_$(kind.name)(
    const qkv_params &p,$(place) int token, int share, int lane) {
  constexpr int LANES = $(m.lanes), GROUPS = $(m.groups), STEPS = $(m.steps);
  const int member = lane % LANES, first_row = share * GROUPS * ROWS + lane / LANES;
  //% if mapped and (kind.cached or turned) then
  const token_place place = find_place(p, token, lane);
  //% elseif kind.cached and append.query then
  if (!place.kept) return;
  //% end
  const $(layout.ctype.q) *from = p.$(from) + token * p.$(from)_stride_token + first_row * p.$(from)_stride_head;
  chunk loaded[ROWS][STEPS][2] = {};
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    //% if not whole then
    if (first_row + n * GROUPS >= $(kind.heads)) continue;
    //% end
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int2 at = chunks_of_$(kind.chunks)(LANES * step + member);
      const $(layout.ctype.q) *row = from + n * GROUPS * p.$(from)_stride_head;
      //% local dim = unaligned and " * p." .. from .. "_stride_dim, p." .. from .. "_stride_dim" or ""
      if (at.x >= 0) load_chunk(loaded[n][step][0], row + at.x$(dim));
      if (at.y >= 0) load_chunk(loaded[n][step][1], row + at.y$(dim));
    }
  }
  //% if turned and not rope.table then
  float frequencies[STEPS][WIDTH];
  load_frequencies(p, frequencies, member);
  //% end
  //% if normed then
  float weights[STEPS][2][WIDTH]; // of the norm
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const int2 at = chunks_of_$(kind.chunks)(LANES * step + member);
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
      weights[step][0][e] = at.x >= 0 ? p.$(kind.norm)[at.x + e] : 0.0f;
      weights[step][1][e] = at.y >= 0 ? p.$(kind.norm)[at.y + e] : 0.0f;
    }
  }
  //% end
  //% if scaled then
  float scales[ROWS];
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    const int head = $(whole and "first_row + n * GROUPS" or "min(first_row + n * GROUPS, " .. kind.heads .. " - 1)");
    scales[n] = p.$(to)_scale[head * p.$(to)_scale_stride_head];
  }
  //% end
  //% if kind.cached and mapped then
  warp_sync(); // keeps the loads in front of the branch
  if (!place.kept) return;
  //% end
  //% if turned then
  rotation r;
  find_rotation(p, r,$(rope.table and "" or " frequencies,") place.position, member);
  //% end
  //% local target = kind.cached and "place." .. kind.place or "token * p." .. to .. "_stride_token"
  $(kind.ctype) *to = p.$(to) + $(target) + first_row * p.$(to)_stride_head;
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    float x[STEPS][2][WIDTH];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      unpack_chunk(x[step][0], loaded[n][step][0]);
      unpack_chunk(x[step][1], loaded[n][step][1]);
    }
    //% if normed then
    float sum = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sum += x[step][half][e] * x[step][half][e];
    for (int step = LANES / 2; step > 0; step /= 2) sum += shuffle_xor_f32(sum, step);
    const float scale = rsqrtf(sum * $(f32(1.0 / m.dim)) + p.epsilon);
    //% end
    //% if scaled then
    const float inverse = 1.0f / scales[n];
    //% end
    //% if not whole then
    if (first_row + n * GROUPS >= $(kind.heads)) continue;
    //% end
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int unit = LANES * step + member;
      const int2 at = chunks_of_$(kind.chunks)(unit);
      //% if normed then
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) x[step][half][e] *= scale * weights[step][half][e];
      //% end
      //% if turned then
      //%   local guard = m.lanes * m.steps > m.turned_units and "if (unit < TURNED_UNITS) " or ""
      $(guard)turn_unit(x[step][0], x[step][1], r.cosine[step], r.sine[step]);
      //% end
      //% if scaled then
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) x[step][half][e] *= inverse;
      //% end
      $(kind.ctype) *row = to + n * GROUPS * p.$(to)_stride_head;
      //% local store, out = two and not kind.cached and "store_query" or "store_chunk", "p." .. to .. "_stride_dim"
      //% for half, begin in ipairs{"at.x", "at.y"} do
      //%   local place = unaligned and begin .. " * " .. out or begin
      if ($(begin) >= 0) $(store)(row + $(place), x[step][$(half - 1)]$(unaligned and ", " .. out or ""));
      //% end
    }
  }
}

//% end
extern "C" __global__ void __launch_bounds__(32 * WARPS * TOKENS, BLOCKS)
    qkv_kernel(const __grid_constant__ qkv_params p) {
//% include "parts/early.cu"
  const int warp = warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int token = blockIdx.x * TOKENS + warp / WARPS;
  if (token >= p.tokens) return;
  //% if not mapped then
  const token_place place = find_place(p, token, lane);
  if (!place.$(append.query and "exists" or "kept")) return;
  //% end
  //% if once then
  const int share = warp % WARPS;
  //% else
  for (int share = warp % WARPS; share < SHARES; share += WARPS)
  //% end
  //% local indent, passed, before = once and "" or "  ", mapped and "" or " place,", {}
  //% for n, kind in ipairs(layout.kinds) do
  //%   local first = table.concat(before, " - ")
  //%   before[n] = kind.count
  //%   local limit = n < #layout.kinds and "if (share < " .. table.concat(before, " + ") .. ")" or ""
  $(indent)$(n == 1 and limit or "else " .. limit)
  $(indent)  append_$(kind.name)(p,$(passed) token, share$(n > 1 and " - " .. first or ""), lane);
  //% end
}

#ifdef QKV_EMU
QKV_EMU_ENTRY(qkv_kernel)
#endif
