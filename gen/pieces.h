/* pieces.h: runs templates, collects their output with its line map, and adds the pieces that the output uses.
 *
 * A piece is a named stretch of text defined by `piece(name, function)` in templates/prim, templates/parts or the
 * kernel itself. Only pieces whose names occur in the text (outside comments, strings and member accesses) are
 * rendered, each once, what a piece uses before the piece. Those of prim/ go to the primitives() marker, the others to
 * pieces().
 *
 * Lua side: emit_line (per template), include, piece, primitives, pieces. All functions here throw and must run inside
 * host_run; the struct belongs to the caller, who frees it with renderer_free whatever happened. */
#ifndef GEN_PIECES_H
#define GEN_PIECES_H

#include "gen.h"
#include "lua_host.h"
#include "output.h"

/* One loaded template; `bytes` is built in or owned. */
typedef struct template_source {
  char *path;
  const char *bytes;
  size_t size;
  char *owned;
  int function; /* registry reference of the compiled chunk */
} template_source;

typedef enum piece_state { PIECE_IDLE, PIECE_RENDERED, PIECE_PLACED } piece_state;

typedef struct piece {
  char *name;
  bool primitive;
  int template_index, line; /* where it is defined */
  int function;             /* registry reference */
  piece_state state;
  output out;
  int *uses; /* indices of the pieces it names */
  int nuses;
} piece;

enum { MARKER_PRIMITIVES, MARKER_PIECES, MARKER_COUNT };

typedef struct renderer {
  lua_host *host;
  template_source *templates;
  int ntemplates, template_capacity;
  piece *pieces;
  int npieces, piece_capacity;
  int *order; /* indices of rendered pieces, dependencies first */
  int norder;
  int kernel_template;
  output main, assembled;
  text chunk;                    /* scratch: the chunk being compiled */
  bool finishing;                /* pieces render; no new ones may be defined */
  output *current;               /* receives emitted lines; NULL while piece files load */
  int indent;                    /* columns added to emitted lines */
  int depth;                     /* of includes */
  int marker_line[MARKER_COUNT]; /* number of main lines before the marker; -1: none */
} renderer;

/* Prepares an empty renderer; call before host_run. */
void renderer_init(renderer *r, lua_host *h);
void renderer_free(renderer *r);

/* Defines the Lua functions of this file. */
void renderer_bind(renderer *r);
/* Loads every file of prim/ and parts/, so that their pieces are known. */
void renderer_load_pieces(renderer *r);
/* Renders a template as the main output. */
void renderer_run(renderer *r, const char *path);
/* Adds a line that comes from no template to the current output. */
void renderer_add_line(renderer *r, const char *line);
/* Renders the pieces in use and moves everything into the kernel: source, lines, templates. */
void renderer_finish(renderer *r, gen_kernel *k);

/* The paths "FOLDER/NAME SUFFIX" of all templates of a folder, built in or in the override directory, sorted; pushes
 * them as a Lua array. Throws. */
void template_list(lua_State *L, const char *folder, const char *suffix);

#endif
