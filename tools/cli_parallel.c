/* cli_parallel.c: independent jobs on all cores. */
#include <pthread.h>
#include <unistd.h>

#include "cli.h"

enum { MOST_THREADS = 64 };

typedef struct pool {
  const cli_jobs *jobs;
  int next, done;
  pthread_mutex_t lock;
} pool;

static void *work(void *user) {
  pool *p = user;
  const cli_jobs *jobs = p->jobs;
  for (;;) {
    pthread_mutex_lock(&p->lock);
    const int n = p->next < jobs->count ? p->next++ : -1;
    if (n >= 0)
      jobs->step(jobs->user, n, p->done);
    pthread_mutex_unlock(&p->lock);
    if (n < 0)
      return NULL;
    jobs->run(jobs->user, n);
    pthread_mutex_lock(&p->lock);
    p->done++;
    pthread_mutex_unlock(&p->lock);
  }
}

void cli_parallel(const cli_jobs *jobs, int64_t threads) {
  pool p = {.jobs = jobs, .lock = PTHREAD_MUTEX_INITIALIZER};
  pthread_t others[MOST_THREADS];
  int started = 0;
  threads = threads > 0 ? threads : sysconf(_SC_NPROCESSORS_ONLN);
  threads = threads > jobs->count ? jobs->count : threads;
  threads = threads > MOST_THREADS ? MOST_THREADS : threads;
  while (started + 1 < threads && pthread_create(&others[started], NULL, work, &p) == 0)
    started++;
  work(&p);
  for (int n = 0; n < started; n++)
    pthread_join(others[n], NULL);
  pthread_mutex_destroy(&p.lock);
}
