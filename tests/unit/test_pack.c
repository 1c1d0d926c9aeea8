/* test_pack.c: the bytes of packs: what goes in comes out, whatever the order; no byte can be changed, no tail cut off
 * without being seen; a damaged record costs itself alone; newer formats are named and left alone; record bodies of any
 * content are read within their bounds. */
#define _GNU_SOURCE /* memmem */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "pack.h"
#include "pack_format.h"

static const pack_maker maker = {"1.2.3", 5, "0123456789abcdef0123456789abcdef"};
static const char manifest_text[] = "manifest 5\nfamily f\n";
static const char words[] = "tiny nvrtc sm_80";
static const char text_of_spec[] = "qkvc: 1\nname: tiny\n";

static void key_number(int n, unsigned char key[PACK_KEY_SIZE]) {
  pack_hash(&n, sizeof n, key);
}

/* Adds record n of a small pack: three kernels, a request, two specs, a table, an empty record of a kind to come. */
enum { RECORDS = 8 };
static void add_record(pack_writer *w, int n) {
  unsigned char key[PACK_KEY_SIZE];
  char image[40];
  key_number(n, key);
  memset(image, 'a' + n, sizeof image);
  if (n < 3) {
    const pack_kernel k = {manifest_text, sizeof manifest_text - 1, image, sizeof image - (size_t)n};
    assert_true(pack_add_kernel(w, key, &k));
  } else if (n == 3) {
    pack_request r = {.roles = 5, .words = words, .words_size = sizeof words - 1};
    key_number(0, r.kernels[0]);
    key_number(2, r.kernels[2]);
    assert_true(pack_add_request(w, key, &r));
  } else if (n < 6) {
    assert_true(pack_add_named(w, PACK_SPEC, n == 4 ? "tiny" : "other", text_of_spec, sizeof text_of_spec - 1));
  } else if (n == 6) {
    assert_true(pack_add_named(w, PACK_TABLE, "tiny", "table", 5));
  } else {
    assert_true(pack_add(w, (pack_kind)77, key, NULL, 0));
  }
}

static unsigned char *make_pack(int first, int step, size_t *size) {
  pack_writer *w = pack_writer_new(&maker);
  assert_non_null(w);
  for (int n = 0; n < RECORDS; n++)
    add_record(w, (first + n * step) % RECORDS);
  unsigned char *bytes = pack_writer_finish(w, size);
  assert_non_null(bytes);
  pack_writer_free(w);
  return bytes;
}

static pack *open_bytes(const void *bytes, size_t size, pack_status expected) {
  pack *p;
  text why = {0};
  const pack_status status = pack_open_memory(bytes, size, "NAME", &p, &why);
  if (status != expected)
    fail_msg("status %d, not %d: %s", (int)status, (int)expected, why.bytes ? why.bytes : "");
  if (status != PACK_OK)
    assert_non_null(strstr(why.bytes, "NAME"));
  assert_true((p != NULL) == (status == PACK_OK));
  text_free(&why);
  return p;
}

