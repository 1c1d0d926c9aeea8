/* fuzz_spec.c: libFuzzer target for specs: any bytes give a spec or a diagnostic, and what is accepted prints.
 *
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Igen tests/fuzz/fuzz_spec.c gen/arena.c gen/text.c gen/diag.c \
 *     gen/tree.c gen/spec_*.c gen/expr_*.c -lyaml -lm -o fuzz_spec && ./fuzz_spec specs tests/errors */
#include <stdint.h>
#include <stdlib.h>

#include "spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  arena *memory = arena_new();
  diags d;
  spec *s;
  text t = {0};
  diags_init(&d, memory, NULL, (const char *)bytes, size);
  if (spec_parse((const char *)bytes, size, &d, &s)) {
    spec_canonical(s, &t);
    spec_json(s, &t);
    spec_free(s);
  } else {
    if (d.count == 0)
      abort();
    diags_print(&d, &t);
    diags_json(&d, &t);
  }
  text_free(&t);
  arena_free(memory);
  return 0;
}
