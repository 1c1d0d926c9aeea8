/* test_attention.c: the launch path with what only some families ask for: tensor maps, regions that every call sets to
 * zero, and grids of as many blocks as the machine holds. A toy family on the emulated device shows each. */
#include "gen_fixture.h"

#include "qkv.h"

enum { BATCH = 2, HEADS = 3, LEN = 70, DIM = 64, TILE = 16, PITCH = 80 };

static const char spec_text[] = "qkvc: 1\nname: toy_call\nattention: {heads: 3, dim: 64, dtype: bf16}\n"
                                "outputs: [o, lse]\n";

/* A tile's first row of Q goes to O by way of a tensor map; lse[ticket] becomes the number of blocks. */
static const char family[] =
    "return {\n"
    "  name = 'toy', summary = 'a toy', order = 1, min_arch = 90, phases = {'prefill'},\n"
    "  supports = function(v, request) return not request.unaligned, 'needs aligned tensors' end,\n"
    "  axes = {{name = 'blocks', values = {0, 1, 2}, meaning = 'blocks of an SM'}},\n"
    "  defaults = function() return {blocks = 0} end,\n"
    "  resources = function() return {shared_bytes = 2064, threads = 32, registers = 8} end,\n"
    "  kernel = function(v, s)\n"
    "    local params = {\n"
    "      {name = 'q_map', type = 'tensor_map', source = 'q.map.64.16.128'},\n"
    "      {name = 'lse', type = 'pointer', ctype = 'float *', source = 'lse'},\n"
    "      {name = 'tickets', type = 'pointer', ctype = 'int *', source = 'workspace.tickets'},\n"
    "      {name = 'kept', type = 'pointer', ctype = 'int *', source = 'workspace.kept'},\n"
    "      {name = 'o', type = 'pointer', ctype = 'unsigned short *', source = 'o'},\n"
    "    }\n"
    "    for _, axis in ipairs{'batch', 'token', 'head'} do\n"
    "      params[#params + 1] = {name = 'o_' .. axis, type = 'i64', source = 'o.stride.' .. axis}\n"
    "    end\n"
    "    for _, size in ipairs{'batch', 'len_q'} do\n"
    "      params[#params + 1] = {name = size, type = 'i32', source = size}\n"
    "    end\n"
    "    return {\n"
    "      launches = {{entry = 'toy', block = 32, shared_bytes = 2064, blocks_per_sm = s.blocks,\n"
    "                   grid = {{'len_q', 16}, {'heads_q'}, {'batch'}}}},\n"
    "      params = params, aligned16 = true,\n"
    "      regions = {{name = 'kept', bytes = 8, count = {}}, {name = 'tickets', bytes = 4, zeroed = 1, count = {}}},\n"
    "    }\n"
    "  end,\n"
    "}\n";
static const char kernel[] =
    "//% primitives()\n"
    "//% pieces()\n"
    "extern \"C\" __global__ void __launch_bounds__(32) toy(const __grid_constant__ qkv_params p) {\n"
    "  if (threadIdx.x != 0) return;\n"
    "  const unsigned shared = smem_addr(shared_arena());\n"
    "  mbar_init(shared + 2048, 1);\n"
    "  fence_mbar_init();\n"
    "  const int tiles = (p.len_q + 15) / 16;\n"
    "  int parity = 0;\n"
    "  for (int work = blockIdx.x; work < tiles * 3 * p.batch; work += gridDim.x, parity ^= 1) {\n"
    "    const int row = work % tiles * 16, h = work / tiles % 3, b = work / tiles / 3;\n"
    "    mbar_arrive_expect_tx(shared + 2048, 2048);\n"
    "    tma_load_4d(shared, &p.q_map, shared + 2048, 0, row, h, b);\n"
    "    mbar_wait(shared + 2048, parity);\n"
    "    const unsigned short *from = (const unsigned short *)shared_arena(); // the first row is not swizzled\n"
    "    for (int d = 0; d < 64; d++) p.o[b * p.o_batch + row * p.o_token + h * p.o_head + d] = from[d];\n"
    "  }\n"
    "  p.lse[atomic_add_i32(p.tickets, 1)] = (float)gridDim.x;\n"
    "}\n"
    "#ifdef QKV_EMU\nQKV_EMU_ENTRY(toy)\n#endif\n";

