/* cli_mask.h: qkvc explain --mask: how a mask is cut into tiles, in numbers, as JSON, in the terminal, as SVG.
 * Gathered and put into words by cli_mask.c, drawn by cli_mask_draw.c; cli_info.c has the command. */
#ifndef TOOLS_CLI_MASK_H
#define TOOLS_CLI_MASK_H

#include "cli.h"
#include "cli_problem.h"
#include "qkv_build.h"

/* What the command line asks for. */
typedef struct mask_request {
  int wanted; /* --mask or --svg was given */
  problem_request problem;
  const char *tile; /* "128x64"; NULL: that of the kernel */
  int64_t entry, head;
  int ascii, exact, json;
  const char *svg; /* file to write, NULL: none */
} mask_request;

/* What happens to a tile, as it is shown. */
typedef enum mask_class {
  MASK_SKIPPED,
  MASK_FULL,
  MASK_PARTIAL,
  MASK_WASTED,  /* visited although nothing is visible there */
  MASK_GUARDED, /* the mask is evaluated although everything is visible */
  MASK_CLASSES
} mask_class;

/* The words for a class: "skipped", and what it means. */
typedef struct mask_words {
  const char *name, *meaning;
} mask_words;
extern const mask_words mask_class_words[MASK_CLASSES];

typedef struct mask_view {
  problem problem;
  qkv_mask_map map;
  unsigned char *pairs; /* [len_q, len_k] of 0 and 1 for small masks, else NULL */
  int64_t counts[MASK_CLASSES];
  double useful; /* visible pairs of those that are multiplied; -1: not known */
} mask_view;

mask_class mask_class_at(const mask_view *v, int64_t row, int64_t column);
/* One character a pair for small masks, else one for a tile or several. */
void mask_draw(const mask_view *v, bool ascii, FILE *out);
void mask_draw_svg(const mask_view *v, FILE *out);

/* Prints everything about the mask of the spec at `path`. Returns an exit code. */
int cli_mask_explain(const char *path, const mask_request *request);

#endif
