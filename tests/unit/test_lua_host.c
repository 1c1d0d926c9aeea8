/* test_lua_host.c: the sandbox: what exists, what is refused, limits, reproducibility, errors with their place. */
#include "gen_fixture.h"

#include <locale.h>

#include "lua_host.h"

/* Runs a chunk; its returned value (string, number, boolean) becomes the result, an error "!message". Owned. */
typedef struct job {
  const char *source;
  text result;
} job;

static int run_chunk(lua_State *L) {
  job *j = lua_touserdata(L, 1);
  host_load(L, "kernels/x.cu", j->source, strlen(j->source));
  lua_call(L, 0, 1);
  if (!lua_isnil(L, -1))
    text_puts(&j->result, luaL_tolstring(L, -1, NULL));
  return 0;
}

static gen_status run_source(const char *source, text *result) {
  lua_host h;
  gen_error error = {0};
  job j = {source, {0}};
  assert_int_equal(host_open(&h, NULL, &error), GEN_OK);
  gen_status status = host_run(&h, run_chunk, &j);
  if (status != GEN_OK) {
    text_clear(&j.result);
    text_printf(&j.result, "!%s", error.message);
    assert_int_equal(status, error.status);
  }
  host_close(&h);
  assert_int_equal(h.memory, 0);
  *result = j.result;
  return status;
}

static void check(const char *source, const char *expected) {
  text result;
  run_source(source, &result);
  const char *got = result.bytes ? result.bytes : "";
  if (strcmp(got, expected) != 0)
    fail_msg("%s\n gave     %s\n expected %s", source, got, expected);
  text_free(&result);
}

static void nothing_dangerous_exists(void **state) {
  (void)state;
  static const char *const names[] = {
      "dofile",   "loadfile", "load",    "collectgarbage", "print",  "require", "rawset", "rawget",
      "rawequal", "rawlen",   "next",    "pcall",          "xpcall", "warn",    "_G",     "io",
      "os",       "debug",    "package", "coroutine",      "utf8",   "_VERSION"};
  for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
    char source[64], expected[128];
    snprintf(source, sizeof source, "return %s", names[n]);
    snprintf(expected, sizeof expected, "!kernels/x.cu:1: undefined name '%s'", names[n]);
    check(source, expected);
  }
  static const char *const fields[] = {"string.dump",     "string.pack", "math.random",
                                       "math.randomseed", "math.sin",    "table.move"};
  for (size_t n = 0; n < sizeof fields / sizeof fields[0]; n++) {
    char source[64], expected[128];
    const char *dot = strchr(fields[n], '.');
    snprintf(source, sizeof source, "return %s", fields[n]);
    snprintf(expected, sizeof expected, "!kernels/x.cu:1: %.*s has no field '%s'", (int)(dot - fields[n]), fields[n],
             dot + 1);
    check(source, expected);
  }
}

static void globals_and_libraries_are_strict(void **state) {
  (void)state;
  check("local a = 1; return a", "1");
  check("x = 1", "!kernels/x.cu:1: assignment to global 'x': use local");
  check("function f() end", "!kernels/x.cu:1: assignment to global 'f': use local");
  check("pairs = 1", "!kernels/x.cu:1: assignment to global 'pairs': use local");
  check("string.rep = nil", "!kernels/x.cu:1: string is read-only");
  check("math.pi = 3", "!kernels/x.cu:1: math is read-only");
  check("getmetatable(string).__index.rep = 1", "!kernels/x.cu:1: attempt to index a boolean value");
  check("return tostring(getmetatable(''))", "false");
  check("return tostring(getmetatable(_ENV))", "false");
  check("setmetatable(_ENV, {})", "!kernels/x.cu:1: cannot change a protected metatable");
  check("setmetatable(string, {})", "!kernels/x.cu:1: cannot change a protected metatable");
  check("return '10' + 1", "!kernels/x.cu:1: attempt to perform arithmetic on a string value (constant '10')");
  check("return ('ab'):upper() .. #'abc' .. ('x'):rep(3)", "AB3xxx");
}