static void what_goes_in_comes_out(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = make_pack(0, 1, &size), key[PACK_KEY_SIZE];
  pack *p = open_bytes(bytes, size, PACK_OK);
  pack_record r;
  pack_kernel k;
  pack_request q;
  assert_int_equal(pack_count(p), RECORDS);
  assert_int_equal(pack_size(p), size);
  assert_string_equal(pack_made_by(p)->version, "1.2.3");
  assert_string_equal(pack_made_by(p)->templates, maker.templates);
  assert_int_equal(pack_made_by(p)->manifest_format, 5);
  for (int n = 0; n < 3; n++) {
    key_number(n, key);
    assert_int_equal(pack_find(p, PACK_KERNEL, key, 32, &r), 1);
    assert_true(pack_read_kernel(&r, &k));
    assert_int_equal(k.manifest_size, sizeof manifest_text - 1);
    assert_memory_equal(k.manifest, manifest_text, k.manifest_size);
    assert_int_equal(k.image_size, 40 - n);
    assert_int_equal(((const char *)k.image)[39 - n], 'a' + n);
    assert_int_equal((uintptr_t)((const unsigned char *)k.image - bytes) % 16, 0);
    assert_int_equal(pack_find(p, PACK_REQUEST, key, 32, &r), 0);
    for (int digits = 20; digits <= 32; digits++) { /* the digits behind do not count */
      unsigned char near[PACK_KEY_SIZE];
      memcpy(near, key, sizeof near);
      for (int d = digits; d < 32; d++)
        near[d / 2] ^= (unsigned char)(d % 2 ? 0x0f : 0xf0);
      assert_int_equal(pack_find(p, PACK_KERNEL, near, digits, &r), 1);
      assert_memory_equal(r.key, key, sizeof key);
      if (digits < 32)
        assert_int_equal(pack_find(p, PACK_KERNEL, near, digits + 1, &r), 0);
    }
  }
  key_number(3, key);
  assert_int_equal(pack_find(p, PACK_REQUEST, key, 32, &r), 1);
  assert_true(pack_read_request(&r, &q));
  assert_int_equal(q.roles, 5);
  key_number(2, key);
  assert_memory_equal(q.kernels[2], key, sizeof key);
  assert_int_equal(q.words_size, sizeof words - 1);
  assert_memory_equal(q.words, words, q.words_size);
  const char *name, *content;
  size_t length;
  pack_hash("tiny", 4, key);
  assert_int_equal(pack_find(p, PACK_SPEC, key, 32, &r), 1);
  assert_true(pack_read_named(&r, &name, &content, &length));
  assert_string_equal(name, "tiny");
  assert_int_equal(length, sizeof text_of_spec - 1);
  assert_memory_equal(content, text_of_spec, length);
  pack_close(p);
  free(bytes);
}

static void order_does_not_matter(void **state) {
  (void)state;
  size_t size, other_size;
  unsigned char *bytes = make_pack(0, 1, &size);
  for (int step = 1; step < RECORDS; step += 2)
    for (int first = 0; first < RECORDS; first++) {
      unsigned char *other = make_pack(first, step, &other_size);
      assert_int_equal(size, other_size);
      assert_memory_equal(bytes, other, size);
      free(other);
    }
  free(bytes);
  /* Nor when two records have one key. */
  static const char *const contents[] = {"b", "a", "ab"};
  for (int n = 0; n < 6; n++) {
    pack_writer *w = pack_writer_new(&maker);
    unsigned char key[PACK_KEY_SIZE] = {0};
    for (int i = 0; i < 3; i++) {
      const char *content = contents[(n / 2 + (n % 2 ? i : 3 - i)) % 3];
      assert_true(pack_add(w, PACK_KERNEL, key, content, strlen(content)));
    }
    unsigned char *one = pack_writer_finish(w, &size);
    pack *p = open_bytes(one, size, PACK_OK);
    pack_record r;
    assert_int_equal(pack_count(p), 1);
    assert_int_equal(pack_find(p, PACK_KERNEL, key, 32, &r), 1);
    assert_int_equal(r.size, 1);
    assert_int_equal(r.bytes[0], 'a');
    pack_close(p);
    free(one);
    pack_writer_free(w);
  }
}

static void every_changed_bit_is_seen(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = make_pack(0, 1, &size);
  const size_t index_end = HEADER_SIZE + RECORDS * ENTRY_SIZE;
  for (size_t at = 0; at < size; at++)
    for (int bit = 0; bit < 8; bit++) {
      bytes[at] ^= (unsigned char)(1 << bit);
      pack *p;
      text why = {0};
      const pack_status status = pack_open_memory(bytes, size, "NAME", &p, &why);
      int damaged = 0;
      pack_record r;
      for (int n = 0; p && n < pack_count(p); n++)
        damaged += pack_at(p, n, &r) < 0;
      if (at < index_end ? status == PACK_OK : status != PACK_OK || damaged != 1)
        fail_msg("byte %zu, bit %d: status %d, %d damaged records", at, bit, (int)status, damaged);
      assert_true(status == PACK_OK || strstr(why.bytes, "NAME") != NULL);
      pack_close(p);
      text_free(&why);
      bytes[at] ^= (unsigned char)(1 << bit);
    }
  free(bytes);
}

static void every_cut_is_seen(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = make_pack(0, 1, &size);
  for (size_t length = 0; length < size; length++) {
    unsigned char *part = malloc(length + 1); /* of that size, so that reading behind it is noticed */
    memcpy(part, bytes, length);
    open_bytes(part, length, PACK_DAMAGED);
    free(part);
  }
  unsigned char *longer = calloc(1, size + 16);
  memcpy(longer, bytes, size);
  open_bytes(longer, size + 16, PACK_DAMAGED);
  free(longer);
  free(bytes);
}

