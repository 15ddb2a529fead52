/* Training data: text, whose bytes are the tokens, or tokens of 16 bits. */
#ifndef GPT_DATASET_H
#define GPT_DATASET_H

#include <weft/base.h>

struct weft_gpt_dataset {
  const struct weft_allocator *allocator;
  uint8_t *bytes;       /* of all tokens */
  uint32_t token_bytes; /* 0: 1 */
  uint64_t size;        /* in tokens */
  uint64_t capacity;    /* in bytes */
  uint64_t train_size;  /* the first 9/10 train, the rest validates */
  uint64_t hash;        /* of all bytes: a resumed run must see the same */
};

/* Reads files and, for a folder, the text files under it in order of name (C sources,
 * headers, Markdown, text; hidden ones and build folders left out). WEFT_ERR_MISSING, WEFT_ERR_IO;
 * WEFT_ERR_USAGE when there is less than `least` bytes for either part. */
enum weft_status weft_gpt_dataset_read(struct weft_gpt_dataset *dataset,
                                       const struct weft_allocator *allocator,
                                       const char *const *paths, uint32_t path_count,
                                       uint64_t least, struct weft_error *error);
/* Reads files of tokens, unsigned numbers of 16 bits in the order of x86, as nanoGPT writes them;
 * a header of llm.c's files is left out. WEFT_ERR_FORMAT: an odd size, or a token that is not in
 * the vocabulary; else as above. */
enum weft_status weft_gpt_dataset_read_tokens(struct weft_gpt_dataset *dataset,
                                              const struct weft_allocator *allocator,
                                              const char *const *paths, uint32_t path_count,
                                              uint32_t vocabulary, uint64_t least,
                                              struct weft_error *error);
/* So many tokens, drawn from the seed: for benchmarks. */
enum weft_status weft_gpt_dataset_draw(struct weft_gpt_dataset *dataset,
                                       const struct weft_allocator *allocator, uint64_t seed,
                                       uint32_t vocabulary, uint64_t size,
                                       struct weft_error *error);
void weft_gpt_dataset_finish(struct weft_gpt_dataset *dataset);

/* `rows` sequences of `tokens` tokens and, one further, their targets: the position of row k of
 * step n depends on (seed, n, k) alone. */
void weft_gpt_dataset_batch(const struct weft_gpt_dataset *dataset, bool validation, uint64_t seed,
                            uint64_t step, uint64_t rows, uint64_t tokens,
                            void *inputs /* [rows][tokens] */, void *targets);
/* The same with targets[ahead]: one token further, two, and so on. Rows are those of one target,
 * but for one at the very end of the data. */
void weft_gpt_dataset_batch_ahead(const struct weft_gpt_dataset *dataset, bool validation,
                                  uint64_t seed, uint64_t step, uint64_t rows, uint64_t tokens,
                                  uint32_t ahead, void *inputs, void *const *targets);

/* The unigram baseline: the entropy of single tokens over the training part, in nats, which is the
 * loss of a model that knows only their frequencies. NAN: no memory. */
double weft_gpt_dataset_unigram_loss(const struct weft_gpt_dataset *dataset);

#endif
