/* schedules.c: which kernel families can do a case, and a covering sample of their legal schedules.
 *
 * The one file of the runner that asks the generator itself: which schedules there are is the generator's to say, and
 * so a new axis or family is tested from the day it is declared. Kernels are made and run through qkv.h all the same.
 */
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "gen.h"

enum { MAX_AXES = 32, CANDIDATES = 24, ROUNDS = 60 };

_Static_assert(sizeof((gen_choice){0}.family) <= TEXT_FIELD, "a family's name fits a case's line");

/* A case as the generator sees it. */
typedef struct question {
  spec *spec;
  gen_request request;
} question;

static bool question_open(question *q, const session *s, const test_case *c, bool aligned) {
  char yaml[SPEC_TEXT];
  arena *memory = arena_new();
  diags d;
  spec_build(c, yaml);
  diags_init(&d, memory, "<case>", yaml, strlen(yaml));
  *q = (question){.request = {.arch = arch_find(s->arch), .unaligned = !aligned}};
  bool ok = spec_parse(yaml, strlen(yaml), &d, &q->spec);
  arena_free(memory);
  return ok;
}

int families_of(const session *s, const test_case *c, bool aligned, char names[MAX_FAMILIES][TEXT_FIELD]) {
  question q;
  gen_choice choices[GEN_MAX_FAMILIES];
  int asked = 0, count = 0;
  if (question_open(&q, s, c, aligned) && gen_choices(q.spec, &q.request, choices, &asked, NULL) != GEN_OK)
    asked = 0;
  for (int n = 0; n < asked && count < MAX_FAMILIES; n++)
    if (choices[n].supported)
      memcpy(names[count++], choices[n].family, sizeof choices[n].family);
  spec_free(q.spec);
  return count;
}

bool pin_schedule(const session *s, test_case *c) {
  question q;
  gen_choice choices[GEN_MAX_FAMILIES];
  gen_schedule answer;
  int count = 0, n = 0;
  const char *family = c->family[0] ? c->family : s->family;
  bool ok = question_open(&q, s, c, true) && gen_choices(q.spec, &q.request, choices, &count, NULL) == GEN_OK;
  while (ok && n < count && (!choices[n].supported || (family && strcmp(choices[n].family, family) != 0)))
    n++;
  ok = ok && n < count;
  if (ok) {
    memcpy(c->family, choices[n].family, sizeof choices[n].family);
    q.request.family = c->family;
    q.request.schedule = c->sched;
    ok = gen_check_schedule(q.spec, &q.request, &answer, NULL) == GEN_OK && answer.legal;
    snprintf(c->sched, sizeof c->sched, "%s", ok ? answer.text : "");
  }
  spec_free(q.spec);
  return ok;
}

/* The sample so far, and what it is drawn from. */
typedef struct sample {
  gen_axis axes[MAX_AXES];
  int naxes;
  bool used[MAX_AXES][sizeof((gen_axis){0}.values) / sizeof(int)];
  uint64_t random;
  int standard[MAX_AXES]; /* of each axis the default's value, by number */
} sample;

typedef struct candidate {
  int value[MAX_AXES]; /* index into the axis's values */
  int fresh;           /* values that no schedule of the sample has */
} candidate;

/* A value for each axis; its default in `kept` of ROUNDS cases. */
static candidate draw(sample *m, int kept) {
  candidate c = {.fresh = 0};
  for (int a = 0; a < m->naxes; a++) {
    m->random = hash_mix(m->random);
    const bool keeps = (int)(m->random % ROUNDS) < kept;
    c.value[a] = keeps ? m->standard[a] : (int)((m->random >> 33) % (uint64_t)m->axes[a].nvalues);
    c.fresh += !m->used[a][c.value[a]];
  }
  return c;
}

/* Finds the default's values: those of the first when there is none. */
static void find_standard(sample *m, const gen_schedule *answer) {
  for (int a = 0; a < m->naxes; a++) {
    char word[64];
    for (int v = 0; v < m->axes[a].nvalues; v++) {
      snprintf(word, sizeof word, "%s=%d,", m->axes[a].name, m->axes[a].values[v]);
      const char *at = strstr(answer->text, word);
      const size_t length = strlen(word) - 1;
      if (!at && strlen(answer->text) >= length && !strncmp(answer->text + strlen(answer->text) - length, word, length))
        at = answer->text; /* the last one has no comma behind it */
      if (at)
        m->standard[a] = v;
    }
  }
}

static int by_fresh(const void *a, const void *b) {
  return ((const candidate *)b)->fresh - ((const candidate *)a)->fresh;
}

static void print(const sample *m, const candidate *c, char words[TEXT_FIELD]) {
  size_t length = 0;
  for (int a = 0; a < m->naxes && length < TEXT_FIELD; a++)
    length += (size_t)snprintf(words + length, TEXT_FIELD - length, "%s%s=%d", a > 0 ? "," : "", m->axes[a].name,
                               m->axes[a].values[c->value[a]]);
}

/* Legal for the kernel of aligned tensors, and for the other one too when the case needs it. */
static bool legal(const question *q, const char *words) {
  gen_request request = q->request;
  gen_schedule answer;
  request.schedule = words;
  for (int unaligned = 0; unaligned <= q->request.unaligned; unaligned++) {
    request.unaligned = unaligned;
    if (gen_check_schedule(q->spec, &request, &answer, NULL) != GEN_OK || !answer.legal)
      return false;
  }
  return true;
}

/* Adds the first legal one of some candidates, those with the most values not seen before first. Where that does not
 * hit upon any, they get more and more like the default. */
static bool draw_legal(sample *m, const question *q, char words[TEXT_FIELD]) {
  for (int round = 0; round < ROUNDS; round++) {
    candidate candidates[CANDIDATES];
    for (int n = 0; n < CANDIDATES; n++)
      candidates[n] = draw(m, round);
    qsort(candidates, CANDIDATES, sizeof *candidates, by_fresh);
    for (int n = 0; n < CANDIDATES / 4; n++) {
      print(m, &candidates[n], words);
      if (!legal(q, words))
        continue;
      for (int a = 0; a < m->naxes; a++)
        m->used[a][candidates[n].value[a]] = true;
      return true;
    }
  }
  return false;
}

int schedules_of(const session *s, const test_case *c, bool aligned, const char *family, int wanted,
                 char texts[][TEXT_FIELD]) {
  question q;
  sample *m = must_alloc(sizeof *m);
  char line[CASE_LINE];
  int count = 0;
  case_print(c, line);
  for (const char *p = line; *p != '\0'; p++)
    m->random = hash_mix(m->random ^ (uint64_t)*p);
  bool ok = question_open(&q, s, c, aligned);
  q.request.family = family;
  ok = ok && gen_axes(q.spec, &q.request, m->axes, &m->naxes, NULL) == GEN_OK;
  if (ok && m->naxes == 0)
    texts[count++][0] = '\0';
  gen_schedule standard = {.text = ""};
  if (ok && gen_check_schedule(q.spec, &q.request, &standard, NULL) == GEN_OK)
    find_standard(m, &standard);
  while (ok && m->naxes > 0 && count < wanted && draw_legal(m, &q, texts[count]))
    count++;
  spec_free(q.spec);
  free(m);
  return count;
}