/* The records that can be found and verify are the ones that went in, whatever else the file says. */
static int sound_records(const unsigned char *whole, size_t whole_size, const pack *p) {
  int sound = 0;
  for (int n = 0; n < pack_count(p); n++) {
    pack_record r, again;
    if (pack_at(p, n, &r) < 0)
      continue;
    sound++;
    if (pack_find(p, (pack_kind)r.kind, r.key, 32, &again) != 1 || again.number != n)
      fail_msg("record %d cannot be found by its key", n);
    if (r.size && !memmem(whole, whole_size, r.bytes, r.size))
      fail_msg("record %d verifies with bytes that nobody wrote", n);
  }
  return sound;
}

/* Pieces of the file that change places; tails of any length. */
static void moved_parts_are_seen(void **state) {
  (void)state;
  enum { PIECE = 16, TAIL = 80 };
  size_t size;
  unsigned char *whole = make_pack(0, 1, &size), *bytes = malloc(size + TAIL);
  const size_t index_end = HEADER_SIZE + RECORDS * ENTRY_SIZE;
  for (size_t a = 0; a < size; a += PIECE)
    for (size_t b = a + PIECE; b < size; b += PIECE) {
      memcpy(bytes, whole, size);
      memcpy(bytes + a, whole + b, PIECE), memcpy(bytes + b, whole + a, PIECE);
      if (!memcmp(bytes, whole, size))
        continue;
      pack *p;
      text why = {0};
      const pack_status status = pack_open_memory(bytes, size, "NAME", &p, &why);
      const int sound = p ? sound_records(whole, size, p) : 0;
      if (a < index_end ? status == PACK_OK : status != PACK_OK || sound >= RECORDS)
        fail_msg("pieces at %zu and %zu have changed places: status %d, %d sound records", a, b, (int)status, sound);
      pack_close(p);
      text_free(&why);
    }
  memcpy(bytes, whole, size);
  for (size_t more = 1; more <= TAIL; more++) {
    bytes[size + more - 1] = (unsigned char)(more % 5 ? 0 : more);
    open_bytes(bytes, size + more, PACK_DAMAGED);
  }
  free(bytes);
  free(whole);
}

static void put_head_digest(unsigned char *file, size_t size) {
  const uint64_t count = little_endian_get(file + AT_COUNT, 4), most = (size - HEADER_SIZE) / ENTRY_SIZE;
  XXH3_state_t sum;
  XXH128_canonical_t digest;
  XXH3_128bits_reset(&sum);
  XXH3_128bits_update(&sum, file, AT_DIGEST);
  XXH3_128bits_update(&sum, file + HEADER_SIZE, (count < most ? count : most) * ENTRY_SIZE);
  XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&sum));
  memcpy(file + AT_DIGEST, digest.digest, sizeof digest.digest);
}

/* Every number of header and index, in turn and two at a time, as no writer writes it, under a digest that fits:
 * refused, or read within the file. */
static void numbers_of_any_kind(void **state) {
  (void)state;
  size_t size;
  unsigned char *whole = make_pack(0, 1, &size), *bytes = malloc(size);
  const uint64_t values[] = {0, 1, 2, 15, 16, 77, size, size - 1, size + 16, HEADER_SIZE, RECORDS + 1, INT32_MAX, UINT32_MAX,
                             (uint64_t)1 << 31, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 15, UINT64_MAX - size};
  enum { VALUES = 18, HEADER_FIELDS = 3, ENTRY_FIELDS = 3, FIELDS = HEADER_FIELDS + RECORDS * ENTRY_FIELDS };
  size_t at[FIELDS];
  int widths[FIELDS], n = 0, opened = 0;
  at[n] = AT_COUNT, widths[n++] = 4;
  at[n] = AT_FILE_SIZE, widths[n++] = 8;
  at[n] = AT_HEADER_SIZE, widths[n++] = 4;
  for (size_t r = 0; r < RECORDS; r++) {
    const size_t entry = HEADER_SIZE + r * ENTRY_SIZE;
    at[n] = entry + IN_KIND, widths[n++] = 4;
    at[n] = entry + IN_OFFSET, widths[n++] = 8;
    at[n] = entry + IN_SIZE, widths[n++] = 8;
  }
  for (int first = 0; first < FIELDS; first++)
    for (int second = first; second < FIELDS; second++)
      for (int v = 0; v < VALUES * VALUES; v++) {
        memcpy(bytes, whole, size);
        little_endian_put(bytes + at[first], values[v % VALUES], widths[first]);
        little_endian_put(bytes + at[second], values[v / VALUES], widths[second]);
        put_head_digest(bytes, size);
        pack *p;
        text why = {0};
        const pack_status status = pack_open_memory(bytes, size, "NAME", &p, &why);
        opened += status == PACK_OK;
        if (p)
          sound_records(whole, size, p);
        pack_close(p);
        text_free(&why);
      }
  assert_true(opened > 0); /* kinds may be any */
  free(bytes);
  free(whole);
}

