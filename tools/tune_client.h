/* tune_client.h: the tuner's side of the worker process: starts it, asks, and kills it when it takes too long. A worker
 * that died or was killed is replaced at the next question: it costs the answer to one. */
#ifndef TOOLS_TUNE_CLIENT_H
#define TOOLS_TUNE_CLIENT_H

#include "cli.h"
#include "tune_journal.h"
#include "tune_record.h"

typedef struct tune_client tune_client;

/* What a worker says of its device. */
typedef struct tune_device {
  char kind[16], name[128], arch[16], compiler[256];
  int sm_count, driver;
  double clock_hz;
} tune_device;

/* Starts a worker with the global options and params of this process. tables: where its tables go, NULL: as those
 * options say. Returns an exit code; what failed is on stderr. */
int client_open(const char *tables, const cli_list *params, tune_client **out);
/* Ends the worker. NULL is allowed. */
void client_close(tune_client *c);
const tune_device *client_device(const tune_client *c);
/* Whether a worker could not be started, as when the device is gone: later answers say nothing of anything. */
bool client_lost(const tune_client *c);
/* Workers started beyond the first. */
int client_restarts(const tune_client *c);

/* From here on answers are kept, and taken from the journal where it has them. context: all that they depend on and the
 * questions do not say. */
void client_use_journal(tune_client *c, tune_journal *journal, const char *context);

/* What goes on while answers are waited for: called every MEANWHILE seconds, must not take long. NULL: nothing. */
#define MEANWHILE 0.02
void client_meanwhile(tune_client *c, void (*step)(void *user), void *user);

/* Asks with a line and waits for `limit` seconds at most. The answer always has a "status": the worker's, "timeout" or
 * "crashed", with a "reason". item (may be NULL) is called for each line of a list. */
void client_ask(tune_client *c, const char *line, double limit, record *answer,
                void (*item)(const record *item, void *user), void *user);
/* The same for questions whose answers are kept, under `name`. Returns whether the journal had the answer. */
bool client_ask_once(tune_client *c, const char *name, const char *line, double limit, record *answer);

/* What the journal has under a name; NULL: nothing. Valid as long as the journal. */
const record *client_known(const tune_client *c, const char *name);
/* Puts into the journal what was found out without the worker, once. */
void client_note(tune_client *c, const char *name, const char *status, const char *reason);

bool answer_is(const record *answer, const char *status);

#endif
