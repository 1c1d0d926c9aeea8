/* qkv_tuned_internal.h: tables of tuned schedules as the facade holds them.
 *
 *   qkv_tuned_store.c  which texts there are, read once an engine
 *   qkv_tuned.c        the entry for a request, and kernels rendered by it
 *   qkv_tuned_write.c  files: written, merged, checked, listed */
#ifndef RUNTIME_QKV_TUNED_INTERNAL_H
#define RUNTIME_QKV_TUNED_INTERNAL_H

#include "qkv_internal.h"
#include "tree.h"
#include "tuned.h"

/* Places, in the order of search. */
typedef enum tuned_place { TUNED_USER, TUNED_PACK, TUNED_BUILT_IN, TUNED_PLACES } tuned_place;

/* A text that may be a table. */
typedef struct tuned_text {
  char *file; /* for messages: a path, or "built in: h200/llama3_8b.yaml" */
  char *owned;
  const char *bytes;
  size_t size;
  bool parsed;
  tuned_table *table; /* NULL: not parsed, or of no use */
  struct tuned_text *next;
} tuned_text;

/* An engine's tables. Everything in it is guarded by `lock`; entries and their strings stay until the engine is closed,
 * those that a write has replaced too. */
struct tuned_store {
  pthread_mutex_t lock;
  bool off;        /* options.tuned_dir is "" */
  char *directory; /* "" none */
  bool loaded, stale;
  tuned_text *texts[TUNED_PLACES];
  tuned_text *retired;
};

/* directory NULL: "tuned" in the cache's. NULL when memory is out. */
tuned_store *tuned_open(const char *directory, const char *cache_directory);
void tuned_close(tuned_store *t);
/* Adds a table from memory, such as a pack's, behind those of the same place; the bytes are copied. `file` names it in
 * messages. Any time, from any thread; ops that are prepared stay as they are. */
qkv_status tuned_add(qkv_engine *e, const char *file, const char *bytes, size_t size);
/* All that the engine's tables say of a spec's variant, of any GPU, as the text of one table, for packs; where two places
 * have an entry, that of the one which is searched first. *out stays empty when they say nothing. */
qkv_status tuned_collect(qkv_engine *e, const spec *s, text *out);
/* Whether a text may be about a variant: its hash stands in it, or its file has the spec's name. */
bool tuned_may_know(const tuned_text *t, const char *hash, const char *spec_name);
/* Takes the lock and makes sure that everything is loaded. */
void tuned_lock(qkv_engine *e);
void tuned_unlock(qkv_engine *e);
/* The table of a text, parsed at the first call, faults to the log; NULL: of no use. The lock is held. */
tuned_table *tuned_text_table(const qkv_engine *e, tuned_text *t);
/* Says in the log what is wrong, each diagnostic a warning of its own. */
void tuned_warn(const qkv_engine *e, const diags *d);
/* What tables know the engine's GPU by. */
gpu tuned_gpu(const qkv_engine *e);

enum { TUNED_REASON = 1024 };

/* What a request gets. */
struct tuned_choice {
  const tuned_entry *entry; /* NULL: the built-in default */
  const tuned_section *section;
  const char *file;
  bool hint;
  bool said; /* worth a line in the log: a table speaks of this variant */
  char reason[TUNED_REASON];
};
/* Looks a request up; what it says of the schedule's legality is for who renders it. The phase of the request decides,
 * NULL what its len_q says. */
qkv_status tuned_choose(qkv_engine *e, const spec *s, const gen_request *request, tuned_choice *out);
/* The same for any GPU, whether there is one or not. */
qkv_status tuned_choose_for(qkv_engine *e, const spec *s, const gen_request *request, const gpu *here,
                            tuned_choice *out);
/* Says in the log what a request got, as information where a table speaks of its variant. */
void tuned_say(const qkv_engine *e, const spec *s, const tuned_choice *c);
enum { TUNED_GPUS = 16 };
/* The GPUs of an architecture that the tables have entries of the spec's variant for. -1: out of memory. */
int tuned_gpus(qkv_engine *e, const spec *s, const arch *target, gpu out[TUNED_GPUS]);
/* The entry as the user sees it; strings as in `entry`. */
qkv_tuned_entry tuned_entry_give(const tuned_entry *entry);

#endif
