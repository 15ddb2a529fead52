/* The product of small tiles, for which sgemm spends most of its time on packing: operands are
 * read in place, with any stride, and only as far as a tile on or below the diagonal needs. */
#ifndef GPT_GEMM_TILE_H
#define GPT_GEMM_TILE_H

#include <stdbool.h>
#include <stdint.h>

/* Of attention: queries, and keys; and rows that are taken together on the diagonal. */
#define WEFT_GPT_TILE 64
#define WEFT_GPT_TILE_GROUP 16

struct weft_gpt_gemm_tile {
  const float *a; /* element (i, k) at a[i a_row + k a_step]; one of the two is 1 */
  uint64_t a_row, a_step;
  const float *b; /* element (k, j) at b[k b_step + j] */
  uint64_t b_step;
  float *c; /* element (i, j) at c[i c_row + j] */
  uint64_t c_row;
};

/* c[rows, columns] = a[rows, depth] b[depth, columns], or that is added to c. */
void weft_gpt_gemm_tile_run(const struct weft_gpt_gemm_tile *tile, uint64_t rows, uint64_t columns,
                            uint64_t depth, bool add);

#endif
