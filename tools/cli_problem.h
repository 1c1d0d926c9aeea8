/* cli_problem.h: one attention problem of the commands run and explain --mask: its sizes, its tensors on the host and
 * on the device. Built by cli_problem.c, judged by cli_verify.c, driven by cli_run.c. */
#ifndef TOOLS_CLI_PROBLEM_H
#define TOOLS_CLI_PROBLEM_H

#include "cli.h"
#include "cli_tensor.h"

typedef enum problem_slot {
  SLOT_Q,
  SLOT_K,
  SLOT_V,
  SLOT_SINK,
  SLOT_O,
  SLOT_LSE,
  SLOT_LSE_WITH_SINK,
  SLOT_CU_SEQLENS_Q, /* arrays of lengths and pages, cli_sequences.h */
  SLOT_CU_SEQLENS_K,
  SLOT_SEQLENS_K,
  SLOT_PAGE_TABLE,
  SLOT_PAGE_INDPTR,
  SLOT_K_SCALE,
  SLOT_V_SCALE,
  SLOT_PARAMS, /* one slot per declared parameter from here on */
  SLOT_COUNT = SLOT_PARAMS + 32
} problem_slot;

/* A tensor of the problem. Absent ones have host.data NULL. Scalar parameters have a value and no tensor. */
typedef struct problem_tensor {
  char name[64];
  qkv_tensor host;   /* contiguous, owned */
  qkv_tensor device; /* the same view of device memory */
  void *allocation;  /* what to free on the device */
  double value;
} problem_tensor;

typedef struct problem {
  qkv_engine *engine;
  qkv_spec *spec;
  qkv_spec_info info;
  qkv_device_info device;
  bool emulated;
  int64_t batch, len_q, len_k; /* the lengths: of the longest sequences */
  problem_tensor slots[SLOT_COUNT];
  qkv_param_value values[2][SLOT_COUNT]; /* of host and device arguments */
} problem;

/* What the command line says about the inputs. Counts are -1, words NULL when not given. */
typedef struct problem_request {
  const char *workload;
  int64_t batch, len_q, len_k;
  uint64_t seed;
  const char *lengths; /* of sequences that have their own: "mixed", "full" */
  const char *q_file, *k_file, *v_file, *sink_file, *k_scale_file, *v_scale_file;
  cli_list params; /* "name=value" or "name=file.npy" */
  int bits16;      /* u2 files hold bf16 */
  int unaligned;   /* shift device tensors off 16-byte alignment by one element */
  int no_tokens;   /* leave out q, k, v and the outputs: large, and made in another way */
} problem_request;

/* Opens an engine that compiles without running, loads the spec at `path` and decides sizes: of questions about a
 * problem, not of a run. Sequences are as long as the sizes say. Messages on stderr; returns an exit code. */
int problem_open(problem *p, const char *path, const problem_request *request);
/* Decides batch, len_q, len_k, and the lengths of sequences. Messages on stderr; returns an exit code. */
int problem_size(problem *p, const problem_request *request);
/* Makes the sizes small enough for the emulator to take seconds: batch first, then the longer side. */
void problem_shrink(problem *p);
/* The spec's workload of this name, NULL: its first, by p->spec and p->info alone. An exit code after a message; -1:
 * there is none. */
int problem_find_workload(const problem *p, const char *name, qkv_workload *out);
/* Makes the host tensors: inputs from files or the generator, outputs full of NaN. */
int problem_fill(problem *p, const problem_request *request);
/* The shape of q, k, v, the sink, a scale or an output after problem_size; returns the rank. */
int problem_shape(const problem *p, problem_slot slot, int64_t shape[4]);
/* The parameters alone, for questions about masks. */
int problem_fill_params(problem *p, const problem_request *request);
/* Allocates on the device and copies everything there, poison included. */
int problem_upload(problem *p, bool unaligned);
/* Copies O and the LSEs back. */
int problem_download(problem *p);
/* Poisons the outputs on the device again. */
int problem_poison(problem *p);
/* Arguments for a call; they point into p. */
qkv_attention_args problem_args(problem *p, bool device);
/* The tensors alone, on the host and on the device. */
void problem_clear(problem *p);
void problem_free(problem *p);

/* Arguments for a question about masks: shapes, arrays and parameters. */
qkv_attention_args problem_mask_args(problem *p);
/* Floating-point operations when every pair is visible: what the reference and the emulator have to do. */
double problem_dense_flops(const problem *p);

/* What checking found. */
typedef struct verdict {
  bool checked, ok;
  char against[160]; /* "f64 reference", ... or why nothing was checked */
  tensor_error o, lse, lse_with_sink;
  char fault[256]; /* the first thing wrong, "" if nothing */
} verdict;

/* Relative L2 error of O that is fine for the spec's dtypes, and the scaled error of LSE. */
double verdict_tolerance(const problem *p);
#define VERDICT_LSE_TOLERANCE 1e-3
/* Compares the downloaded outputs with the f64 reference, with as many of the first batch entries as take seconds;
 * large problems on a GPU with attention_naive on the same device. Returns an exit code for failures of the check
 * itself. */
int problem_verify(problem *p, double tolerance, verdict *out);

/* The two halves of a check that is repeated: the f64 reference's answer, tensors that the caller frees (returns an
 * exit code), and downloaded outputs held against it. Rows of no sequence become 0 on both sides. */
int problem_expect(problem *p, qkv_tensor expected[SLOT_PARAMS]);
void problem_judge(problem *p, double tolerance, qkv_tensor expected[SLOT_PARAMS], verdict *out);

#endif
