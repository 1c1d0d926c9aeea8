/* sets.c: the named sets of cases, as tables of patterns. `{a,b}` in a pattern stands for each alternative in turn.
 *
 * A row's title says what kind of fault it is after. Rows marked quick are also in the quick set. */
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

typedef struct row {
  bool quick;
  const char *title, *pattern;
} row;

// clang-format off
/* Kinds of input that have broken attention kernels. */
static const row hard_rows[] = {
    {true, "rows that see no key", "dim=32 hq=4 hk=2 lq=96 lk=64 mask='causal'"},
    {false, "rows that see no key", "dim={64,128} hq=32 hk=8 lq=96 lk=64 mask='causal' {sink=none,sink=plus4 outputs=all}"},
    {false, "rows that see no key", "dim=64 hq=2 lq={1,33} lk=40 mask={'false','k > len_k','window(2, -1) and q < 3'} sink={none,normal}"},
    {false, "logits below any finite stand-in for -inf",
     "dim=128 hq=2 lq={1,65} lk={64,200} values={minus_6e4,minus_huge} {,mask='causal',mask='window(3, 0)',score='s - 1',softcap=30}"},
    {true, "logits below any finite stand-in for -inf", "dim=32 hq=1 lq=17 lk=70 values=minus_6e4 mask='causal'"},
    {true, "logits below any finite stand-in for -inf", "dim=32 hq=1 lq=17 lk=70 values=minus_huge mask='causal'"},
    {false, "first tile in order is all masked", "dim={32,64} lq=512 lk=512 hq=2 mask={'window(16, 0)','causal and k >= 200','q - k > 100'}"},
    {false, "which corner causal starts from",
     "dim=32 dimv=256 hq=2 b=2 {lq=5 lk=2,lq=2 lk=5,lq=1 lk=7,lq=7 lk=1,lq=129 lk=128,lq=128 lk=129} align={bottom_right,top_left} "
     "values=one_hot mask='causal'"},
    {true, "which corner causal starts from", "dim=8 dimv=16 hq=2 {lq=5 lk=2,lq=2 lk=5,lq=1 lk=7} values=one_hot mask='causal'"},
    {true, "which corner causal starts from", "dim=8 dimv=16 hq=2 {lq=5 lk=2,lq=2 lk=5,lq=1 lk=7} values=one_hot mask='causal' align=top_left"},
    {false, "no keys, no queries, no batch", "dim=64 hq=4 hk=2 b={0,2} lq={0,3} lk={0,5} {,mask='causal'} {,sink=normal outputs=all}"},
    {true, "no keys, no queries, no batch", "dim=8 hq=2 {b=0 lq=3 lk=5,b=2 lq=0 lk=5,b=2 lq=3 lk=0,b=0 lq=0 lk=0} mask='causal'"},
    {false, "window is an inclusive distance", "dim=32 lq=16 lk=16 values=one_hot mask={'window(3, 0)','window(0, 0)','window(0, 3)','window(2, 1)'}"},
    {false, "one query and a window", "dim={64,256} hq=4 hk=2 lq={1,2} lk=256 mask={'window(32, 0)','window(0, 0)','window(31, 0)'} k={bthd,cache} v=cache"},
    {true, "keys past the end hold NaN, Inf or large numbers",
     "dim=32 hq=2 lq=3 lk=65 k=cache v=cache guard={nan,inf,big} values=ones"},
    {false, "keys past the end hold NaN, Inf or large numbers",
     "dim={64,72,128} hq=2 b=2 lq={1,40} {lk=13,lk=65,lk=127} k=cache v=cache guard={nan,inf,big} {,mask='causal'}"},
    {false, "row gaps and row padding hold NaN", "dim={8,40,72,80,88,96,112,120,160,224} hq=3 b=2 lq=33 lk=47 q=padded k=padded v=padded o=padded"},
    {false, "head dims off the tensor core's grid, default scale", "dim={8,40,72,80,88,96,112,120,160,224} hq=2 lq=17 lk=66 dtype={bf16,f16}"},
    {false, "grouped heads pair by division", "{hq=6 hk=2,hq=9 hk=3,hq=10 hk=2,hq=12 hk=2,hq=14 hk=2,hq=21 hk=3,hq=24 hk=2,hq=36 hk=3,hq=28 hk=2} dim=32 lq=5 lk=33 values=head"},
    {true, "grouped heads pair by division", "{hq=6 hk=2,hq=9 hk=3} dim=8 lq=3 lk=17 values=head"},
    {false, "every integer ratio of heads", "hq={1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,20,24,40,64,71} hk=1 dim=64 lq={1,9} lk=65"},
    {true, "head counts that do not divide", "hq=5 hk=2 dim=32 lq=2 lk=2 expect=bad_spec"},
    {true, "huge equal inputs", "dim=64 lq={1,65} lk={1,65} values=huge"},
    {false, "huge equal inputs", "dim={64,128} dtype=f16 lq=65 lk=65 values=huge {,mask='causal'}"},
    {false, "scales that are not positive", "dim=64 hq=2 lq=17 lk=33 scale={-0.125,0,-0.0,1e-38,0.0} {,mask='causal',softcap=5}"},
    {true, "scales that are not numbers", "dim=32 lq=2 lk=2 scale={.nan,.inf,1/0,sqrt(-1),nan} expect=bad_spec"},
    {false, "a strong cap changes the result", "dim=64 hq=2 {lq=17 lk=33,lq=1 lk=100} values=strong softcap={1.0,5} mask={'true','causal','window(3, 0)'}"},
    {true, "a strong cap changes the result", "dim=16 hq=2 lq=9 lk=33 values=strong softcap=1.0 mask='window(3, 0)'"},
    {false, "a sink joins the denominator once", "dim=64 hq=4 hk=2 {lq=17 lk=33,lq=1 lk=33} sink={plus4,minus4,minus_inf,mixed} mask={'true','causal','window(8, 0)'} outputs=all"},
    {true, "a sink joins the denominator once", "dim=16 hq=4 hk=2 lq=9 lk=33 sink=mixed mask='window(8, 0)' outputs=all"},
    {false, "heads and batch of stride 0", "dim=64 hq=4 hk=2 b=2 lq=9 lk={33,65,97} k={heads0,shared0} v={heads0,shared0} mask='(q * 7 + k * 3) % 5 != 0'"},
    {false, "K with V's strides and V with K's", "dim=64 hq=2 b=2 lq=33 lk=65 {k=rows2,v=rows2,k=rows2 o=rows2,k=bhtd v=tbhd,q=tbhd,q=reversed,k=reversed}"},
    {false, "innermost stride is not 1", "dim=64 hq=2 b=2 lq=9 lk=33 {v=inner2,k=inner2,q=inner2,o=inner2,k=bhdt,v=bhdt,q=all0,k=all0,v=all0,o=bhdt} expect=ok_or_refusal"},
    {true, "innermost stride is not 1", "dim=16 hq=2 b=2 lq=5 lk=17 {v=inner2,k=bhdt,q=all0,o=inner2} expect=ok_or_refusal"},
    {true, "a length of one whose stride is odd", "dim=16 hq=2 {lq=5 lk=1 k=pitch1,lq=5 lk=1 v=bhdt,lq=1 lk=5 q=pitch1,lq=1 lk=1 o=pitch1}"},
    {false, "linear bias by distance", "dim=64 hq=40 {lq=1 lk=37,lq=37 lk=37,lq=9 lk=37} mask='causal' score='s + slope[h] * (k - q)'"},
    {false, "linear bias: a decode step is the last prefill row", "dim=64 hq=40 lq=37 lk=37 mask='causal' score='s + slope[h] * (k - q)' check=decode"},
    {false, "maxima that rise from tile to tile", "dim={32,128} hq=2 lq={1,64} lk={64,257} values=rising {,mask='causal'} dtype={f16,bf16}"},
    {true, "maxima that rise from tile to tile", "dim=32 hq=1 lq=5 lk=200 values=rising"},
    {false, "weights sum to one", "dim={64,128} hq=2 lq=33 lk={33,257} values=ones {,mask='causal',mask='window(16, 0)'} {,softcap=5}"},
    {false, "more heads than a grid's second dimension", "dim=8 b=300 hq=256 hk=256 lq=1 lk=2"},
    {true, "f32 by the textbook family", "dim={64,320} dimv=256 hq=3 lq=5 lk=33 dtype=f32 mask='causal' {,sink=normal outputs=all}"},
    {false, "dims only the textbook family can do", "{dim=320 dimv=256,dim=512,dim=576 dimv=512} hq=4 hk=1 lq=17 lk=33 mask='causal' family=attention_naive"},
};

/* Results that must not change. */
static const row invariance_rows[] = {
    {true, "two runs", "dim=16 hq=2 lq=17 lk=70 mask='causal' check=repeat"},
    {false, "two runs", "dim={64,128} hq=8 hk=2 b=3 lq=200 lk=257 {,mask='causal',mask='window(16, 0)' sink=normal} check=repeat"},
    {true, "layouts", "dim=16 hq=2 b=2 lq=5 lk=33 mask='causal' check=layouts"},
    {false, "layouts", "dim={64,72,128,192,256} hq=4 hk=2 b=2 lq=33 lk=97 {,mask='causal',mask='(q * 7 + k * 3) % 5 != 0' score='s + bias[h, i, k]'} check=layouts dtype={bf16,f16}"},
    {true, "guards", "dim=16 hq=2 b=2 lq=5 lk=33 k=cache v=cache mask='causal' check=guards"},
    {false, "guards", "dim={64,128,256} hq=4 hk=2 b=2 lq=33 lk={13,97,127} {,k=cache v=cache,q=padded k=padded v=padded o=padded,k=pitch1 v=inner2} check=guards"},
    {true, "batch mates", "dim=16 hq=2 b=3 lq=5 lk=33 mask='causal' check=batch_mates"},
    {false, "batch mates", "dim={64,128} hq=4 hk=2 b=5 lq={1,65} lk=200 mask={'true','causal','window(16, 0)'} check=batch_mates"},
    {true, "repeated KV heads", "dim=16 hq=6 hk=2 lq=5 lk=33 mask='causal' check=repeated_heads"},
    {false, "repeated KV heads", "dim={64,128} {hq=6 hk=2,hq=7 hk=1,hq=16 hk=2} b=2 lq={1,65} lk=200 {,mask='causal'} check=repeated_heads"},
    {true, "a decode step is the last row", "dim=16 hq=2 b=2 lq=17 lk=33 mask='window(9, 0)' check=decode"},
    {false, "a decode step is the last row", "dim={64,128} hq=4 hk=2 b=2 lq=65 lk=200 {mask='causal',mask='window(16, 0)',mask='causal' score='s + slope[h] * (k - q)'} check=decode"},
    {true, "invisible keys", "dim=16 hq=2 b=2 lq=17 lk=70 mask='causal' check=invisible"},
    {true, "invisible keys", "dim=16 hq=2 b=2 lq=17 lk=70 mask='causal and (q - k) % 3 == 0' check=invisible"},
    {false, "invisible keys",
     "dim=64 hq=4 hk=2 b=2 lq=65 lk=130 mask={'causal','window(16, 0)','window(-1, 5)','causal and k >= 40',"
     "'same(doc)','doc2[b, q] == doc2[b, k]','k // 16 <= q // 16','(q * 7 + k * 3) % 5 != 0',"
     "'causal and q - k < head_w[h]','keep[b, k]','blocks[h, i // 16, k // 16]','k < 4 or window(8, 0)'} align={bottom_right,top_left} check=invisible"},
    {true, "windows that cover everything", "dim=16 hq=2 lq=17 lk=70 mask='causal' check=wide_window"},
    {false, "windows that cover everything", "dim={64,128} hq=2 {lq=257 lk=257,lq=100 lk=257,lq=257 lk=100} mask='causal' check=wide_window"},
    {true, "order of keys", "dim=16 hq=2 lq=5 lk=70 check=permuted_keys"},
    {false, "order of keys", "dim={64,128} hq=4 hk=2 b=2 lq=65 lk=257 {,sink=normal,softcap=30} check=permuted_keys"},
    {true, "a constant added to the logits of a row", "dim=16 hq=2 lq=17 lk=70 mask='causal' check=shifted_logits"},
    {false, "a constant added to the logits of a row", "dim={64,128} hq=4 hk=2 b=2 lq=65 lk=130 {,mask='causal'} {,score='s + bias[h, i, k]',softcap=5} check=shifted_logits"},
    {true, "a sink of -inf is none", "dim=16 hq=2 lq=17 lk=70 mask='causal' sink=minus_inf check=no_sink"},
    {false, "a sink of -inf is none", "dim={64,128} hq=4 hk=2 b=2 lq=65 lk=130 {,mask='causal'} sink=minus_inf check=no_sink"},
    {true, "schedules", "dim=16 hq=3 hk=1 b=2 lq=70 lk=130 mask='window(40, 0)' check=schedules"},
    {false, "schedules", "dim={32,64,72,128,192,256} hq=4 hk=2 b=2 lq=130 lk={97,257} {,mask='causal',mask='window(16, 0)',mask='(q * 7 + k * 3) % 5 != 0' softcap=5,mask='causal' k=pitch1 sink=mixed outputs=all} check=schedules"},
    {false, "schedules, first tile all masked", "dim=64 lq=512 lk=512 mask='window(16, 0)' check=schedules"},
    {true, "families", "dim=16 hq=2 lq=17 lk=70 mask='causal' softcap=5 check=families"},
    {false, "families", "dim={64,128,256} hq=6 hk=2 b=2 lq=65 lk=200 {,mask='causal',mask='same(doc)',score='s + bias[h, i, k]',sink=mixed outputs=all,softcap=5} check=families"},
};

