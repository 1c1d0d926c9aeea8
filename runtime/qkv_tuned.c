/* qkv_tuned.c: the entry of the tables for a request, and kernels rendered by it (docs/tuned-tables.md, "What is
 * taken").
 *
 * Candidates are the entries of this variant and phase that were measured on a GPU like this one, wherever they stand;
 * where there is none, those of the GPU most like it, as hints. Of candidates the nearest bucket is taken, of equally
 * near ones that which is searched first, then the larger one; for maxima that are larger than what was measured, what
 * won among calls that they admit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qkv_tuned_internal.h"

enum { RANGE_TEXT = 2 * BUCKET_TEXT + 8 };

typedef struct candidate {
  const tuned_entry *entry;
  const tuned_section *section;
  const char *file;
} candidate;

/* In the order of search. */
typedef struct candidates {
  int count, capacity;
  candidate *items;
  bool failed;
} candidates;

/* ---- Gathering ---- */

static void add(candidates *list, const candidate *c) {
  if (list->count == list->capacity) {
    const int capacity = list->capacity ? 2 * list->capacity : 16;
    candidate *items = realloc(list->items, (size_t)capacity * sizeof *items);
    list->failed |= !items;
    if (!items)
      return;
    list->items = items;
    list->capacity = capacity;
  }
  list->items[list->count++] = *c;
}

/* Whether an entry's bucket is the one of its sizes; said once when it is not. */
static bool is_sound(const qkv_engine *e, const spec *s, const tuned_text *t, tuned_entry *entry) {
  const bucket is = bucket_of(s, entry->phase, entry->batch, entry->len_q, entry->len_k);
  char said[BUCKET_TEXT], right[BUCKET_TEXT];
  if (!entry->refused && !bucket_equal(&is, &entry->bucket)) {
    int line = 1;
    for (size_t n = 0; n < entry->at.offset && n < t->size; n++)
      line += t->bytes[n] == '\n';
    bucket_print(&entry->bucket, said);
    bucket_print(&is, right);
    engine_log(e, QKV_LOG_WARNING, "%s:%d: the entry's sizes are of bucket %s, not %s; it is skipped", t->file, line,
               right, said);
    entry->refused = true;
  }
  return !entry->refused;
}

/* The entries of a variant and phase on GPUs that compare as `match`. */
static void gather(const qkv_engine *e, const spec *s, const char *hash, const char *phase, const gpu *here,
                   gpu_match match, candidates *list) {
  for (int place = 0; place < TUNED_PLACES; place++)
    for (tuned_text *t = e->tuned->texts[place]; t; t = t->next) {
      tuned_table *table = tuned_may_know(t, hash, s->name) ? tuned_text_table(e, t) : NULL;
      for (tuned_section *section = table ? table->sections : NULL; section; section = section->next) {
        if (strcmp(section->variant, hash) || gpu_compare(&section->gpu, here) != match)
          continue;
        for (tuned_entry *entry = section->entries; entry; entry = entry->next)
          if (!strcmp(entry->phase, phase) && is_sound(e, s, t, entry))
            add(list, &(candidate){entry, section, t->file});
      }
    }
}

/* Keeps those of the GPU that is most like this one, by name where several are. */
static void keep_nearest_gpu(const gpu *here, candidates *list) {
  const gpu *best = NULL;
  double least = 0;
  int kept = 0;
  for (int n = 0; n < list->count; n++) {
    const gpu *g = &list->items[n].section->gpu;
    const double distance = gpu_distance(g, here);
    if (!best || distance < least || (distance == least && strcmp(g->name, best->name) < 0)) {
      best = g;
      least = distance;
    }
  }
  for (int n = 0; n < list->count; n++)
    if (gpu_compare(&list->items[n].section->gpu, best) == GPU_SAME)
      list->items[kept++] = list->items[n];
  list->count = kept;
}

/* ---- Choosing ---- */

/* How an entry was found, or why none was. */
typedef enum way {
  WAY_EXACT,      /* the bucket asked for */
  WAY_NEAR,       /* the nearest one */
  WAY_WITHIN,     /* what won wherever such calls were measured */
  WAY_ALL_WITHIN, /* bucket any: several schedules won there */
  WAY_OUTSIDE,    /* none: nothing was measured that speaks for the maxima */
  WAY_FAR,        /* none, though the maxima lie between what was measured */
  WAY_DIVIDED,    /* none: several schedules won, and none for all */
  WAY_CROWDED     /* none: calls of one sequence, which the maxima allow as well, were not measured */
} way;

