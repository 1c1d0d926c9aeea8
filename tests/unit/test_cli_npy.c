/* The .npy reader and writer of qkvc: what is refused and how, round trips, and random damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <unistd.h>

#include "../../tools/cli_npy.c"

/* A file in memory: version, header text padded to 64, `data` bytes of zeros. */
static size_t make_file(unsigned char *out, int version, const char *header, size_t data) {
  size_t prefix = version == 1 ? 10 : 12, text = strlen(header), total = (prefix + text + 1 + 63) / 64 * 64 - prefix;
  memcpy(out, "\x93NUMPY", 6);
  out[6] = (unsigned char)version;
  out[7] = 0;
  memset(out + 8, 0, 4);
  out[8] = (unsigned char)(total & 255);
  out[9] = (unsigned char)(total >> 8);
  memset(out + prefix, ' ', total);
  memcpy(out + prefix, header, text);
  out[prefix + total - 1] = '\n';
  memset(out + prefix + total, 0, data);
  return prefix + total + data;
}

static void accepted_headers(void **state) {
  (void)state;
  static const struct {
    int version;
    const char *header;
    size_t data;
    npy_type type;
    int rank;
  } cases[] = {
      {1, "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 2, 3), }", 12, NPY_F16, 3},
      {2, "{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }", 20, NPY_F32, 1},
      {3, "{'shape': (), 'fortran_order': False, 'descr': '<f8'}", 8, NPY_F64, 0},
      {1, "{\"descr\": \"|b1\", \"fortran_order\": False, \"shape\": (2,3)}", 6, NPY_BOOL, 2},
      {1, "{'descr': '<i8', 'fortran_order': False, 'shape': (0, 900000000000000000), }", 0, NPY_I64, 2},
      {1, "{'descr': '<u1', 'fortran_order': False, 'shape': (3,), }", 3, NPY_U8, 1},
  };
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    unsigned char file[512];
    char error[NPY_ERROR_SIZE] = "";
    npy_array a;
    size_t size = make_file(file, cases[n].version, cases[n].header, cases[n].data);
    if (!npy_parse(file, size, &a, error))
      fail_msg("%s: %s", cases[n].header, error);
    assert_int_equal(a.type, cases[n].type);
    assert_int_equal(a.rank, cases[n].rank);
    assert_int_equal((size_t)a.count * (size_t)npy_type_size(a.type), cases[n].data);
    npy_free(&a);
  }
}

static void refused_headers(void **state) {
  (void)state;
  static const struct {
    const char *header;
    size_t data;
    const char *says;
  } cases[] = {
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4, "big-endian"},
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }", 4, "Fortran order"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", 4, "neither True nor False"},
      {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }", 8, "element type '<c8'"},
      {"{'descr': '=f4', 'fortran_order': False, 'shape': (1,), }", 4, "element type '=f4'"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4, "structured"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 4, "needs 8 bytes of data, the file has 4"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 9, "needs 8 bytes of data, the file has 9"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2), }", 8, "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", 8, "not a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", 8, "too large"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999), }", 8, "too large"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1), }", 4, "more than 8 dimensions"},
      {"{'descr': '<f4', 'fortran_order': False, }", 4, "lacks the key shape"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 4, "descr twice"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", 4, "unknown key"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", 4, "after its dict"},
      {"__import__('os')", 4, "not that of an array"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    unsigned char file[512];
    char error[NPY_ERROR_SIZE] = "";
    npy_array a;
    size_t size = make_file(file, 1, cases[n].header, cases[n].data);
    if (npy_parse(file, size, &a, error))
      fail_msg("accepted: %s", cases[n].header);
    if (!strstr(error, cases[n].says))
      fail_msg("%s: says '%s', not '%s'", cases[n].header, error, cases[n].says);
    assert_null(a.data);
  }
}

static uint64_t random_state;
static uint32_t random_below(uint32_t limit) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) % limit;
}

/* Damaged files never crash, and what is accepted is consistent to the last byte (ASan watches the rest). */
static void damage(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 20000; seed++) {
    random_state = seed;
    unsigned char file[512];
    char error[NPY_ERROR_SIZE] = "";
    size_t size =
        make_file(file, 1 + (int)random_below(3), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24);
    for (uint32_t edits = 1 + random_below(3); edits; edits--)
      switch (random_below(3)) {
      case 0:
        file[random_below((uint32_t)size)] = (unsigned char)random_below(256);
        break;
      case 1: /* a character that means something in headers */
        file[8 + random_below(64)] = (unsigned char)"'{}(),:<>|f4i80123 9\n"[random_below(21)];
        break;
      default:
        size = random_below(2) ? random_below((uint32_t)size + 1) : size;
        size = size ? size : 1;
      }
    unsigned char *exact = malloc(size); /* so that ASan sees a read past the end */
    assert_non_null(exact);
    memcpy(exact, file, size);
    npy_array a;
    if (npy_parse(exact, size, &a, error)) {
      int64_t count = 1;
      for (int d = 0; d < a.rank; d++)
        count *= a.shape[d];
      if (count != a.count || (size_t)count * (size_t)npy_type_size(a.type) > size)
        fail_msg("seed %llu: inconsistent array", (unsigned long long)seed);
      npy_free(&a);
    } else if (!error[0] || a.data) {
      fail_msg("seed %llu: refused without a message, or with memory", (unsigned long long)seed);
    }
    free(exact);
  }
}

static void round_trip(void **state) {
  (void)state;
  char path[] = "/tmp/qkv_npy_XXXXXX", error[NPY_ERROR_SIZE] = "";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  for (int t = 0; t < NPY_TYPE_COUNT; t++)
    for (int rank = 0; rank <= NPY_MAX_RANK; rank++) {
      npy_array a = {.type = (npy_type)t, .rank = rank, .count = 1}, b;
      for (int d = 0; d < rank; d++)
        a.count *= a.shape[d] = 1 + (d * 7 + t) % 3;
      size_t bytes = (size_t)a.count * (size_t)npy_type_size(a.type);
      unsigned char *data = malloc(bytes);
      assert_non_null(data);
      for (size_t n = 0; n < bytes; n++)
        data[n] = (unsigned char)(n * 31 + (size_t)t);
      a.data = data;
      if (!npy_write(path, &a, error) || !npy_read(path, &b, error))
        fail_msg("type %d rank %d: %s", t, rank, error);
      assert_int_equal(a.type, b.type);
      assert_int_equal(a.rank, b.rank);
      assert_memory_equal(a.shape, b.shape, sizeof a.shape);
      assert_memory_equal(a.data, b.data, bytes);
      npy_free(&b);
      free(data);
    }
  unlink(path);
  npy_array none;
  assert_false(npy_read("/nonexistent/x.npy", &none, error));
  assert_string_equal(error, "No such file or directory");
  float one = 1;
  npy_array a = {.type = NPY_F32, .rank = 0, .count = 1, .data = &one};
  assert_false(npy_write("/nonexistent/x.npy", &a, error));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(accepted_headers), cmocka_unit_test(refused_headers),
                                     cmocka_unit_test(damage), cmocka_unit_test(round_trip)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
