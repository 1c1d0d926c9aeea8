/* qkv_candidates.c: the schedules that could be tried, in the order that a model of the device gives them. */
#include <stdlib.h>

#include "mask.h"
#include "qkv_internal.h"

/* The engine's device where sources are for its own architecture and it is a GPU; else the architecture's flagship. */
static gen_device modelled_device(const qkv_engine *e, const arch *target) {
  const gen_device flagship = cost_flagship(target);
  if (target != e->arch || !e->info.sm_count || e->info.clock_hz <= 0 || e->info.memory_bandwidth <= 0)
    return flagship;
  return (gen_device){.sm_count = e->info.sm_count,
                      .clock_hz = e->info.clock_hz,
                      .memory_bandwidth = e->info.memory_bandwidth,
                      .l2_bytes = (double)e->info.l2_bytes};
}

static qkv_status check_workload(const qkv_workload *given, gen_work *out) {
  qkv_workload w = {.size = sizeof w};
  qkv_status status = struct_take(&w, sizeof w, given, "workload");
  const struct {
    const char *name;
    int64_t value;
  } rows[] = {{"batch", w.batch}, {"len_q", w.len_q}, {"len_k", w.len_k}};
  for (int n = 0; n < 3 && status == QKV_OK; n++)
    if (rows[n].value < 0 || rows[n].value > MASK_POSITION_LIMIT)
      status = error_set(QKV_INVALID_ARGUMENT, "workload.%s is %lld; it must lie within 0 and 2^30", rows[n].name,
                         (long long)rows[n].value);
  *out = (gen_work){w.batch, w.len_q, w.len_k};
  return status;
}

static qkv_candidate candidate_of(const gen_candidate *c) {
  return (qkv_candidate){.size = sizeof(qkv_candidate),
                         .family = c->family,
                         .schedule = c->schedule,
                         .is_default = c->is_default,
                         .seconds = c->estimate.seconds,
                         .tensor = c->estimate.tensor,
                         .exponential = c->estimate.exponential,
                         .shared = c->estimate.shared,
                         .memory = c->estimate.memory,
                         .waves = c->estimate.waves};
}

qkv_status qkv_candidates(qkv_engine *e, const qkv_spec *s, const qkv_build_options *opt, const qkv_workload *workload,
                          qkv_effort effort, int (*visit)(const qkv_candidate *candidate, void *user), void *user) {
  gen_request request;
  gen_work work;
  const compiler_ops *compiler;
  bool for_device;
  gen_candidate *list = NULL;
  gen_error error = {0};
  int count = 0;
  if (!e || !s || !workload || !visit)
    return error_set(QKV_INVALID_ARGUMENT, "%s is NULL",
                     !e          ? "engine"
                     : !s        ? "spec"
                     : !workload ? "workload"
                                 : "visit");
  if ((int)effort < QKV_EFFORT_QUICK || effort > QKV_EFFORT_FULL)
    return error_set(QKV_INVALID_ARGUMENT, "effort is %d; it must be 0, 1 or 2", (int)effort);
  qkv_status status = build_request(e, opt, &request, &compiler, &for_device);
  if (status == QKV_OK)
    status = check_workload(workload, &work);
  if (status != QKV_OK)
    return status;
  const gen_device modelled = modelled_device(e, request.arch);
  if (gen_candidates(s->parsed, &request, &work, &modelled, (int)effort, &list, &count, &error) != GEN_OK)
    return gen_failed(&error);
  for (int n = 0; n < count; n++) {
    const qkv_candidate c = candidate_of(&list[n]);
    if (visit(&c, user))
      break;
  }
  free(list);
  return QKV_OK;
}