/* Whether the bucket lies between measured ones. */
static bool is_within(const candidates *list, const bucket *wanted) {
  const bucket **all = calloc((size_t)list->count + 1, sizeof *all);
  for (int n = 0; all && n < list->count; n++)
    all[n] = &list->items[n].entry->bucket;
  const bool within = all && bucket_within(wanted, all, list->count);
  free(all);
  return within;
}

/* The entry of the bucket, else of one near to it. */
static const candidate *nearest(const candidates *list, const bucket *wanted, way *how) {
  const candidate *best = NULL;
  int least = 0;
  for (int n = 0; n < list->count; n++) {
    const candidate *c = &list->items[n];
    const int distance = bucket_distance(&c->entry->bucket, wanted);
    if (distance < 0)
      continue;
    const bool larger = best && distance == least && distance > 0 && best->file == c->file &&
                        bucket_compare(&c->entry->bucket, &best->entry->bucket) > 0;
    if (!best || distance < least || larger) {
      best = c;
      least = distance;
    }
  }
  const bool within = is_within(list, wanted);
  *how = best && least == 0 ? WAY_EXACT : !within ? WAY_OUTSIDE : best ? WAY_NEAR : WAY_FAR;
  return *how == WAY_EXACT || *how == WAY_NEAR ? best : NULL;
}

/* Whether no place that is searched before has an entry of this bucket. */
static bool is_in_charge(const candidates *list, int at) {
  for (int n = 0; n < at; n++)
    if (bucket_equal(&list->items[n].entry->bucket, &list->items[at].entry->bucket))
      return false;
  return true;
}

static bool same_schedule(const tuned_entry *a, const tuned_entry *b) {
  return !strcmp(a->family, b->family) && !strcmp(a->schedule, b->schedule);
}

/* The entry for maxima that are larger than what was measured, as engines declare them: calls such as were measured
 * are among theirs. The schedule that won all of those; where several did, the one of bucket any, which is not slower
 * on any of them than the default of calls with one query: it must be chosen over calls of these rows alone, or that
 * must be their default, too. In decode one of them must be of one sequence: what is a third faster for 64, such as
 * whole sequences by a block each, can take ten times as long for one. */
static const candidate *all_within(const candidates *list, const spec *s, const bucket *wanted, way *how) {
  const candidate *largest = NULL, *any = NULL;
  bool agree = true, speaks = false, mixed = false, single = !wanted->decode;
  for (int n = 0; n < list->count; n++) {
    const candidate *c = &list->items[n];
    const bucket *b = &c->entry->bucket;
    if (!is_in_charge(list, n))
      continue;
    if (b->any) {
      any = c;
      continue;
    }
    mixed = mixed || b->rows != wanted->rows;
    if (!bucket_admits(wanted, b))
      continue;
    speaks = speaks || bucket_speaks_for(s, c->section->gpu.sm_count, wanted, b);
    single = single || b->batch == 0;
    agree = agree && (!largest || same_schedule(largest->entry, c->entry));
    if (!largest || bucket_compare(b, &largest->entry->bucket) > 0)
      largest = c;
  }
  if (!speaks)
    return NULL;
  if (!single) {
    *how = WAY_CROWDED;
    return NULL;
  }
  const bool for_these = any && (!mixed || !strcmp(any->entry->default_schedule, largest->entry->default_schedule));
  const candidate *found = agree ? largest : for_these ? any : NULL;
  *how = agree ? WAY_WITHIN : found ? WAY_ALL_WITHIN : WAY_DIVIDED;
  return found;
}