static void pairs_is_sorted(void **state) {
  (void)state;
  check("local t, out = {b = 1, a = 2, [10] = 3, [2] = 4, [1.5] = 5, aa = 6, B = 7}, {}\n"
        "for k, v in pairs(t) do out[#out + 1] = k .. '=' .. v end return table.concat(out, ' ')",
        "1.5=5 2=4 10=3 B=7 a=2 aa=6 b=1");
  check("local t, n = {a = 1, b = 2, c = 3}, 0 for k in pairs(t) do t.b = nil t.c = nil n = n + 1 end return n", "1");
  check("for k in pairs({[true] = 1}) do end",
        "!kernels/x.cu:1: pairs: a key is a boolean; only numbers and strings have an order");
  check("local n = 0 for k in pairs(string) do n = n + 1 end return n", "13");
  check("for k in pairs(nil) do end", "!kernels/x.cu:1: bad argument #1 to 'pairs' (table expected, got nil)");
}

/* Against a model: pairs over many random keys visits each once, ascending. */
static void pairs_matches_a_model(void **state) {
  (void)state;
  check("local seed, t, count = 7, {}, 0\n"
        "for _ = 1, 3000 do seed = (seed * 1103515245 + 12345) % 2147483648\n"
        "  local key = seed % 3 == 0 and seed % 5000 or 'k' .. seed % 5000\n"
        "  if not t[key] then count = count + 1 end t[key] = true end\n"
        "local last, seen for k in pairs(t) do count = count - 1\n"
        "  if type(last) == type(k) then assert(last < k) else assert(type(k) == 'number' or seen) end\n"
        "  last, seen = k, true end\n"
        "return count",
        "0");
}

static void addresses_never_become_text(void **state) {
  (void)state;
  check("return tostring({})", "!kernels/x.cu:1: a table has no text form");
  check("return tostring(print)", "!kernels/x.cu:1: undefined name 'print'");
  check("return tostring(type)", "!kernels/x.cu:1: a function has no text form");
  check("return string.format('%s', {})", "!kernels/x.cu:1: a table has no text form");
  check("return ('%5d|%s|%s|%.2f'):format(7, true, nil, 0.5)", "    7|true|nil|0.50");
  check("return ('%p'):format('x')", "!kernels/x.cu:1: format: %p prints an address");
  check("return ('%-10p'):format('x')", "!kernels/x.cu:1: format: %p prints an address");
  check("return ('100%%p %d'):format(1)", "100%p 1");
  check("return tostring(setmetatable({}, {__tostring = function() return 'mine' end}))", "mine");
  check("return ('%d'):format('x')", "!kernels/x.cu:1: bad argument #2 to '?' (number expected, got string)");
}

static void sort_is_stable(void **state) {
  (void)state;
  check("local seed, t = 3, {}\n"
        "for n = 1, 500 do seed = (seed * 1103515245 + 12345) % 2147483648 t[n] = {key = seed % 10, n = n} end\n"
        "table.sort(t, function(a, b) return a.key < b.key end)\n"
        "for n = 2, 500 do local a, b = t[n - 1], t[n]\n"
        "  assert(a.key < b.key or (a.key == b.key and a.n < b.n)) end return #t",
        "500");
  check("local t = {3, 1, 2} table.sort(t) return table.concat(t, ',')", "1,2,3");
  check("local t = {'b', 'B', 'a'} table.sort(t, function(a, b) return a > b end) return table.concat(t)", "baB");
  check("table.sort({1, 'a'})", "!kernels/x.cu:1: attempt to compare string with number");
}

static void limits_end_runaway_templates(void **state) {
  (void)state;
  text result;
  assert_int_equal(run_source("while true do end", &result), GEN_TEMPLATE);
  assert_string_equal(result.bytes, "!kernels/x.cu:1: template ran for more than 50 million instructions");
  text_free(&result);
  assert_int_equal(run_source("local t = {}\nfor n = 1, 1e9 do\nt[n] = 'some text ' .. n\nend", &result), GEN_TEMPLATE);
  assert_string_equal(result.bytes, "!kernels/x.cu:3: template needs more than 64 MiB");
  text_free(&result);
  assert_int_equal(run_source("\nreturn ('x'):rep(1 << 30)", &result), GEN_TEMPLATE);
  assert_string_equal(result.bytes, "!kernels/x.cu:2: template needs more than 64 MiB");
  text_free(&result);
  assert_int_equal(run_source("local function f(n) return 1 + f(n + 1) end return f(1)", &result), GEN_TEMPLATE);
  assert_non_null(strstr(result.bytes, "kernels/x.cu:1: stack overflow"));
  text_free(&result);
  /* A finalizer would run beyond the budget when the state closes. */
  assert_int_equal(run_source("setmetatable({}, {__gc = function() while true do end end})", &result), GEN_TEMPLATE);
  assert_string_equal(result.bytes, "!kernels/x.cu:1: setmetatable: templates have no finalizers (__gc)");
  text_free(&result);
  check("return setmetatable({}, {__index = function(_, key) return key .. '!' end}).x", "x!");
}