/* Query heads of a group as rows of one tile, against the reference and, bit for bit, against rows of one head. Groups
 * that leave no row idle, some, and most; every way of O; what differs by row: masks, scores, sinks. For sm_90a. */
#define PACKED "family=attention_forward_sm90 check=packed lk=150 "
static const row packed_rows[] = {
    {false, "packed groups, causal", PACKED "dim=16 {hq=2 hk=2,hq=4 hk=2,hq=8 hk=2,hq=16 hk=2,hq=14 hk=2,hq=32 hk=1,hq=71 hk=1} b=2 lq={1,3,17,130} mask='causal' sched='warpgroups=2,tile_n=32,pack=1'"},
    {false, "packed, the first corner", PACKED "dim=16 hq={4,7} hk=1 lq={1,17,130} mask='causal' align=top_left sched='warpgroups=1,tile_n=32,pack=1'"},
    {false, "packed, no mask, any ring", PACKED "dim=24 hq=8 hk=2 b=2 lq={1,17,130} {sched='warpgroups=3,tile_n=48,stages=3,order=1,rescale=1,q_buffers=1,carry=0,o_buffer=1,scheduler=0,pack=1',sched='warpgroups=3,tile_n=48,stages=3,order=1,rescale=1,q_buffers=2,carry=1,o_buffer=1,scheduler=1,pack=1',sched='warpgroups=2,tile_n=48,stages=3,order=1,rescale=1,q_buffers=2,carry=1,o_buffer=1,scheduler=2,l2_mib=4,pack=1'}"},
    {false, "packed, O through Q's place", PACKED "dim=40 hq=16 hk={1,2} lq={3,130} o={bthd,bhtd} mask='window(20, 5)' {sched='warpgroups=2,tile_n=32,q_buffers=1,o_buffer=0,carry=0,pack=1',sched='warpgroups=2,tile_n=32,q_buffers=2,o_buffer=0,carry=0,pack=1'}"},
    {false, "packed, O from the registers", PACKED "dim=64 dimv=24 hq={4,7,12} hk=1 lq={3,70} {out=same,out=f32} mask='k // 16 <= q // 16' sched='warpgroups=3,tile_n=32,o_buffer=0,carry=0,store=0,pack=1'"},
    {false, "packed, Q in registers and P in shared memory", PACKED "dim=32 {hq=8 hk=2,hq=14 hk=2} b=2 lq=37 mask='causal and q - k < 4 + 3 * h' {sched='warpgroups=2,tile_n=32,q_registers=1,p_shared=1,pack=1',sched='warpgroups=2,tile_n=32,q_registers=1,q_buffers=1,o_buffer=0,carry=0,pack=1',sched='warpgroups=2,tile_n=64,p_shared=1,overlap=2,carry=0,pack=1'}"},
    {false, "packed, masks by head", PACKED "dim=16 {hq=8 hk=2,hq=14 hk=2} lq={3,130} mask={'causal and q - k < 4 + 3 * h','causal and q - k < head_w[h]','blocks[h, i // 16, k // 16]','abs(q - k) <= 6 or hk == 1'} sched='warpgroups=2,tile_n=16,pack=1'"},
    {false, "packed, scores and sinks by head", PACKED "dim=16 {hq=8 hk=2,hq=14 hk=2} b=2 lq={3,130} {score='s + slope[h] * (k - q)',score='s + bias[h, i, k]' softcap=5,score='s + where(h % 2 == 0, 0.125, -0.125) * min(q, k)' mask='causal'} sink=mixed outputs=all sched='warpgroups=2,tile_n=32,pack=1'"},
    {false, "packed, layouts", PACKED "dim=64 hq=8 hk=2 b=2 lq=17 mask='causal' {q=bhtd o=bhtd,q=padded o=padded,q=rows2 o=mixed} sched='warpgroups=1,tile_n=64,pack=1'"},
    {false, "packed, rows that see no key", PACKED "dim=16 {hq=8 hk=2,hq=7 hk=1} lq=200 mask='causal' sink=normal outputs=all sched='warpgroups=2,tile_n=32,pack=1'"},
    {false, "packed, values that move references", PACKED "dim=32 {hq=8 hk=2,hq=5 hk=1} lq=9 values={spikes,rising,huge,minus_huge} mask='causal' sched='warpgroups=1,tile_n=16,pack=1'"},
    {false, "packed, a group larger than a tile", "family=attention_forward_sm90 dim=16 hq=71 hk=1 lq=3 lk=70 sched='warpgroups=1,tile_n=32,pack=1' expect=refusal"},
};

/* Masks whose tiles are no single range: what decides them, words of 32 tiles and their ends, heads packed and not. */
#define SM80W "family=attention_forward_sm80 dim=16 hq=6 hk=2 b=2 "
#define SM90W "family=attention_forward_sm90 dim=16 hq=6 hk=2 b=2 "
static const row walks_rows[] = {
    {false, "walks, several intervals", SM80W "lq={5,70} lk={515,1100} mask={'causal and (q - k < 40 or k < 4)','k < 20 or k > 400 or q == k','causal and not (k >= 100 and k < 300)','causal and (q - k < head_w[h] or k < 3)'} sched={'tile_m=64,tile_n=16,warps=4,stages=3','tile_m=64,tile_n=16,warps=4,stages=2,q_registers=1'}"},
    {false, "walks, bounds that rows read", SM80W "lq={5,70} lk={515,1100} mask={'doc2[b, q] * 8 <= k and k <= q','q - doc[q] <= k and k < q + doc2[b, q]'} sched={'tile_m=64,tile_n=16,warps=4,stages=3','tile_m=64,tile_n=16,warps=4,stages=2,q_registers=1'}"},
    {false, "walks, boxes", SM80W "lq={5,70} lk={515,1100} mask={'(q - k) % 3 == 1 and abs(q - k) <= w','(q * 7 + k * 3) % 5 != 0','abs(q % 24 - k % 24) <= 3 and abs(q // 24 - k // 24) <= 2'} sched={'tile_m=64,tile_n=16,warps=4,stages=3','tile_m=64,tile_n=16,warps=4,stages=2,q_registers=1'}"},
    {true, "walks, a map", SM80W "lq={5,70} lk={515,1100} mask={'same(doc)','causal and doc2[b, q] == doc2[b, k]','keep[b, k] and causal','blocks[h, i // 16, k // 16]','where(keep[b, q], keep[b, k], hk == 0) or q == k'} sched={'tile_m=64,tile_n=16,warps=4,stages=3','tile_m=64,tile_n=16,warps=4,stages=2,q_registers=1'}"},
    {false, "walks, a map of all pairs", SM80W "lq={5,70} lk={515,1100} mask={'bit(q, 2) + bit(k, 4) < 2','bit(doc[q], k % 3) == 1 or h == 1'} sched={'tile_m=64,tile_n=16,warps=4,stages=3','tile_m=64,tile_n=16,warps=4,stages=2,q_registers=1'}"},
    {false, "walks, beyond 32 words", SM80W "lq=3 lk={16384,33100} mask={'causal and (q - k < 9000 or k < 4)','(q - k) % 3 == 1 and abs(q - k) <= 20000','keep[b, k]'} sched='tile_m=64,tile_n=16,warps=4,stages=2'"},
    {false, "walks, several intervals", SM90W "lq={5,70} lk={515,1100} mask={'causal and (q - k < 40 or k < 4)','k < 20 or k > 400 or q == k','causal and not (k >= 100 and k < 300)','causal and (q - k < head_w[h] or k < 3)'} {sched='warpgroups=1,tile_n=16,order=0,pack=1',sched='warpgroups=2,tile_n=16,scheduler=1,l2_mib=0,pack=0',sched='warpgroups=2,tile_n=32,order=1,q_buffers=1,o_buffer=0,pack=1',sched='warpgroups=2,tile_n=16,order=1,carry=1,q_buffers=2,o_buffer=1,pack=0'}"},
    {false, "walks, bounds that rows read", SM90W "lq={5,70} lk={515,1100} mask={'doc2[b, q] * 8 <= k and k <= q','q - doc[q] <= k and k < q + doc2[b, q]'} {sched='warpgroups=1,tile_n=16,order=0,pack=1',sched='warpgroups=2,tile_n=16,scheduler=1,l2_mib=0,pack=0',sched='warpgroups=2,tile_n=32,order=1,q_buffers=1,o_buffer=0,pack=1',sched='warpgroups=2,tile_n=16,order=1,carry=1,q_buffers=2,o_buffer=1,pack=0'}"},
    {false, "walks, boxes", SM90W "lq={5,70} lk={515,1100} mask={'(q - k) % 3 == 1 and abs(q - k) <= w','(q * 7 + k * 3) % 5 != 0','abs(q % 24 - k % 24) <= 3 and abs(q // 24 - k // 24) <= 2'} {sched='warpgroups=1,tile_n=16,order=0,pack=1',sched='warpgroups=2,tile_n=16,scheduler=1,l2_mib=0,pack=0',sched='warpgroups=2,tile_n=32,order=1,q_buffers=1,o_buffer=0,pack=1',sched='warpgroups=2,tile_n=16,order=1,carry=1,q_buffers=2,o_buffer=1,pack=0'}"},
    {false, "walks, a map", SM90W "lq={5,70} lk={515,1100} mask={'same(doc)','causal and doc2[b, q] == doc2[b, k]','keep[b, k] and causal','blocks[h, i // 16, k // 16]','where(keep[b, q], keep[b, k], hk == 0) or q == k'} {sched='warpgroups=1,tile_n=16,order=0,pack=1',sched='warpgroups=2,tile_n=16,scheduler=1,l2_mib=0,pack=0',sched='warpgroups=2,tile_n=32,order=1,q_buffers=1,o_buffer=0,pack=1',sched='warpgroups=2,tile_n=16,order=1,carry=1,q_buffers=2,o_buffer=1,pack=0'}"},
    {false, "walks, a map of all pairs", SM90W "lq={5,70} lk={515,1100} mask={'bit(q, 2) + bit(k, 4) < 2','bit(doc[q], k % 3) == 1 or h == 1'} {sched='warpgroups=1,tile_n=16,order=0,pack=1',sched='warpgroups=2,tile_n=16,scheduler=1,l2_mib=0,pack=0',sched='warpgroups=2,tile_n=32,order=1,q_buffers=1,o_buffer=0,pack=1',sched='warpgroups=2,tile_n=16,order=1,carry=1,q_buffers=2,o_buffer=1,pack=0'}"},
    {false, "walks, beyond 32 words", SM90W "lq=3 lk={16384,33100} mask={'causal and (q - k < 9000 or k < 4)','(q - k) % 3 == 1 and abs(q - k) <= 20000','keep[b, k]'} sched='warpgroups=1,tile_n=16,order=0'"},
};