/* "b1 q1024 k1024 to b8 q8192 k8192": the least and the greatest of each size among buckets like `wanted`. */
static void print_range(const candidates *list, const bucket *wanted, char out[RANGE_TEXT]) {
  bucket low = *wanted, high = *wanted;
  bool any = false;
  for (int n = 0; n < list->count; n++) {
    const bucket *b = &list->items[n].entry->bucket;
    if (b->any || b->rows != wanted->rows)
      continue;
    const bool first = !any;
    any = true;
    low.batch = first || b->batch < low.batch ? b->batch : low.batch;
    low.len_q = first || b->len_q < low.len_q ? b->len_q : low.len_q;
    low.len_k = first || b->len_k < low.len_k ? b->len_k : low.len_k;
    high.batch = first || b->batch > high.batch ? b->batch : high.batch;
    high.len_q = first || b->len_q > high.len_q ? b->len_q : high.len_q;
    high.len_k = first || b->len_k > high.len_k ? b->len_k : high.len_k;
  }
  char from[BUCKET_TEXT], to[BUCKET_TEXT];
  bucket_print(&low, from);
  bucket_print(&high, to);
  if (!any && wanted->decode)
    snprintf(out, RANGE_TEXT, "no entry has %lld rows", (long long)wanted->rows);
  else if (!any)
    snprintf(out, RANGE_TEXT, "it has bucket any alone");
  else
    snprintf(out, RANGE_TEXT, "%s%s%s", from, strcmp(from, to) ? " to " : "", strcmp(from, to) ? to : "");
}

/* Why no candidate will do. */
static void explain_miss(const candidates *list, const bucket *wanted, way how, bool batch_mode, tuned_choice *out) {
  char said[BUCKET_TEXT], range[RANGE_TEXT];
  const char *file = list->items[0].file;
  bucket_print(wanted, said);
  print_range(list, wanted, range);
  if (batch_mode)
    snprintf(out->reason, TUNED_REASON,
             "built-in default: deterministic: batch takes bucket any alone, so that bits do "
             "not follow the maxima, and %s has none",
             file);
  else if (wanted->any)
    snprintf(out->reason, TUNED_REASON,
             "built-in default: no maxima of batch, len_q and len_k are declared, and %s has no bucket any", file);
  else if (how == WAY_DIVIDED)
    snprintf(out->reason, TUNED_REASON,
             "built-in default: %s has several schedules for calls within %s, and no bucket any for them", file,
             said);
  else if (how == WAY_CROWDED)
    snprintf(out->reason, TUNED_REASON,
             "built-in default: calls within %s may be of one sequence, of which %s has none", said, file);
  else if (how == WAY_FAR)
    snprintf(out->reason, TUNED_REASON, "built-in default: bucket %s is more than a factor of 4 from all that %s has",
             said, file);
  else
    snprintf(out->reason, TUNED_REASON, "built-in default: bucket %s is outside of the tuned range of %s (%s)", said,
             file, range);
}

static void explain_hit(const candidate *c, const bucket *wanted, way how, tuned_choice *out) {
  static const char *const words[] = {[WAY_EXACT] = "",
                                      [WAY_NEAR] = ", the nearest to ",
                                      [WAY_WITHIN] = ", the largest that was measured of calls within ",
                                      [WAY_ALL_WITHIN] = ", since several were measured of calls within "};
  char has[BUCKET_TEXT], said[BUCKET_TEXT] = "", gpu_name[GPU_NAME + 32] = "";
  text gain = {0};
  bucket_print(&c->entry->bucket, has);
  if (how != WAY_EXACT)
    bucket_print(wanted, said);
  if (out->hint)
    snprintf(gpu_name, sizeof gpu_name, " as a hint, measured on %s", c->section->gpu.name);
  text_fixed(&gain, c->entry->default_us / c->entry->us, 2);
  snprintf(out->reason, TUNED_REASON, "tuned%s, from %s, bucket %s%s%s, %s times as fast as the default", gpu_name,
           c->file, has, words[how], said, gain.bytes ? gain.bytes : "?");
  text_free(&gain);
}

/* The entry of the list for the request's sizes. */
static void choose_from(const candidates *list, const spec *s, const gen_request *r, const char *phase,
                        tuned_choice *out) {
  const bool batch_mode = s->deterministic == DETERMINISTIC_BATCH;
  const bucket wanted = batch_mode ? (bucket){.any = true} : bucket_of(s, phase, r->batch, r->len_q, r->len_k);
  way how;
  const candidate *c = nearest(list, &wanted, &how);
  if (!c && !wanted.any)
    c = all_within(list, s, &wanted, &how);
  out->said = true;
  if (!c) {
    explain_miss(list, &wanted, how, batch_mode, out);
    return;
  }
  out->entry = c->entry;
  out->section = c->section;
  out->file = c->file;
  explain_hit(c, &wanted, how, out);
}

