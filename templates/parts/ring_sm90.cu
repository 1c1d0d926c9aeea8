// Where a ring of places in shared memory stands: the stage whose turn it is, and the parity of its phase.
struct ring {
  int stage = 0, parity = 0;
};

static __device__ __forceinline__ void advance(ring &r, int stages) {
  if (++r.stage == stages) r.stage = 0, r.parity ^= 1;
}
