/* comma_locale.h: for tests: switches to a locale that writes 1,5. Where none is installed, one is compiled into a
 * temporary folder with localedef; false when that is not possible either. */
#ifndef TESTS_COMMA_LOCALE_H
#define TESTS_COMMA_LOCALE_H

#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool try_comma_locales(void) {
  const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (setlocale(LC_ALL, names[i]) && strcmp(localeconv()->decimal_point, ",") == 0)
      return true;
  setlocale(LC_ALL, "C");
  return false;
}

static bool enter_comma_locale(void) {
  if (try_comma_locales())
    return true;
  char folder[] = "/tmp/comma_locale_XXXXXX", command[256];
  if (!mkdtemp(folder))
    return false;
  snprintf(command, sizeof command, "localedef -c -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
  int made = system(command);
  setenv("LOCPATH", folder, 1);
  bool entered = made != -1 && try_comma_locales();
  snprintf(command, sizeof command, "rm -r %s", folder); /* the locale in use is in memory */
  return system(command) == 0 && entered;
}

#endif