/* Tiles of rows in a planned order: what counts them, who shares a plan, pack, rows of nothing, more residues than
 * queries. That the plan is the right one is tests/python/test_order.py's. For sm_90a. */
#define PLAN90 "family=attention_forward_sm90 dim=16 hq=6 hk=2 b=2 "
#define PLAN90_SCHED "{sched='warpgroups=1,tile_n=16,order=0,pack=1,scheduler=3,l2_mib=4',sched='warpgroups=2,tile_n=32,pack=0,scheduler=3,l2_mib=4'}"
static const row plans_rows[] = {
    {false, "planned order", PLAN90 "{lq=1 lk=1,lq=330 lk=330,lq=260 lk=97} mask={'causal and k // 100 == q // 100','causal and (q - k < 40 or k < 4)','causal and (q - k < head_w[h] or k < 3)','q - doc[q] <= k and k < q + doc2[b, q]','(q - k) % 3 == 1 and abs(q - k) <= w','causal and doc2[b, q] == doc2[b, k]','where(keep[b, q], keep[b, k], hk == 0) or q == k','k > q + 1000'} " PLAN90_SCHED},
    {false, "planned order, residues", PLAN90 "{lq=2 lk=9,lq=400 lk=410} mask={'window(80, 0) and (q - k) % 3 == 0','causal and q - k < 4 + 3 * h and (q - k) % gap3 == 0','abs(q - k) <= w and (q - k) % gap_wide == 0'} align={bottom_right,top_left} sched='warpgroups=1,tile_n=32,order=0,pack=0,scheduler=3,l2_mib=4'"},
};

/* Masks that keep residues apart: lengths about multiples of the dilation, on either side of a tile; both corners;
 * groups; dilations that are constants, parameters, 0, negative, wider than everything; a rest of every form; tensors
 * that end with their allocation, or with NaN in what follows. */
#define LENGTHS "{lq=1 lk=1,lq=1 lk=66,lq=5 lk=3,lq=23 lk=24,lq=24 lk=25,lq=25 lk=23,lq=70 lk=131,lq=131 lk=70,lq=200 lk=200}"
static const row residue_rows[] = {
    {false, "dilated causal windows", "dim=16 hq=4 hk=2 b=2 " LENGTHS " mask={'causal and q - k <= 20 and (q - k) % 2 == 0','causal and q - k <= 20 and (q - k) % 3 == 0','causal and q - k <= 20 and (q - k) % 4 == 0'} align={bottom_right,top_left}"},
    {false, "dilation as a parameter", "dim=24 hq=2 b=2 " LENGTHS " mask={'causal and q - k <= 20 and (q - k) % gap3 == 0','window(9, 9) and q % gap0 == k % gap0','causal and (k - q) % gap_back == 0','abs(q - k) <= w and (q - k) % gap_wide == 0'} sink=mixed outputs=all"},
    {false, "keys past the end", "dim=32 hq=2 hk=1 b=2 {lq=9 lk=13,lq=40 lk=65,lq=7 lk=127} mask='window(40, 3) and (q - k) % 4 == 0' {guard=none,k=cache v=cache guard=nan,k=cache v=cache guard=big,q=padded k=padded v=padded o=padded,k=bhtd v=bhtd q=bhtd o=bhtd}"},
    {false, "nothing but a dilation", "dim=64 hq=2 {lq=33 lk=65,lq=1 lk=257} mask='(q - k) % 3 == 0' sink={none,normal}"},
    {false, "other forms of the rest", "dim=16 hq=4 hk=2 b=2 {lq=37 lk=70,lq=150 lk=150} mask={'(k < 8 or window(20, 0)) and (q - k) % 3 == 0','causal and (q - k) % 4 == 0 and (q - k) % 6 != 0','keep[b, k] and (q - k) % 2 == 0','causal and q - k < 4 + 3 * h and (q - k) % 3 == 0','k < len_k - 7 and (q - k) % 3 == 0','k // 16 <= q // 16 and (q - k) % 4 == 0','k // 5 <= q // 5 and (q - k) % gap3 == 0','false and (q - k) % 2 == 0'} align={bottom_right,top_left}"},
    {false, "scores know positions", "dim=16 hq=2 b=2 {lq=37 lk=70,lq=70 lk=37} mask='causal and (q - k) % 3 == 0' {score='s + slope[h] * (k - q)',score='s + bias[h, i, k]',score='s + 0.01 * (q - len_k + 3 * i)' softcap=5} align={bottom_right,top_left}"},
    {false, "tensors that are not aligned", "dim=16 hq=2 b=2 {lq=25 lk=26,lq=70 lk=131} mask={'causal and q - k <= 20 and (q - k) % 3 == 0','causal and (q - k) % gap3 == 0'} {k=pitch1,v=inner2,q=base1,o=pitch1}"},
    {false, "schedules", "dim={16,40} hq=4 hk=2 b=2 lq=130 lk=257 mask='causal and q - k <= 90 and (q - k) % 3 == 0' check=schedules"},
    {false, "invisible keys", "dim=16 hq=2 b=2 lq=37 lk=70 mask={'causal and (q - k) % 3 == 0','window(20, 0) and (q - k) % gap3 == 0'} align={bottom_right,top_left} check=invisible"},
    {true, "dilated causal windows", "dim=16 hq=4 hk=2 b=2 {lq=24 lk=25,lq=70 lk=131} mask='causal and q - k <= 20 and (q - k) % gap3 == 0'"},
    {true, "dilated causal windows", "dim=16 hq=2 {lq=23 lk=24,lq=131 lk=70} mask='window(20, 3) and (q - k) % 4 == 0' align=top_left"},
};

/* The same by tensor maps: every way through shared memory, every order of works. For sm_90a. */
#define RESIDUE90 "family=attention_forward_sm90 dim=40 hq=4 hk=2 b=2 "
static const row residue90_rows[] = {
    {false, "residues by tensor maps", RESIDUE90 "{lq=131 lk=131,lq=150 lk=401} mask='window(80, 0) and (q - k) % 3 == 0' {sched='warpgroups=1,tile_n=16,order=0,pack=0,scheduler=0,q_buffers=1,carry=0',sched='warpgroups=2,tile_n=32,pack=0,scheduler=1,carry=1',sched='warpgroups=1,tile_n=32,order=0,pack=0,scheduler=2,l2_mib=4,q_registers=1',sched='warpgroups=2,tile_n=32,pack=0,q_buffers=1,o_buffer=0,carry=0',sched='warpgroups=2,tile_n=32,pack=0,p_shared=1,overlap=2,carry=0'}"},
    {false, "residues by tensor maps, clusters", RESIDUE90 "{lq=131 lk=131,lq=300 lk=401} mask={'causal and (q - k) % 3 == 0','window(80, 0) and (q - k) % gap3 == 0'} {sched='warpgroups=1,tile_n=32,order=0,pack=0,cluster=2,scheduler=1',sched='warpgroups=1,tile_n=32,order=0,pack=0,cluster=2,scheduler=2,l2_mib=4'}"},
    {false, "residues, O from the registers", RESIDUE90 "lq=70 lk=131 {out=f32,out=same} mask='causal and (q - k) % gap3 == 0' sched='warpgroups=1,tile_n=32,order=0,pack=0,store=0,o_buffer=0,carry=0'"},
    {false, "residues have no packed groups", RESIDUE90 "lq=17 lk=17 mask='causal and (q - k) % 3 == 0' sched='warpgroups=1,tile_n=32,pack=1' expect=refusal"},
};

/* Sizes only a GPU can do. */
static const row large_rows[] = {
    {false, "long sequences", "dim={64,128} hq=16 hk={16,4} b=4 lq=4096 lk=4096 {,mask='causal',mask='window(1024, 0)'} check={sampled,families}"},
    {false, "long sequences", "dim={192,256} hq=8 hk=2 lq=2048 lk=4100 mask='causal' check={sampled,families}"},
    {false, "one query, a long cache", "dim=128 hq=32 hk=8 b=16 lq=1 lk=16384 check={sampled,families}"},
    {false, "wide windows in long sequences", "dim=64 hq=2 lq=16384 lk=16384 mask='causal' check=wide_window"},
    {false, "batch entries over 2^31 elements apart", "dim=64 hq=2 b=2 lq=65 lk=97 {q=far,k=far,v=far,o=far}"},
    {false, "more than 65535 batch entries", "dim=64 hq=8 hk=8 b=65536 lq=4 lk=4 check=sampled"},
    {false, "more than 65535 heads", "dim=128 hq=71280 hk=71280 lq=3 lk=3 check=sampled"},
    {false, "more than 2^30 elements", "dim=72 hq=729 hk=729 b=1600 lq=16 lk=16 check=sampled"},
};

/* Planted faults that the reference check must notice; run on the reference itself, without a device. */
static const row sensitivity_rows[] = {
    {true, "no fault", "dim=32 hq=4 hk=2 b=2 lq=33 lk=257 mask='causal'"},
    {true, "the last key is lost", "dim={32,128} hq=4 hk=2 b=2 lq=33 lk={17,130,257} {,mask='causal',mask='window(16, 0)'} dtype={bf16,f16} fault=last_key"},
    {true, "the last two rows of V change places", "dim={32,128} hq=4 hk=2 lq={1,33} lk={17,64,130} {,mask='causal'} dtype=f16 fault=value_rows"},
    {true, "the last two rows of V change places", "dim={32,128} hq=4 hk=2 lq={1,33} lk={17,64,130} mask={'causal','window(16, 0)'} fault=value_rows"},
    {true, "heads are paired wrongly", "dim=32 hq=6 hk=2 lq=5 lk=257 dtype={bf16,f16} fault=heads"},
    {true, "a window is off by one", "dim=64 hq=2 lq=33 lk={33,257} mask={'causal','window(3, 0)','window(16, 0)','causal and q - k < 200'} fault=mask"},
    {true, "the wrong corner", "dim=64 hq=2 {lq=33 lk=34,lq=34 lk=33,lq=200 lk=257} mask='causal' fault=align"},
    {true, "a score is slightly off", "dim=64 hq=2 lq=33 lk=257 {,score='s + slope[h] * (k - q)'} fault=score"},
    {true, "another cap", "dim=64 hq=2 lq=33 lk=257 softcap=5 fault=softcap"},
    {true, "scales are ignored", "dim=64 hq=4 hk=2 lq=9 lk=33 kv_scale={per_head,per_tensor} outputs=o fault=scales"},
    {true, "the sink is ignored", "dim=64 hq=2 lq=9 {lk=33 sink=normal,lk=33 sink=plus4,lk=2 sink=minus4} outputs=o fault=sink"},
    {true, "an element is not written", "dim=64 hq=2 lq=33 lk=33 o={bthd,mixed} fault=unwritten"},
    {true, "a byte behind the output is written", "dim=64 hq=2 lq=33 lk=33 o={bthd,mixed} fault=guard"},
};

/* Kernels whose parts run beside each other, so small that the emulator can try many orders: a few tiles of rows to a
 * block, a few of keys to a tile. For sm_90a. */