/* Why tables are not asked at all; NULL: they are. */
static const char *refusal(const qkv_engine *e, const spec *s, const gen_request *r, const char *phase) {
  if (r->schedule || r->family)
    return r->schedule ? "the schedule was asked for" : "built-in default: the family was asked for";
  for (int n = 0; n < s->nschedule; n++)
    if (!s->schedule[n].phase || !strcmp(s->schedule[n].phase, phase))
      return "the spec has a schedule section";
  if (r->unaligned)
    return "built-in default: kernels for unaligned tensors are not tuned";
  if (strcmp(phase, "prefill") && strcmp(phase, "decode"))
    return "built-in default: only phases prefill and decode are tuned";
  return e->tuned->off ? "built-in default: tables are turned off" : NULL;
}

qkv_status tuned_choose(qkv_engine *e, const spec *s, const gen_request *r, tuned_choice *out) {
  const gpu here = tuned_gpu(e);
  if (e->ops)
    return tuned_choose_for(e, s, r, &here, out);
  *out = (tuned_choice){.reason = "built-in default: tables are for devices, and the engine has none"};
  return QKV_OK;
}

qkv_status tuned_choose_for(qkv_engine *e, const spec *s, const gen_request *r, const gpu *here, tuned_choice *out) {
  const char *phase = gen_phase(r);
  const char *refused = refusal(e, s, r, phase);
  char hash[VARIANT_HASH_SIZE];
  candidates list = {0};
  *out = (tuned_choice){0};
  if (refused) {
    snprintf(out->reason, TUNED_REASON, "%s", refused);
    return QKV_OK;
  }
  if (!variant_hash(s, phase, hash))
    return error_set(QKV_OUT_OF_MEMORY, "out of memory");
  tuned_lock(e);
  gather(e, s, hash, phase, here, GPU_SAME, &list);
  if (!list.count) {
    gather(e, s, hash, phase, here, GPU_HINT, &list);
    out->hint = list.count > 0;
    if (out->hint)
      keep_nearest_gpu(here, &list);
  }
  if (list.count)
    choose_from(&list, s, r, phase, out);
  else
    snprintf(out->reason, TUNED_REASON, "built-in default: no table has phase %s of this spec on %s", phase,
             here->name);
  tuned_unlock(e);
  free(list.items);
  return list.failed ? error_set(QKV_OUT_OF_MEMORY, "out of memory") : QKV_OK;
}

int tuned_gpus(qkv_engine *e, const spec *s, const arch *target, gpu out[TUNED_GPUS]) {
  char hash[VARIANT_HASH_SIZE];
  int count = 0;
  if (!variant_hash(s, "prefill", hash)) /* that of decode, too */
    return -1;
  tuned_lock(e);
  for (int place = 0; place < TUNED_PLACES; place++)
    for (tuned_text *t = e->tuned->texts[place]; t; t = t->next) {
      tuned_table *table = tuned_may_know(t, hash, s->name) ? tuned_text_table(e, t) : NULL;
      for (tuned_section *section = table ? table->sections : NULL; section; section = section->next) {
        const gpu *g = &section->gpu;
        bool known = strcmp(section->variant, hash) || g->major != target->capability_major ||
                     g->minor != target->capability_minor;
        for (int n = 0; n < count && !known; n++)
          known = gpu_compare(g, &out[n]) == GPU_SAME;
        if (!known && count < TUNED_GPUS)
          out[count++] = *g;
      }
    }
  tuned_unlock(e);
  return count;
}

/* ---- Rendering ---- */

/* What the generator, which knows architectures, cannot see of this device. */
static qkv_status check_device(const qkv_engine *e, const manifest *m) {
  for (int n = 0; n < m->nlaunches; n++)
    if (e->info.shared_per_block > 0 && m->launches[n].shared_bytes > e->info.shared_per_block)
      return error_set(QKV_BAD_SCHEDULE, "%s needs %d bytes of shared memory, %s has %d", m->launches[n].entry,
                       m->launches[n].shared_bytes, e->info.name, e->info.shared_per_block);
  return QKV_OK;
}

