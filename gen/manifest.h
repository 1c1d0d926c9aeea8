/* manifest.h: everything the runtime must know to launch a generated kernel. Plain data, no pointers into the
 * generator; written into cache entries next to the cubin and read back without Lua or YAML.
 *
 * This header and status.h are all that runtime/ may include from gen/ (the facade excepted). */
#ifndef GEN_MANIFEST_H
#define GEN_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

enum {
  MANIFEST_MAX_LAUNCHES = 4,
  MANIFEST_MAX_FACTORS = 6,
  MANIFEST_MAX_FIELDS = 160,
  MANIFEST_MAX_REGIONS = 6,
  MANIFEST_MAX_CLUSTER = 16, /* every GPU with clusters has 8, the largest these */
  MANIFEST_FORMAT = 5, /* of the text form */
  MANIFEST_MAX_PARAMS = 4096, /* bytes of the parameter struct, as CUDA allows */
  MANIFEST_NAME = 64
};

/* A size known at launch. Lengths are the greatest that a sequence of the call may have. */
typedef enum manifest_size {
  SIZE_ONE,
  SIZE_BATCH,
  SIZE_LEN_Q,
  SIZE_LEN_K,
  SIZE_TOKENS_Q, /* rows of q: those of a ragged one, else batch * len_q */
  SIZE_HEADS_Q,
  SIZE_HEADS_KV,
  SIZE_DIM_QK,
  SIZE_DIM_V,
  SIZE_SM_COUNT,
  SIZE_DILATION,     /* 1 unless the manifest has one */
  SIZE_RESIDUES,     /* that some query has: min(dilation, len_q) */
  SIZE_RESIDUE_ROWS, /* the most queries of one: ceil(len_q / dilation) */
  SIZE_COUNT
} manifest_size;

/* ceil(size / per); a rule is the product of its factors. */
typedef struct manifest_factor {
  manifest_size size;
  int per; /* at least 1 */
} manifest_factor;

typedef struct manifest_rule {
  int count;
  manifest_factor factors[MANIFEST_MAX_FACTORS];
} manifest_rule;

/* One kernel of the image. Kernels of a manifest run in order on one stream. */
typedef struct manifest_launch {
  char entry[MANIFEST_NAME]; /* extern "C" name */
  int block;                 /* threads */
  int shared_bytes;          /* dynamic shared memory */
  int plans;                 /* 1: depends on sizes and parameters of the mask alone; calls may reuse what it made */
  manifest_rule grid;        /* clusters in x; grid.y = grid.z = 1 */
  int blocks_per_sm;         /* > 0: a persistent kernel; the grid is at most this many blocks for every SM */
  int cluster;               /* blocks of a cluster; 1: the grid counts blocks */
  int early;                 /* 1: may start before the kernel ahead of it ends; waits by grid_dependency_wait */
} manifest_launch;

/* A part of the workspace: `bytes` times the rule, at an offset aligned to 256. */
typedef struct manifest_region {
  char name[MANIFEST_NAME];
  int bytes;
  int zeroed; /* 1: every call sets it to zero on its stream before the first launch; 2: only calls that plan do, since
                 the kernels leave it zero */
  manifest_rule count;
} manifest_region;

typedef enum field_type { FIELD_POINTER, FIELD_I64, FIELD_I32, FIELD_F32, FIELD_TENSOR_MAP, FIELD_STATES } field_type;

/* What a field of FIELD_STATES holds: the merged state and those it is made of, each with strides and a format of its
 * own, so that one kernel merges any number of them from wherever they lie. 48 fill the struct of 4 KiB. */
enum { MANIFEST_STATES = 48 };
typedef struct manifest_state {
  void *o, *lse;              /* lse of `out`: NULL when it is not wanted */
  int64_t o_stride[3];        /* elements: batch, token, head */
  int64_t lse_stride[3];
  int32_t o_stride_dim;
  uint16_t dtype;             /* f16 0, bf16 1, f32 2 */
  uint16_t wide;              /* 1: rows are contiguous and 16-byte aligned */
} manifest_state;
typedef struct manifest_states {
  int64_t count;
  manifest_state out, in[MANIFEST_STATES];
} manifest_states;