static char *folder;
static qkv_engine *engine;
static qkv_spec *spec_handle;

static void need(qkv_status status) {
  if (status != QKV_OK)
    fail_msg("status %d: %s", (int)status, qkv_last_error(engine));
}

static int open_all(void **state) {
  (void)state;
  folder = fixture_folder();
  fixture_write(folder, "kernels/toy.lua", family);
  fixture_write(folder, "kernels/toy.cu", kernel);
  qkv_options o = QKV_OPTIONS_INIT;
  o.device = "emu";
  o.arch = "sm_90a";
  o.cache_dir = "";
  o.template_path = folder;
  return qkv_open(&o, &engine) || qkv_spec_load(engine, spec_text, &spec_handle);
}

static int close_all(void **state) {
  (void)state;
  qkv_spec_free(spec_handle);
  qkv_close(engine);
  fixture_remove(folder);
  return 0;
}

/* Tensors of one call; rows of Q and O are PITCH elements apart, its heads lie in different orders. */
typedef struct call {
  qkv_attention_args args;
  uint16_t q[BATCH * LEN * HEADS * PITCH], o[BATCH * HEADS * LEN * PITCH];
  float lse[BATCH * HEADS * LEN];
  int workspace[128];
  void *memory[6];
} call;

static void *upload(const void *bytes, size_t size) {
  void *memory;
  need(qkv_alloc(engine, size, &memory));
  need(qkv_copy_to_device(engine, memory, bytes, size));
  return memory;
}

static void make_call(call *c) {
  for (size_t n = 0; n < sizeof c->q / 2; n++)
    c->q[n] = (uint16_t)(n * 40503u >> 3);
  memset(c->o, 0xff, sizeof c->o);
  for (size_t n = 0; n < sizeof c->lse / sizeof *c->lse; n++)
    c->lse[n] = -1;
  for (int n = 0; n < 128; n++)
    c->workspace[n] = 7777;
  static const uint16_t keys[BATCH * 8 * HEADS * DIM];
  const void *const from[] = {c->q, keys, keys, c->o, c->lse, c->workspace};
  const size_t sizes[] = {sizeof c->q, sizeof keys, sizeof keys, sizeof c->o, sizeof c->lse, sizeof c->workspace};
  for (int n = 0; n < 6; n++)
    c->memory[n] = upload(from[n], sizes[n]);
  qkv_attention_args *a = &c->args;
  *a = (qkv_attention_args)QKV_ATTENTION_ARGS_INIT;
  a->q =
      (qkv_tensor){c->memory[0], QKV_BF16, 4, {BATCH, LEN, HEADS, DIM}, {LEN * HEADS * PITCH, HEADS * PITCH, PITCH, 1}};
  a->k = qkv_tensor_dense(c->memory[1], QKV_BF16, 4, (int64_t[]){BATCH, 8, HEADS, DIM});
  a->v = qkv_tensor_dense(c->memory[2], QKV_BF16, 4, (int64_t[]){BATCH, 8, HEADS, DIM});
  a->o =
      (qkv_tensor){c->memory[3], QKV_BF16, 4, {BATCH, LEN, HEADS, DIM}, {HEADS * LEN * PITCH, PITCH, LEN * PITCH, 1}};
  a->lse = qkv_tensor_dense(c->memory[4], QKV_F32, 3, (int64_t[]){BATCH, HEADS, LEN});
  a->workspace = c->memory[5];
  a->workspace_bytes = sizeof c->workspace;
}

static void fetch(call *c) {
  need(qkv_copy_to_host(engine, c->o, c->memory[3], sizeof c->o));
  need(qkv_copy_to_host(engine, c->lse, c->memory[4], sizeof c->lse));
  need(qkv_copy_to_host(engine, c->workspace, c->memory[5], sizeof c->workspace));
}

static void free_call(call *c) {
  for (int n = 0; n < 6; n++)
    need(qkv_free(engine, c->memory[n]));
}

static qkv_op *prepare(const char *schedule) {
  qkv_limits limits = QKV_LIMITS_INIT;
  qkv_op *op = NULL;
  limits.family = "toy";
  limits.schedule = schedule;
  limits.aligned_only = 1;
  need(qkv_prepare(engine, spec_handle, &limits, &op));
  return op;
}

