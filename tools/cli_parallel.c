/* cli_parallel.c: numbered pieces of work on several threads. */
#include <pthread.h>
#include <unistd.h>

#include "cli.h"

typedef struct pool {
  const cli_pieces *pieces;
  int next, done;
  pthread_mutex_t lock; /* guards these; held while a piece is announced */
} pool;

static void *work(void *user) {
  pool *p = user;
  const cli_pieces *w = p->pieces;
  for (;;) {
    pthread_mutex_lock(&p->lock);
    const int n = p->next < w->count ? p->next++ : -1;
    if (n >= 0)
      w->announce(w->user, n, p->done);
    pthread_mutex_unlock(&p->lock);
    if (n < 0)
      return NULL;
    w->run(w->user, n);
    pthread_mutex_lock(&p->lock);
    p->done++;
    pthread_mutex_unlock(&p->lock);
  }
}

void cli_parallel(const cli_pieces *pieces) {
  enum { MOST = 64 };
  pool p = {.pieces = pieces, .lock = PTHREAD_MUTEX_INITIALIZER};
  int64_t threads = pieces->threads ? pieces->threads : sysconf(_SC_NPROCESSORS_ONLN);
  threads = threads > pieces->count ? pieces->count : threads;
  threads = threads > MOST ? MOST : threads;
  pthread_t others[MOST];
  int started = 0;
  while (started + 1 < threads && pthread_create(&others[started], NULL, work, &p) == 0)
    started++;
  work(&p); /* this thread, too, so that it goes on when none can be started */
  for (int n = 0; n < started; n++)
    pthread_join(others[n], NULL);
}