static void newer_formats_are_named(void **state) {
  (void)state;
  size_t size;
  unsigned char *bytes = make_pack(0, 1, &size);
  pack *p;
  text why = {0};
  little_endian_put(bytes + AT_VERSION, PACK_FORMAT + 1, 4);
  assert_int_equal(pack_open_memory(bytes, size, "NAME", &p, &why), PACK_NEWER);
  assert_non_null(strstr(why.bytes, "newer"));
  text_free(&why);
  free(bytes);
}

/* Bodies that a writer never makes, under a digest that fits. */
static void bodies_are_read_within_bounds(void **state) {
  (void)state;
  unsigned seed = 1;
  for (int round = 0; round < 20000; round++) {
    seed = seed * 1103515245u + 12345u;
    const size_t size = seed >> 16 & 127;
    unsigned char *body = malloc(size + 1);
    for (size_t n = 0; n < size; n++) {
      seed = seed * 1103515245u + 12345u;
      body[n] = (unsigned char)(seed >> 20 & (seed >> 9 & 1 ? 255 : 31));
    }
    if (size >= KERNEL_HEAD && seed >> 12 & 1) /* sizes that nearly fit */
      little_endian_put(body, size - KERNEL_HEAD + (seed >> 17 & 15), 4), little_endian_put(body + 8, seed >> 21 & 31, 8);
    const pack_record r = {.bytes = body, .size = size};
    pack_kernel k;
    pack_request q;
    const char *name, *content;
    size_t length;
    if (pack_read_kernel(&r, &k)) {
      assert_true((const unsigned char *)k.manifest + k.manifest_size <= body + size);
      assert_true((const unsigned char *)k.image + k.image_size == body + size);
    }
    if (pack_read_request(&r, &q))
      assert_true((const unsigned char *)q.words + q.words_size == body + size && q.roles);
    if (pack_read_named(&r, &name, &content, &length))
      assert_true((const unsigned char *)content + length == body + size);
    free(body);
  }
}

static void files_that_are_none(void **state) {
  (void)state;
  static const char *const paths[] = {"/nonexistent/pack", "/", "/dev/null"};
  for (size_t n = 0; n < sizeof paths / sizeof *paths; n++) {
    pack *p;
    text why = {0};
    assert_int_equal(pack_open_file(paths[n], &p, &why), PACK_IO);
    assert_null(p);
    assert_non_null(strstr(why.bytes, paths[n]));
    text_free(&why);
  }
}

static void keys_and_hex(void **state) {
  (void)state;
  unsigned char key[PACK_KEY_SIZE];
  char hex[CACHE_KEY_SIZE];
  pack_key_of("0123456789abcdef00ff10203040506f", key);
  assert_int_equal(key[0], 1);
  assert_int_equal(key[15], 0x6f);
  pack_key_hex(key, hex);
  assert_string_equal(hex, "0123456789abcdef00ff10203040506f");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_goes_in_comes_out),    cmocka_unit_test(order_does_not_matter),
      cmocka_unit_test(every_changed_bit_is_seen), cmocka_unit_test(every_cut_is_seen),
      cmocka_unit_test(newer_formats_are_named),   cmocka_unit_test(bodies_are_read_within_bounds),
      cmocka_unit_test(moved_parts_are_seen),      cmocka_unit_test(numbers_of_any_kind),
      cmocka_unit_test(files_that_are_none),       cmocka_unit_test(keys_and_hex)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