/* Row i of head h of entry b. */
static void check_rows(const call *c) {
  for (int b = 0; b < BATCH; b++)
    for (int h = 0; h < HEADS; h++)
      for (int i = 0; i < LEN; i += TILE)
        for (int d = 0; d < DIM; d++) {
          uint16_t got = c->o[((b * HEADS + h) * LEN + i) * PITCH + d];
          uint16_t wanted = c->q[((b * LEN + i) * HEADS + h) * PITCH + d];
          if (got != wanted)
            fail_msg("o[%d][%d][%d][%d] is %04x, should be %04x", b, i, h, d, got, wanted);
        }
}

/* The grid is its rule or what the machine holds, whichever is less; tickets begin at 0 in every call, while a region
 * that is not to be zeroed keeps what it holds. */
static void test_grids_and_regions(void **state) {
  (void)state;
  qkv_device_info info = {.size = sizeof info};
  need(qkv_device_get_info(engine, &info));
  const int rule = (LEN + TILE - 1) / TILE * HEADS * BATCH;
  assert_true(2 * info.sm_count < rule); /* or the least below shows nothing */
  const struct {
    const char *schedule;
    int blocks;
  } rows[] = {{"blocks=0", rule}, {"blocks=1", info.sm_count}, {"blocks=2", 2 * info.sm_count}};
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    static call c;
    qkv_op *op = prepare(rows[n].schedule);
    assert_int_equal(qkv_workspace_size(op), 512);
    make_call(&c);
    for (int repeat = 0; repeat < 3; repeat++) {
      need(qkv_attention(op, &c.args, NULL));
      fetch(&c);
      for (int t = 0; t < BATCH * HEADS * LEN; t++)
        if (c.lse[t] != (float)(t < rows[n].blocks ? rows[n].blocks : -1))
          fail_msg("%s, call %d: ticket %d of %d blocks: %g", rows[n].schedule, repeat, t, rows[n].blocks,
                   (double)c.lse[t]);
      assert_int_equal(c.workspace[0], 7777);            /* kept */
      assert_int_equal(c.workspace[1], 7777);            /* and its second half */
      assert_int_equal(c.workspace[64], rows[n].blocks); /* tickets, 256 bytes on */
      assert_int_equal(c.workspace[65], 7777);           /* behind them */
    }
    check_rows(&c);
    free_call(&c);
    qkv_op_free(op);
  }
}

/* A grid below what the machine holds stays as it is. */
static void test_small_grids(void **state) {
  (void)state;
  static call c;
  qkv_op *op = prepare("blocks=2");
  make_call(&c);
  qkv_tensor *const tensors[] = {&c.args.q, &c.args.k, &c.args.v, &c.args.o, &c.args.lse};
  for (int t = 0; t < 5; t++)
    tensors[t]->shape[0] = 1;
  c.args.q.shape[1] = c.args.o.shape[1] = c.args.lse.shape[2] = 1;
  need(qkv_attention(op, &c.args, NULL));
  fetch(&c);
  for (int t = 0; t < HEADS + 1; t++)
    assert_true(c.lse[t] == (float)(t < HEADS ? HEADS : -1));
  free_call(&c);
  qkv_op_free(op);
}

/* What a tensor map cannot describe is no call of a kernel with maps. */
static void test_strides_that_maps_refuse(void **state) {
  (void)state;
  static call c;
  qkv_op *op = prepare("blocks=1");
  make_call(&c);
  const int64_t strides[] = {HEADS * PITCH + 4, -HEADS * PITCH, INT64_C(1) << 39};
  for (int n = 0; n < 3; n++) {
    qkv_attention_args a = c.args;
    a.q.stride[1] = strides[n];
    assert_int_equal(qkv_attention(op, &a, NULL), QKV_INVALID_ARGUMENT);
    assert_true(strncmp(qkv_last_error(engine), "q: ", 3) == 0);
  }
  qkv_attention_args a = c.args;
  a.workspace = NULL;
  assert_int_equal(qkv_attention(op, &a, NULL), QKV_INVALID_ARGUMENT);
  assert_non_null(strstr(qkv_last_error(engine), "workspace"));
  free_call(&c);
  qkv_op_free(op);
}