#define SM90 "family=attention_forward_sm90 hq=3 lk=70 "
static const row orders_rows[] = {
    {false, "a fixed share of the tiles", SM90 "dim=16 lq=140 mask='causal' sched='warpgroups=2,tile_n=32,stages=2,order=1,rescale=0,q_buffers=1,o_buffer=1,store=1,scheduler=1'"},
    {false, "the next tile by ticket", SM90 "dim=32 lq=200 mask='causal' sched='warpgroups=2,tile_n=32,stages=3,order=1,rescale=1,q_buffers=2,o_buffer=1,store=1,scheduler=2'"},
    {false, "O leaves through Q's place", SM90 "dim=40 lq=200 mask='window(20, 5)' sched='warpgroups=2,tile_n=32,stages=2,order=0,rescale=0,q_buffers=1,o_buffer=0,store=1,scheduler=2'"},
    {false, "O leaves through one of two Qs", SM90 "dim=72 lq=200 softcap=5 sched='warpgroups=3,tile_n=48,stages=1,order=1,rescale=0,q_buffers=2,o_buffer=0,store=1,scheduler=1'"},
    {false, "O leaves from the registers", SM90 "dim=24 dimv=48 lq=100 mask='k // 16 <= q // 16' sched='warpgroups=1,tile_n=16,stages=4,order=0,rescale=1,q_buffers=1,o_buffer=0,store=0,scheduler=0'"},
    {false, "the next tile's scores beside this one's output", SM90 "dim=32 lq=230 mask='causal' sched='warpgroups=2,tile_n=16,stages=4,order=1,rescale=0,q_buffers=2,carry=1,o_buffer=1,store=1,scheduler=2'"},
    {false, "the longest tile by ticket", SM90 "dim=16 lq=300 mask='causal and k // 50 == q // 50' sched='warpgroups=2,tile_n=32,stages=2,order=1,q_buffers=2,o_buffer=1,store=1,scheduler=3,l2_mib=4'"},
    {false, "tiles without a key", SM90 "dim=16 lq=300 mask='causal and k >= 60' sched='warpgroups=1,tile_n=16,stages=2,order=0,rescale=1,q_buffers=2,o_buffer=1,store=1,scheduler=2'"},
    {false, "tiles that a producer tells, to warpgroups in turn", SM90 "dim=16 lq=230 mask='causal and (q - k < 20 or k < 4)' sched='warpgroups=2,tile_n=16,stages=2,order=1,rescale=0,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=2'"},
    {false, "tiles that a producer tells, one at a time", SM90 "dim=16 lq=230 mask='(q - k) % 3 == 1 and abs(q - k) <= w' sched='warpgroups=3,tile_n=16,stages=1,order=0,rescale=1,q_buffers=2,carry=0,o_buffer=0,store=1,scheduler=1'"},
    {false, "tiles that a producer tells, with parts of the mask", SM90 "dim=16 lq=200 mask='keep[b, k] and causal' sched='warpgroups=2,tile_n=16,stages=3,order=1,rescale=0,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=0'"},
    {false, "told tiles, the next work's scores beside this one's output", SM90 "dim=16 lq=300 mask='q // 64 % 2 == 0 and causal and (q - k < 40 or k < 4)' align=top_left {sched='warpgroups=1,tile_n=16,stages=2,order=0,rescale=1,q_buffers=2,carry=1,o_buffer=1,store=1,scheduler=1',sched='warpgroups=2,tile_n=16,stages=2,order=0,rescale=1,q_buffers=2,carry=1,o_buffer=1,store=1,scheduler=2'}"},
    {false, "told tiles, the next work's scores beside this one's output", SM90 "dim=16 lq=230 mask='doc2[b, q] == doc2[b, k]' sched='warpgroups=2,tile_n=16,stages=2,order=1,rescale=0,q_buffers=1,q_registers=1,carry=1,o_buffer=1,store=1,scheduler=2'"},
    {false, "told tiles, softmax waits or all are alone", SM90 "dim=16 lq=230 mask='causal and (q - k < 20 or k < 4)' {sched='warpgroups=2,tile_n=64,stages=2,order=1,overlap=0,rescale=0,q_buffers=2,p_shared=1,carry=0,o_buffer=0,store=0,scheduler=2',sched='warpgroups=2,tile_n=64,stages=2,order=1,overlap=2,rescale=0,q_buffers=2,p_shared=1,carry=0,o_buffer=0,store=0,scheduler=2',sched='warpgroups=2,tile_n=64,stages=2,order=1,overlap=2,rescale=0,q_buffers=2,p_shared=1,carry=1,o_buffer=0,store=0,scheduler=2'}"},
    {false, "packed sequences, tickets found among them", SM90 "dim=16 lq=150 seq=ragged b=7 mask='causal' sched='warpgroups=2,tile_n=32,stages=2,order=1,q_buffers=2,o_buffer=1,store=1,scheduler=2'"},
    {false, "packed sequences, fixed shares", SM90 "dim=16 lq=150 seq=ragged_padded b=5 mask='causal' sched='warpgroups=1,tile_n=32,stages=1,q_buffers=1,o_buffer=0,store=1,scheduler=1'"},
    {false, "pages, several boxes to a tile", SM90 "dim=16 lq=80 seq=ragged_paged page=8 b=7 mask='causal' sched='warpgroups=2,tile_n=32,stages=2,order=0,q_buffers=2,carry=1,o_buffer=1,store=1,scheduler=2,pack=1'"},
    {false, "pages, told tiles", SM90 "dim=16 lq=80 seq=ragged_paged page=16 b=7 mask='keep[b, k] and (q - k < 20 or k < 4)' sched='warpgroups=2,tile_n=32,stages=2,order=1,q_buffers=1,carry=0,o_buffer=1,store=1,scheduler=2'"},
    {false, "what a call leaves in its workspace", SM90 "dim=16 b=2 lq=300 mask='causal' sched={'warpgroups=1,tile_n=32,stages=2,order=0,q_buffers=2,scheduler=2','warpgroups=1,tile_n=32,stages=2,order=0,q_buffers=2,scheduler=2,cluster=2'} check=repeat"},
    {false, "what a call leaves in its workspace", SM90 "dim=16 b=2 lq=300 mask='causal and (q - k < 20 or k < 4)' sched='warpgroups=1,tile_n=16,stages=2,order=0,scheduler=2' check=repeat"},
    {false, "what a call leaves in its workspace", SM90 "dim=16 lq=300 mask='causal and k // 50 == q // 50' sched='warpgroups=2,tile_n=32,stages=2,order=1,q_buffers=2,scheduler=3,l2_mib=4' check=repeat"},
};

// clang-format on
static void add_rows(const row *rows, size_t count, bool quick_only, case_list *out) {
  for (size_t n = 0; n < count; n++)
    if (!quick_only || rows[n].quick)
      case_list_expand(out, rows[n].title, rows[n].pattern);
}
#define ADD(table, quick_only) add_rows(table, sizeof table / sizeof table[0], quick_only, out)

const char *const set_names = "quick grid invariance hard large orders packed walks plans residues residues90 sequences sequences90 decode "
                              "decode90 sensitivity full";

/* Sequences of lengths of their own: every layout, page size, order and table; lengths 0, 1, few, more than a tile; what
 * masks, scores, sinks and LSE read of a sequence; tensors that are not aligned. check=sequences: alone, padded, in other
 * pages, behind other poison, bit for bit. */
#define PAGES "{seq=paged,seq=ragged_paged}"
#define FUSED "family=attention_forward_sm80 "
#define SHORT FUSED "dim=16 hq=4 hk=2 b=7 lq=70 lk=131 sched='tile_m=64,tile_n=32,warps=4,stages=2' "
static const row sequence_rows[] = {
    {false, "packed and padded", SHORT "seq={padded,ragged,ragged_padded} mask='causal' check=sequences"},
    {false, "pages", SHORT PAGES " {page=1,page=3 order=hnd table=csr,page=16 order=hnd,page=64 table=csr,page=256} mask='causal' check=sequences"},
    {false, "pages", SHORT PAGES " page=17 order={nhd,hnd} table={rows,csr} mask='window(40, 3)' check=sequences"},
    {false, "pages, several tiles in one and several in a tile", FUSED "dim={64,72} dimv=64 hq=2 hk=1 b=5 lq=40 lk=300 sched='tile_m=64,tile_n=64,warps=4,stages=2' seq=ragged_paged {page=8,page=16,page=24,page=32,page=128} order=hnd mask='causal' check=sequences"},
    {false, "default schedules", FUSED "{dim=64 seq=ragged mask='causal',dim=64 seq=ragged_paged page=16 table=csr mask='true' dtype=f16,dim=128 seq=padded mask='causal'} hq=2 hk=1 b=5 lq=140 lk=150"},
    {false, "one stage more, query fragments in registers", FUSED "dim=32 hq=2 b=7 lq=70 lk=131 sched='tile_m=64,tile_n=16,warps=4,stages=3,q_registers=1' {seq=ragged,seq=ragged_paged page=16} mask={'window(20, 0)','k < 4 or window(20, 0)'} check=sequences"},
    {false, "tensors that are not aligned", SHORT "{seq=ragged,seq=ragged_paged page=3 order=hnd,seq=paged page=16 table=csr,seq=padded} {k=pitch1,v=inner2,q=base1,o=pitch1,k=reversed v=bhtd} mask='causal' check=reference"},
    {false, "layouts", SHORT "{seq=ragged,seq=ragged_paged page=16,seq=padded} {q=padded o=padded,q=bhtd o=bhtd,k=heads0 v=heads0,v=mixed k=rows2} mask='causal' check=reference"},
    {false, "masks know a sequence's lengths", SHORT "{seq=ragged,seq=ragged_paged page=3 table=csr} mask={'k < len_k - 7','i >= len_q // 2 or k == 0'} check=sequences"},
    {false, "masks know a sequence's lengths", SHORT "{seq=padded,seq=ragged,seq=paged page=16 table=csr} mask={'k < len_k - 7','causal and q - k < head_w[h]','k // 16 <= q // 16','causal and not (k >= 20 and k < 90)','false'} align={bottom_right,top_left} check=sequences"},
    {false, "masks by residue, and boxes", SHORT "{seq=padded,seq=ragged,seq=ragged_paged page=16} mask={'causal and (q - k) % 3 == 0','(q - k) % gap3 == 0','window(40, 3) and (q - k) % 4 == 0','(q * 7 + k * 3) % 5 != 0'} align={bottom_right,top_left}"},
    {false, "masks that would take a map", SHORT "{seq=ragged,seq=ragged_paged page=16} mask={'causal and doc2[b, q] == doc2[b, k]','keep[b, k]'}"},
    {false, "masks that would take a map", SHORT "{seq=padded,seq=ragged,seq=ragged_paged page=16} mask={'same(doc)','causal and doc2[b, q] == doc2[b, k]','keep[b, k] and causal','blocks[h, i // 16, k // 16]','doc2[b, q] * 8 <= k and k <= q','bit(q, 2) + bit(k, 4) < 2'}"},
    {false, "scores know positions", SHORT "{seq=ragged,seq=ragged_paged page=16 order=hnd} score='s + slope[h] * (k - q)' softcap=5 sink=mixed outputs=all check=sequences"},
    {false, "scores know positions", SHORT "{seq=padded,seq=ragged,seq=ragged_paged page=17 table=csr} {score='s + slope[h] * (k - q)',score='s + 0.01 * (q - len_k + 3 * i + len_q)'} sink=mixed outputs=all align={bottom_right,top_left} check=sequences"},
    {false, "scores by batch entry and row", SHORT "{seq=padded,seq=ragged,seq=ragged_paged page=16} score={'s + bias[h, i, k]','s + key_bias[h, k] * (b + 1)'} mask='causal' sink=normal outputs=all"},
    {false, "batch mates", FUSED "dim=16 hq=2 b=7 lq=70 lk=131 {seq=padded,seq=ragged,seq=ragged_paged page=16,seq=paged page=3 table=csr order=hnd} mask='causal' check=batch_mates"},
    {false, "rows that see no key", SHORT "{seq=ragged,seq=ragged_paged page=16 table=csr} lk=40 lq=131 mask='causal' sink=normal outputs=all check=sequences"},
    {false, "all at their maxima", SHORT "lens=full {seq=padded,seq=ragged,seq=ragged_padded,seq=ragged_paged page=16,seq=paged page=64 table=csr} mask='causal' check=sequences"},
    {false, "decode steps", FUSED "dim=64 hq=4 hk=1 b=9 lq=1 lk=100 sched='tile_m=64,tile_n=32,warps=4,stages=2' {seq=padded mask='true',seq=paged page=16 mask='window(60, 0)',seq=ragged_paged page=64 order=hnd table=csr mask='true'} check=sequences"},
    {false, "nothing", "dim=16 {lq=0 lk=5,lq=5 lk=0,lq=0 lk=0} b=3 {seq=padded,seq=ragged,seq=ragged_padded,seq=paged,seq=ragged_paged table=csr} sink=normal outputs=all"},
    {false, "no sequence", "dim=16 lq=5 lk=5 b=0 {seq=padded,seq=ragged,seq=ragged_padded,seq=paged,seq=ragged_paged table=csr}"},
    {false, "the textbook family", "family=attention_naive dim=16 hq=4 hk=2 b=7 lq=20 lk=70 {seq=ragged,seq=ragged_paged page=3 order=hnd table=csr} mask='causal' sink=mixed outputs=all check=sequences"},
    {false, "the textbook family", "family=attention_naive dim={16,72} hq=2 b=7 lq=17 lk=70 {seq=padded,seq=ragged,seq=ragged_padded,seq=paged page=16 table=csr,seq=ragged_paged page=1 order=hnd} {mask='causal' dtype=f32,mask='causal and doc2[b, q] == doc2[b, k]' score='s + slope[h] * (k - q)' softcap=5 dtype=f16 out=f32} sink=mixed outputs=all"},
    {false, "f32, many queries of which only the textbook family can do", "family=attention_naive dim=16 hq=2 b=7 lq=20 lk=70 dtype=f32 {seq=ragged,seq=ragged_paged page=16 order=hnd} mask='causal' check=sequences"},
};

