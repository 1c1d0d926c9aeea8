//%% What the producer tells of the tiles it found, so that consumers walk through no mask: a word beside every place of
//%% the rings of Q and K. A place is full when its copies have landed and its word is told, which comes after them: by
//%% then the producer has looked for the next tile, while the copies are on their way.
// Of a tile of keys: its number, whether the mask is to be asked, and whether it is the last of its tile of rows.
struct told_tile {
  unsigned word = 0;

  __device__ __forceinline__ int number() const { return word >> 2; }
  __device__ __forceinline__ bool masked() const { return word & 1; }
  __device__ __forceinline__ bool last() const { return word & 2; }
};

// Tells a word to those who wait for a place of a ring, whose copies have been ordered.
template <int PLACES> static __device__ __forceinline__ void tell(
    unsigned shared, int words, int full, ring<PLACES> &told, unsigned word) {
  *(unsigned *)(shared_arena() + words + 4 * told.stage()) = word;
  mbar_arrive(shared + full + 8 * told.stage());
  told.advance();
}

// The word told of a full place.
template <int PLACES> static __device__ __forceinline__ unsigned hear(int words, const ring<PLACES> &ring) {
  return *(const unsigned *)(shared_arena() + words + 4 * ring.stage());
}
