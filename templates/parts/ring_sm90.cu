// Where a ring of places in shared memory stands: the place whose turn it is, and the parity of its phase.
template <int STAGES> struct ring {
  static constexpr bool COUNTS = (STAGES & (STAGES - 1)) == 0; // one counter tells both
  unsigned place = 0, turn = 0;

  __device__ __forceinline__ int stage() const { return COUNTS ? place % STAGES : place; }
  __device__ __forceinline__ int parity() const { return COUNTS ? place / STAGES % 2 : turn; }
  __device__ __forceinline__ void advance() {
    if (++place == STAGES && !COUNTS) place = 0, turn ^= 1;
  }
};