/* The same by tensor maps: boxes that end where a sequence does, a tile of keys in one page and in several; O by tensor
 * stores and from the registers; every order of work. A box's page has 8 keys at least; of others, keys come row by row. */
#define MAPPED "family=attention_forward_sm90 "
#define SHORT90 MAPPED "dim=16 hq=4 hk=2 b=7 lq=70 lk=131 "
#define WORKS "{sched='warpgroups=1,tile_n=32,pack=0,scheduler=0,q_buffers=1',sched='warpgroups=1,tile_n=32,pack=1,scheduler=1',sched='warpgroups=2,tile_n=32,pack=0,scheduler=2,l2_mib=0',sched='warpgroups=1,tile_n=32,pack=1,scheduler=2,l2_mib=16'} "
#define TILE_32 "sched='warpgroups=1,tile_n=32' "
#define ROWS32 "sched='warpgroups=1,tile_n=32,loaders=4,copies=1' "
static const row sequence90_rows[] = {
    {false, "packed and padded", SHORT90 WORKS "seq={padded,ragged,ragged_padded} mask='causal' check=sequences"},
    {false, "pages, every order of work", SHORT90 WORKS PAGES " page=16 order=hnd mask='causal' check=sequences"},
    {false, "pages", SHORT90 TILE_32 PAGES " {page=8,page=24 order=hnd table=csr,page=64 table=csr,page=256 order=hnd} mask='window(40, 3)' check=sequences"},
    {false, "pages, several tiles in one and several in a tile", MAPPED "{dim=64 sched='warpgroups=1,tile_n=64',dim=72 sched='warpgroups=1,tile_n=48'} dimv=64 hq=2 hk=1 b=5 lq=40 lk=300 seq=ragged_paged {page=8,page=16,page=24,page=32,page=128} order=hnd mask='causal' check=sequences"},
    {false, "as many boxes as lanes, and one", MAPPED "dim=8 hq=2 hk=2 b=5 lq=20 lk=600 sched='warpgroups=1,tile_n=256' seq=ragged_paged {page=8,page=256} mask='true' check=sequences"},
    {false, "warps that share the boxes of a tile", SHORT90 "{seq=ragged_paged page=8,seq=ragged_paged page=24 order=hnd table=csr} mask={'causal','window(40, 3)','true'} {sched='warpgroups=1,tile_n=32,loaders=2',sched='warpgroups=2,tile_n=64,pack=0,scheduler=0,q_buffers=1,loaders=4',sched='warpgroups=1,tile_n=48,pack=1,scheduler=1,stages=3,loaders=4'} check=reference"},
    {false, "no boxes to share", SHORT90 "{seq=ragged_paged page=32 sched='warpgroups=1,tile_n=32,loaders=4',seq=ragged sched='warpgroups=1,tile_n=32,loaders=4',seq=dense sched='warpgroups=1,tile_n=32,loaders=2',seq=ragged mask='k < 4 or window(20, 0)' sched='warpgroups=1,tile_n=32,loaders=2'} expect=refusal"},
    {false, "rows that do not come so", SHORT90 "{seq=ragged_paged page=1 sched='warpgroups=1,tile_n=32,copies=0',seq=ragged_paged page=20 table=csr sched='copies=0',seq=ragged sched='warpgroups=1,tile_n=32,loaders=4,copies=1',seq=ragged_paged page=1 sched='warpgroups=1,tile_n=144',seq=ragged_paged page=1 sched='warpgroups=1,tile_n=32,stages=1',seq=ragged_paged page=1 sched='warpgroups=1,tile_n=32,loaders=2'} mask='causal' expect=refusal"},
    {false, "rows, every order of work", SHORT90 WORKS PAGES " page=3 order=hnd mask='causal' check=sequences"},
    {false, "rows, pages of any size", SHORT90 TILE_32 PAGES " {page=1,page=4 order=hnd table=csr,page=5 table=csr,page=17} mask='window(40, 3)' check=sequences"},
    {false, "rows, pages of whole boxes", SHORT90 ROWS32 PAGES " {page=8,page=16 order=hnd,page=64 table=csr} {mask='causal',mask='window(40, 3)' dtype=f16} check={reference,batch_mates}"},
    {false, "rows, every width of a panel and of a tile", MAPPED "hq=2 hk=1 b=5 lq=40 lk=300 seq=ragged_paged page=3 {dim=64 sched='warpgroups=1,tile_n=64',dim=72 dimv=40 sched='warpgroups=2,tile_n=48',dim=96 dimv=32 sched='warpgroups=1,tile_n=112',dim=32 dimv=104 sched='warpgroups=1,tile_n=16',dim=8 sched='warpgroups=1,tile_n=128',dim=160 dimv=224 sched='warpgroups=1,tile_n=16'} mask='causal' dtype=f16 check=sequences"},
    {false, "rows, default schedules", MAPPED "{dim=64 dtype=f16,dim=64 lq=1100,dim=128,dim=192 dimv=128 dtype=f16,dim=256} page=1 hq=2 hk=1 b=3 lq=140 lk=270 seq=ragged_paged mask='causal'"},
    {false, "rows, packed groups and not", MAPPED "dim=64 {hq=8 hk=2,hq=14 hk=2,hq=16 hk=1} b=7 lq=50 lk=131 seq=ragged_paged page=1 mask='causal' {sched='warpgroups=2,tile_n=32,pack=0',sched='warpgroups=2,tile_n=32,pack=1'} check=sequences"},
    {false, "rows, any ring", SHORT90 "seq={paged,ragged_paged} page=1 mask='causal' {sched='warpgroups=2,tile_n=32,stages=2,order=1,carry=1,q_buffers=2,o_buffer=1',sched='warpgroups=1,tile_n=32,stages=3,overlap=0,q_buffers=1',sched='warpgroups=2,tile_n=32,q_registers=1,p_shared=1,overlap=2',sched='warpgroups=1,tile_n=16,stages=4,carry=1,q_buffers=2',sched='warpgroups=2,tile_n=32,stages=4,o_buffer=0,q_buffers=1,scheduler=0',sched='warpgroups=2,tile_n=16,stages=2,o_buffer=0,q_buffers=1'} check=sequences"},
    {false, "rows, walks", SHORT90 "seq=ragged_paged {page=1 sched='warpgroups=1,tile_n=16,pack=0',page=5 table=csr sched='warpgroups=1,tile_n=32,pack=1,stages=3',page=3 order=hnd sched='warpgroups=2,tile_n=16,scheduler=1,carry=1'} mask={'k < 4 or window(20, 0)','(q * 7 + k * 3) % 5 != 0','causal and not (k >= 20 and k < 90)','abs(q - k) <= 6 or hk == 1'} check=sequences"},
    {false, "rows, walks with parts of the mask beside K", SHORT90 "seq=ragged_paged {page=1 sched='warpgroups=1,tile_n=16,pack=0',page=5 table=csr sched='warpgroups=2,tile_n=32,pack=1,stages=3'} mask={'keep[b, k] and (q - k < 20 or k < 4)','same(doc)','keep[b, k] and doc2[b, q] == doc2[b, k]'}"},
    {false, "rows, tiles without a key", SHORT90 "seq=ragged_paged page=1 mask={'causal and k >= 60','false','k < len_k - 7','k > q + 30 or k < q - 90'} {sched='warpgroups=1,tile_n=16,stages=2,q_buffers=1',sched='warpgroups=2,tile_n=32,stages=4,o_buffer=0,q_buffers=1'} check=sequences"},
    {false, "rows, layouts and batch mates", SHORT90 TILE_32 "seq={paged,ragged_paged} page=3 {k=heads0 v=heads0,v=mixed k=rows2,q=padded o=padded} mask='causal' check={reference,batch_mates}"},
    {false, "rows, all at their maxima", SHORT90 TILE_32 "lens=full {seq=paged page=1,seq=ragged_paged page=5 table=csr} mask='causal' check=sequences"},
    {false, "rows, few queries, no queries, no keys", MAPPED "dim=64 hq=4 hk=1 b=9 {lq=1 lk=100,lq=0 lk=5,lq=5 lk=0} sched='warpgroups=1,tile_n=32' {seq=paged,seq=ragged_paged order=hnd table=csr} page=1 mask='true' sink=normal outputs=all"},
    {false, "default schedules", MAPPED "{dim=64 seq=ragged mask='causal',dim=64 seq=ragged_paged page=16 table=csr mask='true' dtype=f16,dim=128 seq=padded mask='causal',dim=128 seq=ragged_paged page=32 mask='causal',dim=256 seq=ragged_paged page=16 order=hnd mask='window(100, 0)'} hq=2 hk=1 b=5 lq=140 lk=150"},
    {false, "packed groups", MAPPED "dim=16 {hq=8 hk=2,hq=16 hk=1,hq=14 hk=2,hq=32 hk=1,hq=71 hk=1} b=7 lq=50 lk=131 seq={ragged,ragged_paged} mask='causal' sched='warpgroups=2,tile_n=32,pack=1' check=sequences"},
    {false, "O from the registers", SHORT90 "seq={padded,ragged,ragged_paged} {out=same,out=f32} mask='causal' outputs=all sink=mixed sched='warpgroups=1,tile_n=32,pack=0,store=0,o_buffer=0' check=reference"},
    {false, "O from the registers", SHORT90 "seq={ragged,ragged_paged} mask='causal' outputs=all sink=mixed sched='warpgroups=1,tile_n=32,pack=1,store=0,o_buffer=0' check=sequences"},
    {false, "O through Q's place", SHORT90 "seq={ragged,ragged_padded} mask='causal' {sched='warpgroups=2,tile_n=32,pack=0,o_buffer=0,q_buffers=1',sched='warpgroups=2,tile_n=32,pack=1,o_buffer=0,q_buffers=2'} check=sequences"},
    {false, "a warp for K and one for V", SHORT90 "seq={padded,ragged,ragged_paged} mask={'causal','false','window(40, 3)'} {sched='warpgroups=1,tile_n=32,loaders=2',sched='warpgroups=2,tile_n=32,pack=0,scheduler=1,q_buffers=1,loaders=2'} check=reference"},
    {false, "any ring", SHORT90 "seq={ragged,ragged_paged} mask='causal' {sched='warpgroups=2,tile_n=32,stages=1,order=1,carry=1,q_buffers=2,o_buffer=1',sched='warpgroups=1,tile_n=32,stages=3,overlap=0,q_buffers=1',sched='warpgroups=2,tile_n=32,q_registers=1,p_shared=1,overlap=2'} check=sequences"},
    {false, "walks", SHORT90 "{seq=ragged sched='warpgroups=1,tile_n=16,pack=0',seq=ragged_paged page=16 sched='warpgroups=1,tile_n=32,pack=1',seq=padded sched='warpgroups=2,tile_n=16,scheduler=1,carry=1'} mask={'k < 4 or window(20, 0)','(q * 7 + k * 3) % 5 != 0','causal and not (k >= 20 and k < 90)','abs(q - k) <= 6 or hk == 1'} check=sequences"},
    {false, "masks know a sequence's lengths", SHORT90 TILE_32 "{seq=ragged,seq=ragged_paged page=8 table=csr align=top_left} mask={'k < len_k - 7','i >= len_q // 2 or k == 0','causal and q - k < head_w[h]','k // 16 <= q // 16','false'} check=sequences"},
    {false, "masks by residue, and that would take a map", SHORT90 TILE_32 "{seq=ragged,seq=ragged_paged page=16} mask={'causal and (q - k) % 3 == 0','same(doc)','keep[b, k] and causal','blocks[h, i // 16, k // 16]','bit(q, 2) + bit(k, 4) < 2'}"},
    {false, "scores know positions", SHORT90 TILE_32 "{seq=ragged,seq=ragged_paged page=16 order=hnd} {score='s + slope[h] * (k - q)' softcap=5,score='s + 0.01 * (q - len_k + 3 * i + len_q)',score='s + bias[h, i, k]'} sink=mixed outputs=all align={bottom_right,top_left} check=reference"},
    {false, "layouts", SHORT90 TILE_32 "{seq=ragged,seq=ragged_paged page=16,seq=padded} {q=padded o=padded,q=bhtd o=bhtd,k=heads0 v=heads0,v=mixed k=rows2,k=pitch1,o=inner2} mask='causal' check=reference"},
    {false, "batch mates", SHORT90 TILE_32 "{seq=padded,seq=ragged,seq=ragged_paged page=16,seq=paged page=8 table=csr order=hnd} mask='causal' check=batch_mates"},
    {false, "rows that see no key", SHORT90 TILE_32 "{seq=ragged,seq=ragged_paged page=16 table=csr} lk=40 lq=131 mask='causal' sink=normal outputs=all check=sequences"},
    {false, "all at their maxima", SHORT90 TILE_32 "lens=full {seq=padded,seq=ragged,seq=ragged_padded,seq=ragged_paged page=16,seq=paged page=64 table=csr} mask='causal' check=sequences"},
    {false, "what a call leaves in its workspace", SHORT90 WORKS " {seq=padded,seq=ragged,seq=ragged_paged page=16} mask='causal' check=repeat"},
    {false, "decode steps", MAPPED "dim=64 hq=4 hk=1 b=9 lq=1 lk=100 sched='warpgroups=1,tile_n=32' {seq=padded mask='true',seq=paged page=16 mask='window(60, 0)',seq=ragged_paged page=64 order=hnd table=csr mask='true'} check=sequences"},
    {false, "nothing", MAPPED "dim=16 {lq=0 lk=5,lq=5 lk=0,lq=0 lk=0} b=3 {seq=padded,seq=ragged,seq=ragged_padded,seq=paged,seq=ragged_paged table=csr} sink=normal outputs=all"},
};

