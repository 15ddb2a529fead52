/* What is asked of OpenBLAS besides products: its threads, and whether it knows the
 * processor it runs on. */
#include <cblas.h>
#include <stddef.h>
#include <string.h>

#include "trainer/kernels/kernels.h"
#include "trainer/kernels/simd.h"

void weft_gpt_set_blas_threads(int count) { openblas_set_num_threads(count); }

/* Whether these are kernels for AVX2 or better. */
static bool is_wide(const char *core) {
  static const char *const wide[] = {"Haswell",  "Zen",        "Excavator",
                                     "SkylakeX", "Cooperlake", "SapphireRapids"};
  for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
    if (strcmp(core, wide[i]) == 0) {
      return true;
    }
  }
  return false;
}

const char *weft_gpt_blas_core_wanted(void) {
#ifdef __x86_64__
  if (is_wide(openblas_get_corename())) {
    return NULL;
  }
  if (weft_gpt_has_avx512()) {
    return "SkylakeX";
  }
  return weft_gpt_has_avx2() ? "Haswell" : NULL;
#else
  return NULL;
#endif
}