/* One member of the kernel's parameter struct. `source` names the value:
 *   q k v o lse lse_with_sink sink               base pointers, likewise k_scale v_scale
 *   q.stride.batch  .token .head .dim            element strides, likewise k v o; lse.stride.batch .head .token;
 *                                                lse_with_sink.stride....; sink.stride.head,
 *                                                likewise k_scale v_scale
 *                                                the axes are those of the layout: a ragged q has no batch, pages have
 *                                                page, token, head and dim, the lse of a ragged q head and token
 *   q.extent.token  k.extent.token               tokens of a packed tensor, and of the other axes likewise
 *   cu_seqlens_q cu_seqlens_k seqlens_k          base pointers of contiguous i32 arrays
 *   page_table page_table.stride.batch           likewise of a table of rows; of a csr one page_table.extent.entry
 *   page_indptr                                  and this
 *   q.map.DIMS.TOKENS.SWIZZLE                    tensor map of q (also k v o) over (dim, token, head, batch) whose box is
 *                                                DIMS by TOKENS elements of one head, with SWIZZLE bytes of swizzle
 *   q.packed_map.DIMS.HEADS.TOKENS.SWIZZLE       the same of q (also o) over (dim, query head of a KV head, token, KV head,
 *                                                batch); the box is DIMS by HEADS by TOKENS elements of one KV head
 *   q.long_map.DIMS.TOKENS.SWIZZLE               the same of q (also k v o) over (dim, token / dilation, token % dilation,
 *                                                head, batch), of the residues below len % dilation, which have
 *                                                ceil(len / dilation) tokens; the box holds tokens of one residue
 *   q.short_map.DIMS.TOKENS.SWIZZLE              of all residues, and floor(len / dilation) of the tokens of each
 *   k.clipped_map.DIMS.ROWS.SWIZZLE              the same of k (also q v o) over (dim, row, token, head), and batch or page
 *                                                where the layout has one. The box is DIMS elements of ROWS tokens; at row
 *                                                ROWS - n and token t + n it begins with token t and ends behind the n-th
 *                                                row (0 <= n <= ROWS), whatever follows in the tensor
 *   q.clipped_packed_map.DIMS.HEADS.ROWS.SWIZZLE the same of a ragged q (also o) over (dim, query head of a KV head, row,
 *                                                token, KV head)
 *   append.NAME append.NAME.stride.AXIS          of a tensor of qkv_append_args, likewise .extent.AXIS (runtime/qkv_append.c)
 *   append.epsilon .rope_factor .slot_count      numbers of such a call
 *   append.slots.words  append.positions.words   32-bit words that an element of the array has
 *   batch len_q len_k tokens_q dilation          sizes
 *   states                                       a manifest_states, of a merge
 *   workspace.NAME                               address of a region
 *   param.NAME                                   base pointer of a tensor parameter, value of a scalar one
 *   param.NAME.stride.D  param.NAME.extent.D     of its dimension D */
typedef struct manifest_field {
  char name[MANIFEST_NAME]; /* member name in the struct */
  char source[MANIFEST_NAME];
  field_type type;
  int offset; /* natural alignment (a tensor map: 64 bytes), in order of declaration */
} manifest_field;

typedef struct manifest {
  char family[MANIFEST_NAME];
  char variant_hash[33]; /* of the canonical spec, what its phase has of it */
  char schedule[256];    /* "tile_m=128,tile_n=64,..." in the family's order */
  char arch[16];         /* NVRTC target the source was made for */
  char dilation[MANIFEST_NAME]; /* tiles hold tokens of one residue modulo it: "4", or "param.NAME" for the greater of 1
                                   and the parameter's magnitude; "" when they hold neighbours */
  bool aligned16;        /* needs 16-byte aligned q k v o pointers and rows, innermost stride 1 */
  int nlaunches;
  manifest_launch launches[MANIFEST_MAX_LAUNCHES];
  int nfields;
  manifest_field fields[MANIFEST_MAX_FIELDS];
  int params_size; /* bytes of the parameter struct */
  int nregions;
  manifest_region regions[MANIFEST_MAX_REGIONS];
} manifest;

int field_type_size(field_type t);
const char *field_type_name(field_type t); /* "i64" */
/* The type of a name, or -1. */
int field_type_find(const char *name);
/* Sets the offset of every field (natural alignment, in order) and params_size (rounded up to 8). */
void manifest_place_fields(manifest *m);
/* The word for a size in rules: "batch", "len_q", ... and back (-1 when unknown). */
const char *manifest_size_name(manifest_size s);
int manifest_size_find(const char *name);
/* The product of the factors for the given sizes; -1 on overflow of int64 or a negative size. */
int64_t manifest_rule_value(const manifest_rule *rule, const int64_t sizes[SIZE_COUNT]);
/* Total workspace bytes for the given sizes and the offset of each region; -1 on overflow. */
int64_t manifest_workspace(const manifest *m, const int64_t sizes[SIZE_COUNT], int64_t offsets[MANIFEST_MAX_REGIONS]);
/* Text form (one "key value..." line each, fixed order), and back. manifest_read returns false for anything that
 * manifest_write would not write. */
void manifest_write(const manifest *m, text *out);
bool manifest_read(const char *bytes, size_t size, manifest *out);

#endif