/* Keys split over all blocks: parts of a row from several blocks and warps, several rows of tiles in one block's share, in
 * every layout. What a row's bits are depends on where it is split, so that these compare with the reference. */
#define BYTES "kv=e4m3 "
#define DECODE "family=attention_decode_sm80 "
static const row decode_rows[] = {
    {true, "one query", DECODE "dim={64,128} hq=8 hk={8,2,1} b=3 lq=1 lk={0,1,15,16,17,300,3000} mask='causal'"},
    {false, "one query", DECODE "dim={8,40,72,96,256} hq=8 hk=2 b=3 lq=1 lk={17,300} dtype={f16,bf16} mask='causal'"},
    {false, "keys and values of different dimensions", DECODE "dim=192 dimv=128 hq=4 hk=2 b=2 lq=1 lk=300 mask='causal'"},
    {false, "some queries", DECODE "dim=64 {hq=8 hk=2,hq=7 hk=1,hq=71 hk=1,hq=15 hk=5} b=2 lq={2,5,16,17,40} lk={40,333} mask='causal' outputs=all sink=mixed"},
    {false, "masks and scores", DECODE "dim=32 hq=8 hk=4 b=3 lq=3 lk=600 {mask='window(60, 0)',mask='window(3, 3)',mask='causal and q - k < head_w[h]',mask='k < len_k - 7',mask='false',score='s + slope[h] * (k - q)' softcap=5,score='s + bias[h, i, k]'} sink=mixed outputs=all"},
    {false, "several ranges of keys", DECODE "dim=32 hq=8 hk=2 b=3 lq={1,9} lk=600 {seq=dense,seq=ragged_paged page=16} {mask='k < 4 or window(20, 0)',mask='causal and not (k >= 20 and k < 90)',mask='k < 5 or window(head_w[h], 0)',mask='window(30, 0) or (k >= 100 and k < 120) or k < 3',mask='k < 2 or (k >= q - q % 5 * 9 and k <= q)'} sink=mixed outputs=all"},
    {false, "several ranges of keys, parts of them", DECODE "dim=32 hq=8 hk=2 b=3 lq=2 lk=1100 seq={padded,paged} mask='k < 300 or window(300, 0)' sched='split=256' check=sequences"},
    {false, "masks that only elements tell", DECODE "dim=32 hq=8 hk=2 b=3 lq={1,5} lk=600 {seq=dense,seq=ragged_paged page=16} mask={'(q * 7 + k * 3) % 5 != 0','(q - k) % 3 == 1 and abs(q - k) <= 200','causal and doc2[b, q] == doc2[b, k]','blocks[h, i // 16, k // 16]','k < len_k - len_q or bit(doc2[b, q], k % 32) == 1'} sink=mixed outputs=all"},
    {false, "layouts", DECODE "dim=64 hq=8 hk=2 b=3 lq=2 lk=200 {q=padded o=padded,q=bhtd o=bhtd,k=bhtd v=bhtd,k=heads0 v=heads0,v=mixed k=rows2,k=cache v=cache} mask='causal'"},
    {true, "sequences", DECODE "dim=64 hq=8 hk=2 b=7 lq=3 lk=300 {seq=padded,seq=ragged,seq=ragged_padded,seq=paged,seq=ragged_paged} lens={mixed,full} mask='causal' sink=mixed outputs=all"},
    {false, "sequences", DECODE "dim=64 hq=8 hk=2 b=16 lq=1 lk=130 {seq=padded,seq=ragged_paged page=16} mask='causal'"},
    {false, "pages", DECODE "dim={64,72} dimv=64 hq=4 hk=2 b=5 lq=1 lk=700 seq={paged,ragged_paged} {page=1,page=3 order=hnd table=csr,page=16 order=hnd,page=17,page=64 table=csr,page=256} mask='window(400, 0)'"},
    {false, "pages and wide slices", DECODE "dim=32 hq=4 hk=2 b=5 lq=2 lk=300 seq=ragged_paged {page=16 sched='tile_n=32',page=17 sched='tile_n=32',page=64 sched='tile_n=64'} mask='causal'"},
    {false, "schedules", DECODE "dim={32,64,128,256} hq=16 hk=4 b=3 lq={1,9} lk=333 mask='causal' check=schedules"},
    {false, "parts of so many keys, whatever the batch", DECODE "dim=64 hq=8 hk=2 b=5 lq=3 lk=700 sched='split=256' {seq=padded,seq=ragged,seq=ragged_paged page=16,seq=paged page=3 order=hnd} mask={'causal','window(400, 0)'} sink=mixed outputs=all check={sequences,batch_mates}"},
    {false, "parts of so many keys, whatever the batch", DECODE "dim=64 {hq=8 hk=2,hq=71 hk=1} b=3 lq={1,20} lk={700,1025} sched='split=512' mask='causal' check={reference,batch_mates}"},
    {false, "parts of so many keys, rows far apart", DECODE "dim=64 hq=8 hk=2 b=2 lq=8 lk=1500 sched='split=256' mask='abs(k - 100 * q) <= 5' align=top_left check=reference"},
    {false, "many parts", DECODE "dim=32 hq=16 hk=1 lq=1 lk={2304,4352,8448} mask='causal' outputs=all sched={'split=256,warps=4','split=256,merge=1'}"},
    {false, "a kernel behind", DECODE "dim=64 {hq=8 hk=2,hq=29 hk=1} b=3 lq={1,17} lk={17,2000} seq=padded mask='causal' sink=mixed outputs=all sched={'merge=1','merge=1,split=256'}"},
    {false, "rows of several warps", DECODE "dim={64,72,128} hq=8 hk=2 b=3 lq={5,9,17,40} lk=333 {seq=dense,seq=ragged_paged page=17} {mask='causal',mask='window(60, 0)' sink=mixed outputs=all}"},
    {false, "rows of several warps", DECODE "dim=32 hq=29 hk=1 b=2 lq=3 lk=400 {sched='tile_m=96,row_warps=3,warps=6',sched='tile_m=64,row_warps=2,warps=2,tile_n=32',sched='tile_m=128,row_warps=8,warps=8'} mask='causal'"},
    {false, "again", DECODE "dim=64 hq=8 hk=2 b=3 lq=1 lk=2000 mask='causal' check=repeat"},
    {false, "poison behind the tensors", DECODE "dim=64 hq=8 hk=2 b=3 lq=2 lk=77 mask='causal' check=guards"},
    {false, "keys no row sees", DECODE "dim=64 hq=4 hk=1 b=2 lq=1 lk=200 mask='window(60, 0)' check=invisible"},
    {true, "bytes", DECODE BYTES "dim={64,128} hq=8 hk=2 b=7 lq=3 lk=300 {seq=padded,seq=ragged_paged page=16 kv_scale=per_head} mask='causal'"},
    {false, "bytes", DECODE BYTES "dim={16,48,64,128,256} hq=8 hk=2 b=3 lq={1,5} lk={0,1,31,33,300} dtype={f16,bf16} kv_scale={none,per_head,per_tensor} mask='causal' sink=mixed outputs=all"},
    {false, "bytes, many queries", BYTES "dim={64,128} hq=8 hk=2 b=3 lq={17,70,200} lk=300 {seq=dense,seq=ragged_paged page=16} kv_scale=per_head mask={'causal','window(60, 0)'} sink=mixed outputs=all"},
    {false, "bytes, layouts", DECODE BYTES "dim=64 hq=8 hk=2 b=7 lq=3 lk=300 dtype={f16,bf16} {seq=padded,seq=ragged,seq=ragged_padded,seq=paged page=16,seq=ragged_paged page=16 order=hnd table=csr,seq=ragged_paged page=17} kv_scale={none,per_head} mask='causal' outputs=all"},
    {false, "bytes, layouts", DECODE BYTES "dim=64 hq=8 hk=2 b=3 lq=2 lk=200 {k=bhtd v=bhtd,k=heads0 v=heads0,k=cache v=cache} kv_scale=per_head mask='causal'"},
    {false, "bytes, keys and values of different dimensions", DECODE BYTES "{dim=192 dimv=128,dim=64 dimv=144,dim=80 dimv=16} hq=4 hk=2 b=2 lq=1 lk=300 kv_scale=per_head mask='causal'"},
    {false, "bytes, masks and scores", DECODE BYTES "dim=32 hq=8 hk=4 b=3 lq=3 lk=600 kv_scale=per_head {mask='window(60, 0)',mask='causal and q - k < head_w[h]',mask='false',score='s + slope[h] * (k - q)' softcap=5,score='s + bias[h, i, k]',softcap=1} sink=mixed outputs=all"},
    {false, "bytes, schedules", DECODE BYTES "dim={32,64,128,256} hq=16 hk=4 b=3 lq={1,9} lk=333 kv_scale=per_head mask='causal' check=schedules"},
    {false, "bytes, subnormal and great", DECODE BYTES "dim=64 hq=4 hk=2 b=2 lq=1 lk=300 {values=spikes,values=rising,values=strong,values=one_hot} kv_scale=per_head"},
    {false, "bytes by the textbook family", "family=attention_naive kv={e4m3,e5m2} dim={16,72} hq=4 hk=2 b=2 lq=5 lk=70 dtype={f16,bf16,f32} {seq=dense,seq=ragged_paged page=16} kv_scale={none,per_head,per_tensor} mask='causal' sink=mixed outputs=all"},
    {false, "scales of 16-bit keys", "{" DECODE "lk=300," "family=attention_naive lk=70} dim=64 hq=4 hk=2 b=2 lq=2 {seq=dense k=bhtd,seq=padded} kv_scale={per_head,per_tensor} softcap=5"},
    {false, "what takes no bytes says so", "{family=attention_forward_sm80 kv=e4m3,family=attention_forward_sm80 kv_scale=per_head," DECODE "kv=e4m3 dim=72," DECODE "kv=e5m2} hq=4 hk=2 lq=2 lk=33 expect=refusal"},
    {false, "nothing", DECODE "dim=16 {lq=0 lk=5,lq=5 lk=0,lq=0 lk=0} b=3 {seq=dense,seq=padded,seq=ragged,seq=paged} sink=normal outputs=all"},
};

