/* lua_bind.h: what templates and family files see of a spec, a target and a request.
 *
 * Globals: variant, mask, score, arch, request (read-only); cuda_mask, cuda_score, cuda_score_steps, cuda_edge,
 * cuda_mask_rest, cuda_mask_part, cuda_interval_edge, cuda_interval_side, cuda_box, f32, ceil_div, round_up, library. The
 * template author's guide (docs/template-guide.md) describes each. */
#ifndef GEN_LUA_BIND_H
#define GEN_LUA_BIND_H

#include "expr_hoist.h"
#include "gen.h"
#include "lua_host.h"
#include "mask_residue.h"
#include "score.h"

enum { EDGE_COUNT = 4 };

typedef struct binding {
  const spec *spec;
  const arch *arch;
  const gen_request *request;
  const char *phase;
  mask_residue residue; /* modulus NULL: none, or tiles are not to follow it. Else what follows is of one residue */
  mask_rows rows;   /* one interval a row, for kernels that walk through a range of tiles */
  bool has_width;
  int64_t width;    /* the most keys of it, where a constant bounds them */
  mask_plan plan;   /* the rest that is known, for those that walk from tile to tile */
  const char *walk; /* "intervals", "boxes" or "map" where tiles are no single range; else NULL */
  const expr *edges[EDGE_COUNT]; /* by mask_edge; in the caller's arena, as all that follows */
  const expr *interval_edges[MASK_MAX_INTERVALS][EDGE_COUNT]; /* NULL: by row */
  const expr *interval_sides[MASK_MAX_INTERVALS][2];          /* high, low */
  expr_hoisted mask_parts;
  score_plan score;
  score_code score_code[2]; /* its value placed; for packed rows */
  text scratch;             /* freed by the caller */
  unsigned reads;           /* which maxima of the request Lua looked at, GEN_READ_* */
} binding;

/* Analyses mask and score into the arena `a`; allocation failures go to a's ARENA_TRY, so not inside host_run. */
void binding_analyse(binding *b, arena *a);
/* Defines the globals; throws, inside host_run. `b` must outlive the state. */
void binding_define(binding *b, lua_State *L);
/* The global `request` alone, again, after b->phase has changed. */
void binding_define_request(binding *b, lua_State *L);

/* For the files that define globals. */

/* The functions that print expressions, cuda_*. */
void binding_define_text(binding *b, lua_State *L);
/* A global function that finds `b` by binding_of. */
void binding_function(binding *b, lua_State *L, const char *name, lua_CFunction function);
binding *binding_of(lua_State *L);
/* Fields of the table on top. */
void binding_set_string(lua_State *L, const char *key, const char *value);
void binding_set_symbols(lua_State *L, const char *key, unsigned symbols); /* a set: {name = true} of each bit */

#endif
