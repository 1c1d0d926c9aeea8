//%% New keys and values into the cache; see kv_append_sm80.lua.
//% local attention = library("attention")
//% local layout, append, rope = kernel.layout, variant.append, variant.rope
//% local width, mapped = layout.width, append.slots == "mapping"
//% local unaligned = request.unaligned
//% local step_parameter = unaligned and ", long long step" or ""
//% local step = unaligned and " * step" or nil
//% local scaled = variant.kv_scale == "per_head"
//% local words = {[16] = "uint4", [8] = "uint2", [4] = "unsigned", [2] = "unsigned short", [1] = "unsigned char"}
//% header()

//% if append.query then
constexpr int HEADS_Q = $(variant.heads_q);
//% end
constexpr int ROWS_QK = $(layout.qk.rows), ROWS_V = $(layout.v.rows); // of a token: heads
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
constexpr int SHARES_QK = $(layout.qk.shares), SHARES = $(layout.shares); // of a token

//% primitives()

//% pieces()

//% local function load(dtype, step)
//%   local count = width * layout.bytes.q // 4 -- words
//%   if step or count == 0 then
#pragma unroll
  for (int e = 0; e < WIDTH; ++e) x[e] = $(attention.to_float(dtype, "from[e" .. (step or "") .. "]"));
//%   elseif dtype == "f32" then
//%     local vector = ({[4] = "float4", [2] = "float2", [1] = "float"})[width]
//%     if width == 1 then
  x[0] = from[0];
//%     else
  const $(vector) all = *(const $(vector) *)from;
//%       for e = 0, width - 1 do
  x[$(e)] = all.$(("xyzw"):sub(e + 1, e + 1));
//%       end
//%     end
//%   else
//%     local vector, names = words[4 * count], {"all.x", "all.y", "all.z", "all.w"}
  const $(vector) all = *(const $(vector) *)from;
//%     for n = 0, count - 1 do
//%       local word = count == 1 and "all" or names[n + 1]
  x[$(2 * n)] = $(dtype)_to_f32((unsigned short)$(word));
  x[$(2 * n + 1)] = $(dtype)_to_f32((unsigned short)($(word) >> 16));
//%     end
//%   end
//% end
// A chunk of new keys, values or queries.
static __device__ __forceinline__ void load_chunk(float (&x)[WIDTH], const $(layout.ctype.q) *from$(step_parameter)) {
  //% load(variant.dtype_q, step)
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
// The rotation of the token at `position`; `member` is the lane's number among those of a row.
static __device__ __forceinline__ void find_rotation(const qkv_params &p, rotation &r, int position, int member) {
  //% if rope.table then
  const int row = min(max(position, 0), p.cos_sin_positions - 1); // stays in the table
  const float *table = p.cos_sin + row * p.cos_sin_stride_position;
  //% end
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
      //% local limits = {}
      //% if layout.qk.lanes * layout.qk.steps > layout.qk.turned_units then limits = {"unit >= TURNED_UNITS"} end
      //% if odd then limits[#limits + 1] = "pair >= PAIRS" end
      //% if #limits > 0 then
      if ($(table.concat(limits, " || "))) continue;
      //% end
      //% if rope.table then
      r.cosine[step][e] = table[pair];
      r.sine[step][e] = table[PAIRS + pair];
      //% else
      turn((float)position, p.frequencies[pair], r.cosine[step][e], r.sine[step][e]);
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
//% for _, kind in ipairs{"qk", "v"} do
//%   local m = layout[kind]
//%   local turned = kind == "qk" and rope
//%   local normed = kind == "qk" and append.norm
//%   local queries = kind == "qk" and append.query
//%   local tensor = kind == "qk" and "k" or "v"
//%   local new = "new_" .. tensor
//%   local what = kind == "v" and "values" or queries and "queries and keys" or "keys"
// Where the two chunks of unit `unit` of a row of $(what) lie; -1: there is none.
static __device__ __forceinline__ int2 chunks_of_$(kind)(int unit) {
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

// A share of the token's $(what): $(m.groups) times ROWS heads.
static __device__ __forceinline__ void append_$(kind)(const qkv_params &p, const token_place &place, int token,
                                                      int share, int lane) {
  constexpr int LANES = $(m.lanes), GROUPS = $(m.groups), STEPS = $(m.steps);
  const int member = lane % LANES, first_row = share * GROUPS * ROWS + lane / LANES;
  float x[ROWS][STEPS][2][WIDTH];
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    const int row = first_row + n * GROUPS;
    //% if queries then
    const bool is_query = row < HEADS_Q;
    const $(layout.ctype.q) *from =
        is_query ? p.q + token * p.q_stride_token + row * p.q_stride_head
                 : p.new_k + token * p.new_k_stride_token + (row - HEADS_Q) * p.new_k_stride_head;
    //%   if unaligned then
    const long long dim = is_query ? p.q_stride_dim : p.new_k_stride_dim;
    //%   end
    //% else
    const $(layout.ctype.q) *from = p.$(new) + token * p.$(new)_stride_token + row * p.$(new)_stride_head;
    //%   if unaligned then
    const long long dim = p.$(new)_stride_dim;
    //%   end
    //% end
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int2 chunk = chunks_of_$(kind)(LANES * step + member);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int begin = half == 0 ? chunk.x : chunk.y;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) x[n][step][half][e] = 0.0f;
        //% local dim = unaligned and " * dim, dim" or ""
        if (begin >= 0 && row < ROWS_$(kind:upper())) load_chunk(x[n][step][half], from + begin$(dim));
      }
    }
  }
  //% if normed then
  float scale[ROWS]; // of the norm
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    float sum = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sum += x[n][step][half][e] * x[n][step][half][e];
    for (int step = LANES / 2; step > 0; step /= 2) sum += shuffle_xor_f32(sum, step);
    scale[n] = rsqrtf(sum * $(f32(1.0 / m.dim)) + p.epsilon);
  }
  //% end
  //% if turned then
  rotation r;
  find_rotation(p, r, place.position, member);
  //% end