/* The same by lanes: tiles of few rows, any format, a slice's keys among groups of lanes. */
#define SIMT "family=attention_decode_simt "
static const row lane_rows[] = {
    {true, "one or two rows", SIMT "{dim=64 hq=4 hk=4,dim=128 hq=4 hk=2} b=3 lq=1 lk={0,1,17,300,3000} mask='causal'"},
    {true, "f32", SIMT "dtype=f32 dim=64 hq=8 hk=2 b=7 lq=2 lk=300 {seq=padded,seq=ragged_paged page=16} mask='causal' sink=mixed outputs=all"},
    {false, "dimensions", SIMT "dim={8,16,40,72,96,192,256} hq=4 hk=2 b=2 lq=1 lk=300 dtype={f16,bf16,f32} mask='causal'"},
    {false, "wide rows", SIMT "{dim=320 dimv=256,dim=512 dimv=512,dim=576 dimv=512} hq=4 {hk=4,hk=1} b=2 lq={1,3} lk=70 dtype={bf16,f32} mask='causal'"},
    {false, "keys and values of different dimensions", SIMT "{dim=192 dimv=128,dim=64 dimv=144,dim=80 dimv=16} hq=4 hk=4 b=2 lq=1 lk=300 dtype={f16,f32} mask='causal'"},
    {false, "groups and queries", SIMT "dim=32 {hq=2 hk=2,hq=2 hk=1,hq=3 hk=1,hq=8 hk=2,hq=5 hk=1,hq=6 hk=1,hq=14 hk=2,hq=8 hk=1,hq=19 hk=1} b=2 {lq=1 lk=40,lq=2 lk=333,lq=4 lk=333} mask='causal' outputs=all sink=mixed"},
    {false, "tiles that end within a query", SIMT "dim=32 {hq=4 hk=1,hq=6 hk=2,hq=10 hk=2} b=2 lq={3,9} lk=200 {sched='tile_m=2',sched='tile_m=3',sched='tile_m=5'} mask='window(60, 0)'"},
    {false, "masks and scores", SIMT "dim=32 hq=4 hk=2 b=3 lq=3 lk=600 {mask='window(60, 0)',mask='window(3, 3)',mask='causal and q - k < head_w[h]',mask='k < len_k - 7',mask='false',score='s + slope[h] * (k - q)' softcap=5,score='s + bias[h, i, k]',score='s + 0.01 * (q - len_k + 3 * i + len_q)',score='s + key_bias[h, k] * (b + 1)'} dtype={bf16,f32} sink=mixed outputs=all"},
    {false, "positions from the top", SIMT "dim=32 hq=4 hk=2 b=3 lq=3 lk=300 seq={dense,ragged} mask={'causal','window(60, 3)'} align=top_left outputs=all"},
    {false, "masks that only elements tell", SIMT "dim=32 hq=4 hk=2 b=3 lq={1,5} lk=600 {seq=dense,seq=ragged_paged page=16} mask={'(q * 7 + k * 3) % 5 != 0','(q - k) % 3 == 1 and abs(q - k) <= 200','causal and doc2[b, q] == doc2[b, k]','blocks[h, i // 16, k // 16]','k < len_k - len_q or bit(doc2[b, q], k % 32) == 1'} sink=mixed outputs=all"},
    {false, "layouts", SIMT "dim=64 hq=4 hk=2 b=3 lq=2 lk=200 dtype={f16,f32} {q=padded o=padded,q=bhtd o=bhtd,k=bhtd v=bhtd,k=heads0 v=heads0,v=mixed k=rows2,k=cache v=cache} mask='causal'"},
    {false, "sequences", SIMT "dim=64 hq=4 hk=2 b=7 lq=3 lk=300 dtype={bf16,f32} {seq=padded,seq=ragged,seq=ragged_padded,seq=paged,seq=ragged_paged} lens={mixed,full} mask='causal' sink=mixed outputs=all"},
    {false, "pages", SIMT "dim=72 dimv=64 hq=4 hk=2 b=5 lq=1 lk=700 seq={paged,ragged_paged} {page=1,page=3 order=hnd table=csr,page=16 order=hnd,page=17,page=64 table=csr,page=256} mask='window(400, 0)'"},
    {false, "pages and wide slices", SIMT "dim=32 hq=4 hk=2 b=5 lq=2 lk=300 seq=ragged_paged {page=16 sched='lanes=8,keys=8',page=17 sched='lanes=2,keys=2',page=64 sched='lanes=4,keys=8',page=256 sched='lanes=2,keys=8'} mask='causal'"},
    {false, "schedules", SIMT "{dim=32 dtype=f32,dim=128 dtype=f32,dim=64 dtype=bf16,dim=256 dtype=f16} hq=4 hk=2 b=3 lq={1,3} lk=333 mask='causal' check=schedules"},
    {false, "several ranges of keys", SIMT "dim=32 hq=4 hk=2 b=3 lq=3 lk=600 {seq=dense,seq=ragged_paged page=16} {mask='k < 4 or window(20, 0)',mask='causal and not (k >= 20 and k < 90)',mask='k < 5 or window(head_w[h], 0)',mask='window(30, 0) or (k >= 100 and k < 120) or k < 3',mask='k < 2 or (k >= q - q % 5 * 9 and k <= q)'} sink=mixed outputs=all"},
    {false, "several ranges of keys, parts of them", SIMT "dim=32 hq=2 hk=1 b=3 lq=2 lk=1100 seq={padded,paged} mask='k < 300 or window(300, 0)' sched='split=256,keys=2' check=sequences"},
    {false, "several ranges of keys that no row sees", SIMT "dim=32 hq=2 hk=1 b=2 lq=1 lk=400 mask='k < 4 or window(60, 0)' check=invisible"},
    {false, "parts of so many keys, whatever the batch", SIMT "dim=64 hq=6 hk=2 b=5 lq=3 lk=700 sched='split=256,tile_m=5,keys=2' dtype={bf16,f32} {seq=padded,seq=ragged_paged page=16,seq=paged page=3 order=hnd} mask={'causal','window(400, 0)'} sink=mixed outputs=all check={sequences,batch_mates}"},
    {false, "parts of so many keys, whatever the batch", SIMT "dim=64 hq=7 hk=1 b=3 lq={1,4} lk={700,1025} {sched='split=512,tile_m=2',sched='split=512,tile_m=8'} mask='causal' check={reference,batch_mates}"},
    {false, "many parts", SIMT "dim=32 hq=16 hk=1 lq=1 lk={2304,4352,8448} mask='causal' outputs=all sched={'split=256,blocks=1','split=256,merge=1'}"},
    {false, "again", SIMT "dim=64 hq=4 hk=4 b=3 lq=1 lk=2000 dtype={f16,f32} mask='causal' check=repeat"},
    {false, "poison behind the tensors", SIMT "dim={64,72} hq=4 hk=2 b=3 lq=2 lk=77 dtype={f16,f32} mask='causal' check=guards"},
    {false, "keys no row sees", SIMT "dim=64 hq=4 hk=2 b=2 lq=1 lk=200 dtype={f16,f32} mask='window(60, 0)' check=invisible"},
    {false, "great scores", SIMT "dim=64 hq=4 hk=2 b=2 lq=1 lk=300 dtype={bf16,f32} {values=spikes,values=rising,values=strong,values=one_hot} outputs=all"},
    {false, "bytes", SIMT "kv={e4m3,e5m2} dim={16,48,128} hq=4 hk=2 b=3 lq=2 lk={0,31,300} dtype={bf16,f32} kv_scale={none,per_head} mask='causal' sink=mixed outputs=all"},
    {false, "bytes", SIMT "kv={e4m3,e5m2} dim={64,256} hq=4 hk=4 b=3 lq=1 lk={1,200} dtype=f16 kv_scale=per_tensor mask='causal'"},
    {false, "bytes, layouts", SIMT "kv={e4m3,e5m2} dim=64 hq=4 hk=2 b=7 lq=2 lk=300 {seq=padded,seq=ragged,seq=paged page=16,seq=ragged_paged page=16 order=hnd table=csr,seq=ragged_paged page=1} kv_scale=per_head mask='causal' outputs=all"},
    {false, "a kernel behind", SIMT "dim=64 {hq=4 hk=4,hq=9 hk=1} b=3 lq=2 lk={1,2000} seq=padded mask='causal' outputs=all sched={'merge=1','merge=1,split=256'}"},
    {false, "bytes, schedules", SIMT "kv=e4m3 dim={64,128} hq=4 hk=2 b=3 lq=2 lk=333 kv_scale=per_head mask='causal' check=schedules"},
    {false, "queries wider than keys", SIMT "dtype=f32 kv={bf16,f16} dim={40,128} hq=4 hk=2 b=2 lq=2 lk=200 mask='causal' outputs=all"},
    {false, "what is not taken", SIMT "{kv=e4m3 dim=72,dtype=f16 kv=f32 dim=64,dim=64 mask='causal and (q - k) % 4 == 0'} hq=4 hk=2 lq=2 lk=33 expect=refusal"},
    {false, "nothing", SIMT "dim=16 {lq=0 lk=5,lq=5 lk=0,lq=0 lk=0} b=3 {seq=dense,seq=padded,seq=ragged,seq=paged} sink=normal outputs=all"},
};

/* The same by wgmma with keys as its rows: tiles of an odd and an even number of 8 rows, panels that the dimensions fill
 * and do not, one to three warpgroups that take slices in turn, rings of two slices and more. For sm_90a. */