/* Renders by the table. QKV_BAD_SCHEDULE and QKV_UNSUPPORTED: it is not legal here. */
static qkv_status render_entry(qkv_engine *e, const spec *s, const gen_request *request, const tuned_choice *c,
                               gen_kernel **out) {
  gen_request r = *request;
  r.phase = c->entry->phase;
  r.family = c->entry->family;
  r.schedule = *c->entry->schedule ? c->entry->schedule : NULL;
  qkv_status status = render_kernel(e, s, &r, out);
  if (status == QKV_OK)
    status = check_device(e, &(*out)->manifest);
  if (status != QKV_OK) {
    gen_kernel_free(*out);
    *out = NULL;
  }
  return status;
}

void tuned_say(const qkv_engine *e, const spec *s, const tuned_choice *c) {
  engine_log(e, c->said ? QKV_LOG_INFO : QKV_LOG_DEBUG, "%s: %s", s->name, c->reason);
}

/* The built-in default stays: the table's schedule is not legal here, as the thread's message says. */
static void refuse_entry(const qkv_engine *e, const spec *s, tuned_choice *c) {
  char bucket_text[BUCKET_TEXT];
  bucket_print(&c->entry->bucket, bucket_text);
  snprintf(c->reason, TUNED_REASON, "built-in default: the schedule of %s, bucket %s, cannot be used here: %s", c->file,
           bucket_text, error_message());
  engine_log(e, QKV_LOG_WARNING, "%s: %s", s->name, c->reason);
  c->entry = NULL;
  c->said = false;
}

qkv_status tuned_render(qkv_engine *e, const spec *s, const gen_request *request, bool for_device, gen_kernel **out,
                        tuned_choice *choice) {
  tuned_choice own, *c = choice ? choice : &own;
  *out = NULL;
  *c = (tuned_choice){.reason = "built-in default: tables are for the engine's own device"};
  qkv_status status = for_device ? tuned_choose(e, s, request, c) : QKV_OK;
  if (status == QKV_OK && c->entry) {
    status = render_entry(e, s, request, c, out);
    if (status == QKV_BAD_SCHEDULE || status == QKV_UNSUPPORTED) {
      refuse_entry(e, s, c);
      status = QKV_OK;
    }
  }
  if (status == QKV_OK && !*out)
    status = render_kernel(e, s, request, out);
  if (status == QKV_OK && for_device)
    tuned_say(e, s, c);
  return status;
}

/* ---- Asking ---- */

qkv_tuned_entry tuned_entry_give(const tuned_entry *entry) {
  return (qkv_tuned_entry){.size = sizeof(qkv_tuned_entry),
                           .phase = entry->phase,
                           .family = entry->family,
                           .schedule = entry->schedule,
                           .workload = entry->workload,
                           .batch = entry->batch,
                           .len_q = entry->len_q,
                           .len_k = entry->len_k,
                           .seconds = entry->us * 1e-6,
                           .low = entry->low * 1e-6,
                           .high = entry->high * 1e-6,
                           .default_schedule = entry->default_schedule,
                           .default_seconds = entry->default_us * 1e-6};
}

qkv_status qkv_tuned_find(qkv_engine *e, const qkv_spec *s, const qkv_build_options *opt, qkv_tuned_entry *entry,
                          int *found, char **reason) {
  gen_request request;
  const compiler_ops *compiler;
  bool for_device;
  tuned_choice choice;
  gen_kernel *kernel = NULL;
  if (!e || !s || !found)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL", !e ? "engine" : !s ? "spec" : "found");
  *found = 0;
  if (reason)
    *reason = NULL;
  qkv_status status = build_request(e, opt, &request, &compiler, &for_device);
  if (status == QKV_OK)
    status = tuned_render(e, s->parsed, &request, for_device, &kernel, &choice);
  gen_kernel_free(kernel);
  if (status != QKV_OK)
    return status;
  if (choice.entry && entry) {
    const qkv_tuned_entry given = tuned_entry_give(choice.entry);
    status = struct_give(entry, &given, sizeof given, "entry");
  }
  *found = status == QKV_OK && choice.entry;
  if (status == QKV_OK && reason) {
    text t = {0};
    text_puts(&t, choice.reason);
    status = text_give(&t, reason);
  }
  return status;
}
