/* tune_journal.h: what was asked of the device and what it answered, a JSON line each, in the order of the answers. A
 * run that resumes takes answers from here instead of the device; since nothing but answers decides what a run asks
 * next, it continues where the killed one was. */
#ifndef TOOLS_TUNE_JOURNAL_H
#define TOOLS_TUNE_JOURNAL_H

#include <stdbool.h>

#include "tune_record.h"

typedef struct tune_journal tune_journal;

/* Opens for appending. resume true: first reads the lines that are there; a last line that was torn is cut off with a
 * note on stderr, any other unreadable line is skipped with a warning. false: a journal with lines is set aside as
 * PATH.old. One process at a time. NULL after a message. */
tune_journal *journal_open(const char *path, bool resume);
/* The answer to a question asked in the same context, if the journal has one. Valid until journal_close. */
const record *journal_find(const tune_journal *j, const char *context, const char *question);
/* Appends an answer and hands it to the system. False, once with a message, when it cannot be written. */
bool journal_add(tune_journal *j, const char *context, const char *question, const record *answer);
/* Answers read from the file. */
int journal_count(const tune_journal *j);
void journal_close(tune_journal *j);

#endif