#pragma unroll
  for (int n = 0; n < ROWS; ++n) {
    const int row = first_row + n * GROUPS;
    if (row >= ROWS_$(kind:upper())) break;
    //% if queries then
    const bool is_query = row < HEADS_Q;
    const int head = is_query ? row : row - HEADS_Q;
    if (!is_query && !place.kept) continue;
    //% else
    const int head = row;
    //% end
    //% if scaled then
    //% local plain = queries and "is_query ? 1.0f : " or ""
    const float inverse = $(plain)1.0f / p.$(tensor)_scale[head * p.$(tensor)_scale_stride_head];
    //% end
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const int unit = LANES * step + member;
      const int2 chunk = chunks_of_$(kind)(unit);
      //% if normed then
      const float *weight = $(queries and "is_query ? p.q_norm : " or "")p.k_norm;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int begin = half == 0 ? chunk.x : chunk.y;
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
          if (begin >= 0) x[n][step][half][e] *= scale[n] * weight[begin + e];
      }
      //% end
      //% if turned then
      //%   local guard = m.lanes * m.steps > m.turned_units and "if (unit < TURNED_UNITS) " or ""
      $(guard)turn_unit(x[n][step][0], x[n][step][1], r.cosine[step], r.sine[step]);
      //% end
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int begin = half == 0 ? chunk.x : chunk.y;
        if (begin < 0) continue;
        //% if scaled then
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) x[n][step][half][e] *= inverse;
        //% end
        //% local function target(name, place)
        //%   local dim = "p." .. name .. "_stride_dim"
        //%   if unaligned then return place .. " + begin * " .. dim .. ", x[n][step][half], " .. dim end
        //%   return place .. " + begin, x[n][step][half]"
        //% end
        //% local row = "place." .. (tensor == "k" and "key" or "value")
        //% local cache = target(tensor, "p." .. tensor .. " + " .. row .. " + head * p." .. tensor .. "_stride_head")
        //% if queries then
        if (is_query)
          //% local out = "p.q_out + token * p.q_out_stride_token + head * p.q_out_stride_head"
          $(two and "store_query" or "store_chunk")($(target("q_out", out)));
        else
          store_chunk($(cache));
        //% else
        store_chunk($(cache));
        //% end
      }
    }
  }
}

//% end
extern "C" __global__ void __launch_bounds__(32 * WARPS * TOKENS, 1) qkv_kernel(const __grid_constant__ qkv_params p) {
//% include "parts/early.cu"
  const int warp = warp_uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int token = blockIdx.x * TOKENS + warp / WARPS;
  if (token >= p.tokens) return;
  const token_place place = find_place(p, token, lane);
  //% if not append.query then
  if (!place.kept) return;
  //% elseif not mapped then
  if (!place.exists) return;
  //% end
  for (int share = warp % WARPS; share < SHARES; share += WARPS)
    if (share < SHARES_QK)
      append_qk(p, place, token, share, lane);
    else$(append.query and " if (place.kept)" or "")
      append_v(p, place, token, share - SHARES_QK, lane);
}

#ifdef QKV_EMU
QKV_EMU_ENTRY(qkv_kernel)
#endif
