/* Text that a model writes, for `weft sample` and for the end of `weft train`. */
#ifndef GPT_SAMPLE_TEXT_H
#define GPT_SAMPLE_TEXT_H

#include "cli/cli.h"
#include "trainer/infer/sampler.h"

/* Where OpenBLAS does not know the processor it chooses kernels that are several times too slow;
 * then the program starts again with the right ones. */
void weft_train_choose_kernels(const struct weft_cli *cli);

/* Appends what the model writes after the prompt, byte for byte. layers[] are all of
 * the model. WEFT_CLI_OK, or another exit status after printing why. A signal ends
 * it early, without failure. */
int weft_train_sample(const struct weft_cli *cli, const struct weft_gpt_config *config,
                      const struct weft_gpt_layer_state *layers,
                      struct weft_gpt_sample_options options, struct weft_text *text);

/* Appends it as readable text: line breaks and tabs stay, other control bytes and invalid UTF-8
 * become \xNN. */
void weft_train_add_printable(struct weft_text *text, const char *data, size_t size);

#endif