static void errors_carry_their_place(void **state) {
  (void)state;
  check("local a\nlocal b = a.c", "!kernels/x.cu:2: attempt to index a nil value (local 'a')");
  check("\n\nerror('mine')", "!kernels/x.cu:3: mine");
  check("error('mine', 0)", "!kernels/x.cu:1: mine");
  check("error({})", "!kernels/x.cu:1: (error value is a table)");
  check("error()", "!kernels/x.cu:1: (error value is a nil)");
  check("assert(false, 'why')", "!kernels/x.cu:1: why");
  check("if x then", "!kernels/x.cu:1: 'end' expected near <eof>");
  check("\x1bLua", "!kernels/x.cu:1: attempt to load a binary chunk (mode is 't')");
}

static int freeze_chunk(lua_State *L) {
  job *j = lua_touserdata(L, 1);
  lua_newtable(L);
  lua_pushinteger(L, 7);
  lua_setfield(L, -2, "seven");
  host_freeze(L, "record", true);
  host_set_global(L, "record");
  lua_newtable(L);
  for (int n = 1; n <= 3; n++) {
    lua_pushinteger(L, 10 * n);
    lua_rawseti(L, -2, n);
  }
  host_freeze(L, "list", false);
  host_set_global(L, "list");
  host_load(L, "kernels/x.cu", j->source, strlen(j->source));
  lua_call(L, 0, 1);
  text_puts(&j->result, luaL_tolstring(L, -1, NULL));
  return 0;
}

static void frozen_tables_are_read_only(void **state) {
  (void)state;
  static const struct {
    const char *source, *expected;
  } cases[] = {
      {"return record.seven", "7"},
      {"record.seven = 8", "!kernels/x.cu:1: record is read-only"},
      {"record.eight = 8", "!kernels/x.cu:1: record is read-only"},
      {"return record.sevn", "!kernels/x.cu:1: record has no field 'sevn'"},
      {"return list[1] + #list + (list[4] and 1 or 0)", "13"},
      {"local sum = 0 for _, x in ipairs(list) do sum = sum + x end return sum", "60"},
      {"local sum = 0 for n, x in pairs(list) do sum = sum + n * x end return sum", "140"},
      {"return table.concat(list, '-') .. select('#', table.unpack(list))", "10-20-303"},
      {"table.insert(list, 1)", "!kernels/x.cu:1: list is read-only"},
      {"table.sort(list, function(a, b) return a > b end)", "!kernels/x.cu:1: list is read-only"},
      {"setmetatable(record, nil)", "!kernels/x.cu:1: cannot change a protected metatable"},
      {"record = 1", "!kernels/x.cu:1: assignment to global 'record': use local"},
  };
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    lua_host h;
    gen_error error = {0};
    job j = {cases[n].source, {0}};
    assert_int_equal(host_open(&h, NULL, &error), GEN_OK);
    if (host_run(&h, freeze_chunk, &j) != GEN_OK) {
      text_clear(&j.result);
      text_printf(&j.result, "!%s", error.message);
    }
    host_close(&h);
    if (strcmp(j.result.bytes, cases[n].expected) != 0)
      fail_msg("%s\n gave     %s\n expected %s", cases[n].source, j.result.bytes, cases[n].expected);
    text_free(&j.result);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_dangerous_exists),
      cmocka_unit_test(globals_and_libraries_are_strict),
      cmocka_unit_test(pairs_is_sorted),
      cmocka_unit_test(pairs_matches_a_model),
      cmocka_unit_test(addresses_never_become_text),
      cmocka_unit_test(sort_is_stable),
      cmocka_unit_test(limits_end_runaway_templates),
      cmocka_unit_test(errors_carry_their_place),
      cmocka_unit_test(frozen_tables_are_read_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