#define DECODE90 "family=attention_decode_sm90 "
static const row decode90_rows[] = {
    {true, "one query", DECODE90 "dim={64,128} hq=8 hk={8,2,1} b=3 lq=1 lk={0,1,15,16,17,300,3000} mask='causal'"},
    {false, "one query", DECODE90 "dim={8,16,24,40,72,96,120,200,256} hq=8 hk=2 b=3 lq=1 lk={17,300} dtype={f16,bf16} mask='causal'"},
    {false, "every group", DECODE90 "hq={1,2,3,5,7,8,9,12,16,17,24,29,40,64,71} hk=1 dim={64,128} lq=1 lk=333"},
    {false, "large groups", DECODE90 "{hq=71 hk=1,hq=142 hk=2,hq=128 hk=1,hq=96 hk=1 dtype=f16} dim={32,128,256} b=2 lq={1,3} lk=333 mask='causal' sink=mixed outputs=all"},
    {false, "keys and values of different dimensions", DECODE90 "{dim=192 dimv=128,dim=64 dimv=144,dim=80 dimv=16,dim=24 dimv=200} hq=4 hk=2 b=2 lq=1 lk=300 mask='causal'"},
    {false, "some queries", DECODE90 "dim=64 {hq=8 hk=2,hq=7 hk=1,hq=71 hk=1,hq=15 hk=5} b=2 lq={2,5,8,16,17,40} lk={40,333} mask='causal' outputs=all sink=mixed"},
    {false, "masks and scores", DECODE90 "dim=32 {hq=8 hk=4,hq=71 hk=1 sched='tile_n=64'} b=3 lq=3 lk=600 {mask='window(60, 0)',mask='window(3, 3)',mask='causal and q - k < head_w[h]',mask='k < len_k - 7',mask='k // 16 <= q // 16',mask='false',score='s + slope[h] * (k - q)' softcap=5,score='s + bias[h, i, k]',score='s + 0.01 * (q - len_k + 3 * i + len_q)'} sink=mixed outputs=all align={bottom_right,top_left}"},
    {false, "values that move references", DECODE90 "dim=64 {hq=8 hk=2,hq=71 hk=1} lq=2 lk=700 values={spikes,rising,huge,minus_huge,minus_6e4,strong} {mask='causal',score='s - 1',softcap=30,sched='slack=0'}"},
    {false, "masks that only elements tell", DECODE90 "dim=64 {hq=8 hk=2,hq=71 hk=1} b=3 lq={1,5} lk=600 {seq=dense,seq=ragged_paged page=16} mask={'(q * 7 + k * 3) % 5 != 0','(q - k) % 3 == 1 and abs(q - k) <= 200','causal and doc2[b, q] == doc2[b, k]','blocks[h, i // 16, k // 16]','k < len_k - len_q or bit(doc2[b, q], k % 32) == 1'} sink=mixed outputs=all"},
    {false, "layouts", DECODE90 "dim=64 hq=8 hk=2 b=3 lq=2 lk=200 {q=padded o=padded,q=bhtd o=bhtd,k=bhtd v=bhtd,k=heads0 v=heads0,v=mixed k=rows2,k=cache v=cache} mask='causal'"},
    {true, "sequences", DECODE90 "dim=64 hq=8 hk=2 b=7 lq=3 lk=300 {seq=padded,seq=ragged,seq=ragged_padded,seq=paged,seq=ragged_paged} lens={mixed,full} mask='causal' sink=mixed outputs=all"},
    {false, "sequences", DECODE90 "dim=64 {hq=8 hk=2,hq=71 hk=1} b=16 lq=1 lk=130 {seq=padded,seq=ragged_paged page=16} mask='causal'"},
    {false, "pages", DECODE90 "{dim=64 seq=paged sched='tile_n=64',dim=72 dimv=64 seq=ragged_paged sched='tile_n=128'} hq=4 hk=2 b=5 lq=1 lk=700 {page=1,page=3 order=hnd table=csr,page=16 order=hnd,page=17,page=64 table=csr,page=128,page=256} mask='window(400, 0)'"},
    {false, "schedules", DECODE90 "dim=64 hq=16 hk=4 b=3 lq={1,9} lk=333 mask='causal' sched={'tile_m=8,tile_n=64,warpgroups=1,stages=2','tile_m=24,tile_n=128,warpgroups=2,stages=3','tile_m=40,tile_n=64,warpgroups=3,stages=12','tile_m=128,tile_n=64,warpgroups=1,stages=4,together=4'}"},
    {false, "schedules", DECODE90 "dim=128 hq=71 hk=1 b=3 lq=1 lk=1333 seq=ragged_paged page=16 mask='causal' sched={'tile_m=72,tile_n=64,warpgroups=2,stages=2','tile_m=40,tile_n=128,warpgroups=1,stages=3','tile_m=16,tile_n=64,warpgroups=3,stages=5'}"},
    {false, "parts of so many keys, whatever the batch", DECODE90 "dim=64 hq=8 hk=2 b=5 lq=3 lk=700 sched='split=256' {seq=padded,seq=ragged,seq=ragged_paged page=16,seq=paged page=3 order=hnd} mask={'causal','window(400, 0)'} sink=mixed outputs=all check={sequences,batch_mates}"},
    {false, "parts of so many keys, whatever the batch", DECODE90 "dim=64 {hq=8 hk=2,hq=71 hk=1} b=3 lq={1,20} lk={700,1025} sched='split=512' mask='causal' check={reference,batch_mates}"},
    {false, "parts of so many keys, rows far apart", DECODE90 "dim=64 {hq=8 hk=2 sched='split=256',hq=12 hk=1 sched='split=256,tile_m=8',hq=16 hk=1 sched='split=256,tile_m=8'} b=2 lq=8 lk=1500 mask='abs(k - 100 * q) <= 5' align=top_left check=reference"},
    {false, "many parts", DECODE90 "dim=32 hq=16 hk=1 lq=1 lk={2304,4352,8448} mask='causal' outputs=all sched={'split=256,tile_m=16','split=256,merge=1'}"},
    {false, "scales", DECODE90 "dim=64 hq=4 hk=2 b=2 lq=2 lk=300 {seq=dense k=bhtd,seq=padded} kv_scale={per_head,per_tensor} softcap=5"},
    {false, "again", DECODE90 "dim=64 hq=8 hk=2 b=3 lq=1 lk=2000 mask='causal' check=repeat"},
    {false, "poison behind the tensors", DECODE90 "dim={64,72} hq=8 hk=2 b=3 lq=2 lk=77 mask='causal' check=guards"},
    {false, "keys no row sees", DECODE90 "dim=64 hq=4 hk=1 b=2 lq=1 lk=200 mask='window(60, 0)' check=invisible"},
    {false, "masks whose keys are several ranges", DECODE90 "dim=64 {hq=8 hk=2,hq=71 hk=1} b=3 lq=3 lk=900 {seq=dense,seq=ragged_paged page=16} mask={'k < 4 or window(60, 0)','causal and not (k >= 100 and k < 300)'} sink=mixed outputs=all"},
    {true, "clusters", DECODE90 "dim={64,128} hq=8 hk={8,1} b=3 lq=1 lk={1,1300} mask='causal' sched='merge=2'"},
    {false, "clusters", DECODE90 "{dim=64 lk=17,dim=72 lk=700,dim=200 lk=700} hq=8 hk=2 b=2 lq=1 mask='causal' sink=mixed outputs=all sched={'merge=4','merge=4,warpgroups=1'}"},
    {false, "large clusters", DECODE90 "dim=64 hq=8 hk=2 lq=1 lk=2100 sched={'merge=8,warpgroups=1','merge=16,warpgroups=1'}"},
    {false, "clusters, rows in several rounds", DECODE90 "{dim=32 lq=3,dim=128 lq=1} {hq=71 hk=1,hq=18 hk=2} b=2 lk=333 mask='causal' sink=mixed outputs=all sched='merge=2'"},
    {false, "clusters, more works than places", DECODE90 "dim=64 hq=8 hk=8 b=3 lq=3 lk=333 mask='window(200, 0)' sched={'merge=4','merge=2,stages=2,warpgroups=1'}"},
    {false, "clusters, sequences", DECODE90 "dim=64 hq=8 hk=2 b=7 lq=3 lk=300 {seq=padded,seq=ragged,seq=ragged_paged page=3 order=hnd} mask='k < 4 or window(60, 0)' sched='merge=2' check={sequences,batch_mates}"},
    {false, "a kernel behind", DECODE90 "dim=64 hq=8 hk={8,1} b=3 lq=1 lk={1,2000} mask='causal' sink=mixed outputs=all sched={'merge=1','merge=1,split=256'}"},
    {false, "a kernel behind", DECODE90 "dim=64 {hq=71 hk=1 lq=3,hq=18 hk=2 lq=20} b=2 lk=700 mask='causal' sched={'merge=1','merge=1,split=256'}"},
    {false, "a kernel behind, sequences", DECODE90 "dim=64 hq=8 hk=2 b=7 lq=3 lk=300 {seq=padded,seq=ragged_paged page=3} mask={'causal','causal and q - k < head_w[h]'} sched='merge=1,together=1'"},
    {false, "a kernel behind, parts of so many keys", DECODE90 "dim=64 hq=8 hk=2 b=5 lq=3 lk=700 sched='merge=1,split=256' {seq=padded,seq=ragged_paged page=16} mask='causal' check={sequences,batch_mates}"},
    {false, "a kernel behind, again", DECODE90 "dim=64 hq=8 hk=2 b=3 lq=1 lk=2000 mask='causal' {sched='merge=1',sched='merge=2'} check=repeat"},
    {false, "lanes, clusters", "family=attention_decode_simt dim=64 {hq=8 hk=8,hq=4 hk=1,hq=9 hk=1} b=2 lq=2 lk=333 dtype={bf16,f32} mask='causal' outputs=all sched={'merge=2','merge=4,warps=2','merge=16,warps=1'}"},
    {false, "lanes, clusters, sequences", "family=attention_decode_simt dim=64 hq=2 hk=2 b=7 lq=2 lk=300 {seq=padded,seq=ragged_paged page=3} lens=mixed mask='causal' kv=e4m3 sched='merge=2' check={sequences,batch_mates}"},
    {false, "what it refuses", DECODE90 "{kv=e4m3,mask='causal and (q - k) % 4 == 0'} dim=64 hq=4 hk=2 lq=2 lk=33 expect=refusal"},
    {false, "nothing", DECODE90 "dim=16 {lq=0 lk=5,lq=5 lk=0,lq=0 lk=0} b=3 {seq=dense,seq=padded,seq=ragged,seq=paged} sink=normal outputs=all"},
};

bool set_build(const char *name, const char *device, uint64_t seed, case_list *out) {
  bool is = true, full = strcmp(name, "full") == 0, gpu = strncmp(device, "cuda", 4) == 0,
       tiny = strcmp(device, "emu") == 0;
  int missed = 0;
  if (strcmp(name, "quick") == 0) {
    grid_build(true, 20, 4, seed, out);
    ADD(hard_rows, true);
    ADD(invariance_rows, true);
    ADD(residue_rows, true);
    ADD(decode_rows, true);
    ADD(lane_rows, true);
  } else if (strcmp(name, "sequences") == 0) {
    ADD(sequence_rows, false);
  } else if (strcmp(name, "sequences90") == 0) {
    ADD(sequence90_rows, false);
  } else if (strcmp(name, "decode") == 0) {
    ADD(decode_rows, false);
    ADD(lane_rows, false);
  } else if (strcmp(name, "decode90") == 0) {
    ADD(decode90_rows, false);
  } else if (strcmp(name, "walks") == 0) {
    ADD(walks_rows, false);
  } else if (strcmp(name, "plans") == 0) {
    ADD(plans_rows, false);
  } else if (strcmp(name, "packed") == 0) {
    ADD(packed_rows, false);
  } else if (strcmp(name, "residues") == 0) {
    ADD(residue_rows, false);
  } else if (strcmp(name, "residues90") == 0) {
    ADD(residue90_rows, false);
  } else if (strcmp(name, "sensitivity") == 0) {
    ADD(sensitivity_rows, false);
  } else if (strcmp(name, "orders") == 0) {
    ADD(orders_rows, false);
  } else if (!full && strcmp(name, "grid") != 0 && strcmp(name, "invariance") != 0 && strcmp(name, "hard") != 0 &&
             strcmp(name, "large") != 0) {
    is = false;
  }
  if (full || strcmp(name, "grid") == 0)
    missed = grid_build(tiny, tiny ? 60 : 250, 4, seed, out);
  if (full || strcmp(name, "invariance") == 0)
    ADD(invariance_rows, false);
  if (full || strcmp(name, "hard") == 0)
    ADD(hard_rows, false);
  if (full)
    ADD(walks_rows, false), ADD(plans_rows, false), ADD(residue_rows, false), ADD(sequence_rows, false), ADD(decode_rows, false), ADD(lane_rows, false);
  if (gpu && (full || strcmp(name, "large") == 0))
    ADD(large_rows, false);
  if (missed > 0)
    fprintf(stderr, "conformance: the grid misses %d values of its axes\n", missed);
  return is;
}