/* A kernel with one tensor map, whose source the schedule picks. */
static const char *const sources[] = {"q.map.64.16.128",
                                      "k.map.64.16.128",
                                      "q.packed_map.64.2.8.128",
                                      "q.clipped_map.64.16.128",
                                      "k.clipped_map.64.16.128",
                                      "q.clipped_packed_map.64.2.8.128",
                                      "k.clipped_packed_map.64.2.8.128",
                                      "o.clipped_map.64.16",
                                      "lse.clipped_map.64.16.128"};
enum { SOURCES = sizeof sources / sizeof *sources };
static const char mapped_kernel[] =
    "//% primitives()\n//% pieces()\n"
    "extern \"C\" __global__ void __launch_bounds__(32) mapped(const __grid_constant__ qkv_params p) {\n"
    "  if (threadIdx.x == 0) tma_prefetch(&p.map);\n}\n"
    "#ifdef QKV_EMU\nQKV_EMU_ENTRY(mapped)\n#endif\n";

static void write_mapped_family(void) {
  text lua = {0};
  text_printf(&lua, "local sources = {");
  for (int n = 0; n < SOURCES; n++)
    text_printf(&lua, "[%d] = '%s', ", n, sources[n]);
  text_printf(&lua, "}\nreturn {\n"
                    "  name = 'mapped', summary = 'a toy', order = 2, min_arch = 90, phases = {'prefill'},\n"
                    "  supports = function(v, request) return not request.unaligned, 'needs aligned tensors' end,\n"
                    "  axes = {{name = 'source', values = {0, 1, 2, 3, 4, 5, 6, 7, 8}, meaning = 'of the map'}},\n"
                    "  defaults = function() return {source = 0} end,\n"
                    "  resources = function() return {shared_bytes = 0, threads = 32, registers = 8} end,\n"
                    "  kernel = function(v, s)\n"
                    "    return {launches = {{entry = 'mapped', block = 32, shared_bytes = 0, grid = {}}},\n"
                    "            params = {{name = 'map', type = 'tensor_map', source = sources[s.source]}},\n"
                    "            regions = {}, aligned16 = true}\n"
                    "  end,\n}\n");
  fixture_write(folder, "kernels/mapped.lua", lua.bytes);
  fixture_write(folder, "kernels/mapped.cu", mapped_kernel);
  text_free(&lua);
}

/* Only clipped maps know where a sequence ends, and a batch is one dimension too many for a packed one. */
static void test_maps_that_a_layout_has(void **state) {
  (void)state;
  static const struct {
    const char *layout, *has; /* by source: 1 or 0 */
  } rows[] = {{"{q: dense, kv: dense}", "111110000"},
              {"{q: dense, kv: padded}", "101110000"},
              {"{q: ragged, kv: ragged}", "000111000"},
              {"{q: ragged, kv: {paged: {page: 16, order: hnd}}}", "000111000"}};
  write_mapped_family();
  for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
    char yaml[256], schedule[32];
    qkv_spec *handle;
    snprintf(yaml, sizeof yaml,
             "qkvc: 1\nname: mapped\nattention: {heads: {q: 4, kv: 2}, dim: 64, dtype: bf16}\n"
             "layout: %s\n",
             rows[n].layout);
    need(qkv_spec_load(engine, yaml, &handle));
    for (int source = 0; source < SOURCES; source++) {
      qkv_limits limits = QKV_LIMITS_INIT;
      qkv_op *op = NULL;
      snprintf(schedule, sizeof schedule, "source=%d", source);
      limits.family = "mapped", limits.schedule = schedule, limits.aligned_only = 1;
      qkv_status status = qkv_prepare(engine, handle, &limits, &op);
      if ((status == QKV_OK) != (rows[n].has[source] == '1'))
        fail_msg("%s, %s: status %d, %s", rows[n].layout, sources[source], (int)status, qkv_last_error(engine));
      if (status != QKV_OK)
        assert_non_null(strstr(qkv_last_error(engine), "member 'map' cannot be filled from"));
      qkv_op_free(op);
    }
    qkv_spec_free(handle);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_maps_that_a_layout_has),
      cmocka_unit_test(test_grids_and_regions),
      cmocka_unit_test(test_small_grids),
      cmocka_unit_test(test_strides_that_maps_refuse),
  };
  return cmocka_run_group_tests(tests, open_all, close_all);
}
